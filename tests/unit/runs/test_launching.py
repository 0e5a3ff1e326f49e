"""`lmgym train` and `lmgym launch`: experiments by name or path, and the launcher; `lmgym --help`; completion."""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import click
import pytest
import torch
from click.testing import CliRunner
from patience import PATIENCE

from lmgym import __version__
from lmgym.apps.audit import trained
from lmgym.cli.main import INSTEAD, SECTIONS, main, train
from lmgym.errors import InputError
from lmgym.runs import launching
from lmgym.runs.launching import (
    FORMS,
    OTHER_NAMES,
    STAGES,
    choose_experiment,
    config_of,
    count_processes,
    experiments,
    find_experiment,
    launch_command,
    name_of_rows,
    summary,
)

ROOT = Path(__file__).parents[3]


def shown(*words: str) -> str:
    """The output of a command that succeeds."""
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    return done.stdout


# --- finding an experiment


def test_every_experiment_of_a_stage_is_found_by_its_name() -> None:
    for stage, package in STAGES.items():
        files = {path for path in (ROOT / package / "experiments").glob("*.py") if path.stem != "__init__"}
        of_apps = {path for path in experiments(stage).values() if path.is_relative_to(ROOT / "lmgym/apps")}
        assert set(experiments(stage).values()) == files | of_apps
        assert all(f"from {package}." in path.read_text(encoding="utf-8") for path in of_apps)
        for path in files:
            assert find_experiment(path.stem, [stage]) == find_experiment(path.stem) == path


def test_no_two_experiments_have_one_name() -> None:
    assert Counter(name for stage in STAGES for name in experiments(stage)).most_common(1)[0][1] == 1


def test_a_file_of_the_users_own_is_found_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_experiment("mine.py") == Path("mine.py")
    assert find_experiment("~/mine.py", ["ppo"]) == tmp_path / "mine.py"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hh_pairwse", "there is no experiment 'hh_pairwse'; did you mean hh_pairwise? available: convo_joint, hh_"),
        ("qqqq", "there is no experiment 'qqqq'; available: convo_joint, hh_pairwise, "),
        ("x\x1b[31m\n", "there is no experiment 'x\\x1b[31m\\n'; "),
        ("none/such.py", "there is no experiment file none/such.py; available: convo_joint, "),
        ("hh_chosen", "hh_chosen is an experiment of another stage; needed: lmgym train sft hh_chosen"),
        ("nope.jsonl", "there is no experiment 'nope.jsonl', and no such file of data; available: convo_joint, hh_"),
    ],
)
def test_a_name_that_is_none_is_refused_in_one_line(name: str, message: str) -> None:
    done = CliRunner().invoke(main, ["train", "reward", name])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {message}")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["./sft_config.yaml", "./sft_config.yml"])
