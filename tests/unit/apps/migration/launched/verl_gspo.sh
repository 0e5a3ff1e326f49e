if [ "$1" = big ]; then model=Qwen/Qwen3-30B-A3B; else model=Qwen/Qwen3-4B; fi
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.policy_loss.loss_mode=gspo \
    actor_rollout_ref.model.path=$model data.train_files=p.parquet data.train_batch_size=32 \
    actor_rollout_ref.rollout.n=4 actor_rollout_ref.actor.ppo_mini_batch_size=32 \
    actor_rollout_ref.actor.clip_ratio_low=3e-4 actor_rollout_ref.actor.clip_ratio_high=4e-4 \
    +actor_rollout_ref.actor.something.new=1
