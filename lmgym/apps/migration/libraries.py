"""axolotl, OpenRLHF, verl and LLaMA-Factory: their launches, defaults, and settings that are more than a flag."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lmgym.apps.migration.commands import Translation, display
from lmgym.apps.migration.losses import GRPO_LOSSES, translate_clipping
from lmgym.errors import InputError
from lmgym.origin import names_code_or_address

NEUTRAL = {
    "normalize": "none",
    "cliprange_reward": math.inf,
    "missing_eos_penalty": 0.0,
    "num_layers_unfrozen": -1,
    "target": None,
}
"""settings of our experiment that other trainers do not have"""
SILENT = NEUTRAL | {"gamma": 1, "lam": 1}
"""values that need no line where the method does not read them"""
LORA_OF_AXOLOTL = ("lora", "qlora")


@dataclass(frozen=True)
class Library:
    """The meaning of another library's launches."""

    programs: re.Pattern[str]
    """what it is launched as"""
    word_of: Callable[[str, dict[str, Any]], str]
    """the word of `lmgym train` for a program and its settings; raises InputError"""
    defaults: Mapping[str, Mapping[str, Any]]
    """its defaults that differ from ours, by stage"""
    prepare: Callable[[Translation, dict[str, Any], str], None]
    """takes the settings that are more than a flag out of those of a stage"""
    unimportant: frozenset[str] = field(default_factory=frozenset)
    """settings that no line is needed for"""


def taken(left: dict[str, Any], *names: str) -> Any:
    """The first of these settings that is there and not None; all of them are taken out."""
    found = [left.pop(name) for name in names if name in left]
    return next((value for value in found if value is not None), None)


def named(value: Any) -> str:
    """A value that should be a name, as a text."""
    return value if isinstance(value, str) else display(value)


def give(found: Translation, flag: str, value: str, what: str) -> None:
    """Gives a flag a path or hub id; code and addresses are left to the user."""
    if names_code_or_address(value.partition("=")[2] if flag == "scorers" else value):
        found.ask(flag, f"{what} names code or an address: give it yourself if you trust the file")
    else:
        found.flags[flag] = value


def whole(found: Translation, flag: str, *factors: Any) -> None:
    """Gives a flag a product of numbers, or asks for it."""
    if all(type(factor) is int for factor in factors):
        found.flags[flag] = math.prod(factors)
    else:
        found.ask(flag, " x ".join(map(display, factors)))


def of_all_processes(found: Translation, *flags: str) -> None:
    """Says that a number of rows is per process in the other library."""
    names = " and ".join(f"--{flag}" for flag in flags)
    found.lines.append(f"{names}: over all processes; multiply by the number that you had")


# --- axolotl


def _word_of_axolotl(program: str, values: dict[str, Any]) -> str:
    if "base_model" not in values:
        found = "axolotl is launched with a config" if program else "there is no base_model"
        raise InputError(f"{found}; needed: a config of axolotl, lmgym from axolotl CONFIG.yml")
    kind = values.get("rl")
    words = {"dpo": "dpo", "ipo": "dpo", "orpo": "dpo", "simpo": "dpo", "kto": "kto", "grpo": "grpo", "gdpo": "grpo"}
    if kind is None:
        if values.get("process_reward_model"):
            raise InputError("process_reward_model: there are no process reward models; needed: reward_model")
        if values.get("pretraining_dataset") is not None:
            raise InputError("pretraining_dataset: there is no pre-training on plain texts; needed: a config of SFT")
        return "reward" if values.get("reward_model") else "sft"
    if kind not in words:
        raise InputError(f"rl={display(kind)} has no equivalent; needed: one of {', '.join(words)}")
    return words[kind]


def _axolotl(found: Translation, left: dict[str, Any], stage: str) -> None:
    left.pop("reward_model", None)
    kind = left.pop("rl", None)
    if stage == "preference":
        loss = named(taken(left, "dpo_loss_type") or "sigmoid")
        found.flags["loss"] = kind if kind not in ("dpo", None) else {"sigmoid": "dpo"}.get(loss, loss)
        if kind in ("dpo", "ipo", "kto"):
            left.setdefault("rl_beta", 0.1)
    if kind == "gdpo":
        found.lines.append("rl=gdpo: rewards are scaled together here, each alone there")
    _hub_rows(found, left, "prompts" if stage == "ppo" else "dataset")
    adapter = left.pop("adapter", None)
    if adapter not in LORA_OF_AXOLOTL:
        _leave_out_lora(found, left, adapter)
    elif left.pop("lora_target_linear", None):
        left.pop("lora_target_modules", None)
        found.flags["lora_target_modules"] = "all-linear"
    if adapter != "qlora" and not left.get("load_in_4bit"):
        left.pop("load_in_4bit", None)
    micro, accumulation = taken(left, "micro_batch_size"), taken(left, "gradient_accumulation_steps")
    whole(found, "micro_batch", micro)
    whole(found, "global_batch", micro, accumulation)
    of_all_processes(found, "global_batch")
    _trl_section(found, left, stage)
    _half_precision(left)
    _counts(found, left)


