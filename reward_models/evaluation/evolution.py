"""convo_evolution: real conversations turn by turn, and what each next line of the user is to every scorer.

A line's score is that of the conversation up to and with it, an empty reply behind; the baseline is the same without
the line.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import IO, Any

from lmgym.errors import InputError
from lmgym.text import Conversation, Turn, from_messages, from_transcript
from reward_models.evaluation.cleaning import clean_line
from reward_models.evaluation.judging import Judge, ask
from reward_models.evaluation.loading import Experiment

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


def walk(judges: Mapping[str, Judge], conversations: Sequence[Conversation]) -> Iterator[Step]:
    """A step for each line of a user that answers a bot."""
    for number, conversation in enumerate(conversations, 1):
        turns = conversation.turns
        for end in range(1, len(turns)):
            if turns[end].speaker != "user" or turns[end - 1].speaker != "bot":
                continue
            after = ask(judges, replace(conversation, turns=turns[: end + 1]), [""])
            before = ask(judges, replace(conversation, turns=turns[:end]), [""])
            yield Step(
                number, end + 1, turns[end - 1].text, turns[end].text,
                {name: column[0] for name, column in after.scores.items()},
                {name: column[0] for name, column in before.scores.items()},
            )  # fmt: skip


def read_conversations(dataset: str) -> list[Conversation]:
    """The conversations of a file, a folder or a hub id: messages, a transcript, a chosen side, or input and output."""
    from lmgym.records import read_records

    found = []
    for record in read_records(dataset):
        try:
            conversation = _conversation(record.fields)
        except ValueError:
            continue
        if any(turn.speaker == "bot" for turn in conversation.turns[:-1]):
            found.append(conversation)
    if not found:
        raise InputError(
            f"{dataset} has no conversation in which a user answers a bot; needed: messages, text, chosen (with prompt "
            "where that is apart), or input_text and output_text"
        )
    return found


def _conversation(fields: dict[str, Any]) -> Conversation:
    """Raises ValueError where the row has none."""
    for name in ("messages", "conversation", "text", "transcript"):
        if fields.get(name):
            return _either(fields[name])
    if fields.get("chosen"):
        prompt = _either(fields["prompt"]) if fields.get("prompt") else Conversation(())
        if isinstance(fields["chosen"], str) and fields.get("prompt"):
            return replace(prompt, turns=(*prompt.turns, Turn("bot", fields["chosen"])))
        chosen = _either(fields["chosen"])
        return replace(chosen, turns=(*prompt.turns, *chosen.turns), persona=prompt.persona or chosen.persona)
    if fields.get("input_text"):
        return from_transcript(f"{fields['input_text']} {fields.get('output_text') or ''}")
    raise ValueError("no conversation")


def _either(value: Any) -> Conversation:
    return from_transcript(value) if isinstance(value, str) else from_messages(value)


def show_evolution(experiment: Experiment, dataset: str | None, most: int, out: IO[str]) -> None:
    """Prints every step of the first conversations. Raises InputError where there is none to walk."""
    if most < 1:
        raise InputError(f"conversations={most}: needed 1 or more")
    conversations = read_conversations(dataset) if dataset else experiment.conversations()
    conversations = conversations or [from_transcript(text) for text in SAMPLES]
    judges = experiment.judges()
    last = 0
    for step in walk(judges, conversations[:most]):
        if step.conversation != last:
            last = step.conversation
            print(f"\nconversation {last}", file=out)
            first = conversations[last - 1].turns[0]
            print(f"  {first.speaker:4} {clean_line(first.text)}", file=out)
        print(f"  bot  {clean_line(step.reply)}" if step.turn > 2 else "", file=out)
        print(f"  user {clean_line(step.line)}", file=out)
        for name, score in step.scores.items():
            print(f"       {name}: {_change(score, step.baselines[name])}", file=out, flush=True)


def _change(score: float | None, baseline: float | None) -> str:
    if score is None or baseline is None:
        return "failed"
    return f"{score:.4f}, without this line {baseline:.4f}, change {score - baseline:+.4f}"
