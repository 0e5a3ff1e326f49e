"""Policies by the words that name them: a folder, the world's bots, and the best of N of either by a scorer."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from lmgym.errors import InputError, one_line, shown
from lmgym.generation.protocol import Generator, ScriptedGenerator
from lmgym.scoring.best_of_n import BestOfN
from lmgym.scoring.named_scorers import hidden_utility
from lmgym.scoring.named_scorers import load_scorer as load_named
from lmgym.scoring.scorers import RandomScorer, Scorer
from lmgym.world.app import OneLine
from lmgym.world.world import World

BOTS, GOLD, RANDOM = "bots", "gold", "random"
MOST_REPLIES = 1024  # that one is chosen of
BATCH_ROWS = 256  # replies that a small model makes together: four times LocalGenerator's own, which suits a large one


@dataclass(frozen=True)
class PolicySpec:
    """What a policy is called, taken apart; `best_of` 0 is the policy as it is."""

    base: str
    scorer: str = ""
    best_of: int = 0


def read_policy(text: str) -> PolicySpec:
    """POLICY or POLICY@SCORER:N. Raises InputError for words that are neither."""
    if text == BOTS or os.path.isdir(text):
        return PolicySpec(text)
    base, at, rest = text.rpartition("@")
    if not at:
        raise InputError(
            f"policy {shown(text)} is no folder; needed: a Hugging Face folder, {BOTS}, or POLICY@SCORER:N"
        )
    scorer, colon, number = rest.rpartition(":")
    if not colon or not re.fullmatch("[0-9]+", number):
        raise InputError(
            f"policy {shown(text)} ends in @{one_line(rest)}; needed: @SCORER:N, as {one_line(base)}@{GOLD}:4"
        )
    if len(number) > 9 or not 1 <= int(number) <= MOST_REPLIES:
        raise InputError(
            f"policy {shown(text)} is the best of {one_line(number, 20)} replies; needed: 1 or more; at most "
            f"{MOST_REPLIES:,}"
        )
    if base != BOTS and not os.path.isdir(base):
        raise InputError(
            f"policy {shown(base)} of {shown(text)} is no folder; needed: a Hugging Face folder, or {BOTS}"
        )
    if scorer not in (GOLD, RANDOM) and not os.path.isdir(scorer):
        raise InputError(
            f"scorer {shown(scorer)} of {shown(text)} is no folder; needed: a scorer's folder, {GOLD} or {RANDOM}"
        )
    return PolicySpec(base, scorer, int(number))


def load_policies(texts: Sequence[str], world: World) -> list[Generator]:
    """A generator for each; models are loaded once. Raises InputError for any that cannot be had, before any talks."""
    wordings = [read_policy(text) for text in texts]
    bases = {base: OneLine(load_base(base, world)) for base in {wording.base for wording in wordings}}
    scorers = {name: load_scorer(name, world) for name in {wording.scorer for wording in wordings if wording.scorer}}
    return [
        BestOfN(bases[wording.base], scorers[wording.scorer], wording.best_of)
        if wording.best_of
        else bases[wording.base]
        for wording in wordings
    ]


def load_base(name: str, world: World) -> Generator:
    """The world's bots, or a causal model. Raises InputError for a folder that is none, or whose replies never end."""
    if name == BOTS:
        from lmgym.chat.embedded_world import bot_reply

        return ScriptedGenerator(lambda conversation, rng: bot_reply(world, conversation, rng))
    from lmgym.generation.local_generation import LocalGenerator, load_causal

    generator = load_causal(name)
    if isinstance(generator, LocalGenerator):
        generator.generation_batch_size = BATCH_ROWS
        if not len(generator.eos):
            raise InputError(
                f"policy {name} has no eos: its replies would never end; needed: an eos_token in its tokenizer, or "
                "eos_token_id in generation_config.json, which it learned to write"
            )
    return generator


def load_scorer(name: str, world: World) -> Scorer:
    """The hidden utility for average tastes, chance, or a trained scorer."""
    if name == GOLD:
        return hidden_utility(world)
    if name == RANDOM:
        return RandomScorer()
    return load_named(name)
