"""Everyday questions in English, for `lmgym demo --real`: each task in several ways, some tasks held out."""

import json
from pathlib import Path

FRAMES = (
    "How do I {task}?",
    "Give me a tip to {task}.",
    "I want to {task}. Where do I start?",
    "Why is it hard to {task}?",
)
TASKS = (
    "boil an egg",
    "bake bread",
    "grow tomatoes",
    "make good coffee",
    "cook rice",
    "peel garlic",
    "plant a tree",
    "keep bees",
    "train a puppy",
    "clean a carpet",
    "wash a sweater",
    "remove a stain",
    "sharpen a knife",
    "paint a wall",
    "build a shelf",
    "fix a bicycle",
    "pack a suitcase",
    "plan a birthday",
    "write a poem",
    "learn chess",
    "play the guitar",
    "learn French",
    "improve my handwriting",
    "remember names",
    "give a speech",
    "pass an exam",
    "write a letter",
    "save money",
    "find a job",
    "meet my neighbours",
    "cure a cold",
    "tie a tie",
    "stop a headache",
    "run a marathon",
    "learn swimming",
    "draw a face",
    "take a photo",
    "read a map",
    "choose a book",
    "make friends",
)
HELD_OUT = 4  # one task of this many is evaluated on, never trained on


def prompts(held_out: bool) -> list[dict[str, str]]:
    """Rows of one prompt: those to train on, or the held-out ones."""
    tasks = [task for number, task in enumerate(TASKS) if (number % HELD_OUT == 0) == held_out]
    return [{"prompt": frame.format(task=task)} for task in tasks for frame in FRAMES]


def write_prompts(folder: Path) -> None:
    """Writes prompts.jsonl and held_out.jsonl."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, held_out in (("prompts", False), ("held_out", True)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in prompts(held_out)))