def _leave_out_lora(found: Translation, left: dict[str, Any], adapter: Any) -> None:
    """Settings of LoRA mean nothing without an adapter."""
    if adapter is not None:
        found.ask("lora_rank", f"adapter={display(adapter)}: adapters are plain LoRA")
    for name in [name for name in left if name.startswith(("lora_", "peft_"))]:
        left.pop(name)


def _hub_rows(found: Translation, left: dict[str, Any], flag: str) -> None:
    """axolotl's list of data sets."""
    data = left.pop("datasets", None)
    sets = [one for one in data if isinstance(one, Mapping)] if isinstance(data, list) else []
    if not sets or not all(isinstance(one.get("path"), str) for one in sets):
        found.ask(flag, "none in the file" if data is None else f"datasets={display(data)}")
        return
    names = ",".join(one["path"] for one in sets)
    splits = {str(one.get("split", "train")) for one in sets}
    parts = [str(one[key]) for one in sets for key in ("name", "data_files") if one.get(key)]
    if parts:
        found.ask(flag, f"the path of the files of {names}: {', '.join(parts)}")
    else:
        give(found, flag, names, f"datasets={names}")
    if splits != {"train"}:
        if flag == "dataset" and len(splits) == 1 and next(iter(splits)).isidentifier():
            found.flags["dataset_split"] = splits.pop()
        else:
            found.ask(flag, f"a file of the rows of {names} in {', '.join(sorted(splits))}")
    kinds = sorted({named(one["type"]) for one in sets if one.get("type")})
    columns = {key: value for one in sets for key, value in one.items() if key.startswith("field_")}
    left |= {key: value for key, value in columns.items() if isinstance(value, str)}
    if kinds:
        found.lines.append(f"type={', '.join(kinds)}: the form of rows is read from their columns")


def _trl_section(found: Translation, left: dict[str, Any], stage: str) -> None:
    """axolotl's section trl, whose names are those of TRL."""
    section = left.pop("trl", None)
    left |= section if isinstance(section, Mapping) else {}
    if stage != "ppo":
        return
    rewards(found, taken(left, "reward_funcs"), "reward_funcs")
    whole(found, "num_rollouts", found.flags.get("global_batch"))
    method, average = GRPO_LOSSES.get(named(left.pop("loss_type", "dapo")), ("", ""))
    if method == "grpo":
        found.flags["loss_aggregation"] = average
    else:
        found.ask("method", "loss_type: see docs/methods.md")
    translate_clipping(found, left)


def rewards(found: Translation, given: Any, name: str) -> None:
    """A reward in Python, or at an address, is named by the user."""
    what = f"{name}={display(given)}: " if given is not None else "no reward in the file: "
    found.ask("scorers", f"{what}NAME=PATH of a reward model, or NAME=FILE.py:FUNCTION")


def _half_precision(left: dict[str, Any]) -> None:
    """bf16 may be auto, and fp16 false."""
    for name in ("bf16", "fp16", "bfloat16", "float16", "tf32"):
        if left.get(name) in (False, None, "full") or name == "tf32":
            left.pop(name, None)
    if left.get("bf16") == "auto":
        left["bf16"] = True


def _counts(found: Translation, left: dict[str, Any]) -> None:
    """Numbers of updates: a share of the run, or none."""
    for name in ("eval_steps", "save_steps", "logging_steps"):
        if isinstance(value := left.get(name), float) and value < 1:
            found.lines.append(f"{name}={value}: a share of the run; give a number of updates")
            left.pop(name)
    if left.get("max_steps") in (-1, 0):
        left.pop("max_steps")
    if left.get("max_steps") is not None:
        left.pop("num_train_epochs", None)
        left.pop("num_epochs", None)


# --- LLaMA-Factory


