"""Rows out of transcripts: what a debater read and said, for SFT, and what it might have said, as pairs.

Design decisions:
- A row is one speech behind what its speaker read then. Several speeches in one row would each stand behind the message
  for a speech of the past.
- What is learned is what was said literally: a quote that was found invalid is in its ordinary tags.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from lmgym.apps.debate.formats import DEBATERS, Format
from lmgym.apps.debate.prompts import consultancy, debate, open_debate
from lmgym.apps.debate.prompts.wordings import Prompts, PromptSet, read_prompts
from lmgym.apps.debate.rendering import conversation_for, judge_conversation, needed_tags
from lmgym.apps.debate.training.preferences import Preference
from lmgym.apps.debate.transcript import Speech, Transcript
from lmgym.errors import InputError, shown_path
from lmgym.runs.user_code import import_file
from lmgym.text import Conversation, messages

Speakers = Literal["all", "right", "won"]
OF_DEBATERS = frozenset(("speech", "scratchpad", "shown_scratchpad"))
Row = dict[str, Any]


def sft_rows(
    transcripts: Iterable[Transcript], prompts: PromptSet | None = None, speakers: Speakers = "all"
) -> Iterator[Row]:
    """`prompt` (messages) and `completion` of each speech and note of debaters.

    Of all debaters, of those with the right answer, or of those that won. `prompts`: None is our set for the format.
    """
    wordings = _Wordings(prompts)
    for transcript in transcripts:
        kept = _kept(transcript, speakers)
        for speech in transcript.speeches:
            if speech.kind in OF_DEBATERS and speech.speaker in kept and (said := literal(speech)):
                read = conversation_for(wordings.of(transcript.format), transcript, speech.speaker, speech.slot)
                yield {"prompt": messages(read), "completion": said}


def judge_rows(transcripts: Iterable[Transcript], prompts: PromptSet | None = None) -> Iterator[Row]:
    """`prompt` (messages) and `completion`: what the judge of each round reads, and the name with the right answer.

    Rounds whose right answer is not known have no row. `prompts`: None is our set for the format.
    """
    wordings = _Wordings(prompts)
    for transcript in transcripts:
        if transcript.correct:
            read = judge_conversation(wordings.of(transcript.format), transcript)
            yield {"prompt": messages(read), "completion": transcript.correct}


def preference_rows(
    transcripts: Iterable[Transcript], preference: Preference, prompts: PromptSet | None = None
) -> Iterator[Row]:
    """`prompt`, `chosen`, `rejected` and `preference` for each sample that a best-of-n debater did not say."""
    wordings = _Wordings(prompts)
    for transcript in transcripts:
        for speech in transcript.speeches:
            if speech.candidates:
                read = conversation_for(wordings.of(transcript.format), transcript, speech.speaker, speech.slot)
                samples = [(str(one["text"]), float(one["score"])) for one in speech.candidates]
                yield from pairs(read, samples, preference)


def pairs(read: Conversation, samples: Sequence[tuple[str, float]], preference: Preference) -> Iterator[Row]:
    """The best of the samples, (text, P(win)), against each that is worse and says something else."""
    best, score = max(samples, key=lambda sample: sample[1])
    for text, lower in samples:
        if lower < score and text.strip() != best.strip():
            yield {
                "prompt": messages(read),
                "chosen": best.strip(),
                "rejected": text.strip(),
                "preference": preference(score, lower),
            }


def literal(speech: Speech) -> str:
    """The text that was said, with invalid quotes as quotes."""
    return (speech.raw or speech.text).replace("invalid_quote>", "quote>").strip()


def read_prompt_file(path: str) -> PromptSet:
    """`PROMPTS` of a Python file. Raises InputError without it."""
    found = vars(import_file(path, "needed: a Python file with PROMPTS")).get("PROMPTS")
    if not isinstance(found, Mapping):
        raise InputError(f"{shown_path(path)} has no PROMPTS; needed: a dict of tags to wordings")
    return found


class _Wordings:
    """The checked set for each format."""

    def __init__(self, prompts: PromptSet | None) -> None:
        self.prompts = prompts
        self.known: dict[Format, Prompts] = {}

    def of(self, format: Format) -> Prompts:
        if format not in self.known:
            chosen = self.prompts if self.prompts is not None else _own_set(format)
            self.known[format] = read_prompts(chosen, needed_tags(format))
        return self.known[format]


def _own_set(format: Format) -> PromptSet:
    if "position" in format.kinds:
        return open_debate.PROMPTS
    return consultancy.PROMPTS if format.isolated or len(format.debaters) == 1 else debate.PROMPTS


def _kept(transcript: Transcript, speakers: Speakers) -> tuple[str | None, ...]:
    if speakers == "all":
        return DEBATERS
    if speakers == "right":
        return (transcript.correct,)
    return (transcript.verdict.winner if transcript.verdict else None,)
