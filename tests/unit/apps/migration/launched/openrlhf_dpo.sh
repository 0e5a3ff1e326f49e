deepspeed --module openrlhf.cli.train_dpo \
   --ckpt.output_dir ./out/dpo \
   --train.batch_size 128 --train.micro_batch_size 1 \
   --model.model_name_or_path Qwen/Qwen2.5-1.5B-Instruct \
   --ref.model_name_or_path Qwen/Qwen2.5-1.5B-Instruct \
   --data.max_len 4096 --ds.zero_stage 3 --ds.adam_offload \
   --adam.lr 5e-7 --model.beta 0.05 --model.label_smoothing 0.1 --model.nll_loss_coef 0.2 \
   --data.dataset pairs.jsonl --data.apply_chat_template
