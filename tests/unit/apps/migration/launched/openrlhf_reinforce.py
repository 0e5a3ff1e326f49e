"""Launches OpenRLHF from Python."""

import subprocess

STEPS = 32
subprocess.run(
    [
        "python3",
        "-m",
        "openrlhf.cli.train_ppo_ray",
        "--actor.model_name_or_path",
        "Qwen/Qwen2.5-1.5B",
        "--reward.remote_url",
        "/code/reward_func.py",
        "--algo.advantage.estimator",
        "reinforce_baseline",
        "--actor.eps_clip_low_high",
        "0.2",
        "0.3",
        "--rollout.n_samples_per_prompt",
        "4",
        "--rollout.batch_size",
        STEPS * 4,
        "--train.batch_size",
        "128",
        "--algo.kl.use_loss",
        "--algo.kl.estimator",
        "k2",
        "--rollout.max_new_tokens",
        "1024",
        "--data.prompt_dataset",
        "maths.jsonl",
        "--train.async_enable",
    ],
    check=True,
)
