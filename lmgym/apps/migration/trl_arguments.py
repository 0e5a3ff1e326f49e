"""The arguments of every trainer of TRL: schedule, precision, trackers, checkpoints, and LoRA."""

from typing import Any

from lmgym.apps.migration.commands import Translation, as_word, display, holds_code
from lmgym.apps.migration.renaming import sentence_of
from lmgym.apps.migration.trl_scripts import Called, Code
from lmgym.apps.migration.trl_tables import ON_PROMPTS, STAGES
from lmgym.runs.other_names.lookup import find

SCHEDULES = {name: name for name in ("linear", "cosine", "constant_with_warmup")} | {"constant": "constant_with_warmup"}
TRACKERS = {"wandb": "auto", "tensorboard": "tensorboard", "none": "none"}
LORA = ("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "lora_modules_to_save")
PEFT = {"r": "lora_r", "target_modules": "lora_target_modules", "modules_to_save": "lora_modules_to_save"}
UNKNOWN = "only the script knows it"


def translate_training(found: Translation, left: dict[str, Any], kind: str) -> None:
    """Schedule, precision, trackers and checkpoints."""
    schedule = left.pop("lr_scheduler_type", "linear")
    if isinstance(schedule, str) and schedule in SCHEDULES:
        found.flags["schedule"] = SCHEDULES[schedule]
    else:
        found.ask("schedule", f"lr_scheduler_type={display(schedule)} is none of {', '.join(SCHEDULES)}")
    warmup, ratio = left.pop("warmup_steps", 0), left.pop("warmup_ratio", None)
    found.flags["warmup"] = 0 if schedule == "constant" else ratio if ratio and not warmup else warmup
    if holds_code(found.flags["warmup"]):
        found.ask("warmup", f"{display(found.flags['warmup'])}: {UNKNOWN}")
    half = {name: left.pop(name) for name in ("bf16", "fp16") if name in left}
    if chosen := [name for name, value in half.items() if value is True]:
        found.flags["precision"] = chosen[0]
    elif half.get("bf16") is False:
        found.flags["precision"] = "fp32"
    elif any(map(holds_code, half.values())):
        found.ask("precision", f"{', '.join(f'{name}={display(value)}' for name, value in half.items())}: {UNKNOWN}")
    _trackers(found, left)
    _checkpoints(found, left, kind)
    if left.get("max_steps", -1) in (-1, None):
        left.pop("max_steps", None)
        if kind in ON_PROMPTS:  # whose experiments have a number of updates
            found.flags["max_updates"] = -1
    else:
        left.pop("num_train_epochs", None)
    if isinstance(left.get("deepspeed"), dict):
        found.ask("deepspeed", "a file with the settings that the script gives as a dict")
        left.pop("deepspeed")
    for name in ("eval_steps", "logging_steps"):
        if isinstance(value := left.get(name), float) and value < 1:
            found.lines.append(f"{name}={value}: a share of the run; give a number of updates")
            left.pop(name)


def _trackers(found: Translation, left: dict[str, Any]) -> None:
    trackers = left.pop("report_to", left.pop("log_with", None))
    names = [str(name) for name in (trackers if isinstance(trackers, list) else [trackers]) if name is not None]
    if known := [TRACKERS[name] for name in names if name in TRACKERS]:
        found.flags["tracking"] = known[0] if len(known) == 1 else "wandb,tensorboard"
    if others := [name for name in names if name not in TRACKERS]:
        found.lines.append(f"report_to={', '.join(others)}: --tracking has wandb and tensorboard, or both")


def _checkpoints(found: Translation, left: dict[str, Any], kind: str) -> None:
    strategy, steps = left.pop("save_strategy", "steps"), left.pop("save_steps", None)
    if strategy == "no":
        found.flags["save_updates"] = -1
    elif strategy == "steps" and type(steps) is int:
        found.flags["save_updates"] = steps
    elif strategy != "steps" or steps is not None:
        why = sentence_of("TRL", "save_strategy", STAGES[kind])
        found.lines.append(f"save_strategy={display(strategy)}, save_steps={display(steps)}: {why}")
    if left.get("save_total_limit", 0) is None:
        left.pop("save_total_limit")
        found.lines.append("save_total_limit=None: give --save_total_limit, which is 2 here")
    best, metric = left.pop("load_best_model_at_end", False), left.pop("metric_for_best_model", None)
    if kind not in ON_PROMPTS:  # model/ is the best by the loss, unless it is said
        if best is not True:
            found.flags["best_metric"] = "none"
        elif metric not in (None, "loss", "eval_loss"):
            why = sentence_of("TRL", "load_best_model_at_end", STAGES[kind])
            found.lines.append(f"metric_for_best_model={display(metric)}: {why}")


def translate_adapters(found: Translation, left: dict[str, Any], kind: str) -> None:
    """LoRA, by ModelConfig's fields or by an object of peft."""
    peft, quantized = left.pop("peft_config", None), left.pop("quantization_config", None)
    used = left.get("use_peft") is True
    if isinstance(peft, Called):
        used = True
        left |= {PEFT.get(name, name): value for name, value in {"r": 8, "lora_alpha": 8, **peft.arguments}.items()}
    elif isinstance(peft, Code) and peft.text.startswith("get_peft_config"):
        pass  # by the flags of a launch
    elif peft is not None or holds_code(left.get("use_peft")):
        what = f"peft_config={display(peft)}" if peft is not None else f"use_peft={display(left['use_peft'])}"
        found.ask("lora_rank", f"{what}: {UNKNOWN}; 0 trains every weight")
    if isinstance(quantized, Code) and not quantized.text.startswith("get_quantization_config"):
        found.lines.append(f"quantization_config={quantized}: give --load_in_4bit true or --load_in_8bit true")
    if isinstance(quantized, Called):
        left |= {name: value for name, value in quantized.arguments.items() if name.startswith("load_in_")}
        found.lines.append("quantization_config: 4 bits are nf4, and 16-bit computation is --precision bf16")
    defaults = {} if isinstance(peft, Called) else {"lora_r": 16, "lora_alpha": 32, "lora_dropout": 0.05}
    settings = {name: left.pop(name) for name in LORA if name in left}
    if not used:
        return
    if settings.get("lora_target_modules") is None:
        settings.pop("lora_target_modules", None)
        found.lines.append("lora_target_modules: peft has a choice for each architecture, here it is all-linear")
    for name, value in (defaults | settings).items():
        answer = find("TRL", name, STAGES[kind])
        flag = answer.flag if answer else None
        if flag is None:
            if name in settings and value:
                found.lines.append(f"{name}={display(value)}: {answer}")
        elif holds_code(value):
            found.ask(flag, f"{name}={display(value)}: {UNKNOWN}")
        elif value is not None:
            found.flags[flag] = as_word(value) if isinstance(value, list) else value
