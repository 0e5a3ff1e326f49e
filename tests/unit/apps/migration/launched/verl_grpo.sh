set -x
project=maths
n=8
max_prompt=$((1024))
max_response=$((1024 * 2))

python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    data.train_files="['rows/a.parquet', 'rows/b.parquet']" \
    data.val_files=rows/test.parquet \
    data.train_batch_size=128 \
    data.max_prompt_length=${max_prompt} \
    data.max_response_length=${max_response} \
    data.truncation='error' \
    actor_rollout_ref.model.path=Qwen/Qwen2.5-3B-Instruct \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.ppo_mini_batch_size=32 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \
    actor_rollout_ref.actor.use_kl_loss=True \
    actor_rollout_ref.actor.kl_loss_coef=0.002 \
    actor_rollout_ref.actor.kl_loss_type=low_var_kl \
    actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.n=$n \
    actor_rollout_ref.ref.fsdp_config.param_offload=True \
    custom_reward_function.path=/code/judge.py \
    trainer.logger='["console","wandb"]' \
    trainer.project_name=$project \
    trainer.n_gpus_per_node=8 \
    trainer.test_freq=5 \
    trainer.total_training_steps=100 \
    trainer.total_epochs=15 $@
