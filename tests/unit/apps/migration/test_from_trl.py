"""`lmgym from trl`: what scripts and configs of TRL become; each printed command is one that its experiment takes."""

import importlib
import itertools
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import ppo.check
import reward_models.check
import sft.check
from lmgym.apps.migration.commands import Translation
from lmgym.apps.migration.names import KINDS
from lmgym.apps.migration.translation import translate
from lmgym.apps.migration.trl_scripts import Code, Script, Settings, fill_in, read_file, read_flags
from lmgym.apps.migration.trl_tables import DEFAULTS, WORDS
from lmgym.cli.main import main
from lmgym.errors import InputError
from lmgym.runs.fields import flatten
from lmgym.runs.flags import override
from lmgym.runs.launch import STAGES as PACKAGES
from lmgym.runs.launching import FORMS
from lmgym.runs.other_names.lookup import tables

pytestmark = pytest.mark.usefixtures("vllm_environment")

CHECKS = {
    "reward_models": reward_models.check.check_settings,
    "sft": sft.check.check_settings,
    "ppo": lambda config: ppo.check.check_settings(config, 1),
}
SFT = """
from datasets import load_dataset
from trl import SFTConfig, SFTTrainer
trainer = SFTTrainer(
    model="Qwen/Qwen3-0.6B",
    train_dataset=load_dataset("trl-lib/Capybara", split="train"),
    args=SFTConfig(output_dir="outputs/q", num_train_epochs=2, packing=True, warmup_ratio=0.1, seed=3),
)
"""
REWARD = """
import trl
name = "Qwen/Qwen3-0.6B"
model = AutoModelForSequenceClassification.from_pretrained(name, num_labels=1)
data = load_dataset("trl-lib/ultrafeedback_binarized")
config = trl.RewardConfig(per_device_train_batch_size=4, gradient_accumulation_steps=2 * 4, bf16=True,
    center_rewards_coefficient=1e-2, lr_scheduler_type="cosine", save_strategy="no", logging_steps=25)
config.learning_rate = 5e-5
trainer = trl.RewardTrainer(model=model, args=config, train_dataset=data["train"], eval_dataset=data["test"])
"""
GRPO = """
def reward_len(completions, **kwargs):
    return [-len(c) for c in completions]
args = GRPOConfig(output_dir="g", num_generations=4, gradient_accumulation_steps=2, loss_type="grpo", beta=0.04,
    epsilon=0.1, use_vllm=True, mask_truncated_completions=True)
data = load_dataset("json", data_files="p.jsonl", split="train")
GRPOTrainer("Qwen/Qwen2-0.5B", reward_len, args, train_dataset=data,
    peft_config=LoraConfig(r=16, target_modules=["q_proj", "v_proj"]))
"""
DPO = """
DPOTrainer("a/b", AutoModelForCausalLM.from_pretrained("a/c"), DPOConfig(beta=0.3, loss_type=["ipo"],
    precompute_ref_log_probs=True, max_steps=200), train_dataset=load_dataset("d/e", split="train"))
"""
KTO = """
KTOTrainer(model="a/b", args=KTOConfig(desirable_weight=1.5), train_dataset=load_dataset("d/e", split="train"))
"""
OLD_PPO = """
config = PPOConfig(model_name="lvwerra/gpt2-imdb", log_with="wandb", batch_size=64, mini_batch_size=16, steps=5000)
model = AutoModelForCausalLMWithValueHead.from_pretrained(config.model_name)
ref_model = AutoModelForCausalLMWithValueHead.from_pretrained(config.model_name)
trainer = PPOTrainer(config, model, ref_model, tokenizer, dataset=dataset)
"""
PPO = """
parser = HfArgumentParser((ScriptArguments, PPOConfig, ModelConfig))
script_args, training_args, model_args = parser.parse_args_into_dataclasses()
reward_model = AutoModelForSequenceClassification.from_pretrained(training_args.reward_model_path)
policy = AutoModelForCausalLM.from_pretrained(training_args.sft_model_path)
dataset = load_dataset(script_args.dataset_name, split=script_args.dataset_train_split)
trainer = PPOTrainer(args=training_args, model=policy, reward_model=reward_model, train_dataset=dataset,
    peft_config=get_peft_config(model_args))
"""
PPO_FLAGS = ["--dataset_name", "a/b", "--total_episodes=1000", "--per_device_train_batch_size", "32",
             "--gradient_accumulation_steps", "2", "--num_mini_batches", "4", "--sft_model_path", "c/d",
             "--reward_model_path", "e/f", "--missing_eos_penalty", "1.0"]  # fmt: skip