def _word_of_llama_factory(program: str, values: dict[str, Any]) -> str:
    if "model_name_or_path" not in values:
        found = "llamafactory-cli is launched with a config" if program else "there is no model_name_or_path"
        raise InputError(f"{found}; needed: a config of LLaMA-Factory, or its flags in the script")
    words = {"sft": "sft", "rm": "reward", "dpo": "dpo", "kto": "kto", "ppo": "ppo"}
    stage = values.get("stage", "sft")
    if stage not in words:
        raise InputError(f"stage={display(stage)} has no equivalent; needed: one of {', '.join(words)}")
    return words[stage]


def _llama_factory(found: Translation, left: dict[str, Any], stage: str) -> None:
    left.pop("stage", None)
    if stage == "preference":
        loss = named(left.pop("pref_loss", "sigmoid"))
        found.flags["loss"] = "kto" if found.command == "kto" else {"sigmoid": "dpo"}.get(loss, loss)
    kind = left.pop("finetuning_type", "lora")
    if kind != "lora":
        for name in [name for name in left if name.startswith("lora_")]:
            left.pop(name)
        if kind != "full":
            found.lines.append(f"finetuning_type={display(kind)}: every weight trains, or --lora_rank")
    else:
        left.setdefault("lora_rank", 8)
        if type(left["lora_rank"]) is int:
            left.setdefault("lora_alpha", 2 * left["lora_rank"])
        left.setdefault("lora_target", "all")
    bits = left.pop("quantization_bit", None)
    if bits in (4, 8):
        found.flags[f"load_in_{bits}bit"] = True
    data = left.pop("dataset", None)
    if isinstance(data, list):
        data = ",".join(map(str, data))
    flag = "prompts" if stage == "ppo" else "dataset"
    where = left.pop("dataset_dir", "data")
    found.ask(flag, f"dataset={display(data)}: the files of these names in {display(where)}/dataset_info.json")
    micro, accumulation = taken(left, "per_device_train_batch_size"), taken(left, "gradient_accumulation_steps")
    whole(found, "micro_batch", micro)
    whole(found, "global_batch", micro, accumulation)
    flags = ["global_batch"]
    if stage == "ppo":
        whole(found, "num_rollouts", micro, accumulation, left.pop("ppo_buffer_size", 1))
        flags.append("num_rollouts")
        reward = left.pop("reward_model", None)
        if isinstance(reward, str) and left.pop("reward_model_type", "lora") == "full":
            give(found, "scorers", f"reward={reward}", f"reward_model={reward}")
        else:
            rewards(found, reward, "reward_model")
    of_all_processes(found, *flags)
    _half_precision(left)
    if left.get("save_strategy") in (None, "steps"):
        left.pop("save_strategy", None)
    _counts(found, left)


# --- the table of both, and of verl and OpenRLHF beside it

_HUGGING_FACE = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "num_train_epochs": 3,
    "lr_scheduler_type": "linear",
    "warmup_steps": 0,
    "learning_rate": 5e-5,
    "cutoff_len": 2048,
}
_AXOLOTL = {"micro_batch_size": 1, "gradient_accumulation_steps": 1, "num_epochs": 1, "lr_scheduler": "cosine",
            "warmup_ratio": 0.03, "sequence_len": 512}  # fmt: skip
# TRL's, but for the length and the batches
_AXOLOTL_GRPO = _AXOLOTL | {"num_generations": 8, "beta": 0.0, "max_completion_length": 512, "temperature": 1.0,
                            "num_iterations": 1, "epsilon": 0.2, "scale_rewards": "group"}  # fmt: skip
AXOLOTL = Library(
    re.compile(r"\baxolotl(\.cli\.train| train)\b"),
    _word_of_axolotl,
    {
        **dict.fromkeys(("sft", "reward"), _AXOLOTL),
        "preference": _AXOLOTL,
        "ppo": _AXOLOTL_GRPO,
    },
    _axolotl,
    frozenset({"model_type", "tokenizer_type", "strict", "sample_packing", "eval_sample_packing"}),
)
LLAMA_FACTORY = Library(
    re.compile(r"\bllamafactory-cli train\b|\bllamafactory\.cli train\b|\bsrc/train(_bash)?\.py\b"),
    _word_of_llama_factory,
    {
        **dict.fromkeys(("sft", "reward"), _HUGGING_FACE),
        "preference": _HUGGING_FACE | {"pref_beta": 0.1},
        "ppo": _HUGGING_FACE | {"ppo_epochs": 4, "ppo_target": 6.0, "max_new_tokens": 1024, "temperature": 0.95,
                                "top_p": 0.7, "top_k": 50},
    },
    _llama_factory,
    frozenset({"do_train", "do_eval", "overwrite_output_dir", "overwrite_cache"}),
)  # fmt: skip
