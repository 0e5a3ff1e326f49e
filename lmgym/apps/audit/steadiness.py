"""Steadiness: a scorer keeps the order of replies to a prompt when asked again, and with another template."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from lmgym.apps.audit.edits import Exchange, with_prompt
from lmgym.statistics import NOTHING, Estimate, share

TEMPLATES = (
    "Question: {prompt}",
    "{prompt}\n",
    "### Instruction:\n{prompt}",
    'Reply to this: "{prompt}"',
    "User: {prompt}\nAssistant:",
    "Input: {prompt}\n\nOutput:",
    "[INST] {prompt} [/INST]",
    "Please answer the following.\n\n{prompt}",
    "Q: {prompt}\nA:",
    "<question>{prompt}</question>",
)
"""of the last turn of the user; prompts take turns"""


@dataclass(frozen=True)
class Steadiness:
    """Shares of the pairs of replies to a prompt with different scores whose order is kept, over prompts."""

    asked_again: Estimate = NOTHING
    """of the same texts, in another order"""
    other_template: Estimate = NOTHING


def in_template(given: Exchange, number: int) -> Exchange:
    """The exchange with its prompt in the template of this number."""
    form = TEMPLATES[number % len(TEMPLATES)]
    return with_prompt(given, form.replace("{prompt}", given.prompt)) if given.prompt else given


Pairs = Sequence[tuple[str, bool]]
"""(key of the prompt, whether the order is kept)"""


def kept(key: str, before: Mapping[Exchange, float], after: Mapping[Exchange, float]) -> list[tuple[str, bool]]:
    """The pairs of the exchanges that both have, and whose first scores differ."""
    both = [one for one in before if one in after]
    return [
        (key, (before[a] - before[b]) * (after[a] - after[b]) > 0)
        for a, b in combinations(both, 2)
        if before[a] != before[b]
    ]


def share_kept(pairs: Pairs) -> Estimate:
    """The share of pairs whose order is kept, with its interval over prompts."""
    return share([is_kept for _, is_kept in pairs], [key for key, _ in pairs]) if pairs else NOTHING
