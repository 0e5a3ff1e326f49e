"""`lmgym env export`: an environment as an installable package, for TRL's GRPOTrainer and for verifiers.

The package names the environment and needs lmgym, which plays it. A class of a file goes along. Before anything is
written, an episode is begun from the package alone, in a process that notes the files, programs and servers of this
machine that it uses: another machine has none of them.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from lmgym import __version__
from lmgym.console import say
from lmgym.environments.named import load_environment
from lmgym.environments.session import Session
from lmgym.errors import InputError, one_line, shown_path
from lmgym.runs.paths import CLASS_OF_FILE
from lmgym.shell import command, relative

README = Path(__file__).with_name("exported_readme.md")
NOTES = Path(__file__).with_name("export_check.py")
SECONDS = 300
"""in which the first episode must begin"""


def export(words: str, output: str | None) -> None:
    """Writes the package into a new folder. Raises InputError for one that exists, and for what needs this machine."""
    named = load_environment(words)
    with Session(named):  # refuses several trained agents
        pass
    module = module_name(words)
    target = Path(output or f"outputs/environments/{module}")
    if target.exists():
        raise InputError(f"{shown_path(target)} exists; needed: another --output, or remove it")
    with tempfile.TemporaryDirectory(prefix="lmgym-export-") as made:
        folder = Path(made) / target.name
        write_package(words, module, named.about, folder)
        check_package(words, module, folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(folder, target, ignore=shutil.ignore_patterns("__pycache__"))
    say(f"{relative(target)}: the package {module}, for TRL and verifiers; its README.md shows how both use it")
    say(f"next: {command('pip', 'install', relative(target))}")


def module_name(words: str) -> str:
    """`lmgym_games_blackjack` of games:blackjack."""
    name = words.partition("?")[0]
    if match := CLASS_OF_FILE.fullmatch(name):
        name = f"{Path(match['file']).stem}_{match['name']}"
    return "lmgym_" + re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def write_package(words: str, module: str, about: str, folder: Path) -> None:
    """The package's files."""
    package = folder / module
    package.mkdir(parents=True)
    name, question, query = words.partition("?")
    named, imports = json.dumps(words), ""
    if match := CLASS_OF_FILE.fullmatch(name):
        file = Path(match["file"]).expanduser()
        shutil.copy(file, package / file.name)
        rest = json.dumps(f":{match['name']}{question}{query}")
        named = f"str(Path(__file__).with_name({json.dumps(file.name)})) + {rest}"
        imports = "from pathlib import Path\n\n"
    files = {
        "pyproject.toml": PROJECT.format(module=module.replace("_", "-"), package=module, version=__version__),
        "README.md": README.read_text(encoding="utf-8").format(words=words, about=about, module=module),
        f"{module}/__init__.py": PACKAGE.format(words=words, imports=imports, named=named),
        f"{module}/trl.py": FOR_TRL.format(words=words, module=module),
        f"{module}/taskset.py": FOR_VERIFIERS.format(words=words, module=module),
    }
    for path, text in files.items():
        (folder / path).write_text(text, encoding="utf-8")


def check_package(words: str, module: str, folder: Path) -> None:
    """Raises InputError if an episode does not begin from the package alone, or uses what only this machine has."""
    with tempfile.TemporaryDirectory(prefix="lmgym-elsewhere-") as elsewhere:
        done = subprocess.run(
            [sys.executable, "-I", str(NOTES), str(folder), module],
            cwd=elsewhere,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    found = json.loads(lines[-1]) if lines else {"error": (done.stderr.strip().splitlines() or ["no message"])[-1]}
    if found.get("error"):
        raise InputError(
            f"{words} does not begin an episode elsewhere: {one_line(found['error'], 300)}; needed: an environment in "
            "one file, which imports installed packages only"
        )
    if needs := ", ".join(found["needs"]):
        raise InputError(
            f"{words} uses {needs} of this machine; needed: an environment without it, as its data in the file of its "
            "class, or in an installed package"
        )


PROJECT = """[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{module}"
version = "0.1.0"
dependencies = ["lmgym>={version}"]

[project.optional-dependencies]
trl = ["trl>=1.16"]
verifiers = ["verifiers>=0.4,<0.5"]

[tool.setuptools]
packages = ["{package}"]

[tool.setuptools.package-data]
"*" = ["*.py"]
"""

PACKAGE = '''"""The environment {words} of lmgym, for TRL (`trl.py`) and for verifiers (`taskset.py`)."""

{imports}ENVIRONMENT = {named}

__all__ = ["Env", "Taskset"]


def __getattr__(name):
    """verifiers' classes, which are imported when verifiers asks for them."""
    if name not in __all__:
        raise AttributeError(name)
    from . import taskset

    return getattr(taskset, name)
'''

FOR_TRL = '''"""{words} for TRL's GRPOTrainer.

GRPOTrainer(MODEL, reward_funcs=reward, train_dataset=dataset(256), environment_factory=Environment)
"""

from lmgym.apps.interop.to_trl import TRLEnvironment, reward, rows

from . import ENVIRONMENT

__all__ = ["Environment", "dataset", "reward"]


class Environment(TRLEnvironment):
    """{words}"""

    ENVIRONMENT = ENVIRONMENT


def dataset(number, split="train"):
    """So many episodes of a split as rows."""
    from datasets import Dataset

    return Dataset.from_list(rows(Environment, number, split))
'''

FOR_VERIFIERS = '''"""{words} for verifiers, as `eval {module}`."""

from lmgym.apps.interop.to_verifiers import LmgymEnv, LmgymTaskset

from . import ENVIRONMENT


class Taskset(LmgymTaskset):
    """{words}"""

    ENVIRONMENT = ENVIRONMENT


class Env(LmgymEnv):
    """{words}"""

    ENVIRONMENT = ENVIRONMENT
'''
