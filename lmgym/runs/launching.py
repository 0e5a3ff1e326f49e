"""Experiments by name or path, and the launcher that runs one: python, torchrun or deepspeed."""

import ast
import os
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import click

from lmgym.config import Range, RunConfig
from lmgym.console import say
from lmgym.distributed.ports import free_port
from lmgym.errors import NAME, InputError, did_you_mean, found_from, shown, shown_path
from lmgym.runs.fields import flag_types, rebuild
from lmgym.runs.flag_help import USAGE, split_help
from lmgym.runs.flags import HYDRA, read_flag
from lmgym.runs.gpus import visible_gpus
from lmgym.runs.launch import STAGES
from lmgym.runs.layout import RUN_FILES
from lmgym.runs.locks import NAME as LOCK
from lmgym.runs.paths import names_environment
from lmgym.runs.signals_to_ranks import PREFIX
from lmgym.runs.user_code import import_file
from lmgym.shell import command as command_line

APPS = Path(__file__).parents[1] / "apps"
MOST_PROCESSES = 1024
LONGEST_NAME = 60  # of a run that is called after its rows
CONFIGS = (".yaml", ".yml")
"""files of settings, which other libraries have in place of experiments"""


class Form(NamedTuple):
    """A word after `lmgym train`: its stage, the experiment that runs if none is named, and flags before the user's."""

    stage: str
    experiment: str
    flags: tuple[str, ...] = ()
    """each with its value; one that the user gives takes its place"""

    def pairs(self) -> list[tuple[str, list[str]]]:
        """Its flags with their values."""
        return [(flag, [value]) for flag, value in zip(self.flags[::2], self.flags[1::2], strict=True)]

    def words(self, given: Sequence[str]) -> list[str]:
        """The user's words behind the form's own flags."""
        return [*unless_given(self.flags, given), *given]


FORMS = {
    "reward": Form("reward", "hh_pairwise"),
    "sft": Form("sft", "chat"),
    "preference": Form("preference", "dpo"),
    "dpo": Form("preference", "dpo"),
    "kto": Form("preference", "kto_thumbs", ("--loss", "kto")),
    "ppo": Form("ppo", "hh_harmless"),
    "grpo": Form("ppo", "hh_harmless", ("--method", "grpo")),
    "rloo": Form("ppo", "hh_harmless", ("--method", "rloo")),
    "judge": Form("ppo", "judge"),
}
OTHER_NAMES = {
    **dict.fromkeys(("rm", "reward_model", "reward-model", "reward_modeling"), "reward"),
    **{loss: f"dpo --loss {loss}" for loss in ("ipo", "simpo", "orpo", "bon")},
    **{method: f"grpo --method {method}" for method in ("dapo", "gspo", "cispo", "dr_grpo", "reinforce_pp", "rft")},
}
"""names elsewhere of what a word and a flag do"""


def unless_given(flags: Sequence[str], words: Sequence[str]) -> list[str]:
    """Those of some flags, each followed by its value, that the words do not have."""
    given = {word.partition("=")[0].replace("-", "_") for word in words if word.startswith("--")}
    pairs = zip(flags[::2], flags[1::2], strict=True)
    return [word for flag, value in pairs if flag.replace("-", "_") not in given for word in (flag, value)]


def experiments(stage: str) -> dict[str, Path]:
    """The files of a stage's experiments, by name: its own, and those of apps, which build its config."""
    spec = find_spec(STAGES[stage])
    folders = list(spec.submodule_search_locations or ()) if spec else []
    own = [path for folder in folders for path in Path(folder, "experiments").glob("*.py") if path.stem != "__init__"]
    return {path.stem: path for path in sorted([*own, *files_importing(STAGES[stage])], key=lambda path: path.stem)}


def files_importing(package: str) -> list[Path]:
    """The files `experiments/NAME.py` of apps that import from a package when they are imported."""
    line = re.compile(rf"^from {re.escape(package)}\.", re.MULTILINE)
    return [path for path in sorted(APPS.rglob("experiments/*.py")) if line.search(path.read_text(encoding="utf-8"))]


def summary(path: Path) -> str:
    """The first line of a file's docstring; the file is not imported."""
    lines = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").splitlines()
    return lines[0] if lines else ""


def list_experiments(formatter: click.HelpFormatter) -> None:
    """Adds the names of all experiments to a help text."""
    with formatter.section("Experiments (`lmgym train STAGE` describes them)"):
        formatter.write_dl([(stage, ", ".join(experiments(stage))) for stage in STAGES])


def describe_experiments(formatter: click.HelpFormatter, word: str) -> None:
    """Adds the experiments of a word of `lmgym train`, with their summaries, to a help text."""
    form = FORMS[word]
    with formatter.section(f"Experiments (without one: {form.experiment})"):
        formatter.write_dl([(name, summary(path)) for name, path in experiments(form.stage).items()])
    config = config_of(word)
    if heading := getattr(config, "heading", ""):
        with formatter.section("Defaults"):
            formatter.write_text(heading)
    with formatter.section("Flags"):
        command = f"lmgym train {word} {form.experiment} --help"
        formatter.write_text(f"`{command}` shows those that people use first, `{command} all` every one.")


