"""Policies by name: a model's spec, the world's bots, or the best of N replies of either by a scorer."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from lmgym.apps.world.app import OneLine
from lmgym.apps.world.scorer import hidden_utility
from lmgym.apps.world.world import World
from lmgym.errors import InputError, one_line, shown
from lmgym.generation.model_specs import load_generator, read_model_spec
from lmgym.generation.openai_server import CONCURRENCY
from lmgym.generation.protocol import Generator, ScriptedGenerator
from lmgym.scoring.best_of_n import BestOfN
from lmgym.scoring.named_scorers import load_scorer as load_named
from lmgym.scoring.protocol import Scorer
from lmgym.scoring.random_scorer import RandomScorer

BOTS, GOLD, RANDOM = "bots", "gold", "random"
MOST_REPLIES = 1024  # N of the best of N
BATCH_ROWS = 256  # of small models: four times LocalGenerator's default, which suits large ones


@dataclass(frozen=True)
class PolicySpec:
    """A parsed name of a policy; `best_of` 0 is the policy itself."""

    base: str
    scorer: str = ""
    best_of: int = 0

    @property
    def served(self) -> bool:
        """True if a server generates the replies."""
        return self.base != BOTS and read_model_spec(self.base).served


def read_policy(text: str) -> PolicySpec:
    """Parses POLICY or POLICY@SCORER:N. Raises InputError for anything else."""
    name = shown(text)
    base, at, rest = text.rpartition("@")
    if text == BOTS or os.path.isdir(text) or not at:
        _check_base(text, name)
        return PolicySpec(text)
    scorer, colon, number = rest.rpartition(":")
    if not colon or not re.fullmatch("[0-9]+", number):
        example = f"{one_line(base)}@{GOLD}:4"
        raise InputError(f"policy {name} ends in @{one_line(rest)}; needed: @SCORER:N, such as {example}")
    if len(number) > 9 or not 1 <= int(number) <= MOST_REPLIES:
        best_of = f"the best of {one_line(number, 20)} replies"
        raise InputError(f"policy {name} is {best_of}; needed: 1 or more; at most {MOST_REPLIES:,}")
    _check_base(base, name)
    if scorer not in (GOLD, RANDOM) and not os.path.isdir(scorer):
        needed = f"a scorer's folder, {GOLD} or {RANDOM}"
        raise InputError(f"scorer {shown(scorer)} of {name} is not a folder; needed: {needed}")
    return PolicySpec(base, scorer, int(number))


def _check_base(base: str, name: str) -> None:
    """Raises InputError for what is neither the bots, a folder, a hub id with its owner, nor a served model."""
    if base == BOTS or os.path.isdir(base):
        return
    if not read_model_spec(base).served and "/" not in base:
        raise InputError(
            f"policy {shown(base)}{'' if shown(base) == name else f' of {name}'} is not a folder; needed: a folder, "
            f"owner/name of the hub, vllm:URL, openai:URL#MODEL, {BOTS}, or POLICY@SCORER:N"
        )


def load_policies(texts: Sequence[str], world: World, concurrency: int = CONCURRENCY) -> list[Generator]:
    """The generators of the policies; each model is loaded once. Raises InputError for any that does not load."""
    specs = [read_policy(text) for text in texts]
    bases = {base: OneLine(load_base(base, world, concurrency)) for base in {spec.base for spec in specs}}
    scorers = {name: load_scorer(name, world) for name in {spec.scorer for spec in specs if spec.scorer}}
    return [
        BestOfN(bases[spec.base], scorers[spec.scorer], spec.best_of) if spec.best_of else bases[spec.base]
        for spec in specs
    ]


def load_base(name: str, world: World, concurrency: int = CONCURRENCY) -> Generator:
    """The world's bots, or a model. Raises InputError if it does not load, or one of this process has no eos token."""
    if name == BOTS:
        from lmgym.apps.world.embedded_world import bot_reply

        return ScriptedGenerator(lambda conversation, rng: bot_reply(world, conversation, rng))
    from lmgym.generation.local_generation import LocalGenerator

    generator = load_generator(name, concurrency)
    if isinstance(generator, LocalGenerator):
        generator.generation_batch_size = BATCH_ROWS
        if not len(generator.eos):
            raise InputError(
                f"policy {name} has no eos: its replies would never end; needed: an eos_token in its tokenizer, or "
                "eos_token_id in generation_config.json"
            )
    return generator


def load_scorer(name: str, world: World) -> Scorer:
    """The hidden utility for average tastes, a random scorer, or a trained one."""
    if name == GOLD:
        return hidden_utility(world)
    if name == RANDOM:
        return RandomScorer()
    return load_named(name)
