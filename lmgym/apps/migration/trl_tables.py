"""TRL's settings by trainer: their defaults, their names here, and why some have no equivalent.

Defaults are those of TRL 1.16 (PPO: of trl.experimental.ppo; old PPO: of 0.11) where lmgym's differ.
"""

from typing import Any

COMMANDS = {
    "reward": "reward hh_pairwise",
    "sft": "sft chat",
    "dpo": "preference dpo",
    "kto": "preference kto_thumbs",
    "grpo": "ppo hh_harmless",
    "ppo": "ppo hh_harmless",
}
"""of `lmgym train`, by kind of trainer"""
ON_PROMPTS = {"grpo", "ppo"}

_OF_ALL: dict[str, Any] = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "num_train_epochs": 3,
    "lr_scheduler_type": "linear",
    "warmup_steps": 0,
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "reward": {"learning_rate": 1e-4, "max_length": 1024, **_OF_ALL},
    "sft": {"learning_rate": 2e-5, "max_length": 1024, **_OF_ALL},
    "dpo": {"learning_rate": 1e-6, "max_length": 1024, "beta": 0.1, "loss_type": "sigmoid", **_OF_ALL},
    "kto": {"learning_rate": 1e-6, "max_length": 1024, "beta": 0.1, "loss_type": "kto", **_OF_ALL},
    "grpo": {
        "learning_rate": 1e-6,
        "num_generations": 8,
        "max_completion_length": 512,
        "temperature": 1.0,
        "beta": 0.0,
        "num_iterations": 1,
        "epsilon": 0.2,
        "scale_rewards": "group",
        "loss_type": "dapo",
        **_OF_ALL,
    },
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

_FLAGS = {
    name: name
    for name in (
        "learning_rate",
        "weight_decay",
        "adam_beta2",
        "max_grad_norm",
        "seed",
        "gradient_checkpointing",
        "deepspeed",
        "save_total_limit",
        "trust_remote_code",
        "load_in_4bit",
        "load_in_8bit",
    )
} | {
    "num_train_epochs": "epochs",
    "max_steps": "max_updates",
    "output_dir": "output",
    "eval_steps": "eval_updates",
}
_TRAINER = {"logging_steps": "log_updates", "dataloader_num_workers": "data_workers", "max_length": "max_length"}
_SAMPLING = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "repetition_penalty": "repetition_penalty",
}
# flags of `lmgym train preference`, in one place: preferences/config.py has them
_PREFERENCE = {"ref_model": "reference", "beta": "beta"}
FLAGS: dict[str, dict[str, str]] = {
    "reward": _FLAGS | _TRAINER | {"center_rewards_coefficient": "centering"},
    "sft": _FLAGS | _TRAINER,
    "dpo": _FLAGS | _TRAINER | _PREFERENCE | {"label_smoothing": "label_smoothing", "rpo_alpha": "sft_weight"},
    "kto": _FLAGS
    | _TRAINER
    | _PREFERENCE
    | {"desirable_weight": "liked_weight", "undesirable_weight": "disliked_weight"},
    "grpo": _FLAGS
    | _SAMPLING
    | {
        "num_generations": "num_generations",
        "max_completion_length": "max_new_tokens",
        "beta": "init_kl_coef",
        "max_prompt_length": "max_prompt",
        "num_iterations": "ppo_epochs",
        "delta": "delta",
        "epsilon": "epsilon_low",
        "epsilon_high": "epsilon_high",
        "importance_sampling_level": "importance_sampling_level",
        "mask_truncated_completions": "mask_truncated",
        "entropy_coef": "entropy_coef",
    },
    "ppo": _FLAGS
    | _SAMPLING
    | {
        "num_ppo_epochs": "ppo_epochs",
        "ppo_epochs": "ppo_epochs",
        "kl_coef": "init_kl_coef",
        "lam": "lam",
        "init_kl_coef": "init_kl_coef",
        "horizon": "horizon",
        "kl_estimator": "kl_estimator",
        "gamma": "gamma",
        "cliprange": "cliprange",
        "cliprange_value": "cliprange_value",
        "vf_coef": "vf_coef",
        "response_length": "max_new_tokens",
        "missing_eos_penalty": "missing_eos_penalty",
        "ref_model": "reference",
        "score_clip": "cliprange_reward",
    },
}
"""TRL's names with one flag each; the others of `translate` need several"""