def config_of(word: str, name: str | None = None) -> Any:
    """The config of a word's own experiment, or of another one by name or path, with the word's flags.

    Raises InputError without one.
    """
    form = FORMS[word]
    file = find_experiment(name or form.experiment, [form.stage])
    config = import_file(str(file), "needed: an experiment").CONFIG
    hints = flag_types(config)
    return rebuild(config, dict(read_flag(*one, hints) for one in form.pairs()))


def find_experiment(name: str, stages: Iterable[str] = STAGES) -> Path:
    """The file of an experiment, by its name in one of the stages or by its path. Raises InputError without one."""
    if name.startswith("-"):
        raise InputError(f"found {shown(name)} in place of the experiment; needed: its name or path first, then flags")
    known = {key: path for stage in stages for key, path in experiments(stage).items()}
    if name in known:
        return known[name]
    available = f"available: {', '.join(known)}, or a path/to/file.py"
    if name.endswith(".py") or "/" in name:
        path = Path(os.path.expanduser(name))
        if not os.path.isfile(path):
            raise InputError(f"there is no experiment file {shown_path(name)}; {available}{found_from(name)}")
        refuse_other_languages(path)
        return path
    if other := next((stage for stage in STAGES if name in experiments(stage)), None):
        raise InputError(
            f"{name} is an experiment of another stage; needed: {command_line('lmgym', 'train', other, name)}"
        )
    of_data = ", and no such file of data" if Path(name).suffix else ""
    raise InputError(f"there is no experiment {shown(name)}{of_data}; {did_you_mean(name, known)}{available}")


def refuse_other_languages(path: Path) -> None:
    """Raises InputError for a file, in place of an experiment, that is no Python, which is never run as if it were."""
    if path.suffix == ".py" or not path.is_file():
        return
    elsewhere = f"; what another library's config is here: {command_line('lmgym', 'from', 'nyu', path)}, or its name"
    raise InputError(
        f"{shown_path(path)} is no Python file; needed: an experiment, whose name ends in .py"
        f"{elsewhere if path.suffix in CONFIGS else ''}"
    )


def command_for(word: str) -> str | None:
    """The command of a word that is none itself: a method, or an experiment without its stage."""
    if word in FORMS or word in OTHER_NAMES:
        return f"lmgym train {OTHER_NAMES.get(word, word)}"
    stage = next((stage for stage in STAGES if word in experiments(stage)), None)
    return stage and f"lmgym train {stage} {word}"


def choose_experiment(word: str, words: Sequence[str]) -> tuple[Path, list[str]]:
    """The file and the flags of `lmgym train WORD WORDS`, which begin with an experiment, with data or with a flag.

    Prints which experiment runs if none is named: the run is then called after its rows, where it has its own. Raises
    InputError for a first word that is none of these.
    """
    form, first = FORMS[word], words[0]
    if Path(first).suffix in CONFIGS:
        refuse_other_languages(Path(os.path.expanduser(first)))
    if form.stage == "ppo" and (named := _of_environment(first, words)):
        return experiments("ppo")["environment"], form.words(named)
    is_data = first not in experiments(form.stage) and not HYDRA.match(first) and _is_data(first)
    if not is_data and not first.startswith("-") and not HYDRA.match(first):
        return find_experiment(first, [form.stage]), form.words(words[1:])
    say(f"experiment: {form.experiment} (lmgym train {word} --help describes the others)")
    flag = f"--{'prompts' if form.stage == 'ppo' else 'dataset'}"
    given = [flag, first, *words[1:]] if is_data else list(words)
    data = last_value(flag, given)
    named = unless_given(["--name", name_of_rows(data)], given) if data else []
    return experiments(form.stage)[form.experiment], form.words([*named, *given])


def _of_environment(first: str, words: Sequence[str]) -> list[str]:
    """The flags of a run in an environment that the first word names, or a flag where no experiment is named."""
    flag = "--environment"
    given = [flag, *words] if names_environment(first) else list(words)
    if not (environment := last_value(flag, given)) or not given[0].startswith("-"):
        return []
    return [*unless_given(["--name", name_of_rows(environment.partition("?")[0])], given), *given]


def last_value(flag: str, words: Sequence[str]) -> str:
    """The value that counts of a flag, `--flag value` or `--flag=value`; empty without one."""
    found = ""
    for word, following in pairwise([*words, ""]):
        if word == flag and not following.startswith("--"):
            found = following
        elif word.startswith(f"{flag}="):
            found = word.removeprefix(f"{flag}=")
    return found


def name_of_rows(source: str) -> str:
    """The name of a run on files, folders or hub ids, separated by commas: `pairs` of data/pairs.jsonl.gz; `pairs_run`
    where its folder, outputs/pairs, holds something else, such as these rows.
    """
    paths = [Path(os.path.abspath(os.path.expanduser(one))) for one in source.split(",") if one]
    names = [re.sub(r"(\.[a-z]+)+$", "", path.name, flags=re.IGNORECASE) for path in paths]
    letters = re.sub(r"[^A-Za-z0-9_.-]+", "_", "_".join(names))[:LONGEST_NAME]
    name = letters if NAME.fullmatch(letters) else "rows"
    return f"{name}_run" if _is_taken(Path(RunConfig().folder(name))) else name


