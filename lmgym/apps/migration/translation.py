"""Settings of one of TRL's trainers as a command of lmgym, with a line on each that has no equivalent."""

import math
import re
from typing import Any

from lmgym.apps.migration.commands import Translation, display
from lmgym.apps.migration.trl_arguments import translate_adapters, translate_training
from lmgym.apps.migration.trl_scripts import Code, Loaded, Settings
from lmgym.apps.migration.trl_tables import COMMANDS, DEFAULTS, FLAGS, LOST, OLD_PPO, OLD_PPO_NAMES, ON_PROMPTS

COMMIT = re.compile("[0-9a-f]{40}")
LOSSES = {"dpo": {"sigmoid": "dpo", "ipo": "ipo"}, "kto": {"kto": "kto"}}
# of GRPO: the method, and over what its loss is averaged
GRPO_LOSSES = {
    "grpo": ("grpo", "sequence"),
    "dapo": ("grpo", "token"),
    "bnpo": ("grpo", "token"),
    "dr_grpo": ("grpo", "constant"),
    "cispo": ("cispo", "token"),
}
# settings of the experiment that TRL's trainers do not have
OF_NO_EXPERIMENT = {
    "normalize": False,
    "cliprange_reward": math.inf,
    "missing_eos_penalty": 0,
    "target": None,
    "num_layers_unfrozen": -1,
}
UNIMPORTANT = {"task_type", "lora_task_type", "use_peft", "inference_mode", "do_train", "do_eval", "world_size"}


def translate(settings: Settings) -> Translation:
    """The command that trains as TRL would, with TRL's defaults where they differ."""
    kind, given = settings.kind, dict(settings.values)
    is_old = kind == "ppo" and bool(OLD_PPO_NAMES & given.keys())
    left = {**(OLD_PPO if is_old else DEFAULTS[kind]), **given}
    found = Translation(COMMANDS[kind])
    _model(found, left, kind)
    _data(found, left, kind)
    if kind in ON_PROMPTS:
        _rewards(found, left)
    _batches(found, left, kind, is_old)
    _loss(found, left, kind)
    translate_training(found, left, kind)
    translate_adapters(found, left, kind)
    for name, value in left.items():
        flag = FLAGS[kind].get(name)
        if name in UNIMPORTANT:
            continue
        if flag and isinstance(value, Code):
            found.lines.append(f"{name}={value}: only the script knows its value; give --{flag}")
        elif flag:
            if value is not None:
                found.flags[flag] = value
        else:
            what = f"**{display(value)}" if name == "**" else f"{name}={display(value)}"
            found.lines.append(f"{what}: {LOST.get(name, 'no equivalent')}")
    return found


def _model(found: Translation, left: dict[str, Any], kind: str) -> None:
    names = (
        ("sft_model_path", "model_name", "model", "model_name_or_path")
        if kind == "ppo"
        else ("model", "model_name_or_path")
    )
    given = [left.pop(name) for name in names if name in left]
    known = [value for value in given if isinstance(value, str)]
    if not known:
        why = f"model={display(given[0])}: only the script knows it" if given else "no model in the file"
        found.lines.append(f"{why}; give --model PATH")
        return
    revision = left.pop("model_revision", "main")
    pinned = isinstance(revision, str) and COMMIT.fullmatch(revision)
    if revision != "main" and not pinned:
        found.lines.append(f"model_revision={revision}: a hub id is pinned by a commit, owner/name@COMMIT")
    found.flags["model"] = f"{known[0]}@{revision}" if pinned else known[0]
    if left.get("ref_model") in known:  # the reference is the model before step 1 anyway
        left.pop("ref_model")


def _data(found: Translation, left: dict[str, Any], kind: str) -> None:
    flag = "prompts" if kind in ON_PROMPTS else "dataset"
    given = [left.pop(name) for name in ("train_dataset", "dataset", "dataset_name", "query_dataset") if name in left]
    data = next((one for one in given if isinstance(one, Loaded | str)), None)
    split = left.pop("dataset_train_split", None)
    if isinstance(data, Loaded):
        split = data.split if data.split is not None else split
        if data.changed:
            found.lines.append("the script changes its rows (map, filter, ...): write them to a file, and give that")
        data = data.name
    if not isinstance(data, str):
        what = f"train_dataset={display(given[0])}: only the script knows it" if given else "no data in the file"
        found.lines.append(f"{what}; give --{flag} PATH")
        return
    found.flags[flag] = data
    if isinstance(split, str) and split != "train":
        if flag == "dataset" and split.isidentifier():
            found.flags["dataset_split"] = split
        else:
            found.lines.append(f"split={split}: --{flag} reads the split train; write those rows to a file")


