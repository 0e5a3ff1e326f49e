ARGS=(
    algorithm.adv_estimator=gae
    algorithm.lam=0.95
    algorithm.use_kl_in_reward=True
    algorithm.kl_ctrl.kl_coef=0.005
)
python3 -m verl.trainer.main_ppo "${ARGS[@]}" \
    data.train_files=prompts.parquet data.train_batch_size=256 \
    actor_rollout_ref.model.path="$HOME/models/base" \
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \
    critic.model.path=Qwen/Qwen2.5-0.5B critic.optim.lr=2e-5 \
    reward_model.enable=True reward_model.model.path=some/rm \
    trainer.critic_warmup=3 trainer.total_epochs=2 trainer.save_freq=10
