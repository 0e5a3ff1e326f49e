"""Thoughts in the text of a reply: what a model wrote to itself before its answer, where no parser set it aside.

Three forms are known: a block between marks that speak of thinking (`<think>`, `[THINK]`, `<seed:think>`,
`<|begin_of_thought|>`, ...), of which a chat template may have written the first one in the prompt; the channels of
OpenAI's harmony format; and those channels where a server dropped their special tokens.
"""

import re
from typing import NamedTuple

NAME = r"[\w:]*(?:think|thought|reason|reflect)[\w:]*"
OPENING = re.compile(rf"[<\[◁]\|?(?:begin_of_)?({NAME})\|?[>\]▷]", re.IGNORECASE)
CLOSING = re.compile(rf"[<\[◁](?:/|\|/|\|?end_of_)({NAME})\|?[>\]▷]", re.IGNORECASE)
CHANNEL = re.compile(
    r"<\|channel\|>\s*(?P<name>\w+)[^<]*<\|message\|>(?P<text>.*?)(?=<\|(?:end|return|call|start|channel)\|>|\Z)",
    re.DOTALL,
)
BARE_CHANNELS = re.compile(r"\s*analysis(?P<thought>.*?)assistant\s*final(?P<answer>.*)", re.DOTALL)


class Thoughtful(NamedTuple):
    """A reply in its parts."""

    thought: str
    """empty without one"""
    answer: str
    """empty of a reply that ends within its thought"""


def split_thought(text: str) -> Thoughtful:
    """A reply's thought and its answer, each without the blanks around it; a reply without a thought as it is."""
    if channels := list(CHANNEL.finditer(text)):
        return _joined(
            [one["text"] for one in channels if one["name"] != "final"],
            [one["text"] for one in channels if one["name"] == "final"],
        )
    if bare := BARE_CHANNELS.match(text):
        return _joined([bare["thought"]], [bare["answer"]])
    return _between_marks(text)


def _between_marks(text: str) -> Thoughtful:
    """By the marks around a thought.

    A closing mark without an opening one ends a thought that began in the prompt; an opening mark that stands first and
    is never closed begins one that was cut.
    """
    thoughts, answers, rest = [], [], text
    while closing := CLOSING.search(rest):
        opening = OPENING.search(rest, 0, closing.start())
        answers.append(rest[: opening.start()] if opening else "")
        thoughts.append(rest[opening.end() if opening else 0 : closing.start()])
        if not opening:  # all before this mark is the thought
            thoughts, answers = [*answers, *thoughts], []
        rest = rest[closing.end() :]
    opening = OPENING.match(rest.lstrip())
    if opening:
        thoughts.append(rest.lstrip()[opening.end() :])
        rest = ""
    return _joined(thoughts, [*answers, rest]) if thoughts else Thoughtful("", text)


def _joined(thoughts: list[str], answers: list[str]) -> Thoughtful:
    return Thoughtful(
        "\n\n".join(one for part in thoughts if (one := part.strip())),
        "\n\n".join(one for part in answers if (one := part.strip())),
    )