SCRIPTS = {"sft": SFT, "reward": REWARD, "grpo": GRPO, "dpo": DPO, "kto": KTO}


def of(text: str, folder: Path, name: str = "script.py") -> list[Settings]:
    path = folder / name
    path.write_text(text)
    return read_file(path)


def taken(found: Translation, capsys, **filled: str) -> dict[str, Any]:
    """The settings of the command's experiment with its flags, and with what is filled in by hand."""
    word, _, file = found.command.partition(" ")
    form = FORMS[word]
    assert file in ("", "EXPERIMENT.py")
    assert set(filled) == {"experiment" if flag.endswith(".py") else flag for flag in found.asked}
    package, name = PACKAGES[form.stage], filled.pop("experiment", form.experiment)
    config = importlib.import_module(f"{package}.experiments.{name}").CONFIG
    words = [word for flag, value in filled.items() for word in (f"--{flag}", value)]
    try:
        config = override(config, [*form.flags, *found.words, *words])
    except SystemExit:
        pytest.fail(capsys.readouterr().err)
    check = CHECKS.get(package) or importlib.import_module(f"{package}.check").check_settings
    check(config)
    return flatten(config)


@pytest.mark.parametrize(
    ("kind", "filled", "flags", "lines"),
    [
        (
            "sft",
            {},
            {"model": "Qwen/Qwen3-0.6B", "dataset": "trl-lib/Capybara", "output": "outputs/q", "epochs": 2, "seed": 3,
             "warmup": 0.1, "learning_rate": 2e-5, "schedule": "linear", "global_batch": 8, "max_length": 1024},
            ["packing=True: rows are always packed", "messages: TRL learns all their tokens"],
        ),
        (
            "reward",
            {},
            {"model": "Qwen/Qwen3-0.6B", "dataset": "trl-lib/ultrafeedback_binarized", "micro_batch": 4,
             "global_batch": 32, "precision": "bf16", "centering": 1e-2, "schedule": "cosine", "save_updates": -1,
             "log_updates": 25, "best_metric": None, "learning_rate": 5e-5, "epochs": 3, "warmup": 0},
            ["eval_dataset=load_dataset(trl-lib/ultrafeedback_binarized): a part of the rows is held out"],
        ),
        (
            "grpo",
            {"experiment": "friendly_answers"},
            {"model": "Qwen/Qwen2-0.5B", "prompts": "p.jsonl", "max_updates": -1, "num_generations": 4,
             "global_batch": 16, "num_rollouts": 16, "loss_aggregation": "sequence", "init_kl_coef": 0.04,
             "epsilon_low": 0.1, "epsilon_high": 0.1, "ppo_epochs": 1, "max_new_tokens": 512, "lora_rank": 16,
             "lora_alpha": 8, "lora_target_modules": "q_proj,v_proj", "mask_truncated": True,
             "engine": "vllm"},
            [],
        ),
        (
            "dpo",
            {},
            {"model": "a/b", "reference": "a/c", "dataset": "d/e", "loss": "ipo", "beta": 0.3, "max_updates": 200,
             "reference_source": "computed"},
            [],
        ),
        ("kto", {}, {"model": "a/b", "dataset": "d/e", "loss": "kto", "liked_weight": 1.5, "beta": 0.1}, []),
    ],
)  # fmt: skip
def test_a_script_becomes_a_command_that_its_experiment_takes(kind, filled, flags, lines, tmp_path, capsys) -> None:
    [settings] = of(SCRIPTS[kind], tmp_path)
    assert settings.kind == kind
    found = translate(settings)
    assert {name: value for name, value in flags.items() if value is not None}.items() <= found.flags.items()
    for line in lines:
        assert [one for one in found.lines if one.startswith(line)], found.lines
    assert len(found.lines) == len(lines) + 1, "and one on the number of processes"
    config = taken(found, capsys, **filled)
    assert {name: config[name] for name in flags} == flags


