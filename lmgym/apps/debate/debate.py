"""A round of debate as an environment: the agents are Debater_A, Debater_B and Judge.

Design decisions:
- The state is a transcript, a frozen value: to try a speech is to make another transcript, without copying models.
- The judge decides as an agent, whose reply is read, or as a scorer: then the environment ends after the last speech
  and requests the score of each debater's name as a reply to what the judge reads.
- A debater's reward is P(win) less a constant for its side, so that the judge's preference for right answers does not
  reward the debater who drew that side. A judge that is trained earns P(right answer) - .5.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, final

import numpy as np

from lmgym.apps.debate.formats import DEBATERS, JUDGE, PRIVATE, Format
from lmgym.apps.debate.prompts.wordings import PromptSet, read_prompts
from lmgym.apps.debate.questions import Question, Task, read_question
from lmgym.apps.debate.quotes import QuoteRules
from lmgym.apps.debate.rendering import conversation_for, judge_conversation, needed_tags, speakers_of
from lmgym.apps.debate.transcript import Speech, Transcript, Verdict
from lmgym.apps.debate.verdicts import read_pick, read_position, read_verdict
from lmgym.environments.protocol import Observation, ScoreRequest, StepResult
from lmgym.errors import InputError

RULES = QuoteRules()


@final
class Debate:
    """One round. A task is a row of lmgym/apps/debate/questions.py, with `flipped` if the side is given.

    Without `flipped` the seed decides which option Debater_A argues for. A task may have a `transcript` instead, of the
    same format: its round goes on after its last speech, or in the `slot` that the task gives.

    `varied` draws wordings by the seed, as in training. `baselines` are subtracted from P(win) of the side with the
    right answer and of the other one. A speech with more words than its slot has tokens is cut, wherever it comes from.
    `own_prompts` are the sets of single agents, in place of `prompts`.
    Raises InputError for a prompt set that lacks a tag or a value.
    """

    def __init__(
        self,
        format: Format,
        prompts: PromptSet,
        varied: bool = False,
        verdict: Literal["agent", "scorer"] = "agent",
        baselines: tuple[float, float] = (0.5, 0.5),
        rules: QuoteRules = RULES,
        own_prompts: Mapping[str, PromptSet] | None = None,
    ) -> None:
        self.format, self.verdict, self.baselines, self.rules = format, verdict, baselines, rules
        self.prompts = read_prompts(prompts, needed_tags(format), varied)
        own = own_prompts or {}
        self.own_prompts = {agent: read_prompts(own[agent], needed_tags(format), varied) for agent in own}
        self.transcript = Transcript(Question("none", ("a", "b")), format)
        self.slot = 0
        self.picked = ""
        """the debater that the judge let speak next"""

    def reset(self, task: Task, seed: int) -> Mapping[str, Observation]:
        """Begin a round, or go on with one. Raises InputError for a row that is no question."""
        given = task.get("transcript")
        if isinstance(given, Transcript):
            self._go_on(given, task.get("slot"))
        else:
            self.transcript, self.slot, self.picked = self._new(task, seed), 0, ""
        if self.decides_by_score:
            raise InputError(f"format {self.format.name} has no speech to score; needed: a format with debaters")
        return self.observations()

    def _go_on(self, transcript: Transcript, slot: int | None) -> None:
        self.transcript, self.picked = transcript, ""
        self.slot = max((speech.slot + 1 for speech in transcript.speeches), default=0) if slot is None else slot
        if picks := [speech for speech in transcript.speeches if speech.kind == "pick"]:
            self.picked = read_pick(picks[-1].text, transcript.up_to(picks[-1].slot).speeches)

    def _new(self, task: Task, seed: int) -> Transcript:
        """A round without speeches about the question of a row."""
        flipped = task.get("flipped")
        if not isinstance(flipped, bool | None):
            raise InputError(f"flipped={flipped!r}; needed: true, false or none")
        if flipped is None:
            flipped = bool(np.random.default_rng(seed).integers(2))
        return Transcript(read_question(task), self.format, flipped, seed)

    @property
    def speakers(self) -> tuple[str, ...]:
        """The agents that act in the current slot."""
        return speakers_of(self.format.slots[self.slot], self.picked)

    @property
    def decides_by_score(self) -> bool:
        """True if only the verdict is left, and it is a scorer's."""
        return self.verdict == "scorer" and self.slot == len(self.format.slots) - 1

    @property
    def ended(self) -> bool:
        """True once the verdict is known, or requested."""
        return self.slot == len(self.format.slots) or self.decides_by_score

    def observations(self) -> dict[str, Observation]:
        """The observation of each agent of the current slot."""
        return {agent: self.observation(agent) for agent in self.speakers}

    def observation(self, agent: str) -> Observation:
        """The observation of an agent, if it acts in the current slot."""
        return Observation(
            conversation_for(self.own_prompts.get(agent, self.prompts), self.transcript, agent, self.slot)
        )

    def with_speeches(self, said: Mapping[str, str]) -> Transcript:
        """The round with these speeches in the current slot, of all of its agents or of some."""
        speeches = [self._speech(agent, said[agent]) for agent in self.speakers if agent in said]
        return replace(self.transcript, speeches=(*self.transcript.speeches, *speeches))

    def step(self, actions: Mapping[str, str]) -> StepResult:
        """Take what all agents of the slot have said."""
        kind = self.format.slots[self.slot].kind
        self.transcript = self.with_speeches(actions)
        if kind == "verdict":
            self.transcript = replace(self.transcript, verdict=read_verdict(actions[JUDGE]))
        elif kind == "pick":
            self.picked = read_pick(actions[JUDGE], self.transcript.speeches)
        elif kind == "position":
            chosen = read_position(next(iter(actions.values())))
            own = self.speakers[0] == DEBATERS[1]
            if chosen is not None:
                self.transcript = replace(self.transcript, flipped=bool(chosen) ^ own)
        self.slot += 1
        if not self.ended:
            return StepResult(self.observations())
        info = _info(self.transcript)
        if self.transcript.verdict is None:
            return StepResult(terminated=True, info=info, score_requests=self._score_requests())
        return StepResult(rewards=self._rewards(self.transcript.verdict), terminated=True, info=info)

    def _speech(self, agent: str, text: str) -> Speech:
        slot = self.format.slots[self.slot]
        text = text.encode(errors="replace").decode()  # a terminal can give half a surrogate pair, which no file holds
        said = _cut(text.strip(), slot.max_tokens)
        if slot.kind in ("speech", "shown_scratchpad") or slot.kind in PRIVATE:
            checked = self.rules.check(said, self.transcript.question.text)
            raw = text if text != checked.text else ""
            return Speech(self.slot, agent, slot.kind, slot.round, checked.text, raw, checked.quotes, checked.unclosed)
        return Speech(self.slot, agent, slot.kind, slot.round, said, text if text != said else "")

    def _rewards(self, verdict: Verdict) -> dict[str, float]:
        acted = {speech.speaker for speech in self.transcript.speeches}
        correct = self.transcript.correct
        rewards = {}
        for debater in DEBATERS:
            if debater in acted:
                rewards[debater] = verdict.p_of(debater) - self.baseline(debater)
        if correct is not None:
            rewards[JUDGE] = verdict.p_of(correct) - 0.5
        return rewards

    def baseline(self, debater: str) -> float:
        """The part of P(win) that earns nothing: the mean of both constants if nobody knows who is right."""
        if self.transcript.correct is None:
            return sum(self.baselines) / 2
        return self.baselines[debater != self.transcript.correct]

    def _score_requests(self) -> tuple[ScoreRequest, ...]:
        """For each debater that has spoken: its name, as a reply to what the judge reads."""
        read = judge_conversation(self.prompts, self.transcript)
        acted = {speech.speaker for speech in self.transcript.speeches}
        return tuple(
            ScoreRequest(debater, read, debater, {"transcript": self.transcript, "baseline": self.baseline(debater)})
            for debater in DEBATERS
            if debater in acted
        )


def _cut(text: str, tokens: int) -> str:
    """The text with at most so many words: a word has at least one token, so no speech within the limit is cut."""
    words = text.split(maxsplit=tokens)
    if len(words) <= tokens:
        return text
    return text[: len(text) - len(words[tokens])].rstrip()


def _info(transcript: Transcript) -> dict[str, float]:
    """Figures of a round, for the log."""
    quotes = [quote for speech in transcript.speeches if speech.kind == "speech" for quote in speech.quotes]
    info = {"speeches": float(sum(speech.kind == "speech" for speech in transcript.speeches))}
    if quotes:
        info["quotes_valid"] = sum(quote.valid for quote in quotes) / len(quotes)
    if transcript.verdict is not None and transcript.correct is not None:
        info["p_correct"] = transcript.verdict.p_of(transcript.correct)
    return info
