"""Models as players and judges by their specs, each loaded once a process."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from lmgym.apps.debate.players.judges import RANDOM, ScorerJudge, judge_without_model
from lmgym.apps.debate.players.protocol import SAMPLING, Judge, SpeechPlayer
from lmgym.apps.debate.players.scripted import ScriptedPlayer, say_letters
from lmgym.apps.debate.prompts.wordings import PromptSet
from lmgym.environments.players import ActionRequest, Player
from lmgym.environments.protocol import Action
from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.model_specs import load_generator
from lmgym.generation.openai_server import CONCURRENCY, MOST_LOGPROBS
from lmgym.generation.protocol import Generator, Sampling
from lmgym.models.sources import SERVED
from lmgym.scoring.protocol import Scorer

_load = cache(load_generator)


def model_player(
    name: str, temperature: float = 0.7, concurrency: int = CONCURRENCY, sampling: Sampling = SAMPLING
) -> Player:
    """A debater, or a judge that writes, of any model's spec; long texts are cut, a server refuses them.

    `random` is a debater of random letters. `sampling` has what else a debater samples by, such as top_p.
    """
    if name == RANDOM:
        return ScriptedPlayer(say_letters)
    generator: Generator = _load(name, concurrency)
    return SpeechPlayer(generator, replace(sampling, temperature=temperature), on_long="cut")


@dataclass(frozen=True)
class LazyPlayer:
    """`model_player` of a model that is loaded when it first speaks: of many debaters a run may play a few."""

    name: str
    temperature: float = 0.7
    concurrency: int = CONCURRENCY
    sampling: Sampling = SAMPLING

    def act(self, requests: Sequence[ActionRequest], n: int = 1) -> list[list[Action]]:
        """n replies for each request."""
        return model_player(self.name, self.temperature, self.concurrency, self.sampling).act(requests, n)


def name_scorer(name: str, on_long: Literal["refuse", "cut"] = "refuse", concurrency: int = CONCURRENCY) -> Scorer:
    """P of a debater's name by any model's spec: from its logits, or from the likeliest tokens of a server's reply.

    Raises InputError for a server without log-probabilities, which is asked for some before anything is played.
    """
    if SERVED.match(name):
        from lmgym.apps.debate.players.served_judge import ServedNameJudge

        server: Any = _load(name, concurrency, MOST_LOGPROBS)
        judge = ServedNameJudge(server)
        judge.check()
        return judge
    from lmgym.apps.debate.players.name_judge import NameJudge

    generator = _load(name, concurrency)
    assert isinstance(generator, LocalGenerator)
    return NameJudge(generator.model, generator.tokenizer, on_long, decoder=generator.decoder)


def model_judge(name: str, prompts: PromptSet, concurrency: int = CONCURRENCY) -> Judge:
    """A judge by the P of both names in both orders, of any model's spec; long texts are cut, a server refuses them.

    `random` and `letter:X` are judges without a model.
    """
    if judge := judge_without_model(name):
        return judge
    return ScorerJudge(name_scorer(name, "cut", concurrency), prompts, both_orders=True)
