"""Settings of one of TRL's trainers as a command of lmgym, with what the user must fill in or do without."""

import math
import re
from typing import Any, get_args

from lmgym.apps.migration.commands import Translation, display, holds_code
from lmgym.apps.migration.losses import translate_loss
from lmgym.apps.migration.renaming import check, experiment_of, flag_of, hints_of, rename
from lmgym.apps.migration.trl_arguments import translate_adapters, translate_training
from lmgym.apps.migration.trl_scripts import Loaded, Settings
from lmgym.apps.migration.trl_tables import (
    DEFAULTS,
    OF_OBJECTS,
    OLD_PPO,
    OLD_PPO_NAMES,
    ON_PROMPTS,
    REWARD_FUNCTIONS,
    STAGES,
    WORDS,
)
from lmgym.runs.launching import FORMS

LIBRARY = "TRL"
COMMIT = re.compile("[0-9a-f]{40}")
FIRST_ROWS = re.compile(r"(\w*)\[:(\d+)\]")
# settings of the experiment that TRL's trainers do not have
OF_NO_EXPERIMENT = {
    "normalize": "none",
    "cliprange_reward": math.inf,
    "missing_eos_penalty": 0,
    "target": None,
    "num_layers_unfrozen": -1,
}
UNIMPORTANT = {"task_type", "lora_task_type", "use_peft", "inference_mode", "do_train", "do_eval", "world_size"}
SAME_LOSS = {"assistant_only_loss", "completion_only_loss"}


def translate(settings: Settings) -> Translation:
    """The command that trains as TRL would, with TRL's defaults where they differ."""
    kind, given = settings.kind, dict(settings.values)
    is_old = kind == "ppo" and bool(OLD_PPO_NAMES & given.keys())
    taken = {flag_of(LIBRARY, name, STAGES[kind]) for name in given}
    defaults = OLD_PPO if is_old else DEFAULTS[kind]
    left = {
        name: value for name, value in defaults.items() if flag_of(LIBRARY, name, STAGES[kind]) not in taken
    } | given
    found = Translation(WORDS[kind])
    _model(found, left, kind)
    _data(found, left, kind)
    if kind in ON_PROMPTS:
        _rewards(found, left)
    _batches(found, left, defaults, kind, is_old)
    translate_loss(found, left, kind)
    translate_training(found, left, kind)
    translate_adapters(found, left, kind)
    own = "EXPERIMENT.py" in found.asked
    experiment = "friendly_answers" if own else FORMS[WORDS[kind]].experiment
    module = experiment_of(WORDS[kind], experiment)
    _rename(found, left, STAGES[kind], module)
    check(found, FORMS[WORDS[kind]].flags, module, OF_NO_EXPERIMENT)
    return found


def _rename(found: Translation, left: dict[str, Any], stage: str, module: str) -> None:
    """Settings that only have another name here, and a line on those that have none."""
    known: dict[str, Any] = {}
    for name, value in left.items():
        if name in UNIMPORTANT or (name in SAME_LOSS and value is True):
            continue
        flag = flag_of(LIBRARY, name, stage)
        if name in OF_OBJECTS:
            if value is not None:
                what = f"**{display(value)}" if name == "**" else f"{name}={display(value)}"
                found.lines.append(f"{what}: {OF_OBJECTS[name]}")
        elif value is None and flag in (hints := hints_of(module)) and type(None) not in get_args(hints[flag]):
            found.ask(flag, f"{name}=None means none, or the library's own choice; a number is needed here")
        else:
            known[name] = value
    rename(found, LIBRARY, known, module)


def _model(found: Translation, left: dict[str, Any], kind: str) -> None:
    names = (
        ("sft_model_path", "model_name", "model", "model_name_or_path")
        if kind == "ppo"
        else ("model", "model_name_or_path")
    )
    given = [left.pop(name) for name in names if name in left]
    known = [value for value in given if isinstance(value, str)]
    revision = left.pop("model_revision", "main")
    if not known:
        found.ask("model", f"model={display(given[0])}, which only the script knows" if given else "none in the file")
        return
    pinned = isinstance(revision, str) and COMMIT.fullmatch(revision)
    if revision != "main" and not pinned:
        found.ask("model", f"{known[0]}@COMMIT, as model_revision={display(revision)} is no commit")
        return
    found.flags["model"] = f"{known[0]}@{revision}" if pinned else known[0]
    if left.get("ref_model") in known:  # the reference is the model before step 1 anyway
        left.pop("ref_model")


def _data(found: Translation, left: dict[str, Any], kind: str) -> None:
    flag = "prompts" if kind in ON_PROMPTS else "dataset"
    names = ("train_dataset", "dataset", "dataset_name", "query_dataset")
    given = [left.pop(name) for name in names if name in left]
    if isinstance(mixture := left.pop("datasets", None), list):
        given.append(_mixed(mixture))
    data = next((one for one in given if isinstance(one, Loaded | str)), None)
    split = left.pop("dataset_train_split", None)
    part = left.pop("dataset_config", None)
    if isinstance(data, str):
        data = Loaded(data, part=() if part is None else (part,))
    if data is None or not isinstance(data.name, str):
        what = f"{display(given[0])}, which only the script knows" if given else "none in the file"
        found.ask(flag, what)
        return
    split = data.split if data.split is not None else split
    if data.changed:
        found.ask(flag, f"a file of the rows that the script makes of {data.name} ({', '.join(data.changed)})")
    elif data.part:
        found.ask(flag, f"the path of the files of {data.name}, {display([*data.part])[1:-1]}")
    else:
        found.flags[flag] = data.name
    first = FIRST_ROWS.fullmatch(split) if isinstance(split, str) else None
    name = first[1] if first else split
    if first and flag == "dataset":
        found.flags["max_rows"] = int(first[2])
    split_flag = "dataset_split" if flag == "dataset" else "prompt_split"
    if holds_code(name):
        found.ask(split_flag, f"split={display(name)}, which only the script knows")
    elif name not in (None, "train") or (first and flag == "prompts"):
        if isinstance(name, str) and name.isidentifier() and not (first and flag == "prompts"):
            found.flags[split_flag] = name
        else:
            found.ask(flag, f"a file of the rows of {data.name} in {display(split)}: here the split train is read")


