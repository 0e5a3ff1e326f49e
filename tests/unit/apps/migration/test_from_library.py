"""`lmgym from`: what configs and scripts like public ones become; launched/ holds them, in our own words."""

import importlib
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import ppo.check
import preferences.check
import reward_models.check
import sft.check
from lmgym.apps.migration.commands import Translation
from lmgym.apps.migration.files import LIBRARIES, of_library, of_trl, translate_launch
from lmgym.apps.migration.names import NAMES
from lmgym.apps.migration.renaming import experiment_of
from lmgym.cli.main import main
from lmgym.errors import InputError
from lmgym.runs.flags import override
from lmgym.runs.launching import FORMS

pytestmark = pytest.mark.usefixtures("vllm_environment")

CHECKS = {
    "reward": reward_models.check.check_settings,
    "sft": sft.check.check_settings,
    "preference": preferences.check.check_settings,
    "ppo": lambda config: ppo.check.check_settings(config, 1),
}
LAUNCHED = Path(__file__).parent / "launched"
FILES = sorted(path.name for path in LAUNCHED.iterdir())
# by file: the word, flags among those of the command, and what is asked for
EXPECTED: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "axolotl_sft_qlora.yml": (
        "sft",
        {"model": "Qwen/Qwen2.5-1.5B", "dataset": "mlabonne/FineTome-100k", "messages_column": "conversations",
         "global_batch": 8, "load_in_4bit": True, "lora_rank": 16, "lora_target_modules": "all-linear", "warmup": 0.05,
         "eval_size": 0.02, "epochs": 2, "precision": "bf16", "wandb_project": "finetune"},
        set(),
    ),
    "axolotl_kto.yml": (
        "kto",
        {"loss": "kto", "beta": 0.3, "liked_weight": 0.7, "dataset_split": "test", "global_batch": 8,
         "max_updates": 500, "schedule": "constant_with_warmup", "warmup": 20, "deepspeed": "zero2"},
        set(),
    ),
    "axolotl_orpo.yaml": ("dpo", {"loss": "orpo", "odds_weight": 0.2, "global_batch": 8, "warmup": 0.03}, set()),
    "axolotl_reward.yaml": ("reward", {"centering": 0.01, "global_batch": 16, "max_length": 2048}, set()),
    "axolotl_grpo.yaml": (
        "grpo",
        {"init_kl_coef": 0.01, "num_generations": 8, "num_rollouts": 16, "engine": "vllm", "scale_rewards": "none",
         "loss_aggregation": "token", "epsilon_low": 0.2, "epsilon_high": 0.2, "max_new_tokens": 256},
        {"prompts", "scorers"},
    ),
    "llamafactory_dpo.yaml": (
        "dpo",
        {"loss": "simpo", "beta": 0.2, "gamma": 0.7, "lora_rank": 4, "lora_alpha": 8, "max_length": 4096},
        {"dataset"},
    ),
    "llamafactory_reward.yaml": (
        "reward",
        {"deepspeed": "zero3", "global_batch": 16, "epochs": 3, "schedule": "linear", "max_rows": 5000},
        {"dataset"},
    ),
    "llamafactory_kto.json": (
        "kto",
        {"loss": "kto", "liked_weight": 1.2, "disliked_weight": 0.8, "load_in_4bit": True, "precision": "fp16",
         "gradient_checkpointing": False, "micro_batch": 8, "max_updates": 300},
        {"dataset"},
    ),
    "llamafactory_sft.sh": (
        "sft",
        {"model": "Qwen/Qwen2.5-0.5B", "max_length": 2048, "output": "saves/Qwen/Qwen2.5-0.5B/sft",
         "schedule": "constant_with_warmup"},
        {"dataset"},
    ),
    "llamafactory_run.py": ("sft", {"lora_rank": 8, "lora_alpha": 16, "global_batch": 8, "max_rows": 500}, {"dataset"}),
    "openrlhf_sft.sh": (
        "sft",
        {"dataset": "Open-Orca/SlimOrca", "prompt_column": "question", "reply_column": "response", "lora_rank": 8,
         "lora_alpha": 16, "deepspeed": "zero2", "epochs": 1, "learning_rate": 1e-5},
        set(),
    ),
    "openrlhf_rm_flat.sh": (
        "reward",
        {"dataset": "rows/a.jsonl,rows/b.jsonl", "dataset_weights": "0.7,0.3", "chosen_column": "good",
         "learning_rate": 9e-6, "micro_batch": 2, "wandb_project": "judges", "tracking": "auto"},
        set(),
    ),
    "openrlhf_dpo.sh": (
        "dpo",
        {"beta": 0.05, "label_smoothing": 0.1, "sft_weight": 0.2, "deepspeed": "zero3_offload", "adam_beta2": 0.95},
        set(),
    ),
    "openrlhf_ppo.sh": (
        "ppo",
        {"num_rollouts": 128 * 2, "num_generations": 2, "global_batch": 64, "ppo_epochs": 2, "lam": 0.95,
         "critic": "some/rm", "scorers": "reward=some/rm", "critic_learning_rate": 9e-6, "engine_memory": 0.6},
        {"max_prompt"},
    ),
    "openrlhf_reinforce.py": (
        "ppo",
        {"method": "reinforce_pp_baseline", "epsilon_low": 0.2, "epsilon_high": 0.3, "num_rollouts": 32 * 4 * 4,
         "kl_in": "loss", "kl_estimator": "k2", "async_rollouts": "1"},
        {"max_prompt", "scorers"},
    ),
    "verl_grpo.sh": (
        "grpo",
        # an iteration has 128 x 8 replies in updates of 32 x 8: 4 updates
        {"prompts": "rows/a.parquet,rows/b.parquet", "num_rollouts": 1024, "global_batch": 256, "max_updates": 400,
         "eval_updates": 20, "kl_in": "loss", "init_kl_coef": 0.002, "kl_estimator": "k3", "max_new_tokens": 2048,
         "loss_aggregation": "sequence", "delta": 3.0},
        {"scorers"},
    ),
    "verl_ppo.sh": (
        "ppo",
        {"kl_in": "reward", "init_kl_coef": 0.005, "num_rollouts": 256, "global_batch": 64, "save_updates": 40,
         "critic": "Qwen/Qwen2.5-0.5B", "critic_warmup": 3, "lam": 0.95, "scorers": "reward=some/rm"},
        {"model"},
    ),
    "verl_dapo.yaml": (
        "grpo",
        {"num_rollouts": 1024, "global_batch": 256, "overlong_penalty": 1.0, "overlong_buffer": 0.25,
         "max_refills": 10, "epsilon_high": 0.28, "init_kl_coef": 0.0, "lora_rank": 32, "max_prompt": 512},
        {"scorers"},
    ),
    "verl_gspo.sh": (
        "ppo",
        {"method": "gspo", "epsilon_low": 3e-4, "epsilon_high": 4e-4, "num_rollouts": 128, "epochs": 30},
        {"scorers", "model"},
    ),
    "verl_sft.sh": (
        "sft",
        {"model": "Qwen/Qwen2.5-0.5B-Instruct", "eval_dataset": "rows/test.parquet", "global_batch": 64,
         "lora_rank": 32, "adam_beta2": 0.95, "epochs": 2},
        set(),
    ),
    "trl_launch.sh": ("dpo", {"beta": 0.05, "micro_batch": 2, "lora_rank": 8, "learning_rate": 5e-7}, set()),
}  # fmt: skip
REPEATED = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
FILLED = {"scorers": "a=b", "model": "m", "dataset": "d", "prompts": "p", "max_prompt": "64"}


