"""Prompt sets: their tags, their values in <ANGLE_BRACKETS>, and the checks before the first speech.

A set maps a tag to a wording, or to several, of which training draws one a round and everything else takes the first.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import final

from lmgym.errors import InputError, listed

PromptSet = Mapping[str, str | Sequence[str]]

TAGS = {
    "overall": "system message of everybody",
    "debater": "system message of a debater, after the overall one",
    "judge": "system message of the judge, after the overall one",
    "before_debate": "a debater's first message: the topic, its answer, the text",
    "before_debate_judge": "the judge's first message: the topic and both answers",
    "opening": "asks a debater for its first speech",
    "speech": "asks a debater for a further speech",
    "speech_past": "in the place of both, before a speech that the debater has given",
    "opponent_speech": "before a speech of the opponent",
    "speech_heard": "before a speech, for the judge",
    "scratchpad": "asks a debater for private notes",
    "shown_scratchpad": "asks a debater for notes that the judge reads",
    "scratchpad_past": "before notes that it has made",
    "scratchpad_heard": "before a debater's notes, for the judge",
    "position": "asks a debater to choose its answer: 1 or 2",
    "position_past": "before the choice that it has made",
    "question": "asks the judge for a question",
    "question_past": "before a question that the judge has asked",
    "question_heard": "before a question of the judge, for debaters",
    "pick": "asks the judge who is to speak next",
    "pick_past": "before a name that the judge has said",
    "pick_heard": "before that name, for debaters",
    "reasoning": "asks the judge for private notes",
    "reasoning_past": "before notes that it has made",
    "verdict": "asks the judge for a debater's name",
}
VALUES = {
    "NAME": "the reader's own name",
    "OPPONENT_NAME": "of a debater",
    "POSITION": "the answer of a debater",
    "OPPONENT_POSITION": "the opponent's answer",
    "TOPIC": "the question",
    "BACKGROUND_TEXT": "the text that quotes are of",
    "FIRST_NAME": "Debater_A",
    "SECOND_NAME": "Debater_B",
    "FIRST_POSITION": "Debater_A's answer",
    "SECOND_POSITION": "Debater_B's answer",
    "FIRST_OPTION": "an answer, before sides are chosen",
    "SECOND_OPTION": "the other answer",
    "SPEAKER": "whose speech, question or choice follows",
    "ROUND": "its number",
    "MAX_TOKENS": "limit of what is asked for",
}
OF_DEBATERS = frozenset(("NAME", "OPPONENT_NAME", "POSITION", "OPPONENT_POSITION"))
FOR_JUDGE = frozenset(("overall", "before_debate_judge", "judge", "speech_heard", "scratchpad_heard", "verdict")) | {
    f"{kind}{ending}" for kind in ("question", "pick", "reasoning") for ending in ("", "_past")
}
VALUE = re.compile("<([A-Z][A-Z_]*)>")


@final
@dataclass(frozen=True)
class Prompts:
    """A checked set. `varied`: wordings are drawn by the round's seed, as training does."""

    wordings: Mapping[str, tuple[str, ...]]
    varied: bool = False

    def text(self, tag: str, values: Mapping[str, object], seed: int = 0) -> str:
        """The wording of a tag with its values; a value in the place of another is text."""
        wordings = self.wordings[tag]
        chosen = 0
        if self.varied and len(wordings) > 1:
            digest = blake2b(f"{seed} {tag}".encode(), digest_size=8).digest()
            chosen = int.from_bytes(digest, "big") % len(wordings)
        return VALUE.sub(lambda match: str(values[match[1]]), wordings[chosen])


def read_prompts(prompts: PromptSet, needed: Iterable[str], varied: bool = False) -> Prompts:
    """The set, checked for a format that needs these tags.

    Raises InputError, with its name, for a tag that is missing, empty or unknown, for a value that nobody fills in, and
    for one that the tag's reader does not have, as a judge has no opponent.
    """
    if unknown := sorted(set(prompts) - set(TAGS)):
        raise InputError(f"the prompt set has the unknown tags {listed(unknown)}; needed: some of {listed(TAGS, 99)}")
    missing = [tag for tag in TAGS if tag in set(needed) and not prompts.get(tag)]
    if missing:
        described = "; ".join(f"{tag} ({TAGS[tag]})" for tag in missing)
        raise InputError(f"the prompt set has no wording for {described}; needed: a text for each of these tags")
    wordings = {tag: (text,) if isinstance(text, str) else tuple(text) for tag, text in prompts.items()}
    for tag, texts in wordings.items():
        for text in texts:
            _check_values(tag, text)
    return Prompts(wordings, varied)


def _check_values(tag: str, text: str) -> None:
    for value in VALUE.findall(text):
        if value not in VALUES:
            raise InputError(f"prompt {tag} has the unknown value <{value}>; needed: some of {listed(VALUES, 99)}")
        if tag in FOR_JUDGE and value in OF_DEBATERS - {"NAME"}:
            raise InputError(
                f"prompt {tag} has <{value}>, which the judge does not have; needed: FIRST_NAME, SECOND_NAME, "
                "FIRST_POSITION, SECOND_POSITION or others that are no debater's own"
            )