def test_a_config_in_place_of_an_experiment_or_rows_is_refused(name: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text("a: 1\n")
    for choose in (lambda: find_experiment(name), lambda: choose_experiment("sft", [name])):
        with pytest.raises(
            InputError, match=r"is no Python file; needed: an experiment, .* lmgym from nyu .*sft_config"
        ):
            choose()


def test_a_file_needs_an_experiment_where_no_stage_is_named() -> None:
    done = CliRunner().invoke(main, ["launch", "--learning_rate", "1"])
    assert done.stderr.startswith("error: found '--learning_rate' in place of the experiment; needed: its name or path")


# --- an experiment, data or flags after a word of `lmgym train`


@pytest.mark.parametrize(
    ("words", "file", "flags"),
    [
        (
            "reward pairs.jsonl --model m",
            "reward_models/experiments/hh_pairwise.py",
            "--name pairs --dataset pairs.jsonl --model m",
        ),
        ("reward --model m", "reward_models/experiments/hh_pairwise.py", "--model m"),
        ("sft folder --model m", "sft/experiments/chat.py", "--name folder --dataset folder --model m"),
        (
            "dpo --dataset pairs.jsonl --model m",
            "preferences/experiments/dpo.py",
            "--name pairs --dataset pairs.jsonl --model m",
        ),
        ("dpo owner/pairs --seed=1", "preferences/experiments/dpo.py", "--name pairs --dataset owner/pairs --seed=1"),
        ("dpo iterative_dpo", "preferences/experiments/iterative_dpo.py", ""),
        (
            "preference pairs.jsonl,owner/pairs",
            "preferences/experiments/dpo.py",
            "--name pairs_pairs --dataset pairs.jsonl,owner/pairs",
        ),
        ("kto pairs.jsonl", "preferences/experiments/kto_thumbs.py", "--loss kto --name pairs --dataset pairs.jsonl"),
        (
            "ppo pairs.jsonl --scorers a=b",
            "ppo/experiments/hh_harmless.py",
            "--name pairs --prompts pairs.jsonl --scorers a=b",
        ),
        ("grpo pairs.jsonl", "ppo/experiments/hh_harmless.py", "--method grpo --name pairs --prompts pairs.jsonl"),
        ("grpo maths --method dapo", "ppo/experiments/maths.py", "--method dapo"),
        ("rloo --lam 1", "ppo/experiments/hh_harmless.py", "--method rloo --lam 1"),
        ("reward hh_pairwise --lam 1", "reward_models/experiments/hh_pairwise.py", "--lam 1"),
        ("rloo mine.py --lam 1", "mine.py", "--method rloo --lam 1"),
    ],
)
def test_short_forms_run_an_experiment_of_their_stage(words: str, file: str, flags: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for name in ("pairs.jsonl", "mine.py"):
        (tmp_path / name).touch()
    ran: list[tuple] = []
    monkeypatch.setattr("lmgym.cli.main.launch_experiment", lambda *given: ran.append(given))
    own = ("--audit", "none") if words.startswith("reward") else ()
    said = shown("train", *words.split(), *own, "--num_gpus", "2")
    assert ran == [(Path(file) if file == "mine.py" else ROOT / file, flags.split(), 2)]
    second = words.split()[1]
    named = second in {name for stage in STAGES for name in experiments(stage)} or second == "mine.py"
    assert said == "" if named else said.startswith(f"experiment: {Path(file).stem} (lmgym train ")


@pytest.mark.parametrize(
    ("rows", "name"),
    [
        ("data/pairs.jsonl", "pairs"),
        ("../My Pairs.v2.jsonl.gz", "My_Pairs.v2"),
        ("a.csv,b.parquet", "a_b"),
        ("Anthropic/hh-rlhf", "hh-rlhf"),
        ("~/x/...", "rows"),
        ("x" * 300, "x" * 60),
        ("outputs/chats", "chats_run"),  # or the run would write into its own rows
        ("world.jsonl", "world_run"),
        ("done.jsonl", "done"),  # a further run, which gets a number
        ("killed.jsonl", "killed"),
    ],
)
def test_a_run_is_called_after_its_rows(rows: str, name: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in (
        "outputs/chats/a.jsonl",
        "outputs/world/users.parquet",
        "outputs/done/run.json",
        "outputs/killed/.lock",
    ):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).touch()
    assert name_of_rows(rows) == name


def test_a_typed_flag_takes_the_place_of_a_words_own() -> None:
    for words in (["--dataset", "a.jsonl", "--name", "mine"], ["--dataset=a.jsonl", "--name=mine"]):
        assert choose_experiment("reward", words)[1] == words
    assert choose_experiment("grpo", ["maths", "--seed", "1"])[1] == ["--method", "grpo", "--seed", "1"]
    assert choose_experiment("grpo", ["maths", "--method=gspo"])[1] == ["--method=gspo"]


def test_every_form_has_an_experiment_of_its_stage_and_every_other_name_a_form() -> None:
    for form in FORMS.values():
        assert form.experiment in experiments(form.stage)
    assert {command.split()[0] for command in OTHER_NAMES.values()} <= set(FORMS)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "train grpoo",
            "No such command 'grpoo'; did you mean grpo? available: dpo, grpo, judge, kto, ppo, preference, reward, ",
        ),
        ("train orpo", "No such command 'orpo'; needed: lmgym train dpo --loss orpo"),
        ("train rm pairs.jsonl", "No such command 'rm'; needed: lmgym train reward"),
        ("train gspo", "No such command 'gspo'; needed: lmgym train grpo --method gspo"),
        ("train hh_pairwise", "No such command 'hh_pairwise'; needed: lmgym train reward hh_pairwise"),
        ("dpo --model m", "No such command 'dpo'; needed: lmgym train dpo"),
        ("trian", "No such command 'trian'; did you mean train? available: ab, "),
    ],
)
def test_a_wrong_word_names_the_right_or_the_nearest_one(words: str, message: str) -> None:
    done = CliRunner().invoke(main, words.split())
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {message}")
    assert done.stderr.count("\n") == 1