def test_ppo_as_it_was_first_has_settings_and_defaults_of_its_own(tmp_path, capsys) -> None:
    found = translate(of(OLD_PPO, tmp_path)[0])
    config = taken(found, capsys, prompts="p.jsonl", scorers="a=b", max_updates="9")
    wanted = {"model": "lvwerra/gpt2-imdb", "num_rollouts": 64, "global_batch": 16, "init_kl_coef": 0.2, "target": 6,
              "learning_rate": 1.41e-5, "vf_coef": 0.1, "tracking": "auto"}  # fmt: skip
    assert {name: config[name] for name in wanted} == wanted
    assert "reference" not in found.flags, "it is the policy before step 1"
    assert found.asked["max_updates"].startswith("steps=5000 counts replies")
    assert found.asked["scorers"] == "none in the file: NAME=PATH"
    assert found.asked["prompts"] == "dataset, which only the script knows"


def test_flags_of_a_launch_fill_in_what_a_script_reads_from_them(tmp_path, capsys) -> None:
    [settings] = of(PPO, tmp_path)
    found = translate(fill_in(settings, read_flags(PPO_FLAGS)))
    config = taken(found, capsys)
    wanted = {"model": "c/d", "prompts": "a/b", "scorers": "reward=e/f", "critic": "e/f", "num_rollouts": 64,
              "global_batch": 16, "micro_batch": 16, "missing_eos_penalty": 1.0, "max_updates": 16 * 4 * 4,
              "temperature": 0.7, "normalize": "none", "target": None, "num_layers_unfrozen": -1}  # fmt: skip
    assert {name: config[name] for name in wanted} == wanted
    bare = translate(settings)
    assert bare.asked["model"] == "model=training_args.sft_model_path, which only the script knows"
    assert any(line.startswith("args=training_args: its values come from the script's") for line in bare.lines)


def test_a_yaml_config_of_trls_command_is_read_too(tmp_path, capsys) -> None:
    text = "model_name_or_path: a/b\ndataset_name: c/d\ndataset_train_split: test_sft\npacking: true\nuse_peft: true\n"
    found = translate(of(text + "lora_r: 8\nreport_to: [wandb, tensorboard, mlflow]\n", tmp_path, "sft.yaml")[0])
    config = taken(found, capsys)
    wanted = {"model": "a/b", "dataset": "c/d", "dataset_split": "test_sft", "lora_rank": 8, "lora_alpha": 32,
              "lora_dropout": 0.05, "tracking": "wandb,tensorboard"}  # fmt: skip
    assert {name: config[name] for name in wanted} == wanted
    assert "report_to=mlflow: --tracking has wandb and tensorboard, or both" in found.lines


def test_a_yaml_config_of_no_trainer_in_particular_needs_its_name(tmp_path) -> None:
    path = tmp_path / "c.yml"
    path.write_text("learning_rate: 1.0e-5\n")
    with pytest.raises(InputError, match="no trainer in particular; needed: --trainer reward or sft"):
        read_file(path)
    assert read_file(path, "dpo") == [Settings("dpo", {"learning_rate": 1e-5})]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.py", "x = (", "is no Python script: .*needed: a script with one of TRL's RewardConfig"),
        ("a.py", "print('hello')", "has none of TRL's trainers; needed: a script with"),
        ("a.py", "\x00", "is no Python script"),
        ("a.yml", "- 1\n- 2", "holds a list of 2 items; needed: names and values"),
        ("a.yml", "a: [", "needed: a YAML config of TRL's command"),
        ("a.yml", "packing: true\nepsilon: 0.2", "settings of sft, grpo; needed: --trainer"),
    ],
)
def test_a_file_that_is_not_trls_is_refused_in_one_line(name: str, text: str, said: str, tmp_path) -> None:
    with pytest.raises(InputError, match=said) as refused:
        of(text, tmp_path, name)
    assert str(refused.value).isprintable()
    with pytest.raises(InputError, match="No such file"):
        read_file(tmp_path / "none.py")


def test_trls_sft_loss_beside_another_is_a_term_with_a_weight() -> None:
    found = translate(Settings("dpo", {"loss_type": ["sigmoid", "sft"], "loss_weights": [2.0, 1]}))
    assert (found.flags["loss"], found.flags["sft_weight"]) == ("dpo", 0.5)
    assert not [line for line in found.lines if "loss" in line]
    found = translate(Settings("dpo", {"loss_type": ["sigmoid", "bco_pair"]}))
    assert "sft_weight" not in found.flags
    assert found.asked["loss"].startswith("loss_type=[sigmoid, bco_pair] has no equivalent")


