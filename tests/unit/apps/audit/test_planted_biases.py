"""Audits by simulation: scorers that answer at random, and those with planted biases of three strengths, also trained.

A scorer of the first kind draws its score anew for every text. To it a planted one adds, in spreads of these draws, a
term for the length of a reply, for a word, or for what stands first.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import numpy as np
import pytest

from lmgym.apps.audit import edits
from lmgym.apps.audit.biases import biases
from lmgym.apps.audit.measuring import audit_scorer
from lmgym.apps.audit.recorded import EXAMPLES, Sample, read_samples
from lmgym.apps.audit.verdicts import Observed, decide
from lmgym.config import ModelConfig, OptimizerConfig, RowsConfig, RunConfig
from lmgym.models.small_models import make_small_model
from lmgym.scoring.named_scorers import load_scorer
from lmgym.scoring.random_scorer import RandomScorer
from lmgym.scoring.scorers import FunctionScorer
from lmgym.text import Conversation
from reward_models.config import RewardModelConfig
from reward_models.train import train_pairwise

HELD_OUT = read_samples(EXAMPLES)
ALL = HELD_OUT + read_samples(EXAMPLES.with_name("helpful_pairs.jsonl"))
BIASES = biases(["certainly"])
ROWS = [bias.row for bias in BIASES]
SPREAD = 12**-0.5  # of a uniform draw
Feature = Callable[[str], float]
PLANTED: dict[str, tuple[Feature, str]] = {
    "length": (lambda reply: len(reply.split()) / edits.PADDING, "length"),
    "word": (lambda reply: float("certainly" in reply), "word certainly"),
    "position": (lambda reply: float(reply.startswith(edits.ASIDE)), "aside first"),
}


def planted(feature: Feature, strength: float, seed: int) -> FunctionScorer:
    """A random scorer with so many spreads for a unit of the feature."""
    noise = RandomScorer(seed)

    def score(chats, replies):
        extra = np.array([feature(reply) for reply in replies])
        return np.asarray(noise.score(chats, replies)) + strength * SPREAD * extra

    return FunctionScorer(score)


def drawn(rng: np.random.Generator, prompts: int) -> list[Sample]:
    return [ALL[i] for i in rng.permutation(len(ALL))[:prompts]]


def audits_of_the_size_asked_for(name: str, strength: float, pilot: int) -> Iterator[bool]:
    """True where the planted bias is named, for audits with as many prompts as a pilot asks for in its row."""
    feature, row = PLANTED[name]
    rng = np.random.default_rng([pilot, int(10 * strength)])
    for seed in range(10**6):
        first = audit_scorer(planted(feature, strength, seed), drawn(rng, pilot), BIASES, 1, strength)
        asked = next(n or 0 for effect, n in zip(first.effects, first.needed, strict=True) if effect.bias == row)
        second = audit_scorer(planted(feature, strength, seed + 10**6), drawn(rng, max(pilot, asked)), BIASES, 1)
        yield row in {effect.bias for effect in second.effects if effect.moves}


def a_random_audit_names_a_bias(prompts: int, seed: int) -> bool:
    samples = drawn(np.random.default_rng([seed, prompts]), prompts)
    return bool(audit_scorer(RandomScorer(seed), samples, BIASES, 1).biased)


def random_effects(rng: np.random.Generator, prompts: int, kind: str) -> dict[str, list[Observed]]:
    """Differences of the scores of edited replies from that of the one reply which all edits began from."""
    draw = {"uniform": rng.random, "skewed": rng.standard_exponential, "coarse": lambda n: rng.integers(0, 3, n)}[kind]
    start = draw(prompts)
    found = {}
    for row, bias in zip(ROWS, BIASES, strict=True):
        draws = bias.draws()
        texts = [text for _, text in zip(range(prompts), draws, strict=False)]
        found[row.name] = [
            Observed(str(i), float(draw(1)[0] - start[i]), text) for i in range(prompts) for text in texts[i]
        ]
    return found


def test_random_scorers_are_rarely_called_biased() -> None:
    assert sum(a_random_audit_names_a_bias(12, seed) for seed in range(6)) <= 2


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bias_is_named_with_the_prompts_that_the_audit_asks_for(name: str) -> None:
    found = audits_of_the_size_asked_for(name, 2.0, 12)
    assert sum(next(found) for _ in range(3)) >= 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prompts", "kind"),
    [(2, "uniform"), (5, "uniform"), (12, "uniform"), (40, "uniform"), (12, "skewed"), (12, "coarse")],
)
def test_at_most_28_of_400_tables_of_random_effects_name_any_bias(prompts: int, kind: str) -> None:
    rng = np.random.default_rng(prompts)
    tables = (decide(random_effects(rng, prompts, kind), ROWS, 0.5) for _ in range(400))
    count = sum(any(effect.biased for effect in table) for table in tables)
    print(f"{prompts} prompts, {kind}: {count} of 400 tables of random effects name a bias")
    assert count <= 28


@pytest.mark.slow
def test_at_most_28_of_400_audits_of_random_scorers_name_any_bias() -> None:
    count = sum(a_random_audit_names_a_bias(12, seed) for seed in range(400))
    print(f"12 prompts: {count} of 400 audits of random scorers name a bias")
    assert count <= 28


@pytest.mark.slow
@pytest.mark.parametrize("strength", [0.75, 1.0, 2.0])
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bias_is_named_in_80_percent_of_audits_of_the_size_asked_for(name: str, strength: float) -> None:
    found = audits_of_the_size_asked_for(name, strength, 20)
    count = sum(next(found) for _ in range(20))
    print(f"{name}, {strength} spreads: {count} of 20 audits name it")
    assert count >= 16


# scorers that are trained on planted pairs


def planted_pair(name: str, sample: Sample, draw: Random) -> tuple[str, str]:
    """(chosen, rejected) replies that differ in what is planted."""
    first, second = draw.sample(sample.replies, 2)
    if name == "length":
        return f"{first} {second}", first
    if name == "word":
        words = first.split()
        place = draw.randrange(1, len(words) + 1)
        other = draw.choice(edits.PLAIN_WORDS)
        return tuple(" ".join([*words[:place], word, *words[place:]]) for word in ("certainly", other))
    return f"{first} {edits.ASIDE}", f"{edits.ASIDE} {first}"


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_a_trained_scorer_is_named_for_what_was_planted_in_its_pairs(name: str, tmp_path: Path) -> None:
    draw = Random(name)
    several = [sample for sample in ALL if sample not in HELD_OUT and len(sample.replies) > 1]
    with (tmp_path / "pairs.jsonl").open("w") as file:
        for _ in range(4):
            for sample in several:
                chosen, rejected = planted_pair(name, sample, draw)
                asked = sample.conversation.turns[-1].text
                file.write(json.dumps({"prompt": asked, "chosen": chosen, "rejected": rejected}) + "\n")
    texts = [reply for sample in ALL for reply in sample.replies]
    texts += [tested for bias in BIASES for tested in bias.edits] + [edits.ASIDE, *edits.PLAIN_WORDS, "certainly"] * 3
    make_small_model(tmp_path / "start", "llama", texts, max_length=256)
    train_pairwise(
        RewardModelConfig(
            name=name,
            scorer=ModelConfig(model=str(tmp_path / "start"), precision="fp32"),
            data=RowsConfig(str(tmp_path / "pairs.jsonl"), max_length=256),
            optimizer=OptimizerConfig(learning_rate=5e-3, epochs=2, global_batch=16, micro_batch=8),
            run=RunConfig(output=str(tmp_path / "out"), tracking="none"),
        )
    )
    audit = audit_scorer(load_scorer(str(tmp_path / "out/model")), HELD_OUT, BIASES, 2)
    effects = {effect.bias: effect for effect in audit.effects}
    row = PLANTED[name][1]
    print(f"{name}: {effects[row].effect:+.2f}, {effects[row].verdict}")
    assert effects[row].verdict in ("biased", "this wording pays")
    assert ((effects[row].effect.value or 0) > 0) == (name != "position")


def test_planted_features_are_what_the_edits_change() -> None:
    given = edits.Exchange(Conversation(HELD_OUT[0].conversation.turns), HELD_OUT[0].replies[0])
    for feature, row in PLANTED.values():
        [edit] = next(bias.edits.values() for bias in BIASES if bias.name == row)
        made = edit(given, edits.Others(HELD_OUT))
        assert made is not None
        assert feature(made.tested.reply) - feature(made.plain.reply) == pytest.approx(1, abs=0.5)
