"""Flags of TRL, transformers, axolotl and OpenRLHF, typed by their users: the flag here, or the sentence."""

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from lmgym.runs.flags import flatten, override
from lmgym.runs.known_flags import FLAGS, SENTENCES

ROOT = Path(__file__).parents[3]
EXPERIMENTS = {
    "reward": "reward_models.experiments.hh_pairwise",
    "sft": "sft.experiments.chat",
    "preference": "preferences.experiments.dpo",
    "ppo": "ppo.experiments.hh_harmless",
}
CONFIGS = {stage: importlib.import_module(name).CONFIG for stage, name in EXPERIMENTS.items()}

# as a user typed them after `lmgym train reward hh_pairwise` or another stage's experiment
OF_TRL = {
    "reward": {
        "bf16": "--precision bf16, the default of most experiments",
        "fp16": "--precision fp16",
        "report_to": "write --tracking",
        "use_peft": "--lora_rank 16; 0 trains every weight",
        "hub_model_id": "write --push_to_hub",
        "hub_strategy": "--push_to_hub pushes each better model, and at the end the last to its branch",
        "attn_implementation": "attention is lmgym's own, on packed rows",
        "torch_dtype": "--precision is of the computation; weights train in fp32",
        "eval_steps": "write --eval_updates",
        "gradient_accumulation_steps": "--global_batch counts the rows of an update, over all processes",
        "resume_from_checkpoint": "the same command resumes by itself",
        "beta": "not a setting of this experiment; --beta in lmgym train preference, --init_kl_coef in lmgym train ppo",
        "center_rewards_coefficient": "write --centering",
        "model_name_or_path": "write --model",
        "dataset_name": "write --dataset",
        "num_train_epochs": "write --epochs",
    },
    "sft": {
        "packing": "rows are always packed",
        "assistant_only_loss": "only the bot's turns have loss",
        "max_seq_length": "write --max_length",
        "optim": "it is AdamW of torch",
    },
    "preference": {
        "loss_type": "write --loss",
        "precompute_ref_log_probs": "--reference_source computed; without LoRA always",
        "desirable_weight": "write --liked_weight",
        "max_prompt_length": "--max_length is of a prompt with its reply, which stays whole",
    },
    "ppo": {
        "beta": "write --init_kl_coef",
        "max_completion_length": "write --max_new_tokens",
        "reward_funcs": "--scorers NAME=PATH; for a function copy ppo/experiments/friendly_answers.py",
        "use_vllm": "replies are sampled in the training process",
        "num_iterations": "write --ppo_epochs",
    },
}
OF_PEERS = {
    "reward": {  # transformers
        "per_device_train_batch_size": "write --micro_batch",
        "per_device_eval_batch_size": "evaluations have --micro_batch",
        "lr_scheduler_type": "write --schedule",
        "warmup_ratio": "write --warmup",
        "max_steps": "write --max_updates",
        "output_dir": "write --output",
        "logging_steps": "write --log_updates",
        "logging_dir": "--tracking tensorboard writes to OUTPUT/tensorboard",
        "save_steps": "write --save_updates",
        "eval_strategy": "--eval_updates; without it five evaluations in a run",
        "load_best_model_at_end": "--best_metric NAME keeps the best model",
        "wandb_run_name": "write --run_name",
        "fsdp": "--deepspeed zero3 shards the weights",
        "no_remove_unused_columns": "columns that are not known stay unread, and are named",
        "ddp_timeout": "--stall_timeout ends a run without progress, in seconds",
        "num_generations": "not a setting of this experiment; --num_generations in lmgym train ppo",
    },
    "sft": {  # axolotl
        "base_model": "write --model",
        "sequence_len": "write --max_length",
        "micro_batch_size": "write --micro_batch",
        "num_epochs": "write --epochs",
        "adapter": "--lora_rank 16; for qlora with --load_in_4bit",
        "lora_r": "write --lora_rank",
        "val_set_size": "write --eval_size",
        "sample_packing": "rows are always packed",
        "flash_attention": "attention is lmgym's own, on packed rows",
        "train_on_inputs": "only the bot's turns have loss",
        "logger.wandb.project": "write --wandb_project",
        "datasets": "write --dataset",
    },
    "preference": {
        "rl_beta": "write --beta",
        "nll_loss_coef": "write --sft_weight",
        "ref_pretrain": "write --reference",
        "chosen_key": "write --chosen_column",
        "ipo": "--loss ipo",
    },
    "ppo": {  # OpenRLHF
        "pretrain": "write --model",
        "reward_pretrain": "--scorers NAME=PATH",
        "zero_stage": "--deepspeed zero1, zero2, zero2_offload, zero3 or zero3_offload",
        "actor.eps_clip": "write --cliprange",
        "algo.kl.init_coef": "write --init_kl_coef",
        "rollout.n_samples_per_prompt": "write --num_generations",
        "critic.freezing_steps": "write --critic_warmup",
        "data.prompt_dataset": "write --prompts",
        "train.seed": "write --seed",
        "lambd": "write --lam",
        "rollout_batch_size": "--num_rollouts counts replies: prompts x --num_generations",
        "colocate_all_models": "lmgym train ... --num_gpus N: each holds all models",
    },
}


