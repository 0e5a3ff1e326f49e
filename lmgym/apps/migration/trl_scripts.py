"""Settings of TRL's trainers in a Python script or a YAML config. A script is parsed, never run."""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lmgym.errors import InputError, listed, one_line, shown, shown_path

KINDS = {"Reward": "reward", "SFT": "sft", "DPO": "dpo", "KTO": "kto", "GRPO": "grpo", "PPO": "ppo"}
CONFIGS = {f"{name}Config": kind for name, kind in KINDS.items()}
TRAINERS = {f"{name}Trainer": kind for name, kind in KINDS.items()}
NEEDED = f"needed: a script with one of TRL's {', '.join([*CONFIGS, *TRAINERS])}"
POSITIONS = {
    "reward": ("model", "args"),
    "sft": ("model", "args"),
    "dpo": ("model", "ref_model", "args"),
    "kto": ("model", "ref_model", "args"),
    "grpo": ("model", "reward_funcs", "args"),
    "ppo": ("args", "processing_class", "model", "ref_model", "reward_model"),
}
"""arguments of trainers without a name"""
OLD_POSITIONS = ("args", "model", "ref_model", "tokenizer")  # of the first PPOTrainer
READERS = {"json", "csv", "parquet"}  # of load_dataset, whose files are in data_files
OPERATIONS = {
    ast.Add: "__add__",
    ast.Sub: "__sub__",
    ast.Mult: "__mul__",
    ast.Div: "__truediv__",
    ast.FloorDiv: "__floordiv__",
}
SIGNS = {
    "sft": {"packing", "dataset_text_field", "assistant_only_loss", "completion_only_loss"},
    "reward": {"center_rewards_coefficient"},
    "kto": {"desirable_weight", "undesirable_weight"},
    "grpo": {"num_generations", "max_completion_length", "epsilon", "reward_funcs", "scale_rewards"},
    "ppo": {"kl_coef", "num_ppo_epochs", "response_length", "reward_model_path", "ppo_epochs", "init_kl_coef"},
    "dpo": {"precompute_ref_log_probs", "rpo_alpha", "label_smoothing"},
}
"""settings that only one trainer has"""


@dataclass(frozen=True)
class Code:
    """A value that only running the script would tell."""

    text: str

    def __str__(self) -> str:
        return one_line(self.text, 60)


@dataclass(frozen=True)
class Loaded:
    """A data set of `load_dataset`."""

    name: Any
    split: Any = None
    changed: bool = False
    """by map, filter and others"""


@dataclass(frozen=True)
class Called:
    """A call with its arguments by name, such as LoraConfig(r=8)."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """The settings of one trainer in a file."""

    kind: str
    """one of KINDS' values"""
    values: dict[str, Any] = field(default_factory=dict)
    """of the config's fields and the trainer's arguments"""


def read_file(path: Path, kind: str | None = None) -> list[Settings]:
    """The trainers of a script, or the one of a YAML config. Raises InputError for a file with none."""
    name = shown_path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{name}: {one_line(str(error))}; {NEEDED}, or a YAML config of TRL's command") from error
    if path.suffix in (".yaml", ".yml"):
        return [_read_yaml(text, name, kind)]
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(f"{name} is no Python script: {one_line(str(error))}; {NEEDED}") from error
    found = [one for one in Script(tree).trainers() if kind in (None, one.kind)]
    if not found:
        raise InputError(f"{name} has none of TRL's trainers{f' of {kind}' if kind else ''}; {NEEDED}")
    return found


def _read_yaml(text: str, name: str, kind: str | None) -> Settings:
    import yaml

    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"{name}: {one_line(str(error))}; needed: a YAML config of TRL's command") from error
    if not isinstance(values, Mapping) or not all(isinstance(key, str) for key in values):
        raise InputError(f"{name} holds {shown(values)}; needed: names and values, as TRL's command reads them")
    return Settings(kind or guess_kind(values, name), dict(values))


def fill_in(settings: Settings, flags: Mapping[str, Any]) -> Settings:
    """The settings with flags that the script was launched with, also where it reads them as `script_args.NAME`."""

    def filled(value: Any) -> Any:
        match value:
            case Code():
                name = value.text.rpartition(".")[2]
                return flags[name] if re.fullmatch(r"\w+\.\w+", value.text) and name in flags else value
            case Loaded():
                return replace(value, name=filled(value.name), split=filled(value.split))
            case list():
                return [filled(item) for item in value]
        return value

    values = {name: filled(value) for name, value in settings.values.items()}
    return replace(settings, values={**values, **flags})


def guess_kind(values: Mapping[str, Any], name: str) -> str:
    """The trainer whose settings these are. Raises InputError if they could be those of several."""
    kinds = [kind for kind, signs in SIGNS.items() if signs & values.keys()]
    if len(kinds) != 1:
        raise InputError(
            f"{name} has settings of {listed(kinds) if kinds else 'no trainer in particular'}; needed: --trainer "
            f"{' or '.join(KINDS.values())}"
        )
    return kinds[0]


