"""trlx's `TRLConfig` and its sections, with their names and defaults.

Programs change them in place (`config.train.batch_size = 4`), so they are not frozen; slots refuse names that they do
not have. What each field becomes here is in ppo/trlx/settings.py.
"""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from lmgym.errors import InputError, nearest, one_line, regular, shown, shown_path
from ppo.trlx.data.method_configs import MethodConfig, find_method

Settings = dict[str, Any]


@dataclass(slots=True)
class ModelConfig:
    """The policy."""

    model_path: str
    model_arch_type: str = "causal"
    num_layers_unfrozen: int = -1
    peft_config: Any = None
    """peft's LoraConfig, or its fields in a dict"""
    model_extra_configs: Settings = field(default_factory=dict)


@dataclass(slots=True)
class TokenizerConfig:
    """The tokenizer."""

    tokenizer_path: str
    padding_side: str = "left"
    truncation_side: str = "right"
    tokenizer_extra_configs: Settings = field(default_factory=dict)


@dataclass(slots=True)
class OptimizerConfig:
    """The optimizer by name, with torch's arguments: lr, betas, eps, weight_decay."""

    name: str
    kwargs: Settings = field(default_factory=dict)


@dataclass(slots=True)
class SchedulerConfig:
    """The schedule by name, with torch's arguments: T_max, eta_min; start_factor, end_factor, total_iters."""

    name: str
    kwargs: Settings = field(default_factory=dict)


@dataclass(slots=True)
class TrainConfig:
    """The run. `batch_size` and `minibatch_size` count rows of one rank."""

    total_steps: int
    seq_length: int
    epochs: int
    batch_size: int
    checkpoint_interval: int
    eval_interval: int
    pipeline: str
    trainer: str
    trainer_kwargs: Settings = field(default_factory=dict)
    project_name: str = "trlx"
    run_name: str | None = None
    entity_name: str | None = None
    group_name: str | None = None
    checkpoint_dir: str = "ckpts"
    rollout_logging_dir: str | None = None
    save_best: bool = True
    save_optimizer: bool = True
    resume_from_checkpoint: str | None = None
    tracker: str | None = "wandb"
    logging_dir: str | None = None
    tags: list[str] | None = field(default_factory=list)
    seed: int = 1000
    minibatch_size: int | None = None


@dataclass(slots=True)
class TRLConfig:
    """All settings of a trlx program. Methods raise InputError for unknown names, and suggest the nearest."""

    method: MethodConfig
    model: ModelConfig
    optimizer: OptimizerConfig
    scheduler: SchedulerConfig
    tokenizer: TokenizerConfig
    train: TrainConfig

    @classmethod
    def load_yaml(cls, yml_fp: str | Path) -> "TRLConfig":
        """The config in a YAML file."""
        import yaml

        name = shown_path(yml_fp)
        try:
            config = yaml.safe_load(regular(Path(yml_fp)).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
            raise InputError(f"{name}: {one_line(str(error))}; needed: a YAML file of trlx's sections") from error
        try:
            return cls.from_dict(config)
        except InputError as error:
            raise InputError(f"{name}: {error}") from None

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> "TRLConfig":
        """The config in a dict of sections."""
        _check(config, "the config", [section.name for section in fields(cls)])
        if missing := [section.name for section in fields(cls) if section.name not in config]:
            raise InputError(f"the config lacks {', '.join(missing)}; needed: {', '.join(SECTIONS)}, method")
        kinds = {**SECTIONS, "method": find_method(config["method"])}
        return cls(**{name: _section(kind, name, config[name]) for name, kind in kinds.items()})

    def to_dict(self) -> dict[str, Settings]:
        """A dict of sections, a copy."""
        return asdict(self)

    def evolve(self, **kwargs: Any) -> "TRLConfig":
        """A copy with values replaced: `evolve(train={"seed": 1}, method={"gen_kwargs": {"top_k": 0}})`."""
        return self.from_dict(_merged(self.to_dict(), kwargs))

    @classmethod
    def update(cls, baseconfig: "Mapping[str, Any] | TRLConfig", config: Mapping[str, Any]) -> "TRLConfig":
        """A copy of `baseconfig` with values replaced, by dotted names or by section: `{"train.seed": 1}`."""
        base = baseconfig.to_dict() if isinstance(baseconfig, TRLConfig) else baseconfig
        changes: Settings = {}
        for name, value in config.items():
            *sections, last = str(name).split(".")
            if not sections and not isinstance(value, Mapping):
                nearest = _suggestion(str(name), _dotted(base))
                raise InputError(f"{shown(str(name))} is no section of the config; {nearest}")
            inner: Any = {last: value}
            for section in reversed(sections):
                inner = {section: inner}
            changes = _merged(changes, inner)
        return cls.from_dict(_merged(base, changes))

    def __str__(self) -> str:
        """The config as JSON."""
        import json

        return json.dumps(self.to_dict(), indent=4, default=str)


SECTIONS: dict[str, type] = {
    "model": ModelConfig,
    "optimizer": OptimizerConfig,
    "scheduler": SchedulerConfig,
    "tokenizer": TokenizerConfig,
    "train": TrainConfig,
}


def _section(kind: type, name: str, given: Any) -> Any:
    """One section. Raises InputError for unknown and for missing fields."""
    _check(given, name, [one.name for one in fields(kind)])
    needed = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]
    if missing := [key for key in needed if key not in given]:
        raise InputError(f"{name} lacks {', '.join(missing)}; needed: a value for each")
    return kind(**copy.deepcopy(dict(given)))


def _check(given: Any, name: str, known: list[str]) -> None:
    """Raises InputError for what is no mapping, and for keys that are not known, all of them at once."""
    if not isinstance(given, Mapping):
        raise InputError(f"{name} is {shown(given)}; needed: a mapping with {', '.join(known)}")
    prefix = "" if name == "the config" else f"{name}."
    if unknown := [str(key) for key in given if key not in known]:
        found = "; ".join(f"{prefix}{one_line(key, 60)} ({_suggestion(key, known)})" for key in unknown)
        raise InputError(f"unknown in a trlx config: {found}")


def _suggestion(name: str, known: Iterable[str]) -> str:
    """The nearest known name in words; of dotted ones the last parts are compared."""
    by_last = {one.rpartition(".")[2]: one for one in known}
    near = nearest(name, by_last, 0)
    return f"did you mean {by_last[near]}?" if near else ""


def _dotted(config: Mapping[str, Any]) -> list[str]:
    sections = {name: section for name, section in config.items() if isinstance(section, Mapping)}
    return [f"{name}.{key}" for name, section in sections.items() for key in section]


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> Settings:
    """A copy of `base` with the changes, whose mappings are merged with those that are there."""
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        merged[key] = _merged(old if isinstance(old, Mapping) else {}, value) if isinstance(value, Mapping) else value
    return merged
