"""Entries in the shape of NYU's debate project, in our own words, and what they become."""

import copy
from pathlib import Path
from typing import Any

import yaml

from lmgym.apps.migration.commands import Translation
from lmgym.apps.migration.nyu import of_nyu

DEBATER = {"model_settings": {"model_type": "llama3", "model_file_path": "models/sft", "alias": "sft 1"}}
RANDOM = {"model_settings": {"model_type": "random", "alias": "chance"}}
JUDGE = {"model_settings": {"model_type": "random", "alias": "random-judge"}}
EXPERIMENT: dict[str, Any] = {
    "batch_size": 1,
    "num_speeches": 2,
    "flip": True,
    "agents": {"debaters": [DEBATER, RANDOM], "judge": JUDGE},
    "dataset": {"dataset_type": "quality", "split_type": "val", "val_file_path": "quality.jsonl"},
}
TRAINING: dict[str, Any] = {
    "model_name": "models/base",
    "target": "debater",
    "llm_type": "llama3",
    "training_hyperparameters": {
        "num_train_epochs": 2,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 8,
        "optim": "adamw_hf",
        "learning_rate": "2e-4",
        "max_grad_norm": 0.3,
        "warmup_ratio": 0.03,
        "lr_scheduler_type": "constant",
        "peft_type": "lora",
        "target_module": "all",
    },
    "logging_and_saving_config": {"logging_steps": 10, "output_dir": "outputs/mine", "merge_output_dir": "merged"},
    "dataset": [
        {"dataset_type": "quality_debates", "full_dataset_file_path": "debates.jsonl"},
        {"dataset_type": "external_huggingface", "full_dataset_file_path": "yahma/alpaca-cleaned"},
    ],
}
STORY = {
    "article_id": "1",
    "article": "All day the cat sat on the mat. The hat was empty.",
    "questions": [
        {"question": "Where is the cat?", "options": ["mat", "hat", "bag", "car"], "gold_label": 1, "difficult": 1,
         "validation": [{"untimed_best_distractor": 2}]},
    ],
}  # fmt: skip


def changed(base: dict[str, Any], **values: Any) -> dict[str, Any]:
    """A copy with other settings; `a__b` is b of a, and None takes a setting away."""
    entry = copy.deepcopy(base)
    for name, value in values.items():
        *sections, last = name.split("__")
        place = entry
        for section in sections:
            place = place.setdefault(section, {})
        if value is None:
            place.pop(last, None)
        else:
            place[last] = value
    return entry


def translated(entry: Any, folder: Path, *words: str, file: str = "a.yaml", trainer: str | None = None):
    """The commands for an entry, of a file in the folder."""
    (folder / file).write_text(yaml.safe_dump({"mine": entry}, sort_keys=False))
    return list(of_nyu(folder / file, words, trainer))


def text_of(found: Translation) -> str:
    """The Python file that a command writes."""
    [write] = [one for one in found.before if one.startswith("cat > ")]
    return write.partition("<<'END'\n")[2].removesuffix("END")


def config_of(found: Translation) -> Any:
    """The CONFIG of the file that a command writes."""
    names: dict[str, Any] = {"__name__": "experiment"}
    exec(compile(text_of(found), "experiment", "exec"), names)
    return names["CONFIG"]


def both(**settings: Any) -> list[dict[str, Any]]:
    """Two debaters by chance, the first with these settings."""
    first = {key: value for key, value in settings.items() if key in ("best_of_n", "scratchpad")}
    rest = {key: value for key, value in settings.items() if key not in first}
    other = {"model_settings": RANDOM["model_settings"] | {"alias": "other"}}
    return [{"model_settings": RANDOM["model_settings"] | rest, **first}, other]
