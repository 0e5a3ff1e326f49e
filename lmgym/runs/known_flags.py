"""Names of settings in TRL, transformers, axolotl and OpenRLHF: the flag here, or why there is none and what to do.

One table for errors about unknown flags, for `lmgym from-trl` and for docs/coming_from.md. Names are those of TRL 1.16,
transformers 5, axolotl 0.19 and OpenRLHF 0.8 to 0.11, and a few of earlier versions.
"""

from collections.abc import Collection, Mapping


def _by_name(answers: Mapping[str, str]) -> dict[str, str]:
    """One entry for each of the names that a key holds, separated by spaces."""
    return {name: answer for names, answer in answers.items() for name in names.split()}


_SHARED = _by_name(
    {
        "model_name_or_path model_name base_model pretrain": "model",
        "trust_remote_code": "trust_remote_code",
        "gradient_checkpointing": "gradient_checkpointing",
        "lora_r ds.lora.rank": "lora_rank",
        "lora_alpha ds.lora.alpha": "lora_alpha",
        "lora_target_modules target_modules": "lora_target_modules",
        "lora_modules_to_save": "modules_to_save",
        "load_in_4bit": "load_in_4bit",
        "load_in_8bit": "load_in_8bit",
        "learning_rate lr": "learning_rate",
        "weight_decay wd l2": "weight_decay",
        "adam_beta2": "adam_beta2",
        "max_grad_norm max_norm gradient_clipping": "max_grad_norm",
        "lr_scheduler_type lr_scheduler": "schedule",
        "warmup_steps warmup_ratio lr_warmup_ratio": "warmup",
        "num_train_epochs num_epochs num_episodes": "epochs",
        "max_steps steps total_steps": "max_updates",
        "per_device_train_batch_size micro_batch_size micro_train_batch_size": "micro_batch",
        "mini_batch_size minibatch_size": "micro_batch",
        "max_tokens_per_gpu train.max_tokens_per_gpu max_token_len_per_gpu": "tokens_per_micro_batch",
        "ppo_max_token_len_per_gpu": "tokens_per_micro_batch",
        "batch_size train_batch_size bs": "global_batch",
        "seed": "seed",
        "output_dir save_path": "output",
        "deepspeed": "deepspeed",
        "eval_steps": "eval_updates",
        "val_set_size test_split_size": "eval_size",
        "save_steps": "save_updates",
        "save_total_limit max_ckpt_num ckpt.max_num": "save_total_limit",
        "metric_for_best_model ckpt.best_metric_key": "best_metric",
        "report_to log_with": "tracking",
        "run_name wandb_name wandb_run_name": "run_name",
        "wandb_project logger.wandb.project": "wandb_project",
        "wandb_entity wandb_org logger.wandb.org": "wandb_entity",
        "wandb_group logger.wandb.group": "wandb_group",
        "hub_model_id": "push_to_hub",
        "hub_private_repo": "hub_private",
        "prompt_key input_key": "prompt_column",
        "field_messages": "messages_column",
    }
)
_ROWS = _SHARED | _by_name(
    {
        "dataset_name datasets train_dataset train_file data": "dataset",
        "dataset_probs": "dataset_weights",
        "dataset_train_split train_split": "dataset_split",
        "eval_dataset test_datasets eval_file": "eval_dataset",
        "max_length max_seq_length max_len sequence_len": "max_length",
        "max_samples": "max_rows",
        "max_epochs": "epochs",
        "lora_dropout ds.lora.dropout": "lora_dropout",
        "logging_steps": "log_updates",
        "dataloader_num_workers": "data_workers",
        "early_stopping_patience": "early_stopping",
        "chosen_key field_chosen": "chosen_column",
        "rejected_key field_rejected": "rejected_column",
        "output_key": "reply_column",
        "label_key": "label_column",
    }
)
_REFERENCE = _by_name({"ref_model ref_model_name_or_path ref_pretrain ref.model_name_or_path": "reference"})
FLAGS: dict[str, dict[str, str]] = {
    "reward": _ROWS | {"center_rewards_coefficient": "centering"},
    "sft": _ROWS,
    "preference": _ROWS
    | _REFERENCE
    | _by_name(
        {
            "loss_type dpo_loss_type rl": "loss",
            "beta rl_beta dpo_beta": "beta",
            "label_smoothing dpo_label_smoothing": "label_smoothing",
            "rpo_alpha cpo_alpha nll_loss_coef": "sft_weight",
            "simpo_gamma": "gamma",
            "orpo_alpha": "odds_weight",
            "desirable_weight kto_desirable_weight desirable_loss_weight": "liked_weight",
            "undesirable_weight kto_undesirable_weight undesirable_loss_weight": "disliked_weight",
        }
    ),
    "ppo": _SHARED
    | _REFERENCE
    | _by_name(
        {
            "sft_model_path": "model",
            "dataset dataset_name datasets train_dataset prompt_data prompt_dataset data": "prompts",
            "prompt_data_probs prompt_probs": "prompt_weights",
            "eval_dataset eval.dataset test_datasets": "eval_prompts",
            "num_generations n_samples_per_prompt": "num_generations",
            "max_completion_length response_length generate_max_len": "max_new_tokens",
            "max_prompt_length prompt_max_len": "max_prompt",
            "temperature": "temperature",
            "top_k": "top_k",
            "top_p": "top_p",
            "repetition_penalty": "repetition_penalty",
            "micro_rollout_batch_size rollout.micro_batch_size": "generation_batch_size",
            "advantage_estimator estimator": "method",
            "ppo_epochs num_ppo_epochs num_iterations max_epochs": "ppo_epochs",
            "init_kl_coef kl_coef beta init_coef": "init_kl_coef",
            "kl_estimator algo.kl.estimator": "kl_estimator",
            "kl_target algo.kl.target": "target",
            "horizon kl_horizon": "horizon",
            "cliprange clip_range epsilon eps_clip": "cliprange",
            "epsilon_high": "epsilon_high",
            "delta dual_clip": "delta",
            "importance_sampling_level": "importance_sampling_level",
            "loss_agg_mode": "loss_aggregation",
            "entropy_coef entropy_loss_coef": "entropy_coef",
            "reward_weights": "weights",
            "normalize_reward normalize_enable": "normalize",
            "reward_clip_range reward.clip_range score_clip": "cliprange_reward",
            "missing_eos_penalty": "missing_eos_penalty",
            "mask_truncated_completions": "mask_truncated",
            "overlong_penalty_factor": "overlong_penalty",
            "vllm_importance_sampling_mode": "sampler_correction",
            "vllm_importance_sampling_clip_max vllm_importance_sampling_cap vllm_is_truncated_threshold": "sampler_cap",
            "critic_pretrain critic.model_name_or_path": "critic",
            "actor_learning_rate": "learning_rate",
            "freezing_actor_steps freezing_steps": "critic_warmup",
            "gamma": "gamma",
            "lam gae_lambda lambd": "lam",
            "vf_coef": "vf_coef",
            "cliprange_value value_clip": "cliprange_value",
        }
    ),
}
"""our flag by stage of `lmgym train`, and by its name elsewhere"""