_OURS = "the loop is lmgym's"
_PACKED = "rows are always packed, and results are those of each alone"
_VLLM = "replies are sampled in the training process"
LOST = {
    "adam_beta1": "it is 0.9",
    "adam_epsilon": "it is 1e-8, in PPO and GRPO 1e-5",
    "optim": "it is AdamW of torch",
    "per_device_eval_batch_size": "evaluations have micro_batch",
    "eval_strategy": "evaluations come every --eval_updates, without it five times in a run",
    "eval_on_start": "the model is always evaluated before step 1",
    "load_best_model_at_end": "--best_metric NAME keeps the best model",
    "metric_for_best_model": "--best_metric NAME keeps the best model",
    "greater_is_better": "--best_metric knows it",
    "resume_from_checkpoint": "the same command resumes by itself",
    "overwrite_output_dir": "a folder's former runs are kept beside the new one",
    "run_name": "a run is named after its experiment and --output",
    "push_to_hub": "hf upload NAME OUTPUT/model",
    "hub_model_id": "hf upload NAME OUTPUT/model",
    "dataset_test_split": "a part of the rows is held out (--eval_size), or give --eval_dataset",
    "eval_dataset": "a part of the rows is held out (--eval_size), or give --eval_dataset or --eval_prompts",
    "dataset_config": "give the path of the files",
    "dataset_num_proc": "rows are read in one process",
    "remove_unused_columns": "columns that are not known stay unread",
    "attn_implementation": "attention is lmgym's own, on packed rows",
    "dtype": "weights are trained in fp32, and computed with in --precision",
    "torch_dtype": "weights are trained in fp32, and computed with in --precision",
    "model_init_kwargs": "the model is loaded as its own config says",
    "disable_dropout": "dropout is always off",
    "packing": _PACKED,
    "packing_strategy": _PACKED,
    "padding_free": _PACKED,
    "pad_to_multiple_of": _PACKED,
    "group_by_length": _PACKED,
    "use_liger_kernel": "the logits are already taken in parts",
    "assistant_only_loss": "only the bot's turns have loss",
    "completion_only_loss": "only the bot's turns have loss",
    "dataset_text_field": "the column is text",
    "chat_template_path": "the tokenizer's own chat template is used",
    "eos_token": "it is the tokenizer's",
    "pad_token": "it is the tokenizer's",
    "processing_class": "the model's own tokenizer is used",
    "tokenizer": "the model's own tokenizer is used",
    "truncation_mode": "a row that is too long loses its oldest turns",
    "formatting_func": "write the rows to a file in one of docs/data_formats.md's forms",
    "data_collator": _OURS,
    "compute_metrics": _OURS,
    "callbacks": _OURS,
    "optimizers": _OURS,
    "precompute_ref_batch_size": "it is micro_batch",
    "sync_ref_model": "the reference is fixed",
    "use_vllm": _VLLM,
    "vllm_mode": _VLLM,
    "vllm_gpu_memory_utilization": _VLLM,
    "log_completions": "replies are in OUTPUT/samples",
    "num_completions_to_print": "replies are in OUTPUT/samples",
    "shuffle_dataset": "prompts are always shuffled, by --seed",
    "num_sample_generations": "replies are shown at each evaluation",
    "local_rollout_forward_batch_size": "it is micro_batch",
    "whiten_rewards": "rewards are not whitened, advantages are",
    "value_model": "the critic starts from the reward model (--critic), or is a head of the policy's",
    "use_score_norm": "--normalize shifts and scales each scorer",
    "use_score_scaling": "--normalize shifts and scales each scorer",
    "early_stopping": "--stop_kl ends an iteration's epochs early",
    "target_kl": "--stop_kl ends an iteration's epochs early",
    "steps": "give --max_updates",
    "use_rslora": "adapters are plain LoRA",
    "use_dora": "adapters are plain LoRA",
    "bias": "adapters are plain LoRA",
    "args": "its values come from the script's command line: give its flags after FILE",
    "**": "give its values after FILE, as flags",
}
"""what has no flag, and why, or what to do instead"""
