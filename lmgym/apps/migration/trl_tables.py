"""The defaults of TRL's trainers, and settings of theirs that are no flags.

Defaults are those of TRL 1.16 (ORPO and CPO: of trl.experimental; PPO: of trl.experimental.ppo as it was; old PPO: of
0.11) where lmgym's differ. Names are in lmgym/runs/other_names.
"""

from typing import Any

STAGES = {
    "reward": "reward",
    "sft": "sft",
    **dict.fromkeys(("dpo", "kto", "orpo", "cpo"), "preference"),
    **dict.fromkeys(("grpo", "rloo", "ppo"), "ppo"),
}
"""of `lmgym train`, by kind of trainer"""
WORDS = {kind: kind for kind in STAGES} | {"orpo": "dpo", "cpo": "dpo"}
"""after `lmgym train`"""
ON_PROMPTS = {kind for kind, stage in STAGES.items() if stage == "ppo"}

_OF_ALL: dict[str, Any] = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "num_train_epochs": 3,
    "lr_scheduler_type": "linear",
    "warmup_steps": 0,
}
_PREFERENCE: dict[str, Any] = {"learning_rate": 1e-6, "max_length": 1024, "beta": 0.1, **_OF_ALL}
_GROUPS: dict[str, Any] = {
    "learning_rate": 1e-6,
    "max_completion_length": 512,
    "temperature": 1.0,
    "num_iterations": 1,
    "epsilon": 0.2,
    **_OF_ALL,
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "reward": {"learning_rate": 1e-4, "max_length": 1024, **_OF_ALL},
    "sft": {"learning_rate": 2e-5, "max_length": 1024, **_OF_ALL},
    "dpo": {"loss_type": "sigmoid", **_PREFERENCE},
    "kto": {"loss_type": "kto", **_PREFERENCE},
    "orpo": _PREFERENCE,
    "cpo": {"loss_type": "sigmoid", "cpo_alpha": 1.0, "simpo_gamma": 0.5, **_PREFERENCE},
    "grpo": {"num_generations": 8, "beta": 0.0, "scale_rewards": "group", "loss_type": "dapo", **_GROUPS},
    "rloo": {"num_generations": 2, "beta": 0.05, **_GROUPS},
    "ppo": {
        "learning_rate": 3e-6,
        "num_mini_batches": 1,
        "num_ppo_epochs": 4,
        "response_length": 53,
        "temperature": 0.7,
        "kl_coef": 0.05,
        "cliprange": 0.2,
        "cliprange_value": 0.2,
        "vf_coef": 0.1,
        "gamma": 1.0,
        "lam": 0.95,
        **_OF_ALL,
    },
}
OLD_PPO: dict[str, Any] = {
    "learning_rate": 1.41e-5,
    "batch_size": 128,
    "mini_batch_size": 128,
    "gradient_accumulation_steps": 1,
    "ppo_epochs": 4,
    "init_kl_coef": 0.2,
    "adap_kl_ctrl": True,
    "target": 6,
    "horizon": 10000,
    "gamma": 1,
    "lam": 0.95,
    "cliprange": 0.2,
    "cliprange_value": 0.2,
    "vf_coef": 0.1,
    "lr_scheduler_type": "constant",
    "warmup_steps": 0,
}
OLD_PPO_NAMES = OLD_PPO.keys() - DEFAULTS["ppo"].keys() | {"model_name", "steps", "log_with"}

REWARD_FUNCTIONS = {
    "accuracy_reward": "lmgym train ppo maths rewards right answers, by math-verify too",
    "reasoning_accuracy_reward": "lmgym train ppo maths rewards right answers, by math-verify too",
    "think_format_reward": "a function of the reply's text",
    "get_soft_overlong_punishment": "--overlong_penalty and --overlong_buffer",
}
"""of trl.rewards, by the name that TRL's command knows"""
OF_OBJECTS = {
    "eval_dataset": "a part of the rows is held out (--eval_size), or give --eval_dataset or --eval_prompts",
    "args": "its values come from the script's command line: give its flags after FILE",
    "*": "an argument without a name, which TRL's own do not have",
    "**": "give its values after FILE, as flags",
}
"""what cannot be taken over from a script as it stands"""
