"""Heads and ensembles behind the server: score, members, spread, and P(a beats b) at the saved temperature."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from lmgym.apps.serve.app import describe
from lmgym.apps.serve.served_scorers import Sample, ServedScorer
from lmgym.models.loading import load_classifier, load_tokenizer
from lmgym.models.saving import save_classifier
from lmgym.scoring.ensembles import write_ensemble
from lmgym.scoring.named_scorers import load_scorer
from lmgym.text import Conversation, Turn

CHAT = Conversation((Turn("user", "do you like soup on sundays?"),))
REPLIES = ["yes, and on mondays too.", "no."]
SAMPLES = [Sample(CHAT, reply) for reply in REPLIES]


def saved(source: Path, folder: Path, heads: int, **settings) -> Path:
    tokenizer = load_tokenizer(str(source))
    model, _ = load_classifier(str(source), tokenizer, num_labels=heads, seed=len(folder.name))
    about = {"reduce": "mean" if heads > 1 else "logit", "max_length": 200, "loss": "Bradley-Terry loss", **settings}
    save_classifier(model, model.state_dict(), folder, tokenizer, about)
    return folder


def probability(margin: float) -> float:
    return 1 / (1 + math.exp(-margin))


def test_heads_answer_with_members_a_spread_and_a_calibrated_probability(small_models, tmp_path: Path) -> None:
    about = {"means": [0.1, 0.2, 0.3], "moments": [0.0, 2.0], "temperature": 2.5}
    folder = saved(small_models["llama"], tmp_path / "heads", 3, **about)
    served, scorer = ServedScorer.load("a", str(folder)), load_scorer(str(folder))
    first, second = served.judge(SAMPLES)
    members = scorer.score_members([CHAT] * 2, REPLIES).numpy()
    assert first.scores == pytest.approx(members[:, 0].tolist())
    assert first.score == pytest.approx(members[:, 0].mean())
    assert first.spread == pytest.approx(np.std(members[:, 0]))
    assert first.z == pytest.approx(first.score / 2)
    assert first.fields()["members"] == list(first.scores)
    assert served.probability(first, second) == pytest.approx(probability((first.score - second.score) / 2.5))
    assert describe(served) == "with scores, z-scores, spread, P(a beats b)"
    # another combination: on another scale than that which moments and temperature are of
    bounded = ServedScorer.load("a", f"{folder}#mean-2std")
    first, second = bounded.judge(SAMPLES)
    assert first.score == pytest.approx(members[:, 0].mean() - 2 * np.std(members[:, 0]), abs=1e-6)
    assert first.z is None
    assert bounded.probability(first, second) == pytest.approx(probability(first.score - second.score))


def test_the_folder_of_an_ensemble_is_served_as_one_scorer(small_models, tmp_path: Path) -> None:
    for name, temperature in (("one", 1.0), ("second", 2.0)):
        saved(small_models["gpt2"], tmp_path / name, 1, moments=[0.5, 1.0], temperature=temperature)
    folder = write_ensemble([str(tmp_path / "one"), str(tmp_path / "second")], str(tmp_path / "both"))
    served = ServedScorer.load("a", str(folder))
    first, second = served.judge(SAMPLES)
    alone = [load_scorer(str(tmp_path / name)).score([CHAT] * 2, REPLIES).numpy() - 0.5 for name in ("one", "second")]
    assert first.scores == pytest.approx([scores[0] for scores in alone])
    assert served.probability(first, second) == pytest.approx(probability((first.score - second.score) / 1.5))
    assert first.spread == pytest.approx(np.std([scores[0] for scores in alone]))
    before = served.info["fingerprint"]
    settings = tmp_path / "second/scorer.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"loss": "squared error"}))
    assert ServedScorer.load("a", str(folder)).probability(first, second) is None
    smallest = ServedScorer.load("a", f"{folder}#min")
    assert smallest.judge(SAMPLES)[0].score == pytest.approx(min(first.scores))
    assert before


def test_a_single_scorers_probability_is_at_its_temperature(small_models, tmp_path: Path) -> None:
    for name, about, divisor in (
        ("none", {}, 1.0),
        ("two", {"temperature": 2.0}, 2.0),
        ("bad", {"temperature": 0}, 1.0),
    ):
        served = ServedScorer.load("a", str(saved(small_models["llama"], tmp_path / name, 1, **about)))
        first, second = served.judge(SAMPLES)
        assert served.probability(first, second) == pytest.approx(probability((first.score - second.score) / divisor))
        assert first.spread is None