def _rewards(found: Translation, left: dict[str, Any]) -> None:
    """Reward models become scorers; a function needs an experiment of its own."""
    functions = left.pop("reward_funcs", None)
    models = [left.pop(name) for name in ("reward_model_path", "reward_model") if name in left]
    several = functions if isinstance(functions, list) else [] if functions is None else [functions]
    paths = list(dict.fromkeys(one for one in (*models, *several) if isinstance(one, str)))
    names = ["reward"] if len(paths) == 1 else [f"reward{number}" for number in range(1, len(paths) + 1)]
    if paths:
        found.flags["scorers"] = ",".join(f"{name}={path}" for name, path in zip(names, paths, strict=True))
        found.lines.append(f"--scorers {found.flags['scorers']}: classifiers with one output")
    if code := [str(one) for one in (*several, *models) if not isinstance(one, str)]:
        found.lines.append(
            f"rewards by {', '.join(code)}: copy ppo/experiments/friendly_answers.py, put them into its reward as "
            "f(samples, prompts, outputs, tokenizer, **columns), and give its path in place of hh_harmless"
        )
    elif not paths:
        found.lines.append("no rewards in the file; give --scorers name=PATH")
    weights = left.pop("reward_weights", None)
    if isinstance(weights, list) and len(weights) == len(paths) and len(paths) > 1:
        found.flags["weights"] = ",".join(f"{n}={w}" for n, w in zip(names, weights, strict=True))
    elif weights is not None:
        found.lines.append(f"reward_weights={display(weights)}: give --weights name=NUMBER,... for functions by name")
    found.flags |= OF_NO_EXPERIMENT


def _batches(found: Translation, left: dict[str, Any], kind: str, is_old: bool) -> None:
    """Rows of a forward pass, of an update and, on prompts, of an iteration, over all processes."""
    names = ("mini_batch_size" if is_old else "per_device_train_batch_size", "gradient_accumulation_steps")
    micro, accumulation = (left.pop(name) for name in names)
    if not all(type(number) is int for number in (micro, accumulation)):
        found.lines.append(f"batches of {micro} x {accumulation}: give --micro_batch and --global_batch")
        return
    whole = micro * accumulation
    update, rollouts = whole, whole
    if is_old:
        rollouts = left.pop("batch_size")
    elif kind == "ppo":
        parts = left.pop("num_mini_batches")
        update = max(1, whole // parts) if type(parts) is int else whole
    elif kind == "grpo":
        steps = left.pop("steps_per_generation", None) or accumulation
        rollouts = left.pop("generation_batch_size", None) or (micro * steps if type(steps) is int else whole)
    found.flags |= {"micro_batch": min(micro, update), "global_batch": update}
    if kind in ON_PROMPTS:
        found.flags["num_rollouts"] = rollouts
    if kind == "ppo" and type(total := left.pop("total_episodes", None)) is int and type(rollouts) is int:
        epochs = left.get("num_ppo_epochs", left.get("ppo_epochs"))
        left.pop("num_train_epochs", None)
        if type(epochs) is int:
            left.setdefault("max_steps", -(-total // rollouts) * epochs * (rollouts // update))
    flags = "--global_batch and --num_rollouts" if kind in ON_PROMPTS else "--global_batch"
    found.lines.append(f"{flags}: over all processes; multiply by the number that you had")


def _loss(found: Translation, left: dict[str, Any], kind: str) -> None:
    """The loss or method, and the settings that it names otherwise."""
    loss = left.pop("loss_type", None)
    loss = loss[0] if isinstance(loss, list) and len(loss) == 1 else loss
    if kind in LOSSES:
        loss = _without_sft_term(found, left, loss)
        if isinstance(loss, str) and loss in (known := LOSSES[kind]):
            found.flags["loss"] = known[loss]
        else:
            found.lines.append(f"loss_type={display(loss)}: no equivalent; --loss has dpo, ipo, simpo, orpo, bon, kto")
        if left.pop("precompute_ref_log_probs", False) is True:
            found.flags["reference_source"] = "computed"
    elif kind == "grpo":
        method, average = GRPO_LOSSES.get(loss if isinstance(loss, str) else "", ("grpo", ""))
        found.flags["method"] = method
        if average:
            found.flags["loss_aggregation"] = average
        else:
            found.lines.append(f"loss_type={display(loss)}: no equivalent; see docs/methods.md")
        scale = left.pop("scale_rewards")
        found.flags["scale_rewards"] = "group" if scale is True else "none" if scale is False else scale
        low = left.get("epsilon")
        if method == "cispo":
            high = left.pop("epsilon_high", None)
            left.pop("epsilon")
            if isinstance(high, int | float):
                found.flags["epsilon_high"] = high - 1  # TRL's is the bound itself
        else:
            left.setdefault("epsilon_high", low)
    elif loss not in (None, "nll"):
        found.lines.append(f"loss_type={display(loss)}: no equivalent")
    if kind == "ppo":
        if left.pop("adap_kl_ctrl", False) is True:
            found.flags["target"] = left.pop("target")
        else:
            left.pop("target", None)
            left.pop("horizon", None)
        if left.get("missing_eos_penalty", 0) is None:
            left.pop("missing_eos_penalty")
        if isinstance(path := found.flags.get("scorers"), str) and "," not in path:
            found.flags["critic"] = path.partition("=")[2]


def _without_sft_term(found: Translation, left: dict[str, Any], loss: Any) -> Any:
    """The loss beside TRL's loss "sft", which is a term here; its weight is relative to the other's."""
    match loss, left.get("loss_weights") or [1.0, 1.0]:
        case [other, "sft"], [int() | float() as weight, int() | float() as of_sft] if weight > 0:
            left.pop("loss_weights", None)
            found.flags["sft_weight"] = of_sft / weight
            return other
    return loss