def mistake(config: Any, capsys, *words: str) -> list[str]:
    """The lines of the error for wrong flags."""
    with pytest.raises(SystemExit) as stopped:
        override(config, words)
    assert stopped.value.code == 2
    return capsys.readouterr().err.splitlines()


def test_as_many_flags_are_known_as_were_promised() -> None:
    assert sum(map(len, OF_TRL.values())) == 29
    assert sum(map(len, OF_PEERS.values())) >= 40


@pytest.mark.parametrize("flags", [OF_TRL, OF_PEERS])
@pytest.mark.parametrize("stage", CONFIGS)
def test_a_flag_of_another_library_is_answered(stage: str, flags: dict, capsys) -> None:
    words = [word for name in flags[stage] for word in (f"--{name}", "1")]
    title, *lines = mistake(CONFIGS[stage], capsys, *words)
    assert title == f"error: {len(flags[stage])} unknown flags (--help lists those that there are)"
    assert lines == [f"  --{name}: {said}" for name, said in flags[stage].items()]


def test_one_unknown_flag_is_one_line(capsys) -> None:
    assert mistake(CONFIGS["reward"], capsys, "--report_to", "wandb", "--epochs", "2") == [
        "error: unknown flag --report_to: write --tracking (--help lists them all)"
    ]
    [line] = mistake(CONFIGS["reward"], capsys, "--epoch", "2")
    assert line == "error: unknown flag --epoch; did you mean --epochs? (--help lists them all)"
    [line] = mistake(CONFIGS["reward"], capsys, "--qqqq", "2")
    assert line == "error: unknown flag --qqqq (--help lists them all)"


def test_several_unknown_flags_are_named_once_each_and_before_wrong_values(capsys) -> None:
    words = ["--epochs", "many", "--epoch", "2", "--lr=1", "--lr", "2", "--qqqq"]
    assert mistake(CONFIGS["sft"], capsys, *words) == [
        "error: 3 unknown flags (--help lists those that there are)",
        "  --epoch; did you mean --epochs?",
        "  --lr: write --learning_rate",
        "  --qqqq",
    ]


def test_very_many_and_very_long_flags_are_bounded(capsys) -> None:
    lines = mistake(CONFIGS["sft"], capsys, *(f"--x{'y' * 10**4}{n}\x1b[31m\n" for n in range(100)))
    assert len(lines) == 42
    assert lines[-1] == "  and 60 more"
    assert max(map(len, lines)) < 320
    assert all(line.isprintable() for line in lines)


def test_every_flag_that_the_table_names_is_one_of_the_stage() -> None:
    for stage, flags in FLAGS.items():
        own = flatten(CONFIGS[stage]).keys()
        assert set(flags.values()) <= own
        assert [name for name, flag in flags.items() if name in own and name != flag] == []
    everywhere = set().union(*(flatten(config) for config in CONFIGS.values())) | {"num_gpus"}
    named = {flag for sentence in SENTENCES.values() for flag in re.findall(r"--([a-z_0-9]+)", sentence)}
    assert named <= everywhere


def test_sentences_name_only_flags_of_stages_whose_trainers_have_the_setting() -> None:
    of_all = ("bf16", "use_peft", "gradient_accumulation_steps", "eval_strategy", "save_strategy", "zero_stage")
    for name in of_all:
        flags = set(re.findall(r"--([a-z_0-9]+)", SENTENCES[name]))
        assert all(flags <= flatten(config).keys() for config in CONFIGS.values()), name


def in_words(name: str) -> str:
    """The answer to a name in docs/coming_from.md: our flag, by stage where stages differ, or the sentence."""
    stages: dict[str, list[str]] = {}
    for stage, flags in FLAGS.items():
        if name in flags:
            stages.setdefault(f"`--{flags[name]}`", []).append(stage)
    parts = [flag if len(of) == len(FLAGS) else f"{flag} ({', '.join(of)})" for flag, of in stages.items()]
    sentence = re.sub(r"(--[a-z_]\w*)", r"`\1`", SENTENCES.get(name, ""))
    return "; ".join([*parts, *([f"else {sentence}" if parts else sentence] if sentence else [])])


def table() -> str:
    """The rows of docs/coming_from.md: names with one answer are one row."""
    rows: dict[str, list[str]] = {}
    for name in dict.fromkeys([*(name for flags in FLAGS.values() for name in flags), *SENTENCES]):
        if any(flags.get(name, name) != name for flags in FLAGS.values()) or name in SENTENCES:
            rows.setdefault(in_words(name), []).append(f"`{name}`")
    return "".join(f"| {', '.join(names)} | {answer} |\n" for answer, names in rows.items())


def test_the_page_for_users_of_other_libraries_has_the_table() -> None:
    page = (ROOT / "docs/coming_from.md").read_text(encoding="utf-8")
    found = page.partition("## Flag by flag\n")[2].partition("|---|---|\n")[2].partition("\n\n")[0]
    assert found.strip() == table().strip(), "the module was changed: put what table() returns into the page"
