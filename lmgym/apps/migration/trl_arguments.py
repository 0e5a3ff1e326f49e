"""The arguments of every trainer of TRL: schedule, precision, trackers, checkpoints, and LoRA."""

from typing import Any

from lmgym.apps.migration.commands import Translation, display
from lmgym.apps.migration.trl_scripts import Called, Code
from lmgym.apps.migration.trl_tables import ON_PROMPTS

SCHEDULES = {name: name for name in ("linear", "cosine", "constant_with_warmup")} | {"constant": "constant_with_warmup"}
TRACKERS = {"wandb": "auto", "tensorboard": "tensorboard", "none": "none"}
LORA = {
    "lora_r": "lora_rank",
    "lora_alpha": "lora_alpha",
    "lora_dropout": "lora_dropout",
    "lora_target_modules": "lora_target_modules",
    "lora_modules_to_save": "modules_to_save",
}
PEFT = {"r": "lora_r", "target_modules": "lora_target_modules", "modules_to_save": "lora_modules_to_save"}


def translate_training(found: Translation, left: dict[str, Any], kind: str) -> None:
    """Schedule, precision, trackers and checkpoints."""
    schedule = left.pop("lr_scheduler_type")
    if isinstance(schedule, str) and schedule in SCHEDULES:
        found.flags["schedule"] = SCHEDULES[schedule]
    else:
        found.lines.append(
            f"lr_scheduler_type={display(schedule)}: --schedule has {', '.join(sorted(set(SCHEDULES.values())))}"
        )
    warmup, ratio = left.pop("warmup_steps"), left.pop("warmup_ratio", None)
    found.flags["warmup"] = 0 if schedule == "constant" else ratio if ratio and not warmup else warmup
    half = [name for name, flag in (("bf16", "bf16"), ("fp16", "fp16")) if left.pop(flag, None) is True]
    if half:
        found.flags["precision"] = half[0]
    trackers = left.pop("report_to", left.pop("log_with", None))
    names = [str(name) for name in (trackers if isinstance(trackers, list) else [trackers]) if name is not None]
    if known := [TRACKERS[name] for name in names if name in TRACKERS]:
        found.flags["tracking"] = known[0] if len(known) == 1 else "wandb,tensorboard"
    if others := [name for name in names if name not in TRACKERS]:
        found.lines.append(f"report_to={', '.join(others)}: --tracking has wandb and tensorboard, or both")
    strategy, steps = left.pop("save_strategy", "steps"), left.pop("save_steps", None)
    if strategy == "no":
        found.flags["save_updates"] = -1
    elif strategy == "steps" and type(steps) is int:
        found.flags["save_updates"] = steps
    elif strategy != "steps" or steps is not None:
        found.lines.append(f"save_strategy={display(strategy)}, save_steps={display(steps)}: give --save_updates")
    if left.get("max_steps", -1) == -1:
        left.pop("max_steps", None)
    else:
        left.pop("num_train_epochs", None)
    if isinstance(left.get("deepspeed"), dict):
        found.lines.append("deepspeed={...}: write it to a file, and give --deepspeed FILE")
        left.pop("deepspeed")
    for name in ("eval_steps", "logging_steps"):
        if isinstance(value := left.get(name), float) and value < 1:
            found.lines.append(f"{name}={value}: a share of the run; give a number of updates")
            left.pop(name)
    if kind in ON_PROMPTS and (logged := left.pop("logging_steps", None)) is not None:
        found.lines.append(f"logging_steps={display(logged)}: every iteration is logged")


def translate_adapters(found: Translation, left: dict[str, Any], kind: str) -> None:
    """LoRA, by ModelConfig's fields or by an object of peft."""
    peft, quantized = left.pop("peft_config", None), left.pop("quantization_config", None)
    used = left.get("use_peft") is True
    if isinstance(peft, Called):
        used = True
        left |= {PEFT.get(name, name): value for name, value in {"r": 8, "lora_alpha": 8, **peft.arguments}.items()}
    elif peft is not None and not (isinstance(peft, Code) and peft.text.startswith("get_peft_config")):
        found.lines.append(f"peft_config={display(peft)}: give --lora_rank")
    if isinstance(quantized, Code) and not quantized.text.startswith("get_quantization_config"):
        found.lines.append(f"quantization_config={quantized}: give --load_in_4bit true or --load_in_8bit true")
    if isinstance(quantized, Called):
        left |= {name: value for name, value in quantized.arguments.items() if name.startswith("load_in_")}
        found.lines.append("quantization_config: 4 bits are nf4, and 16-bit computation is --precision bf16")
    defaults = {} if isinstance(peft, Called) else {"lora_r": 16, "lora_alpha": 32, "lora_dropout": 0.05}
    settings = {name: left.pop(name) for name in LORA if name in left}
    if not used:
        return
    for name, value in (defaults | settings).items():
        if name == "lora_dropout" and kind in ON_PROMPTS:
            if name in settings and value:
                found.lines.append(f"lora_dropout={display(value)}: dropout is off in PPO")
        elif isinstance(value, Code):
            found.lines.append(f"{name}={value}: only the script knows its value; give --{LORA[name]}")
        elif value is not None:
            found.flags[LORA[name]] = ",".join(map(str, value)) if isinstance(value, list) else value
