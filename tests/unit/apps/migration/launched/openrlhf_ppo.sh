ray job submit --address="http://127.0.0.1:8265" --runtime-env-json='{"working_dir": "/app"}' \
   -- python3 -m openrlhf.cli.train_ppo_ray \
   --actor.num_nodes 1 --actor.num_gpus_per_node 4 --vllm.num_engines 2 --vllm.gpu_memory_utilization 0.6 \
   --actor.model_name_or_path Qwen/Qwen2.5-1.5B-Instruct \
   --reward.model_name_or_path some/rm \
   --ckpt.output_dir out/ppo \
   --train.batch_size 64 --rollout.batch_size 128 --rollout.n_samples_per_prompt 2 --rollout.max_new_tokens 512 \
   --train.max_epochs 2 --data.max_len 1536 --ds.param_dtype bf16 \
   --actor.adam.lr 5e-7 --critic.adam.lr 9e-6 --algo.kl.init_coef 0.02 --algo.advantage.lambd 0.95 \
   --data.prompt_dataset prompts.jsonl --data.input_key question --reward.normalize_enable
