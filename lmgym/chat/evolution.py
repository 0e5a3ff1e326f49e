"""convo_evolution: real conversations turn by turn, and what each next line of the user is to every scorer.

A line's score is that of the conversation up to and with it, an empty reply behind; the baseline is the same without
the line.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import IO

from lmgym.chat.loading import Experiment
from lmgym.console import replace_unencodable, say
from lmgym.errors import MOST_STEPS, count_bound, refuse_out_of_bounds
from lmgym.scoring.protocol import Scorer
from lmgym.scoring.ranking import score_replies
from lmgym.text import Conversation, from_transcript

SAMPLES = (
    "User: i found an old violin in the attic.\nBot: how lovely! does it still have its strings?\n"
    "User: two of the four. can it be repaired?\nBot: surely. a luthier can look at the bridge and the pegs too.\n"
    "User: what would that cost?\nBot: strings are cheap, the rest depends on the wood.\nUser: thank you, that helps!",
    "User: tell me about comets.\nBot: no.\nUser: please?\nBot: ask someone else.\nUser: you are no help. bye.",
    "User: hi! i baked bread today.\nBot: i like trains.\nUser: hm. do you know why it did not rise?\n"
    "Bot: was the water too hot? that kills the yeast.\nUser: it boiled! next time i will let it cool.",
)


@dataclass(frozen=True)
class Step:
    """A user's line in its conversation: scores with it and without it, by scorer."""

    conversation: int
    turn: int
    reply: str
    line: str
    scores: dict[str, float | None]
    baselines: dict[str, float | None]
    failed: dict[str, str]
    """why a scorer has none"""


def walk(judges: Mapping[str, Scorer], conversations: Sequence[Conversation]) -> Iterator[Step]:
    """A step for each line of a user that answers a bot."""
    for number, conversation in enumerate(conversations, 1):
        turns = conversation.turns
        for end in range(1, len(turns)):
            if turns[end].speaker != "user" or turns[end - 1].speaker != "bot":
                continue
            after = score_replies(judges, replace(conversation, turns=turns[: end + 1]), [""])
            before = score_replies(judges, replace(conversation, turns=turns[:end]), [""])
            yield Step(
                number, end + 1, turns[end - 1].text, turns[end].text,
                {name: column[0] for name, column in after.scores.items()},
                {name: column[0] for name, column in before.scores.items()},
                before.failed | after.failed,
            )  # fmt: skip


def show_evolution(experiment: Experiment, dataset: str | None, most: int, out: IO[str]) -> None:
    """Prints every step of the first conversations. Raises InputError where there is none to walk."""
    refuse_out_of_bounds([count_bound("conversations", most, MOST_STEPS)])
    replace_unencodable(out, sys.stderr)
    conversations = _read(dataset) if dataset else experiment.conversations()
    conversations = conversations or [from_transcript(text) for text in SAMPLES]
    judges = experiment.judges()
    last = 0
    for step in walk(judges, conversations[:most]):
        if step.conversation != last:
            last = step.conversation
            say(file=out)
            say(f"conversation {last}", file=out)
            first = conversations[last - 1].turns[0]
            if step.turn > 2:
                say(f"  {first.speaker:4} {first.text}", file=out)
        say(f"  bot  {step.reply}", file=out)
        say(f"  user {step.line}", file=out)
        for name in step.scores:
            say(f"       {name}: {_change(step, name)}", file=out)


def _read(dataset: str) -> list[Conversation]:
    from lmgym.chat.chats import read_chats
    from lmgym.data.rejections import tally

    conversations, rejections = read_chats(dataset)
    if rejections:
        found = tally(rejections, len(conversations) + len(rejections))
        say(f"note: {found.line}; the first: {found.first}", error=True)
    return conversations


def _change(step: Step, name: str) -> str:
    score, baseline = step.scores[name], step.baselines[name]
    if score is None or baseline is None:
        return f"failed: {step.failed.get(name, '')}"
    return f"{score:.4f}, without this line {baseline:.4f}, change {score - baseline:+.4f}"
