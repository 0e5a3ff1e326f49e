"""Scripts whose text does not say all: `lmgym from trl` asks for the rest, and its experiment runs the command."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE

from lmgym.apps.migration.commands import Translation
from lmgym.apps.migration.names import KINDS
from lmgym.apps.migration.translation import translate
from lmgym.apps.migration.trl_scripts import Settings, read_file, read_flags
from lmgym.errors import InputError
from lmgym.models.small_models import make_small_model

ROOT = Path(__file__).parents[4]


def of(text: str, folder: Path, name: str = "script.py") -> Translation:
    """The command of a script with one trainer."""
    (folder / name).write_text(text)
    [settings] = read_file(folder / name)
    return translate(settings)


def sft(lines: str, config: str = "") -> str:
    return f"{lines}\nSFTTrainer(model=model, args=SFTConfig({config}), train_dataset=rows)\n"


# --- what a name stands for


@pytest.mark.parametrize(
    ("lines", "model"),
    [
        ("model = 'a/b'", "a/b"),
        ("model: str = 'a/b'", "a/b"),
        ("model, rows = 'a/b', 1", "a/b"),
        ("model = 'x'\nmodel = 'a/b'", "a/b"),
        ("with open('f') as f:\n    model = 'a/b'", "a/b"),
        ("def f():\n    model = 'x'\nmodel = 'a/b'", "a/b"),
        ("class C:\n    model = 'x'\nmodel = 'a/b'", "a/b"),
        ("def other():\n    model = 'x'", None),
        ("class C:\n    model = 'x'", None),
        ("if big:\n    model = 'x'\nelse:\n    model = 'y'", None),
        ("model = 'x'\nif big:\n    model = 'y'", None),
        ("model = 'x'\nfor model in names:\n    pass", None),
        ("model = 'x'\nmodel += 'y'", None),
        ("try:\n    model = 'x'\nexcept E:\n    pass", None),
        ("model = 'x' if big else 'y'", None),
        ("model = f'{name}/x'", None),
        ("model = 'x'\ndef f():\n    global model\n    model = 'y'", None),
        ("model = model", None),
    ],
)
def test_a_name_has_a_value_only_where_the_text_alone_says_it(lines: str, model: str | None, tmp_path) -> None:
    found = of(sft(lines), tmp_path)
    assert found.flags.get("model") == model
    assert ("model" in found.asked) is (model is None)
    assert ("--model MODEL" in str(found)) is (model is None)


def test_a_function_reads_its_own_names_and_those_of_the_module_but_no_parameter(tmp_path) -> None:
    text = "rate = 1e-3\ndef main(model, rows='a/b'):\n    seed = 3\n    if rows:\n        "
    trainer = "SFTTrainer(model=model, args=SFTConfig(seed=seed, learning_rate=rate), train_dataset=rows)"
    found = of(text + trainer, tmp_path)
    assert (found.flags["seed"], found.flags["learning_rate"]) == (3, 1e-3)
    assert {"model", "dataset"} <= found.asked.keys()
    again = of("rate = 1e-3\nrate = 2e-3\ndef main():\n    SFTTrainer('a', SFTConfig(learning_rate=rate))", tmp_path)
    assert "learning_rate" in again.asked


def test_in_a_loop_a_later_assignment_may_come_first(tmp_path) -> None:
    loop = "seed = 1\nfor _ in range(2):\n    SFTTrainer('a', SFTConfig(seed=seed))\n    "
    assert "seed" in of(loop + "seed = seed + 1", tmp_path).asked
    assert of(loop + "other = 1", tmp_path).flags["seed"] == 1


def test_an_attribute_counts_from_its_config_to_the_trainer(tmp_path) -> None:
    config = "c = SFTConfig(seed=1)\nc.seed = 2\n"
    end = "SFTTrainer('a', c)\nc.seed = 9\n"
    assert of(config + end, tmp_path).flags["seed"] == 2
    assert of("c.seed = 5\n" + config + end, tmp_path).flags["seed"] == 2
    assert "seed" in of(config + "if big:\n    c.seed = 3\n" + end, tmp_path).asked


def test_a_value_of_many_parts_or_of_itself_ends(tmp_path) -> None:
    rows = "rows = load_dataset('a/b')\nrows = rows.map(\n    f,\n    batched=True)"
    found = of(sft(f"model = 'm'\n{rows}"), tmp_path)
    assert found.asked["dataset"] == "a file of the rows that the script makes of a/b (map)"
    chain = "\n".join(["x = 1", *["x = x + 1"] * 5000])
    assert "seed" in of(f"{chain}\nSFTTrainer('a', SFTConfig(seed=x))", tmp_path).asked
    doubled = "\n".join(["x = 1", *["x = [x, x]"] * 40])
    assert of(f"{doubled}\nSFTTrainer('a', SFTConfig(seed=3))", tmp_path).flags["seed"] == 3


# --- what a setting becomes


@pytest.mark.parametrize(
    ("loaded", "flags", "asked"),
    [
        ("'openai/gsm8k', 'main', split='train'", {}, "the path of the files of openai/gsm8k, main"),
        ("'a/b', data_files='x.json'", {}, "the path of the files of a/b, x.json"),
        ("'json', data_files='x.json', split='train'", {"dataset": "x.json"}, None),
        ("'json', data_files=['x.json', 'y.json']", {"dataset": "x.json,y.json"}, None),
        ("'json', data_files={'train': 'x.json', 'test': 'y.json'}, split='train'", {"dataset": "x.json"}, None),
        ("'a/b', split='train[:500]'", {"dataset": "a/b", "max_rows": 500}, None),
        ("'a/b', split='train[50%:]'", {}, "a file of the rows of a/b in train[50%:]: here the split train is read"),
        ("'a/b', split='test_sft'", {"dataset": "a/b", "dataset_split": "test_sft"}, None),
        ("path", {}, "load_dataset(path), which only the script knows"),
    ],
)
def test_a_data_set_is_named_whole_or_asked_for(loaded: str, flags: dict, asked: str | None, tmp_path) -> None:
    found = of(sft(f"model = 'm'\nrows = load_dataset({loaded})"), tmp_path)
    of_data = ("dataset", "max_rows", "dataset_split")
    assert {name: found.flags[name] for name in of_data if name in found.flags} == flags
    assert found.asked.get("dataset") == asked


@pytest.mark.parametrize(
    ("kind", "given", "flags", "asked"),
    [
        ("sft", {"max_seq_length": 2048}, {"max_length": 2048}, ()),
        ("sft", {"max_length": None}, {}, ("max_length",)),
        ("sft", {"bf16": False}, {"precision": "fp32"}, ()),
        ("sft", {"lr_scheduler_type": "cosine_with_restarts"}, {}, ("schedule",)),
        ("sft", {"learning_rate": 7.0}, {}, ("learning_rate",)),
        ("sft", {"load_best_model_at_end": True}, {"max_length": 1024}, ()),
        ("dpo", {"ref_model": None}, {"loss": "dpo"}, ()),
        ("dpo", {"loss_type": "robust"}, {"beta": 0.1}, ("loss",)),
        ("orpo", {"beta": 0.2}, {"loss": "orpo", "odds_weight": 0.2}, ()),
        ("cpo", {"loss_type": "simpo", "simpo_gamma": 1.6, "cpo_alpha": 0.0},
         {"loss": "simpo", "gamma": 1.6, "sft_weight": 0.0}, ()),
        ("cpo", {}, {"sft_weight": 1.0}, ("loss",)),
        ("grpo", {"epsilon": 10.0}, {"epsilon_low": 1, "epsilon_high": 10.0}, ("scorers",)),
        ("grpo", {"epsilon": 0.1, "epsilon_high": None}, {"epsilon_low": 0.1, "epsilon_high": 0.1}, ("scorers",)),
        ("grpo", {"loss_type": "cispo", "epsilon_high": 5.0}, {"method": "cispo", "epsilon_high": 4.0}, ("scorers",)),
        ("grpo", {"loss_type": "sapo"}, {"num_generations": 8}, ("method", "scorers")),
        ("grpo", {"reward_funcs": "a/scorer"}, {"scorers": "reward=a/scorer"}, ()),
        ("grpo", {"reward_funcs": ["accuracy_reward"]}, {"num_generations": 8}, ("EXPERIMENT.py",)),
        ("grpo", {"reward_funcs": ["my_rewards.length"]}, {"num_generations": 8}, ("EXPERIMENT.py",)),
        ("rloo", {"reward_funcs": "a/scorer"}, {"num_generations": 2, "init_kl_coef": 0.05}, ()),
        ("sft", {"datasets": [{"path": "a/b"}, {"path": "c/d"}]}, {"dataset": "a/b,c/d"}, ()),
        ("sft", {"datasets": [{"path": "a/b", "name": "x"}]}, {}, ("dataset",)),
    ],
)  # fmt: skip
def test_a_setting_becomes_a_flag_or_is_asked_for(kind: str, given: dict, flags: dict, asked: tuple) -> None:
    data = {} if "datasets" in given else {"train_dataset": "p.jsonl"}
    found = translate(Settings(kind, {"model": "m", **data, **given}))
    assert {name: found.flags.get(name) for name in flags} == flags
    assert set(found.asked) == set(asked)


def test_a_positional_argument_of_a_config_and_a_dict_after_two_stars_count(tmp_path) -> None:
    assert of("SFTTrainer('m', SFTConfig('out'))", tmp_path).flags["output"] == "out"
    assert of("more = dict(seed=4)\nSFTTrainer('m', SFTConfig(**more))", tmp_path).flags["seed"] == 4
    found = of("data = load_dataset('a/b')\nDPOTrainer('m', None, DPOConfig('o'), None, data)", tmp_path)
    assert (found.flags["dataset"], found.flags["output"]) == ("a/b", "o")


def test_sft_says_whose_tokens_are_learned() -> None:
    said = "messages: TRL learns all their tokens, here only the bot's turns have loss"
    assert said in translate(Settings("sft", {"model": "m"})).lines
    assert said not in translate(Settings("sft", {"model": "m", "assistant_only_loss": True})).lines


def test_a_notebook_is_read_without_its_lines_for_the_shell(tmp_path) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["SFTTrainer is good"]},
        {
            "cell_type": "code",
            "source": ["!pip install trl \\\n", "  peft\n", "%env A=1\n", "rows = load_dataset('a/b')"],
        },
        {"cell_type": "code", "source": ["%%bash\n", "ls -l\n"]},
        {"cell_type": "code", "source": ["SFTTrainer('m', train_dataset=rows)"]},
    ]
    assert of(json.dumps({"cells": cells}), tmp_path, "a.ipynb").flags["dataset"] == "a/b"
    with pytest.raises(InputError, match="is no Python script"):
        of("[1]", tmp_path, "b.ipynb")


@pytest.mark.parametrize(
    ("text", "library"),
    [
        ("stage: dpo\nfinetuning_type: lora\nmodel_name_or_path: a/b\nlearning_rate: 1.0e-5", "LLaMA-Factory"),
        ("base_model: a/b\nmicro_batch_size: 2\nlearning_rate: 1.0e-5", "axolotl"),
    ],
)
def test_a_config_of_another_library_is_refused_by_name(text: str, library: str, tmp_path) -> None:
    with pytest.raises(InputError, match=f"is a config of {library}, by its .*needed: one of TRL's, or: lmgym from "):
        of(text, tmp_path, "a.yaml")


def test_flags_of_a_launch_leave_out_what_trls_scripts_leave_out(tmp_path) -> None:
    path = tmp_path / "s.py"
    path.write_text(
        "a, t = parse()\nd = load_dataset(a.dataset_name, name=a.dataset_config)\n"
        "SFTTrainer(model=a.model_name_or_path, args=t, train_dataset=d[a.dataset_train_split])"
    )
    from lmgym.apps.migration.trl_scripts import fill_in

    [settings] = read_file(path)
    found = translate(fill_in(settings, read_flags(["--dataset_name", "a/b", "--model_name_or_path", "m"])))
    assert (found.flags["dataset"], found.flags["model"], found.asked) == ("a/b", "m", {})
    assert {"dataset", "model"} <= translate(settings).asked.keys()


# --- what is printed runs

ROWS = {
    "pairs": {"prompt": "Say {}.", "chosen": "Yes, it is {}.", "rejected": "No {}."},
    "thumbs": {"prompt": "Say {}.", "completion": "Yes, it is {}.", "label": True},
    "chats": {"messages": [{"role": "user", "content": "Say {}."}, {"role": "assistant", "content": "Yes, {}."}]},
    "prompts": {"prompt": "Say {}."},
}
FORMS_OF_ROWS = {"sft": "chats", "kto": "thumbs", **dict.fromkeys(("grpo", "rloo", "ppo"), "prompts")}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS.values())
def test_every_printed_command_passes_a_dry_run(kind: str, small_models, demo_texts, tmp_path) -> None:
    rows = tmp_path / "rows.jsonl"
    form = json.dumps(ROWS[FORMS_OF_ROWS.get(kind, "pairs")])
    lines = [form.replace("{}", f"word {number}") for number in range(40)]
    rows.write_text("\n".join(line.replace("true", "false") if n % 2 else line for n, line in enumerate(lines)))
    model, name = str(small_models["llama"]), next(name for name, one in KINDS.items() if one == kind)
    more = {"grpo": "reward_funcs=length, ", "rloo": "reward_funcs=length, ", "ppo": ""}.get(kind, "")
    size = {"ppo": "response_length=16", "grpo": "max_completion_length=16", "rloo": "max_completion_length=16"}
    text = (
        f"def length(completions, **columns):\n    return [len(one) for one in completions]\n"
        f"data = load_dataset('json', data_files={str(rows)!r}, split='train')\n"
        f"args = {name}Config({str(tmp_path / 'out')!r}, bf16=False, {size.get(kind, 'max_length=128')}"
        f"{', loss_type=' + repr('simpo') if kind == 'cpo' else ''}, report_to='none')\n"
        f"{name}Trainer(model={model!r}, {more}args=args, train_dataset=data)\n"
    )
    found = of(text, tmp_path)
    if kind == "ppo":
        scorer = make_small_model(tmp_path / "scorer", "llama", demo_texts, head="classifier", max_length=256)
        found.asked.pop("scorers")
        found.flags["scorers"] = f"a={scorer}"
    assert set(found.asked) <= {"EXPERIMENT.py"}
    command = found.command.replace("EXPERIMENT.py", str(ROOT / "ppo/experiments/friendly_answers.py"))
    words = [*command.split(), *found.words, "--dry_run", "--eval_size", "8"]
    done = subprocess.run(
        [sys.executable, "-m", "lmgym.cli.main", "train", *words],
        cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + str(found)
