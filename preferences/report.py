"""Rows of a preference run as the model sees them."""

from collections.abc import Sequence
from typing import Any

from lmgym.console import CONSOLE
from lmgym.data.truncation import describe_truncation
from lmgym.training.reporting import show_text
from preferences.tasks import PreferenceTask


def show_rows(task: PreferenceTask, tokenizer, examples: Sequence[Any]) -> None:
    """Prints the prompt and each reply as the model will see them; the loss is of the replies and their eos."""
    for example in examples:
        replies = example.replies
        CONSOLE.rule(example.origin, style="dim")
        lost = describe_truncation(replies.dropped_turns, replies.shortened)
        prompt = [*replies.prefix, replies.suffixes[0][0]]
        show_text(f"prompt, {len(prompt)} tokens{lost and f', {lost}'}", tokenizer.decode(prompt))
        for title, suffix in zip(task.titles(example), replies.suffixes, strict=True):
            text = tokenizer.decode([*suffix[1:], tokenizer.eos_token_id])
            show_text(f"{title}, {len(suffix)} tokens to predict", text)