def _mixed(datasets: list[Any]) -> Loaded | None:
    """The sets of TRL's `datasets`, if one list of paths says the same."""
    if not datasets or not all(isinstance(one, dict) and isinstance(one.get("path"), str) for one in datasets):
        return None
    others = sorted({key for one in datasets for key in one if key not in ("path", "split")})
    splits = {str(one.get("split", "train")) for one in datasets}
    names = ",".join(one["path"] for one in datasets)
    return Loaded(names, splits.pop() if len(splits) == 1 else "several splits", part=tuple(others))


def _rewards(found: Translation, left: dict[str, Any]) -> None:
    """Reward models become scorers; a function needs an experiment of its own."""
    functions = left.pop("reward_funcs", None)
    models = [
        left.pop(name) for name in ("reward_model_path", "reward_model", "reward_model_name_or_path") if name in left
    ]
    several = functions if isinstance(functions, list) else [] if functions is None else [functions]
    named = [one for one in several if isinstance(one, str) and (one in REWARD_FUNCTIONS or _is_import(one))]
    paths = list(dict.fromkeys(one for one in (*models, *several) if isinstance(one, str) and one not in named))
    names = ["reward"] if len(paths) == 1 else [f"reward{number}" for number in range(1, len(paths) + 1)]
    if paths:
        found.flags["scorers"] = ",".join(f"{name}={path}" for name, path in zip(names, paths, strict=True))
        found.lines.append(f"--scorers {found.flags['scorers']}: classifiers with one output")
    if code := [*(str(one) for one in several if not isinstance(one, str)), *named]:
        found.command += " EXPERIMENT.py"
        found.ask(
            "EXPERIMENT.py",
            f"a copy of ppo/experiments/friendly_answers.py with {', '.join(code)} as its reward(samples, prompts, "
            "outputs, tokenizer, **columns)",
        )
        if paths:
            found.lines.append(
                f"--scorers {found.flags.pop('scorers')}: {', '.join(code)} have no place beside scorers"
            )
        found.lines += [f"{name} of TRL: {REWARD_FUNCTIONS[name]}" for name in named if name in REWARD_FUNCTIONS]
    elif not paths:
        what = f"reward model {display(models[0])}, which only the script knows" if models else "none in the file"
        found.ask("scorers", f"{what}: NAME=PATH")
    weights = left.pop("reward_weights", None)
    if isinstance(weights, list) and len(weights) == len(paths) > 1 and not code and not holds_code(weights):
        found.flags["weights"] = ",".join(f"{n}={w}" for n, w in zip(names, weights, strict=True))
    elif weights is not None:
        found.lines.append(f"reward_weights={display(weights)}: give --weights NAME=NUMBER,... for functions by name")
    found.flags |= OF_NO_EXPERIMENT


def _is_import(name: str) -> bool:
    """True for a function that TRL's command imports: `my_rewards.length`."""
    return "/" not in name and "." in name and all(part.isidentifier() for part in name.split("."))


def _batches(found: Translation, left: dict[str, Any], defaults: dict[str, Any], kind: str, is_old: bool) -> None:
    """Rows of a forward pass, of an update and, on prompts, of an iteration, over all processes."""
    names = ("mini_batch_size" if is_old else "per_device_train_batch_size", "gradient_accumulation_steps")
    micro, accumulation = (left.pop(name, defaults[name]) for name in names)
    flags = ["micro_batch", "global_batch", *(["num_rollouts"] if kind in ON_PROMPTS else [])]
    if not all(type(number) is int for number in (micro, accumulation)):
        for flag in flags:
            found.ask(flag, f"batches are of {display(micro)} x {display(accumulation)} rows, times the processes")
        return
    whole = micro * accumulation
    update, rollouts = whole, whole
    if is_old:
        rollouts = left.pop("batch_size", defaults["batch_size"])
    elif kind == "ppo":
        parts = left.pop("num_mini_batches", 1)
        update = max(1, whole // parts) if type(parts) is int and parts > 0 else whole
    elif kind in ON_PROMPTS:
        steps = left.pop("steps_per_generation", None) or accumulation
        rollouts = left.pop("generation_batch_size", None) or (micro * steps if type(steps) is int else steps)
    found.flags |= {"micro_batch": min(micro, update), "global_batch": update}
    if kind in ON_PROMPTS:
        found.flags["num_rollouts"] = rollouts
        if holds_code(rollouts):
            found.ask("num_rollouts", f"{display(rollouts)}, which only the script knows")
    if kind == "ppo" and type(total := left.pop("total_episodes", None)) is int and type(rollouts) is int:
        epochs = left.get("num_ppo_epochs", left.get("ppo_epochs"))
        left.pop("num_train_epochs", None)
        if type(epochs) is int:
            left.setdefault("max_steps", -(-total // rollouts) * epochs * (rollouts // update))
    found.lines.append(
        f"{' and '.join(f'--{flag}' for flag in flags[1:])}: over all processes; multiply by the number that you had"
    )
