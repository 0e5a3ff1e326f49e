"""The interface of judges, any generator as a debater, and a debate's part of a player's request.

Debaters, and judges that write, are players (lmgym/environments/players.py). A generator reads a request's
conversation; scripts, recordings and best-of-n also read the round itself, of which a conversation shows less.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

from lmgym.apps.debate.debate import Debate
from lmgym.apps.debate.formats import Slot
from lmgym.apps.debate.transcript import Transcript
from lmgym.environments.players import ActionRequest, GeneratorPlayer, Player
from lmgym.environments.protocol import Action
from lmgym.errors import InputError
from lmgym.generation.context_fitting import fit
from lmgym.generation.protocol import Generator, Sampling

SAMPLING = Sampling()


@runtime_checkable
class Judge(Protocol):
    """A judge that gives a probability. One that writes its verdict is a player instead."""

    def p_first(self, transcripts: Sequence[Transcript]) -> list[float]:
        """P(Debater_A's answer is right) of each round, as far as it has been played."""
        ...


def round_of(request: ActionRequest) -> Debate:
    """The round in which the agent acts."""
    assert isinstance(request.environment, Debate), "players of debates act in a Debate"
    return request.environment


def slot_of(request: ActionRequest) -> Slot:
    """The slot in which the agent acts, with its kind and its limit of tokens."""
    round = round_of(request)
    return round.format.slots[round.slot]


def request_for(round: Debate, agent: str, seed: int, players: Mapping[str, Player] | None = None) -> ActionRequest:
    """The request for what an agent of the current slot says, outside of `play`."""
    return ActionRequest(round, agent, round.observation(agent), seed, players or {})


def texts_of(actions: Sequence[Action]) -> list[str]:
    """The texts of a player's actions. Raises InputError for one that failed."""
    if error := next((action.error for action in actions if action.error), ""):
        raise InputError(error)
    return [action.text for action in actions]


@dataclass(frozen=True)
class SpeechPlayer:
    """Any generator as a debater, or as a judge that writes: each reply is up to its slot's limit of tokens.

    `on_long` says what happens to a conversation that is longer than the model's context: "refuse", or "cut", which
    leaves out the oldest turns (lmgym/data/truncation.py). A server refuses by itself.
    """

    generator: Generator
    sampling: Sampling = SAMPLING
    on_long: Literal["refuse", "cut"] = "refuse"

    def act(self, requests: Sequence[ActionRequest], n: int = 1) -> list[list[Action]]:
        """n replies for each request; those with one limit are one request to the generator."""
        found: dict[int, list[Action]] = {}
        for limit in sorted({slot_of(request).max_tokens for request in requests}):
            places = [i for i, request in enumerate(requests) if slot_of(request).max_tokens == limit]
            limited = replace(self.sampling, max_new_tokens=limit)
            fitted = [self._fitted(requests[i], replace(limited, seed=0)) for i in places]
            found |= zip(places, GeneratorPlayer(self.generator, limited).act(fitted, n), strict=True)
        return [found[i] for i in range(len(requests))]

    def _fitted(self, request: ActionRequest, sampling: Sampling) -> ActionRequest:
        observation = request.observation
        fitted, dropped, shortened = fit(self.generator, observation.conversation, sampling)
        if self.on_long == "refuse" and (dropped or shortened):
            raise InputError(
                f"what {request.agent} reads of question {round_of(request).transcript.question.id!r} is longer than "
                f"the model's context less {sampling.max_new_tokens} tokens; needed: excerpts (with_excerpts), or "
                "on_long='cut'"
            )
        return request._replace(observation=replace(observation, prompt=fitted))
