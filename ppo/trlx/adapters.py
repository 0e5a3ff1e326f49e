"""trlx's `peft_config`, a dict or one of peft's objects, as settings of adapters."""

from typing import Any

from lmgym.errors import InputError, shown

NAMES = {"r": "lora_rank", "lora_alpha": "lora_alpha"}
LISTS = {"target_modules": "lora_target_modules", "modules_to_save": "modules_to_save"}
NO_SETTINGS = {"peft_type", "task_type", "inference_mode", "base_model_name_or_path", "auto_mapping", "revision"}
"""keys that change no training"""
RANK, ALPHA = 8, 8  # peft's own


def adapter_settings(given: Any, unfrozen: int) -> tuple[dict[str, Any], list[str]]:
    """(settings of ModelConfig, notes). Raises InputError for anything but LoRA."""
    if not given:
        return {}, []
    fields = dict(given) if isinstance(given, dict) else _changed(given)
    kind = str(getattr(fields.get("peft_type"), "value", fields.get("peft_type"))).upper()
    if kind != "LORA":
        raise InputError(
            f"model.peft_config is of {shown(kind)}; needed: LORA, or none to train the weights themselves"
        )
    settings: dict[str, Any] = {"lora_rank": RANK, "lora_alpha": ALPHA}
    settings |= {ours: fields[name] for name, ours in NAMES.items() if fields.get(name) is not None}
    for name, ours in LISTS.items():
        if value := fields.get(name):
            settings[ours] = value if isinstance(value, str) else ",".join(sorted(value))
    notes = [
        f"model.peft_config.{name}={shown(value)} is not used"
        for name, value in fields.items()
        if value and name not in NAMES.keys() | LISTS.keys() | NO_SETTINGS
    ]
    if "lora_target_modules" not in settings:
        notes.append("model.peft_config has no target_modules: all linear layers get adapters")
    if unfrozen > 0:
        notes.append(f"model.num_layers_unfrozen={unfrozen} is not used: adapters train on all layers")
    return settings, notes


def _changed(config: Any) -> dict[str, Any]:
    """The fields of one of peft's configs that differ from its class's defaults, and its type."""
    if not hasattr(config, "to_dict"):
        raise InputError(f"model.peft_config is {shown(config)}; needed: peft's LoraConfig, or its fields in a dict")
    values, defaults = config.to_dict(), type(config)().to_dict()
    changed = {name: value for name, value in values.items() if value != defaults.get(name)}
    return {**changed, "peft_type": values["peft_type"]}
