"""Twenty seconds of benchmarks/serving_soak.py, which is run for ten minutes by hand."""

from pathlib import Path

import pytest


@pytest.mark.slow
def test_good_requests_are_answered_rightly_beside_every_bad_one(scorer_folders: dict[str, Path]) -> None:
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    from serving_soak import soak

    found = soak(str(scorer_folders["llama"]), 20.0)
    assert found["faults"] == []
    assert (found["crashed"], found["exit_code"]) == (False, 0)
    assert found["good_right"] > 50
    assert found["good_right"] > 10 * found.get("good_refused_503", 0)
    assert min(found[kind] for kind in ("malformed", "slow", "oversized", "left", "reloads")) > 0