class Script:
    """A parsed script and what its names are assigned to."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.assigned: dict[str, list[tuple[int, ast.expr]]] = {}
        self.attributes: dict[str, list[tuple[str, ast.expr]]] = {}
        for node in ast.walk(tree):
            if not isinstance(node, ast.Assign):
                continue
            for target in node.targets:
                if isinstance(target, ast.Name):
                    self.assigned.setdefault(target.id, []).append((node.lineno, node.value))
                if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                    self.attributes.setdefault(target.value.id, []).append((target.attr, node.value))

    def trainers(self) -> list[Settings]:
        """Each trainer with the settings of its config, or each config of a script without trainers."""
        trainers = [self._trainer(kind, call) for kind, call in self._calls(TRAINERS)]
        return trainers or [Settings(kind, self._arguments(call)) for kind, call in self._calls(CONFIGS)]

    def _calls(self, names: Mapping[str, str]) -> Iterator[tuple[str, ast.Call]]:
        calls = [node for node in ast.walk(self.tree) if isinstance(node, ast.Call) and _name_of(node) in names]
        for call in sorted(calls, key=lambda node: node.lineno):
            yield names[_name_of(call)], call

    def _trainer(self, kind: str, call: ast.Call) -> Settings:
        values = self._arguments(call)
        first = self.value(call.args[0]) if call.args else None
        names = OLD_POSITIONS if isinstance(first, Called) and first.name in CONFIGS else POSITIONS[kind]
        given = {**dict(zip(names, call.args, strict=False)), **{k.arg: k.value for k in call.keywords if k.arg}}
        values |= {name: self.value(argument) for name, argument in given.items()}
        config = values.pop("args", None) or values.pop("config", None)
        node = given.get("args", given.get("config"))
        if isinstance(config, Called):
            values = {**config.arguments, **values}
            if isinstance(node, ast.Name):
                values |= {name: self.value(value) for name, value in self.attributes.get(node.id, [])}
        elif config is not None:
            values["args"] = config
        return Settings(kind, values)

    def _arguments(self, call: ast.Call) -> dict[str, Any]:
        return {k.arg or "**": self.value(k.value) for k in call.keywords}

    def value(self, node: ast.expr) -> Any:
        """The value of an expression: plain data, Loaded, Called, or Code where it is unknown."""
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            pass
        match node:
            case ast.Name():
                before = [value for line, value in self.assigned.get(node.id, []) if line < node.lineno]
                return self.value(before[-1]) if before else Code(node.id)
            case ast.List() | ast.Tuple():
                return [self.value(item) for item in node.elts]
            case ast.BinOp():
                return self._operation(node)
            case ast.Subscript():
                inner, key = self.value(node.value), self.value(node.slice)
                return replace(inner, split=key) if isinstance(inner, Loaded) else Code(ast.unparse(node))
            case ast.Call():
                return self._call(node)
            case ast.Attribute():
                inner = self.value(node.value)
                if isinstance(inner, Called) and node.attr in inner.arguments:
                    return inner.arguments[node.attr]
        return Code(ast.unparse(node))

    def _operation(self, node: ast.BinOp) -> Any:
        left, right, name = self.value(node.left), self.value(node.right), OPERATIONS.get(type(node.op))
        if name and all(type(side) in (int, float) for side in (left, right)):
            try:
                found = getattr(float(left) if "truediv" in name else left, name)(right)
            except (ZeroDivisionError, OverflowError):
                return Code(ast.unparse(node))
            return found if found is not NotImplemented else getattr(float(left), name)(right)
        return Code(ast.unparse(node))

    def _call(self, node: ast.Call) -> Any:
        name, arguments = _name_of(node), self._arguments(node)
        first = self.value(node.args[0]) if node.args else None
        if name == "from_pretrained":
            return arguments.get("pretrained_model_name_or_path", first)
        if name == "load_dataset":
            path = arguments.get("path", first)
            return Loaded(arguments.get("data_files", path) if path in READERS else path, arguments.get("split"))
        if name.endswith("Config"):
            return Called(name, arguments)
        if isinstance(node.func, ast.Attribute):
            inner = self.value(node.func.value)
            if isinstance(inner, Loaded):
                return replace(inner, changed=True)
        return Code(ast.unparse(node))


def read_flags(words: Sequence[str]) -> dict[str, Any]:
    """Values of `--name value` and `--name=value`, as numbers where they are; a name alone is true."""
    found: dict[str, Any] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            found[name] = _literal(value) if equals else True
        elif not name:
            raise InputError(f"unexpected {shown(word)}; needed: flags of TRL such as --learning_rate 1e-5")
        else:
            old = found[name]
            new = _literal(word)
            found[name] = new if old is True else [*(old if isinstance(old, list) else [old]), new]
    return found


def _literal(word: str) -> Any:
    try:
        return ast.literal_eval(word.title() if word.lower() in ("true", "false", "none") else word)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return word


def _name_of(call: ast.Call) -> str:
    """The last name of what is called: `from_pretrained` of `AutoModel.from_pretrained(...)`."""
    function = call.func
    return (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    )
