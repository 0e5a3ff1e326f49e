"""Settings of TRL's trainers in a Python script or a YAML config. A script is parsed, never run."""

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lmgym.apps.migration.assignments import UNKNOWN, Assignments
from lmgym.apps.migration.names import KINDS
from lmgym.errors import InputError, listed, one_line, regular, shown, shown_path
from lmgym.shell import command

CONFIGS = {f"{name}Config": kind for name, kind in KINDS.items()}
TRAINERS = {f"{name}Trainer": kind for name, kind in KINDS.items()}
NEEDED = f"needed: a script with one of TRL's {', '.join([*CONFIGS, *TRAINERS])}"
_DATA = ("train_dataset", "eval_dataset", "processing_class")
POSITIONS = {
    **dict.fromkeys(("reward", "sft", "orpo", "cpo"), ("model", "args", "data_collator", *_DATA)),
    **dict.fromkeys(("dpo", "kto"), ("model", "ref_model", "args", "data_collator", *_DATA)),
    **dict.fromkeys(("grpo", "rloo"), ("model", "reward_funcs", "args", *_DATA)),
    "ppo": ("args", "processing_class", "model", "ref_model", "reward_model"),
}
"""arguments of trainers without a name"""
OLD_POSITIONS = ("args", "model", "ref_model", "tokenizer")  # of the first PPOTrainer
CALLS = {
    "from_pretrained": ("pretrained_model_name_or_path",),
    "load_dataset": ("path", "name"),
    "load_from_disk": ("path",),
}
"""arguments of other calls without a name"""
MOST_VALUES = 100_000
"""of a config"""
SAME_ROWS = {"shuffle", "with_format", "set_format", "flatten_indices", "cast_column", "train_test_split"}
"""methods of data sets that leave the rows as they are; a part is held out here too"""
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
OF_SCRIPTS = {"dataset_config": None, "dataset_train_split": "train", "dataset_test_split": "test"}
"""defaults of TRL's own scripts for arguments that no trainer has"""
OTHER_LIBRARIES = {
    "LLaMA-Factory": {"stage", "finetuning_type", "template", "cutoff_len", "dataset_dir"},
    "axolotl": {"base_model", "sequence_len", "sample_packing", "micro_batch_size"},
}
"""settings that configs of TRL do not have"""


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
    changed: tuple[str, ...] = ()
    """by methods such as map and filter"""
    part: tuple[Any, ...] = ()
    """the configuration, folder or files of it"""


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
        text = regular(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{name}: {one_line(str(error))}; {NEEDED}, or a YAML config of TRL's command") from error
    if path.suffix in (".yaml", ".yml"):
        return [_read_yaml(text, name, kind)]
    try:
        tree = ast.parse(code_of_notebook(text) if path.suffix == ".ipynb" else text)
    except (SyntaxError, ValueError, RecursionError, MemoryError, AttributeError, TypeError, KeyError) as error:
        raise InputError(f"{name} is no Python script: {one_line(str(error))}; {NEEDED}") from error
    found = [one for one in Script(tree).trainers() if kind in (None, one.kind)]
    if not found:
        raise InputError(f"{name} has none of TRL's trainers{f' of {kind}' if kind else ''}; {NEEDED}")
    return found


def code_of_notebook(text: str) -> str:
    """The code cells of a notebook, without lines for the shell or for IPython. Raises ValueError for another file."""
    lines: list[str] = []
    for cell in json.loads(text).get("cells", []):
        source = "".join(cell["source"])
        if cell.get("cell_type") == "code" and not source.lstrip().startswith("%%"):
            shell = re.compile(r"^\s*[!%](?:.*\\\n)*.*$", re.MULTILINE)  # with the lines that it goes on in
            lines.append(shell.sub("", source))
    return "\n".join(lines)


def refuse_endless(values: Any, name: str) -> None:
    """Raises InputError for a config with a part that is within itself, or whose references repeat its parts beyond
    MOST_VALUES.
    """
    left, around, seen = [(values, False)], set[int](), 0
    while left:
        one, is_left = left.pop()
        if is_left:
            around.remove(id(one))
            continue
        seen += 1
        if seen > MOST_VALUES:
            raise InputError(f"{name} has more than {MOST_VALUES:,} values, with those that it repeats; needed: fewer")
        parts = [*one.values()] if isinstance(one, Mapping) else one if isinstance(one, list | tuple) else ()
        if parts:
            if id(one) in around:
                raise InputError(f"{name} has a value that is within itself, by an anchor; needed: values that end")
            around.add(id(one))
            left += [(one, True), *((part, False) for part in parts)]


def _read_yaml(text: str, name: str, kind: str | None) -> Settings:
    import yaml

    try:
        values = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{name}: {one_line(str(error))}; needed: a YAML config of TRL's command") from error
    if not isinstance(values, Mapping) or not all(isinstance(key, str) for key in values):
        raise InputError(f"{name} holds {shown(values)}; needed: names and values, as TRL's command reads them")
    refuse_endless(values, name)
    for library, signs in OTHER_LIBRARIES.items():
        if signs & values.keys():
            raise InputError(
                f"{name} is a config of {library}, by its {listed(sorted(signs & values.keys()), 3)}; needed: one of "
                f"TRL's, or: {command('lmgym', 'from', library.lower().replace('-', ''), name)}"
            )
    return Settings(kind or guess_kind(values, name), dict(values))


def fill_in(settings: Settings, flags: Mapping[str, Any]) -> Settings:
    """The settings with flags that the script was launched with, also where it reads them as `script_args.NAME`."""

    known = {**OF_SCRIPTS, **flags} if flags else {}

    def filled(value: Any) -> Any:
        match value:
            case Code():
                name = value.text.rpartition(".")[2]
                return known[name] if re.fullmatch(r"\w+\.\w+", value.text) and name in known else value
            case Loaded():
                part = tuple(one for one in map(filled, value.part) if one is not None)
                return replace(value, name=filled(value.name), split=filled(value.split), part=part)
            case list():
                return [filled(item) for item in value]
        return value

    values = {name: filled(value) for name, value in settings.values.items()}
    if known and isinstance(values.get("args"), Code):  # the flags are its values
        values.pop("args")
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
        self.assignments = Assignments(tree)
        self.known: dict[ast.expr, Any] = {}
        """values of assignments, each found once: `x = [x, x]` in forty lines has 2**40 items"""

    def trainers(self) -> list[Settings]:
        """Each trainer with the settings of its config, or each config of a script without trainers."""
        trainers = [self._trainer(kind, call) for kind, call in self._calls(TRAINERS)]
        return trainers or [Settings(kind, self._arguments(call)) for kind, call in self._calls(CONFIGS)]

    def _calls(self, names: Mapping[str, str]) -> Iterator[tuple[str, ast.Call]]:
        calls = [node for node in ast.walk(self.tree) if isinstance(node, ast.Call) and _name_of(node) in names]
        for call in sorted(calls, key=lambda node: node.lineno):
            yield names[_name_of(call)], call

    def _trainer(self, kind: str, call: ast.Call) -> Settings:
        first = self.value(call.args[0]) if call.args else None
        names = OLD_POSITIONS if isinstance(first, Called) and first.name in CONFIGS else POSITIONS[kind]
        given = {k.arg: k.value for k in call.keywords if k.arg}
        node = {**dict(zip(names, call.args, strict=False)), **given}.get("args", given.get("config"))
        values = self._arguments(call, names)
        config = values.pop("args", None) or values.pop("config", None)
        if isinstance(config, Called):
            values = {**config.arguments, **values}
            if isinstance(node, ast.Name):
                for name, value in self.assignments.attributes_of(node).items():
                    values[name] = Code(f"{node.id}.{name}") if value is UNKNOWN else self.value(value)
        elif config is not None:
            values["args"] = config
        return Settings(kind, values)

    def _arguments(self, call: ast.Call, positions: Sequence[str] = ()) -> dict[str, Any]:
        """The arguments by name, those of a dict after ** too; one that no name belongs to is `*`."""
        found: dict[str, Any] = {}
        for number, argument in enumerate(call.args):
            name = positions[number] if number < len(positions) and not isinstance(argument, ast.Starred) else "*"
            found[name] = self.value(argument)
        for keyword in call.keywords:
            value = self.value(keyword.value)
            if keyword.arg:
                found[keyword.arg] = value
            elif isinstance(value, dict) and all(isinstance(key, str) for key in value):
                found |= value
            else:
                found["**"] = value
        return found

    def value(self, node: ast.expr) -> Any:
        """The value of an expression: plain data, Loaded, Called, or Code where it is unknown."""
        try:
            return self._value(node)
        except RecursionError:
            return Code("an expression of many parts")

    def _value(self, node: ast.expr) -> Any:
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError):
            pass
        match node:
            case ast.Name():
                return self._name(node)
            case ast.List() | ast.Tuple():
                return [self._value(item) for item in node.elts]
            case ast.Dict() if None not in node.keys:
                keys = [self._value(key) for key in node.keys if key]
                if all(isinstance(key, str) for key in keys):
                    return {key: self._value(item) for key, item in zip(keys, node.values, strict=True)}
            case ast.Call(func=ast.Name(id="dict"), args=[]):
                return self._arguments(node)
            case ast.BinOp():
                return self._operation(node)
            case ast.Subscript():
                inner, key = self._value(node.value), self._value(node.slice)
                if isinstance(inner, Loaded):
                    return replace(inner, split=key if inner.split is None else inner.split)
            case ast.Call():
                return self._call(node)
            case ast.Attribute():
                inner = self._value(node.value)
                if isinstance(inner, Called) and node.attr in inner.arguments:
                    return inner.arguments[node.attr]
        return Code(ast.unparse(node))

    def _name(self, node: ast.Name) -> Any:
        found = self.assignments.value(node)
        if found is UNKNOWN:
            return Code(node.id)
        if found not in self.known:
            self.known[found] = self._value(found)
        return self.known[found]

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
        name = _name_of(node)
        arguments = self._arguments(node, CALLS.get(name, ("output_dir",) if name in CONFIGS else ()))
        if name == "from_pretrained":
            return arguments.get("pretrained_model_name_or_path", Code(ast.unparse(node)))
        if name in ("load_dataset", "load_from_disk"):
            return _loaded(arguments)
        if name.endswith("Config"):
            return Called(name, arguments)
        if isinstance(node.func, ast.Attribute):
            inner = self._value(node.func.value)
            if isinstance(inner, Loaded) and name not in SAME_ROWS:
                return replace(inner, changed=(*inner.changed, name))
            if isinstance(inner, Loaded):
                return inner
        return Code(ast.unparse(node))


def _loaded(arguments: Mapping[str, Any]) -> Loaded:
    """The data that `load_dataset` loads."""
    path, files, split = arguments.get("path"), arguments.get("data_files"), arguments.get("split")
    part = {name: arguments[name] for name in ("name", "data_dir", "data_files") if arguments.get(name) is not None}
    if isinstance(path, str) and path in READERS and files is not None:
        part.pop("data_files")
        if isinstance(files, Mapping) and isinstance(split, str) and split in files:
            files, split = files[split], None
        path = ",".join(files) if isinstance(files, list) and all(isinstance(one, str) for one in files) else files
    return Loaded(path, split, part=tuple(part.values()))


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
