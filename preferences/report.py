"""Rows of a preference run as the model sees them."""

from collections.abc import Sequence
from typing import Any

from lmgym.console import CONSOLE
from lmgym.data.truncation import describe_truncation
from lmgym.training.reporting import show_text
from lmgym.turn_ends import turn_ends
from preferences.tasks import PreferenceTask


def show_rows(task: PreferenceTask, tokenizer, examples: Sequence[Any]) -> None:
    """Prints the prompt and each reply as the model will see them; the loss is of the replies and their ends."""
    end = turn_ends(tokenizer).ids[0]
    for example in examples:
        replies = example.replies
        CONSOLE.rule(example.origin, style="dim")
        lost = describe_truncation(replies.dropped_turns, replies.shortened)
        prompt = [*replies.prefix, replies.suffixes[0][0]]
        show_text(f"prompt, {len(prompt)} tokens{lost and f', {lost}'}", tokenizer.decode(prompt))
        ends = replies.ends or [end] * len(replies.suffixes)
        for title, suffix, last in zip(task.titles(example), replies.suffixes, ends, strict=True):
            text = tokenizer.decode([*suffix[1:], last])
            show_text(f"{title}, {len(suffix)} tokens to predict", text)
