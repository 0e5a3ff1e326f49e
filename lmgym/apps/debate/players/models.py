"""Models as players and judges, each loaded once a process."""

from functools import cache

from lmgym.apps.debate.players.judges import ScorerJudge
from lmgym.apps.debate.players.name_judge import NameJudge
from lmgym.apps.debate.players.protocol import SpeechPlayer
from lmgym.apps.debate.prompts.wordings import PromptSet
from lmgym.generation.local_generation import LocalGenerator, load_causal
from lmgym.generation.protocol import Sampling


@cache
def _generator(name: str) -> LocalGenerator:
    generator = load_causal(name)
    assert isinstance(generator, LocalGenerator)
    return generator


def local_player(name: str, temperature: float = 0.7) -> SpeechPlayer:
    """A debater, or a judge that writes, of any causal model's folder or hub id; long texts are cut."""
    return SpeechPlayer(_generator(name), Sampling(temperature=temperature), on_long="cut")


def model_judge(name: str, prompts: PromptSet) -> ScorerJudge:
    """A judge by the P of both names in both orders, of any causal model's folder or hub id; long texts are cut."""
    generator = _generator(name)
    scorer = NameJudge(generator.model, generator.tokenizer, on_long="cut", decoder=generator.decoder)
    return ScorerJudge(scorer, prompts, both_orders=True)