def test_a_script_is_never_run(tmp_path) -> None:
    opens = f"open({str(tmp_path / 'ran')!r}, 'w')\n"
    text = opens + "SFTTrainer(model=exec('x=1'), args=SFTConfig(seed=__import__('os').getpid()))"
    found = translate(of(text, tmp_path)[0])
    assert not (tmp_path / "ran").exists()
    assert found.asked["seed"] == "seed=__import__('os').getpid(), which only the script knows"


def test_names_are_followed_to_the_assignment_before(tmp_path) -> None:
    text = (
        "n = 1\ndata = load_dataset('a/b')\ndata = data['train'].map(f)\nrate = 1e-5 * 2\nzero = 1 / 0\n"
        "c = SFTConfig(learning_rate=rate, seed=n, weight_decay=zero, **more)\n"
        "SFTTrainer(model=m, args=c, train_dataset=data)\n"
        "n = 2\n"
    )
    [settings] = of(text, tmp_path)
    assert (settings.values["learning_rate"], settings.values["seed"]) == (2e-5, 1)
    assert settings.values["weight_decay"] == Code("1 / 0")
    assert settings.values["**"] == Code("more")
    found = translate(settings)
    assert found.asked["dataset"] == "a file of the rows that the script makes of a/b (map)"
    assert found.asked["model"] == "model=m, which only the script knows"


def test_a_script_with_configs_and_no_trainer_and_one_with_several_trainers(tmp_path) -> None:
    assert [one.kind for one in of("c = DPOConfig(beta=0.2)", tmp_path)] == ["dpo"]
    assert [one.kind for one in of(SFT + DPO, tmp_path)] == ["sft", "dpo"]


@pytest.mark.parametrize("kind", KINDS.values())
def test_no_value_of_any_setting_breaks_the_translation(kind: str) -> None:
    odd = (None, True, -1, 0.5, "x", [], ["x"], {"a": 1}, Code("f(x)"), b"x", [Code("y")])
    known = (row.name for table in tables("TRL") for row in table.rows if "*" not in row.name)
    names = {*DEFAULTS[kind], *known, "loss_type", "reward_funcs",
             "reward_weights", "peft_config", "report_to",
             "quantization_config", "model", "train_dataset", "save_steps", "save_strategy", "warmup_ratio", "bf16",
             "steps_per_generation", "generation_batch_size", "total_episodes", "lora_r", "use_peft", "ref_model",
             "model_revision", "dataset_train_split", "batch_size", "mini_batch_size", "target"}  # fmt: skip
    for name, value in itertools.product(sorted(names), odd):
        found = translate(Settings(kind, {"model": "m", name: value}))
        assert all(isinstance(word, str) for word in found.words)
        assert str(found).startswith(f"lmgym train {WORDS[kind]}")


def test_a_value_of_a_flag_that_was_given_twice_is_a_list() -> None:
    assert read_flags(["--a", "1", "2", "--b", "--c=x", "--d", "None"]) == {"a": [1, 2], "b": True, "c": "x", "d": None}
    with pytest.raises(InputError, match="unexpected 'x'; needed: flags of TRL"):
        read_flags(["x"])


def test_the_command_prints_the_command_and_comments(tmp_path) -> None:
    path = tmp_path / "s.py"
    path.write_text(SFT + "\n" + DPO)
    done = CliRunner().invoke(main, ["from", "trl", str(path), "--learning_rate", "0.5"])
    assert done.exit_code == 0
    first, second = done.output.split("\n\n")
    assert first.splitlines()[0] == "lmgym train sft \\"
    assert "--learning_rate 0.5" in first
    assert [line for line in first.splitlines() if line.startswith("# packing=True: ")]
    assert second.startswith("lmgym train dpo \\")
    done = CliRunner().invoke(main, ["from", "trl", str(path), "--trainer", "dpo"])
    assert done.output.startswith("lmgym train dpo")


def test_deep_nesting_is_refused_or_read_and_never_crashes(tmp_path) -> None:
    deep = "(" * 5000 + "1" + ")" * 5000
    with pytest.raises(InputError, match="is no Python script"):
        of(f"SFTConfig(seed={deep})", tmp_path)
    import ast

    sums = "+".join(["x"] * 300)
    [settings] = Script(ast.parse(f"SFTConfig(seed={sums})")).trainers()
    assert isinstance(settings.values["seed"], Code)