def _is_taken(folder: Path) -> bool:
    """True for a file, and for a folder with files of which none is a run's or its lock."""
    if not folder.is_dir():
        return folder.exists()
    found = set(os.listdir(folder))
    return bool(found) and not found & {*RUN_FILES, LOCK}


def _is_data(word: str) -> bool:
    """True for files and folders, but for those of Python, for several separated by commas, and for hub ids."""
    if word.startswith("-") or word.endswith(".py"):
        return False
    if "," in word or os.path.exists(os.path.expanduser(word)):
        return True
    owner, slash, name = word.partition("/")
    return bool(slash and owner and name) and "/" not in name and owner not in (".", "~") and not Path(owner).exists()


def show_usage_of(word: str, file: Path) -> None:
    """Lets the help of an experiment be headed by the word of `lmgym train` under which it is asked for."""
    own = experiments(FORMS[word].stage).get(file.stem) == file
    os.environ[USAGE] = command_line("lmgym", "train", word, file.stem if own else file)


def launch_experiment(file: Path, flags: Sequence[str], num_gpus: int | None) -> NoReturn:
    """Prints the command that runs an experiment, and becomes it, or what passes signals on to a launcher's ranks.

    Raises InputError as `experiment_command` does.
    """
    command = experiment_command(file, flags, num_gpus)
    if not asks_for_help(flags):
        show_command(command)
    become(command if command[1] == str(file) else [*PREFIX, *command], shown=False)


def experiment_command(file: Path, flags: Sequence[str], num_gpus: int | None) -> list[str]:
    """The command that runs an experiment, or prints its help.

    `num_gpus` processes are started; None: one per visible GPU, or one on a CPU. Raises InputError for more than there
    are GPUs, if there are any, and for a DeepSpeed config that no run can use.
    """
    if asks_for_help(flags):
        return [sys.executable, str(file), *flags]
    refuse_wrong_deepspeed(flags)
    return launch_command(file, flags, count_processes(num_gpus))


def asks_for_help(flags: Sequence[str]) -> bool:
    """True for --help, -h or --help all."""
    return bool(split_help(flags)[1])


def become(command: list[str], shown: bool = True) -> NoReturn:
    """Replaces this process by a command, which is printed if `shown`: signals and exit code are the command's own."""
    if shown:
        show_command(command)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(command[0], command)


def show_command(command: Sequence[str]) -> None:
    """Prints a command before it runs, above the output of its own."""
    say(f"$ {shlex.join(command)}")
    sys.stdout.flush()


def count_processes(num_gpus: int | None) -> int:
    """The number of processes to start. Raises InputError for one that this machine does not have."""
    if num_gpus is not None:
        Range(1, MOST_PROCESSES).check("num_gpus", num_gpus)
    found = visible_gpus()
    if found and num_gpus is not None and num_gpus > found:
        raise InputError(f"--num_gpus {num_gpus}, and {found} GPU(s) are visible; needed: at most {found}")
    return num_gpus or found or 1


def refuse_wrong_deepspeed(flags: Sequence[str]) -> None:
    """Raises InputError for a config after --deepspeed that does not exist or that no run can use.

    The experiment checks it too, but only after the launcher has started, which takes ten seconds or more.
    """
    config = last_value("--deepspeed", flags)
    if config and config != "None" and not config.startswith("-"):  # without a value it is the experiment's to refuse
        from lmgym.distributed.deepspeed_config import parse_config

        parse_config(config)


def launch_command(file: Path, flags: Sequence[str], processes: int) -> list[str]:
    """deepspeed for flags with --deepspeed, torchrun for other runs of several processes, else python.

    Launchers run as modules of this Python: scripts on PATH may belong to another one.
    """
    script = [str(file), *flags]
    if uses_deepspeed(flags):
        module = "deepspeed.launcher.runner"
        # a port of its own: two runs may share a machine
        settings = [*_devices(processes), "--master_port", str(free_port()), "--log_level", "error"]
    elif processes > 1:
        module, settings = "torch.distributed.run", ["--standalone", "--nproc_per_node", str(processes)]
    else:
        return [sys.executable, *script]
    return [sys.executable, "-m", module, *settings, *script]


def uses_deepspeed(words: Sequence[str]) -> bool:
    """True for flags with --deepspeed."""
    return any(word.partition("=")[0] == "--deepspeed" for word in words)


def _devices(processes: int) -> list[str]:
    """deepspeed's flags for so many processes; with --num_gpus it would ignore CUDA_VISIBLE_DEVICES."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").replace(" ", "").split(",")[:processes]
    if len(visible) == processes and all(map(str.isdigit, visible)):
        return ["--include", f"localhost:{','.join(visible)}"]
    return ["--num_gpus", str(processes)]
