deepspeed --module openrlhf.cli.train_rm \
   --save_path ./out/rm --logging_steps 1 --eval_steps 50 --train_batch_size 256 --micro_train_batch_size 2 \
   --pretrain Qwen/Qwen2.5-0.5B-Instruct --bf16 --max_epochs 1 --max_len 2048 --zero_stage 3 --learning_rate 9e-6 \
   --dataset rows/a.jsonl,rows/b.jsonl --dataset_probs 0.7,0.3 --chosen_key good --rejected_key bad \
   --apply_chat_template --gradient_checkpointing --flash_attn --use_wandb True --wandb_project judges
