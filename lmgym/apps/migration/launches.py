"""What a library is launched with: settings in a YAML or JSON config, a shell or a Python script. Nothing is run."""

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmgym.apps.migration.shell import Shell
from lmgym.apps.migration.trl_scripts import Called, Code, Script, code_of_notebook, refuse_endless
from lmgym.errors import InputError, one_line, regular, shown, shown_path

HYDRA = re.compile(r"[+~]{0,2}([A-Za-z_][\w.]*)=(.*)", re.DOTALL)
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
FILES = ("a YAML or JSON config", "a shell script", "a Python script or notebook that launches it")


@dataclass(frozen=True)
class Launch:
    """The settings of one command, or of one config."""

    program: str
    """the word that names what is launched, such as openrlhf.cli.train_dpo; empty of a config"""
    values: dict[str, Any]
    """settings by name, those of nested sections with dots"""


def read_launches(path: Path, programs: re.Pattern[str], library: str) -> list[Launch]:
    """Each launch of a library in a file. Raises InputError for a file with none; `programs` finds what is launched."""
    name = shown_path(path)
    try:
        text = regular(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{name}: {one_line(str(error))}; needed: {', '.join(FILES)}") from error
    if path.suffix in (".yaml", ".yml", ".json"):
        return [Launch("", read_config(text, name))]
    if path.suffix in (".py", ".ipynb"):
        found = list(_of_python(text, path.suffix == ".ipynb", programs, name))
    else:
        found = list(_of_commands(Shell().read(text), programs))
    if not found:
        raise InputError(f"{name} launches nothing of {library}; needed: {', '.join(FILES)}")
    return found


def flat(values: Mapping[str, Any], sections: Sequence[str] | None = None, before: str = "") -> dict[str, Any]:
    """Nested settings with dots between their names; of `sections` only, if there are any."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{before}{key}"
        if isinstance(value, Mapping) and value and (sections is None or name in sections):
            found |= flat(value, None, f"{name}.")
        else:
            found[name] = value
    return found


def read_config(text: str, name: str) -> dict[str, Any]:
    """The settings of a YAML or JSON config. Raises InputError for another text, and for one that repeats itself."""
    import yaml

    try:
        values = json.loads(text) if name.endswith(".json") else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise InputError(f"{name}: {one_line(str(error))}; needed: a YAML or JSON config") from error
    if not isinstance(values, Mapping) or not all(isinstance(key, str) for key in values):
        raise InputError(f"{name} holds {shown(values)}; needed: names and values")
    refuse_endless(values, name)
    return {key: _resolved(value) for key, value in values.items()}


def _resolved(value: Any) -> Any:
    """A value of a config: what refers to another, or to a resolver, is only known when it is read."""
    if isinstance(value, Mapping):
        return {str(key): _resolved(one) for key, one in value.items()}
    if isinstance(value, str):
        if "${" in value:
            return Code(value)
        return plain(value) if NUMBER.fullmatch(value) else value  # YAML takes 1e-5 for text
    return value


def _of_commands(commands: list[list[str | Code]], programs: re.Pattern[str]) -> Iterator[Launch]:
    for words in commands:
        texts = [word.text if isinstance(word, Code) else word for word in words]
        if found := programs.search(" ".join(texts)):
            end = next(n for n in range(1, len(words) + 1) if len(" ".join(texts[:n])) >= found.end())
            yield Launch(found[0].strip(), settings(words[end:]))


def _of_python(text: str, notebook: bool, programs: re.Pattern[str], name: str) -> Iterator[Launch]:
    """Commands in lists and texts of a script, and settings in its dicts."""
    try:
        tree = ast.parse(code_of_notebook(text) if notebook else text)
    except (SyntaxError, ValueError, RecursionError, MemoryError, AttributeError, TypeError, KeyError) as error:
        raise InputError(f"{name} is no Python script: {one_line(str(error))}") from error
    script = Script(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.List | ast.Tuple) and (words := script.value(node)) and isinstance(words, list | tuple):
            kept = [word if isinstance(word, Code) else str(word) for word in words]
            yield from _of_commands([kept], programs)
        elif isinstance(node, ast.Constant | ast.JoinedStr) and isinstance(value := script.value(node), str):
            if programs.search(value) and len(value.split()) > 1:
                yield from _of_commands(Shell().read(value), programs)
        elif isinstance(node, ast.Call):
            yield from _of_dicts(script, node)


def _of_dicts(script: Script, call: ast.Call) -> Iterator[Launch]:
    """The settings that a call is given as a dict: `run_exp(dict(stage="sft", ...))`, `json.dump(settings, file)`."""
    for argument in call.args:
        value = script.value(argument)
        value = value.arguments if isinstance(value, Called) else value
        if isinstance(value, dict) and len(value) > 1 and all(isinstance(key, str) for key in value):
            yield Launch("", {key: _resolved(one) for key, one in value.items()})


def settings(words: Sequence[str | Code]) -> dict[str, Any]:
    """Settings of a command's words: `--name value`, `--name=value`, `name=value`; a flag alone is true.

    Words of which only running the script would tell what they are, are `words`.
    """
    found: dict[str, Any] = {}
    flag = ""
    for word in words:
        text = word.text if isinstance(word, Code) else word
        pair = HYDRA.fullmatch(text)
        if text.startswith("--"):
            flag, equals, value = text[2:].partition("=")
            flag = flag.replace("-", "_")
            found[flag] = (Code(value) if isinstance(word, Code) else plain(value)) if equals else True
            flag = "" if equals else flag
        elif flag:
            new = word if isinstance(word, Code) else plain(word)
            old = found[flag]
            found[flag] = new if old is True else [*(old if isinstance(old, list) else [old]), new]
        elif pair:
            found[pair[1]] = Code(pair[2]) if isinstance(word, Code) else plain(pair[2])
        elif isinstance(word, Code):
            found.setdefault("words", []).append(word)
    return found


def plain(word: str) -> Any:
    """A word as a number, truth value, None or list, where it is one; a Hydra reference is Code."""
    if "${" in word:
        return Code(word)
    lower = word.strip().lower()
    if lower in ("true", "false"):
        return lower == "true"
    if lower in ("null", "none", "~"):
        return None
    if NUMBER.fullmatch(lower):
        return int(lower) if re.fullmatch(r"[-+]?\d+", lower) and len(lower) < 30 else float(lower)
    if lower.startswith("[") and lower.endswith("]"):
        parts = [part.strip().strip("\"'") for part in word.strip()[1:-1].split(",")]
        return [plain(part) for part in parts if part]
    return word
