"""Players that say what was said before: rounds are judged anew, or a debater meets recorded opponents."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import final

from lmgym.apps.debate.players.protocol import round_of, slot_of
from lmgym.apps.debate.transcript import Speech, Transcript
from lmgym.environments.players import ActionRequest
from lmgym.environments.protocol import Action
from lmgym.errors import InputError, shown

Key = tuple[str, str, str]
"""a question, the debater's name, and its answer"""


@final
@dataclass(frozen=True)
class RecordedPlayer:
    """Says what a debater said in a transcript: of this question, for the same answer by the same side.

    `n` samples are the recorded candidates of a best-of-n debater in their order, so that another judge or a smaller n
    chooses anew. That is sound in the first round only: what follows has replied to what was said then.
    """

    transcripts: Iterable[Transcript]
    by_number: bool = False
    """of several rounds about a question, that with the round's own number"""
    _said: dict[object, list[Speech]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        for transcript in self.transcripts:
            for agent in {speech.speaker for speech in transcript.speeches}:
                said = [speech for speech in transcript.speeches if speech.speaker == agent]
                self._said.setdefault(self._key(transcript, agent), said)

    def act(self, requests: Sequence[ActionRequest], n: int = 1) -> list[list[Action]]:
        """The recorded speech for each request. Raises InputError for a round that was not recorded."""
        return [self._spoken(request, n) for request in requests]

    def _key(self, transcript: Transcript, agent: str) -> object:
        key = (transcript.question.id, agent, transcript.positions.get(agent, ""))
        return (transcript.number, *key) if self.by_number else key

    def _spoken(self, request: ActionRequest, n: int) -> list[Action]:
        transcript, agent, kind = round_of(request).transcript, request.agent, slot_of(request).kind
        said = [s for s in self._said.get(self._key(transcript, agent), ()) if s.kind == kind]
        place = sum(s.speaker == agent and s.kind == kind for s in transcript.speeches)
        if place >= len(said):
            answer = shown(transcript.positions.get(agent))
            raise InputError(
                f"{agent} has {len(said)} recorded {kind}(s) for {answer} in question "
                f"{shown(transcript.question.id)}, and number {place + 1} is asked for; needed: a transcript of this "
                "question and side with as many rounds"
            )
        speech = said[place]
        if n == 1:
            notes = {"candidates": speech.candidates, "opponent_samples": speech.opponent_samples}
            return [Action(speech.raw or speech.text, notes=notes)]
        samples = [str(candidate["text"]) for candidate in speech.candidates]
        if len(samples) < n:
            raise InputError(
                f"{n} samples of a recorded speech of question {shown(transcript.question.id)}, and it has "
                f"{len(samples)}; needed: the transcripts of a best-of-n debater, and an n of at most its own"
            )
        return [Action(text) for text in samples[:n]]
