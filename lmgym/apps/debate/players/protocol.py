"""The interface of players, and any generator as one.

A `Player` is given calls, each of one agent in one round, and answers all of them at once. A generator reads a call's
conversation; scripts, recordings and best-of-n also read the round itself, of which a conversation shows less.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from lmgym.apps.debate.debate import Debate
from lmgym.apps.debate.transcript import Transcript
from lmgym.errors import InputError
from lmgym.generation.context_fitting import fit
from lmgym.generation.protocol import Generator, Sampling
from lmgym.text import Conversation

SAMPLING = Sampling()


@dataclass(frozen=True)
class Call:
    """A request for what one agent says in the current slot of its round."""

    round: Debate
    agent: str
    conversation: Conversation
    """that the agent reads"""
    seed: int
    """of this call alone"""
    opponent: "Player | None" = None
    """who plays the other debater"""

    @property
    def kind(self) -> str:
        """The kind of the slot."""
        return self.round.format.slots[self.round.slot].kind

    @property
    def max_tokens(self) -> int:
        """The limit of the slot."""
        return self.round.format.slots[self.round.slot].max_tokens


@dataclass(frozen=True)
class Spoken:
    """What was said, and what a best-of-n debater did not say."""

    text: str
    candidates: tuple[Mapping[str, Any], ...] = ()
    opponent_samples: tuple[str, ...] = ()


class Player(Protocol):
    """A debater or a judge."""

    def speak(self, calls: Sequence[Call], n: int = 1) -> list[list[Spoken]]:
        """n independent speeches for each call."""
        ...


class Judge(Protocol):
    """A judge that gives a probability."""

    def p_first(self, transcripts: Sequence[Transcript]) -> list[float]:
        """P(Debater_A's answer is right) of each round, as far as it has been played."""
        ...


@dataclass(frozen=True)
class GeneratorPlayer:
    """Any generator as a player: its replies to the conversations, each up to its slot's limit of tokens.

    `on_long` says what happens to a conversation that is longer than the model's context: "refuse", or "cut", which
    leaves out the oldest turns (lmgym/data/truncation.py). A server refuses by itself.
    """

    generator: Generator
    sampling: Sampling = SAMPLING
    on_long: Literal["refuse", "cut"] = "refuse"

    def speak(self, calls: Sequence[Call], n: int = 1) -> list[list[Spoken]]:
        """n replies for each call; calls with one limit are one request to the generator."""
        spoken: dict[int, list[Spoken]] = {}
        for limit in sorted({call.max_tokens for call in calls}):
            places = [i for i, call in enumerate(calls) if call.max_tokens == limit]
            seeds = tuple(calls[i].seed for i in places)
            sampling = replace(self.sampling, max_new_tokens=limit, seed=seeds)
            conversations = [self._fitted(calls[i], replace(sampling, seed=0)) for i in places]
            replies = self.generator.reply(conversations, n, sampling)
            for i, completions in zip(places, replies, strict=True):
                spoken[i] = [Spoken(completion.text) for completion in completions]
        return [spoken[i] for i in range(len(calls))]

    def _fitted(self, call: Call, sampling: Sampling) -> Conversation:
        fitted, dropped, shortened = fit(self.generator, call.conversation, sampling)
        if self.on_long == "refuse" and (dropped or shortened):
            raise InputError(
                f"what {call.agent} reads of question {call.round.transcript.question.id!r} is longer than the model's "
                f"context less {call.max_tokens} tokens; needed: excerpts (with_excerpts), or on_long='cut'"
            )
        return fitted