def translations(name: str) -> list[Translation]:
    library = name.partition("_")[0]
    path = LAUNCHED / name
    return list(of_trl(path, (), None) if library == "trl" else of_library(library, path, ()))


def of(library: str, text: str, folder: Path, name: str) -> Translation:
    (folder / name).write_text(text)
    [found] = of_library(library, folder / name, ())
    return found


@pytest.mark.parametrize("name", FILES)
def test_a_config_or_script_becomes_a_command_that_its_experiment_takes(name: str, capsys) -> None:
    word, flags, asked = EXPECTED[name]
    found = translations(name)[0]
    assert found.command == word
    assert {flag: found.flags.get(flag) for flag in flags} == flags
    assert set(found.asked) == asked
    filled = [item for flag in asked for item in (f"--{flag}", FILLED[flag])]
    config = importlib.import_module(experiment_of(word)).CONFIG
    try:
        config = override(config, [*FORMS[word].flags, *found.words, *filled])
    except SystemExit:
        pytest.fail(capsys.readouterr().err)
    CHECKS[FORMS[word].stage](config)


def test_every_setting_of_a_file_is_in_the_command_or_in_a_line() -> None:
    found = translations("verl_gspo.sh")[0]
    assert "actor_rollout_ref.actor.something.new=1: no equivalent" in found.lines
    assert found.asked["model"] == "actor_rollout_ref.model.path=$model, which only the script knows"


