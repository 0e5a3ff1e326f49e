set -x
read -r -d '' training_commands <<EOF
openrlhf.cli.train_sft \
   --data.max_len 4096 \
   --data.dataset Open-Orca/SlimOrca \
   --data.input_key question \
   --data.output_key response \
   --train.batch_size 64 \
   --train.micro_batch_size 4 \
   --data.max_samples 20000 \
   --model.model_name_or_path Qwen/Qwen2.5-1.5B \
   --ckpt.output_dir ./out/sft \
   --ckpt.save_steps -1 \
   --ds.zero_stage 2 \
   --train.max_epochs 1 \
   --ds.packing_samples \
   --ds.param_dtype bf16 \
   --adam.lr 1e-5 \
   --ds.lora.rank 8
EOF
if [[ ${1} != "slurm" ]]; then
    deepspeed --module $training_commands
fi