def test_a_word_alone_lists_its_experiments_and_says_which_one_runs_without_a_name() -> None:
    for words in (["grpo"], ["grpo", "--help"]):
        said = shown("train", *words)
        assert "Experiments (without one: hh_harmless):" in said
        assert "lmgym train grpo hh_harmless --help" in " ".join(said.split())


def test_a_summary_is_the_docstrings_first_line_and_the_file_is_not_imported(tmp_path: Path) -> None:
    path = tmp_path / "breaks.py"
    path.write_text('"""Breaks at import.\n\nMore.\n"""\n\nraise RuntimeError\n')
    assert summary(path) == "Breaks at import."
    path.write_text("raise RuntimeError\n")
    assert summary(path) == ""


# --- choosing the launcher


@pytest.mark.parametrize("flag", [["--deepspeed", "zero2"], ["--deepspeed=zero2"]])
def test_deepspeed_is_chosen_by_its_flag_also_for_one_process(flag: list[str], monkeypatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    command = launch_command(Path("a.py"), ["--seed", "1", *flag], 1)
    assert command[:5] == [sys.executable, "-m", "deepspeed.launcher.runner", "--num_gpus", "1"]
    assert command[-(3 + len(flag)) :] == ["a.py", "--seed", "1", *flag]


def test_torchrun_is_chosen_for_several_processes_and_python_for_one() -> None:
    command = launch_command(Path("a.py"), ["--seed", "1"], 2)
    assert command == [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "a.py", "--seed", "1",
    ]  # fmt: skip
    assert launch_command(Path("a.py"), ["--seed", "1"], 1) == [sys.executable, "a.py", "--seed", "1"]


def test_deepspeed_keeps_to_the_visible_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, 3,5")
    assert launch_command(Path("a.py"), ["--deepspeed", "x"], 2)[3:5] == ["--include", "localhost:2,3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-7f,GPU-8a")  # deepspeed reads numbers only
    assert launch_command(Path("a.py"), ["--deepspeed", "x"], 2)[3:5] == ["--num_gpus", "2"]


@pytest.mark.parametrize(
    "flags", [("--deepspeed", "zero4"), ("--deepspeed=zero4",), ("--deepspeed", "zero2", "--deepspeed", "zero4")]
)
def test_a_wrong_deepspeed_config_is_refused_before_anything_starts(
    flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching.os, "execv", lambda *words: pytest.fail("launched"))
    done = CliRunner().invoke(main, ["train", "reward", "hh_pairwise", *flags, "--seed", "1"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("error: DeepSpeed config zero4 does not exist; did you mean zero3? needed: zero1, ")
    assert done.stderr.count("\n") == 1


def test_a_run_starts_with_a_config_without_one_and_with_its_flag_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr(launching.os, "execv", lambda path, command: ran.append(command))
    for flags in (["--deepspeed", "zero2"], [], ["--deepspeed", "None"], ["--deepspeed", "zero4", "--deepspeed=zero3"]):
        shown("train", "reward", "hh_pairwise", "--audit", "none", *flags)
        assert ran.pop()[-len(flags) :] == flags if flags else ran.pop()


def test_a_reward_model_is_audited_after_its_training_unless_nothing_is_trained(monkeypatch) -> None:
    audited: list[tuple] = []
    monkeypatch.setattr(trained, "train_and_audit", lambda *given: audited.append(given) or 75)
    monkeypatch.setattr(launching.os, "execv", lambda path, command: None)
    done = CliRunner().invoke(main, ["train", "reward", "hh_pairwise", "--seed", "3", "--audit", "full"])
    assert done.exit_code == 75
    [(command, kind)] = audited
    assert (command[-2:], kind) == (["--seed", "3"], "full")
    for flag in ("--dry_run", "--help"):
        shown("train", "reward", "hh_pairwise", flag)
    shown("train", "sft", "chat")
    assert len(audited) == 1


def test_a_process_per_visible_gpu_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert count_processes(None) == 4
    assert count_processes(3) == 3
    with pytest.raises(InputError, match=r"^--num_gpus 5, and 4 GPU\(s\) are visible; needed: at most 4$"):
        count_processes(5)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert count_processes(None) == 1
    assert count_processes(2) == 2  # on a CPU


def test_flags_reach_the_experiment_in_order_and_num_gpus_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple] = []
    for module in ("main", "launch"):
        monkeypatch.setattr(f"lmgym.cli.{module}.launch_experiment", lambda *words: ran.append(words))
    flags = ("--learning_rate", "-1", "--dry_run", "-h2", "--scorers=a=b", "--init_kl_coef=-.5")
    for words in (("train", "reward", "hh_pairwise"), ("launch", "hh_pairwise")):
        shown(*words, *flags[:2], "--num-gpus", "3", *flags[2:])
    assert [(file, tuple(given), number) for file, given, number in ran] == [
        (ROOT / "reward_models/experiments/hh_pairwise.py", flags, 3)
    ] * 2


def test_help_after_an_experiment_is_asked_of_the_experiment_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr(launching.os, "execv", lambda path, command: ran.append(command))
    assert shown("train", "sft", "chat", "--deepspeed", "zero2", "--help") == ""
    path = str(ROOT / "sft/experiments/chat.py")
    assert ran == [[sys.executable, path, "--deepspeed", "zero2", "--help"]]


# --- help


def test_help_groups_every_command_and_lists_every_experiment() -> None:
    assert sorted(name for names in SECTIONS.values() for name in names) == sorted(main.commands)
    assert set(train.commands) == set(FORMS)
    text = shown("--help")
    for title, names in SECTIONS.items():
        section = text.partition(f"\n{title}:\n")[2].partition("\n\n")[0]
        assert [line.split()[0] for line in section.splitlines() if line[2] != " "] == list(names)
    listed = text.partition("\nExperiments ")[2].replace(",", " ").split()
    assert [name for stage in STAGES for name in experiments(stage) if name not in listed] == []


def test_a_stage_alone_describes_its_experiments_and_so_does_its_help() -> None:
    text = shown("train", "reward")
    assert text == shown("train", "reward", "--help")
    assert "  hh_pairwise          Bradley-Terry on people's choices" in text
    assert [name for name in experiments("reward") if f"\n  {name} " not in text] == []
    assert "hh_chosen" not in text


@pytest.mark.parametrize(
    "words", ["--help", "--version", "train reward", "train --help", "serve chat --help", "completion bash"]
)
def test_nothing_heavy_is_imported_for_an_answer_about_the_command_itself(words: str) -> None:
    heavy = ("torch", "transformers", "deepspeed", "datasets", "numpy", "wandb", "tyro", "IPython")
    code = (
        "import sys\nfrom lmgym.cli.main import main\n"
        f"main({words.split()}, standalone_mode=False)\nprint([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_version_has_one_source() -> None:
    assert shown("--version") == f"lmgym {__version__}\n"
    assert 'attr = "lmgym.__version__"' in (ROOT / "pyproject.toml").read_text()


def test_the_commands_of_a_group_without_sections_are_listed_too() -> None:
    from lmgym.runs.usage import OneLineErrors

    group = OneLineErrors(commands={"b": click.Command("b", short_help="Does b."), "a": click.Command("a")})
    assert "Commands:\n  a\n  b  Does b.\n" in CliRunner().invoke(group, ["--help"]).output


def test_experiments_of_apps_are_found_under_the_stage_that_they_configure() -> None:
    found = {stage: {p.stem for p in experiments(stage).values() if "apps" in p.parts} for stage in STAGES}
    assert found == {
        "reward": set(),
        "sft": set(),
        "preference": {"debate_dpo"},
        "ppo": {
            "blackjack", "debate_letters", "dialogue_games", "frozen_lake", "gym_blackjack", "self_play", "taboo",
            "world_conversation", "world_engagement",
        },
    }  # fmt: skip


def test_the_usage_line_is_the_command_that_was_typed(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(experiments("reward")["hh_pairwise"].read_text())
    for words, usage in (
        (["train", "reward", "hh_pairwise"], "lmgym train reward hh_pairwise"),
        (["train", "ppo", "blackjack"], "lmgym train ppo blackjack"),
        (["train", "reward", str(own)], f"lmgym train reward {own}"),
    ):
        command = [sys.executable, "-m", "lmgym", *words, "--help"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
        assert done.stdout.startswith(f"usage: {usage} "), done.stdout[:200]


@pytest.mark.parametrize(
    ("word", "needed"),
    [
        ("resume", "the run's own command again, which resumes by itself"),
        ("export", "RUN/model, a Hugging Face folder, or lmgym push RUN OWNER/NAME"),
        ("generate", "lmgym chat MODEL"),
        ("version", "lmgym --version"),
        ("from-trl", "lmgym from trl FILE"),
        ("dpo", "lmgym train dpo"),
    ],
)
def test_a_command_of_another_name_is_answered_with_what_to_type(word: str, needed: str) -> None:
    done = CliRunner().invoke(main, [word, "x"])
    assert done.exit_code == 2
    assert done.output == f"error: No such command '{word}'; needed: {needed} (see --help)\n"


def test_what_to_type_for_other_names_is_commands_that_exist() -> None:
    for words in INSTEAD.values():
        for name in re.findall(r"lmgym ([a-z]+)", words):
            assert name in main.commands
    assert not INSTEAD.keys() & main.commands.keys()


@pytest.mark.parametrize("word", FORMS)
def test_the_help_of_every_word_is_headed_by_it_and_has_its_defaults(word: str) -> None:
    form, environment = FORMS[word], os.environ | {"COLUMNS": "80"}
    command = [sys.executable, "-m", "lmgym", "train", word, form.experiment, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True, env=environment)
    heading = getattr(config_of(word), "heading", "")
    assert done.stdout.startswith(f"usage: lmgym train {word} {form.experiment} ")
    text = " ".join(done.stdout.replace("\u2502", " ").split())
    assert heading in text
    assert heading[:40] in " ".join(shown("train", word).split())
    for flag, [value] in form.pairs():
        assert f"(default: {value})" in text.partition(f" {flag} ")[2].partition(" --")[0], flag


def test_the_help_of_a_method_has_its_own_values_in_place_of_none() -> None:
    resolved = config_of("grpo").as_resolved()
    assert (resolved.rollout.num_generations, resolved.method.init_kl_coef, resolved.method.kl_in) == (8, 0.04, "loss")
    assert config_of("rloo").as_resolved().rollout.num_generations == 4
    assert resolved.method.percentile is None, "which the method does not read"
