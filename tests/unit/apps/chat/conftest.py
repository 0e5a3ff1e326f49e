"""Sessions for tests of their files."""

from pathlib import Path

import pytest

from lmgym.apps.chat.session import ChatSession
from lmgym.generation.protocol import Sampling, ScriptedGenerator
from lmgym.scoring.scorers import FunctionScorer


@pytest.fixture
def make_session(tmp_path: Path):
    """Sessions with their file in the test's folder."""

    def session() -> ChatSession:
        generator = ScriptedGenerator(lambda conversation, rng: f"reply {rng.integers(10**6)}")
        judges = {"length": FunctionScorer(lambda c, r: [float(hash(x) % 97) for x in r])}
        about = {"experiment": "test", "models": {"generator": {"kind": "script"}}}
        return ChatSession(
            generator, judges, "length", 4, Sampling(seed=3), "A bot.", "hi", tmp_path / "sessions", about
        )

    return session