def test_a_file_is_never_run(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in FILES:
        translations(name)
    flags = "--model_name_or_path m --seed $(touch ran) --cutoff_len `touch ran`"
    text = f"touch ran; x=$(touch ran)\nllamafactory-cli train {flags}\n"
    found = of("llamafactory", text, tmp_path, "a.sh")
    assert {"seed", "max_length"} <= found.asked.keys()
    assert [path.name for path in tmp_path.iterdir()] == ["a.sh"]


@pytest.mark.parametrize(
    ("library", "text", "asked"),
    [
        (
            "verl",
            "reward_model: {enable: true, model: {path: evil.py:f}}\nactor_rollout_ref: {rollout: {n: 2}}",
            "scorers",
        ),
        ("verl", "actor_rollout_ref: {model: {path: 'openai:http://evil#m'}}", "model"),
        ("axolotl", "base_model: 'vllm:http://evil'", "model"),
        (
            "llamafactory",
            "model_name_or_path: m\nstage: ppo\nreward_model: judge:x\nreward_model_type: full",
            "scorers",
        ),
    ],
)
def test_code_and_addresses_of_a_file_are_left_to_the_user(library: str, text: str, asked: str, tmp_path) -> None:
    found = of(library, text, tmp_path, "a.yaml")
    assert asked in found.asked
    assert "evil" not in str(found)
    assert "judge:x" not in str(found)


def test_a_file_does_not_make_a_strangers_code_trusted() -> None:
    found = translations("axolotl_orpo.yaml")[0]
    assert "trust_remote_code" not in found.flags
    assert "trust_remote_code=True: add --trust_remote_code if you trust the code in the model's folder" in found.lines


def test_flags_of_the_launch_go_before_those_of_the_file(tmp_path) -> None:
    [found] = of_library("axolotl", LAUNCHED / "axolotl_kto.yml", ("--learning-rate", "3e-6", "--rl_beta=0.5"))
    assert (found.flags["learning_rate"], found.flags["beta"]) == (3e-6, 0.5)


@pytest.mark.parametrize(
    ("library", "name", "text", "said"),
    [
        ("axolotl", "a.yml", "- 1", "holds a list of 1 item; needed: names and values"),
        ("axolotl", "a.yml", "base_model: m\nrl: ebft", "rl=ebft has no equivalent; needed: one of dpo, ipo"),
        ("axolotl", "a.sh", "axolotl train x.yml", "axolotl is launched with a config; needed: a config of axolotl"),
        ("llamafactory", "a.yaml", "model_name_or_path: m\nstage: pt", "stage=pt has no equivalent"),
        ("axolotl", "a.yml", "a: 1", "there is no base_model; needed: a config of axolotl"),
        (
            "llamafactory",
            "a.sh",
            "llamafactory-cli train x.yaml",
            "is launched with a config; needed: a config of LLaMA",
        ),
        ("openrlhf", "a.sh", "echo openrlhf", "launches nothing of OpenRLHF; needed: a YAML or JSON config"),
        ("openrlhf", "a.yaml", "a: 1", "the file is none of openrlhf.cli.train_sft"),
        ("verl", "a.yaml", "a: 1", "has neither actor_rollout_ref nor model.partial_pretrain"),
        ("verl", "a.py", "x = (", "is no Python script"),
        ("verl", "a.json", "{", "needed: a YAML or JSON config"),
        ("verl", "a.yaml", "a: !!python/object/apply:os.system [id]", "needed: a YAML or JSON config"),
        ("axolotl", "a.yaml", "base_model: m\n" + REPEATED, "has more than 100,000 values, with those that it repeats"),
    ],
)
def test_a_file_of_something_else_is_refused_in_one_line(library, name, text, said, tmp_path) -> None:
    with pytest.raises(InputError, match=said) as refused:
        of(library, text, tmp_path, name)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("library", LIBRARIES)
def test_no_value_of_any_setting_breaks_the_translation(library: str) -> None:
    rules = LIBRARIES[library]
    words = {"sft": "sft", "reward": "reward", "preference": "dpo", "ppo": "ppo"}
    special = {
        "axolotl": ("datasets", "trl", "adapter", "rl", "micro_batch_size", "eval_steps", "bf16"),
        "llamafactory": ("dataset", "quantization_bit", "lora_rank", "finetuning_type", "reward_model", "pref_loss"),
        "openrlhf": ("ds.zero_stage", "reward.model_name_or_path", "rollout.batch_size", "actor.eps_clip_low_high",
                     "algo.advantage.estimator", "ckpt.save_steps"),
        "verl": ("data.train_files", "trainer.logger", "actor_rollout_ref.rollout.n", "algorithm.adv_estimator",
                 "actor_rollout_ref.actor.use_kl_loss", "trainer.total_training_steps", "data.train_batch_size"),
    }  # fmt: skip
    for stage, defaults in rules.defaults.items():
        for name in {*defaults, *special[library]}:
            for value in (True, False, -1, 0, 0.5, "x", [], ["x", 1], {"a": 1}):
                found = translate_launch(NAMES[library], rules, words[stage], {name: value})
                assert all(isinstance(word, str) for word in found.words)


def test_a_notebook_that_writes_its_settings_to_a_file_is_read(tmp_path) -> None:
    cells = [
        "import json\nargs = dict(stage='dpo', model_name_or_path='m', dataset='d', pref_beta=0.3)\n",
        "json.dump(args, open('a.json', 'w'))",
        "!llamafactory-cli train a.json",
    ]
    text = json.dumps({"cells": [{"cell_type": "code", "source": [cell]} for cell in cells]})
    assert of("llamafactory", text, tmp_path, "a.ipynb").flags["beta"] == 0.3


def test_the_command_prints_the_command_and_comments() -> None:
    done = CliRunner().invoke(main, ["from", "axolotl", str(LAUNCHED / "axolotl_orpo.yaml")])
    assert done.exit_code == 0
    command = [line for line in done.output.splitlines() if not line.startswith("#")]
    assert command[0] == "lmgym train dpo \\"
    assert "--odds_weight" in shlex.split(" ".join(command).replace("\\", ""))
    assert "# flash_attention=True: attention is lmgym's own, on packed rows" in done.output


def test_the_old_name_is_answered_with_the_new_one() -> None:
    done = CliRunner().invoke(main, ["from-trl", "a.py", "--trainer", "dpo"])
    assert done.exit_code == 2
    assert done.output == "error: No such command 'from-trl'; needed: lmgym from trl FILE (see --help)\n"
