"""A reward server with three scorers, one of them an ensemble, that all tests here share."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from reward_servers import RewardServer, start

MOMENTS, QUANTILES = [0.5, 2.0], [i / 10 - 5 for i in range(101)]


@pytest.fixture(scope="session")
def calibrated(tmp_path_factory, scorer_folders) -> Path:
    """The llama scorer, saved with its scores of reference replies; every server here has it."""
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    folder = tmp_path_factory.mktemp("calibrated") / "llama"
    shutil.copytree(scorer_folders["llama"], folder)
    settings = {"reduce": "logit", "max_length": 250, "moments": MOMENTS, "quantiles": QUANTILES}
    (folder / "scorer.json").write_text(json.dumps(settings | {"loss": "Bradley-Terry loss"}))
    return folder


@pytest.fixture(scope="session")
def server(calibrated, scorer_folders) -> Iterator[RewardServer]:
    """a: calibrated; b: plain; both: the two as an ensemble."""
    gpt2 = scorer_folders["gpt2"]
    running = start(f"a={calibrated}", f"b={gpt2}", f"both={calibrated}+{gpt2}", "--max_body_mb", 1)
    yield running
    assert running.stop() == 0