SENTENCES = _by_name(
    {
        # the model and its adapters
        "bf16 bfloat16": "--precision bf16, the default of most experiments",
        "fp16 float16": "--precision fp16",
        "float32": "--precision fp32",
        "dtype torch_dtype param_dtype tf32 bf16_full_eval": "--precision is of the computation; weights train in fp32",
        "use_peft peft_config": "--lora_rank 16; 0 trains every weight",
        "adapter": "--lora_rank 16; for qlora with --load_in_4bit",
        "qlora": "--lora_rank 16 --load_in_4bit",
        "lora_target_linear": "--lora_target_modules all-linear, the default",
        "lora_dropout": "dropout is off in PPO",
        "use_rslora use_dora peft_use_rslora peft_use_dora bias": "adapters are plain LoRA",
        "bnb_4bit_quant_type use_bnb_nested_quant": "4 bits are nf4, without a second quantisation",
        "model_revision": "--model owner/name@COMMIT pins a hub id",
        "model_init_kwargs": "the model is loaded as its own config says",
        "attn_implementation flash_attention flash_attn": "attention is lmgym's own, on packed rows",
        "sdp_attention xformers_attention": "attention is lmgym's own, on packed rows",
        "use_liger_kernel": "the logits are already taken in parts",
        "torch_compile": "models run uncompiled",
        "disable_dropout": "dropout is off unless --dropout is given",
        "gradient_checkpointing_kwargs": "--gradient_checkpointing has no settings of its own",
        "tokenizer tokenizer_name tokenizer_name_or_path": "the model's own tokenizer is used",
        "tokenizer_type processing_class special_tokens": "the model's own tokenizer is used",
        "chat_template chat_template_path tokenizer_chat_template": "the tokenizer's own chat template is used",
        "apply_chat_template input_template": "the tokenizer's own chat template is used, always",
        "eos_token pad_token": "it is the tokenizer's",
        # rows
        "dataset_config": "give the path of the configuration's files",
        "dataset_test_split eval_split": "rows are held out (--eval_size), or give --eval_dataset or --eval_prompts",
        "dataset_text_field": "text; other columns: --messages_column, --prompt_column, --reply_column",
        "prompt_split": "--prompts reads the split train; write other rows to a file",
        "max_samples": "give a file with fewer prompts",
        "dataset_num_proc": "rows are read in one process",
        "dataloader_num_workers": "prompts are read in the training process",
        "remove_unused_columns": "columns that are not known stay unread, and are named",
        "packing packing_strategy packing_samples sample_packing eval_packing": "rows are always packed",
        "eval_sample_packing padding_free pad_to_multiple_of pad_to_sequence_len": "rows are always packed",
        "group_by_length train_sampling_strategy": "rows are always packed",
        "truncation_mode": "a row that is too long loses its oldest turns",
        "max_length max_len": "--max_prompt and --max_new_tokens",
        "max_prompt_length max_completion_length": "--max_length is of a prompt with its reply, which stays whole",
        "formatting_func dataset_kwargs": "write the rows to a file in one of docs/data_formats.md's forms",
        "assistant_only_loss completion_only_loss train_on_inputs": "only the bot's turns have loss",
        "multiturn": "every turn of the bot has loss",
        "shuffle_dataset": "always, by --seed",
        "data_seed": "--seed orders the rows",
        "full_determinism": "--seed repeats a run on the same machine",
        # optimisation
        "gradient_accumulation_steps": "--global_batch counts the rows of an update, over all processes",
        "optim optimizer": "it is AdamW of torch",
        "adam_beta1": "it is 0.9",
        "adam_betas": "--adam_beta2; the first is 0.9",
        "adam_epsilon": "it is 1e-8, in PPO and GRPO 1e-5",
        "auto_find_batch_size": "--micro_batch or --tokens_per_micro_batch; --dry_run estimates the memory",
        "lr_scheduler_kwargs": "--schedule has none",
        "min_lr_ratio cosine_min_lr_ratio": "linear and cosine schedules end at 0",
        "early_stopping target_kl": "--stop_kl ends an iteration's epochs early",
        # evaluation, checkpoints, output
        "per_device_eval_batch_size eval_batch_size": "evaluations have --micro_batch",
        "eval_strategy evaluation_strategy evals_per_epoch": "--eval_updates; without it five evaluations in a run",
        "save_strategy saves_per_epoch": "--save_updates; without it five checkpoints in a run, with -1 none",
        "save_safetensors": "weights are always safetensors",
        "save_hf_ckpt": "OUTPUT/model is always a folder of Hugging Face",
        "eval_on_start logging_first_step": "the model is always evaluated before step 1",
        "load_best_model_at_end": "--best_metric NAME keeps the best model",
        "greater_is_better": "--best_metric knows it",
        "resume_from_checkpoint auto_resume_from_checkpoints": "the same command resumes by itself",
        "load_checkpoint load_enable": "the same command resumes by itself",
        "ckpt_path": "checkpoints are in OUTPUT",
        "overwrite_output_dir": "a finished run is never overwritten",
        "logging_steps": "every iteration is logged",
        "logging_strategy": "--log_updates counts updates; in PPO every iteration is logged",
        "logging_dir tensorboard_dir use_tensorboard": "--tracking tensorboard writes to OUTPUT/tensorboard",
        "use_wandb logger.wandb.key": "--tracking wandb; the key is read from WANDB_API_KEY",
        "wandb_mode": "--tracking offline",
        "trackio_project": "--wandb_project, with --tracking trackio",
        "hub_strategy hub_always_push": "--push_to_hub pushes each better model, and at the end the last to its branch",
        "push_to_hub": "--push_to_hub OWNER/NAME",
        "hub_revision": "afterwards: lmgym push RUN OWNER/NAME, which takes a branch",
        "hub_token hf_use_auth_token": "set HF_TOKEN",
        "log_completions num_completions_to_print": "replies are in OUTPUT/samples",
        "num_sample_generations": "replies are shown at each evaluation",
        "do_train do_eval": "a run trains, and evaluates on held-out rows",
        "disable_tqdm": "a progress line is drawn on a terminal only",
        # devices
        "num_gpus nproc_per_node num_processes": "lmgym train ... --num_gpus N",
        "actor_num_gpus_per_node colocate_all_models": "lmgym train ... --num_gpus N: each holds all models",
        "zero_stage": "--deepspeed zero1, zero2, zero2_offload, zero3 or zero3_offload",
        "adam_offload": "--deepspeed zero2_offload",
        "fsdp fsdp_config": "--deepspeed zero3 shards the weights",
        "ddp_timeout": "--stall_timeout ends a run without progress, in seconds",
        # preferences
        "precompute_ref_log_probs": "--reference_source computed; without LoRA always",
        "precompute_ref_batch_size": "it is --micro_batch",
        "loss_weights": "--sft_weight, beside --loss dpo",
        "ipo ipo_enable": "--loss ipo",
        "f_divergence_type": "--loss dpo has the reverse KL",
        "sync_ref_model ref_model_sync_steps ref_model_mixup_alpha": "the reference is fixed",
        # rewards and rollouts
        "reward_funcs reward_model": "--scorers NAME=PATH; for a function copy ppo/experiments/friendly_answers.py",
        "reward_model_path reward_model_name_or_path reward_pretrain": "--scorers NAME=PATH",
        "reward.model_name_or_path": "--scorers NAME=PATH",
        "reward_processing_classes": "each scorer has its own tokenizer",
        "remote_rm_url remote_url": "a function may call a server: copy ppo/experiments/friendly_answers.py",
        "value_model": "--critic PATH, or a head of the policy",
        "save_value_network": "the critic is saved to OUTPUT/critic",
        "rollout_batch_size rollout.batch_size": "--num_rollouts counts replies: prompts x --num_generations",
        "steps_per_generation": "--num_rollouts: replies of an iteration, --global_batch x steps_per_generation",
        "total_episodes": "--max_updates counts updates; an iteration has --num_rollouts replies",
        "num_mini_batches": "--global_batch: --num_rollouts / num_mini_batches",
        "local_rollout_forward_batch_size": "it is --micro_batch",
        "min_p generation_kwargs": "sampling has --temperature, --top_p, --top_k and --repetition_penalty",
        "use_vllm vllm_mode vllm_num_engines vllm.num_engines": "replies are sampled in the training process",
        "vllm_gpu_memory_utilization vllm_tensor_parallel_size": "replies are sampled in the training process",
        "vllm_importance_sampling_correction": "--sampler_correction token_truncate or sequence_mask",
        "enable_vllm_is_correction": "--sampler_correction token_truncate",
        "async_train async_enable": "--async_rollouts 1",
        "loss_type": "--method and --loss_aggregation",
        "policy_loss_type": "--method and --importance_sampling_level",
        "eps_clip_low_high": "--epsilon_low and --epsilon_high",
        "use_kl_loss": "--kl_in loss",
        "adap_kl_ctrl": "--target adapts the KL's weight",
        "dynamic_filtering dynamic_filtering_enable": "--max_refills samples other prompts where rewards are equal",
        "overlong_buffer_len": "--overlong_buffer is a share of --max_new_tokens",
        "no_advantage_std_norm no_std_norm": "--scale_rewards none",
        "normalize_advantages": "--whiten with a critic, --scale_rewards without",
        "whiten_rewards": "rewards are not whitened, advantages are",
        "use_score_norm use_score_scaling": "--normalize shifts and scales each scorer",
        # of trainers in Python
        "data_collator compute_metrics callbacks optimizers": "the loop is lmgym's",
    }
)
"""what to do where no flag of the stage is that setting, or why there is nothing to do"""


def answer(name: str, known: Collection[str]) -> str | None:
    """The words to write in place of a flag that an experiment does not have; None for a name that none of them has.

    `known` are the experiment's flags. Names such as `actor.eps_clip` (OpenRLHF) may be known by their last part.
    """
    for key in dict.fromkeys((name, name.removeprefix("no_"), name.rpartition(".")[2])):
        if flag := next((flags[key] for flags in FLAGS.values() if flags.get(key) in known), None):
            return f"write --{flag}"
        if key != name and key in known:
            return f"write --{key}"
        if "max_updates" not in known:  # a command that does not train
            continue
        if key in SENTENCES:
            return SENTENCES[key]
        if homes := [stage for stage, flags in FLAGS.items() if key in flags or key in flags.values()]:
            flags = [f"--{FLAGS[stage].get(key, key)} in lmgym train {stage}" for stage in homes]
            return f"not a setting of this experiment; {', '.join(flags)}"
    return None
