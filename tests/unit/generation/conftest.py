"""Generators of many families, and what of theirs was called."""

from pathlib import Path

import pytest
from tiny_generators import generators_of

from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.steps import PackedSteps, PaddedSteps


@pytest.fixture(scope="module")
def generators(small_models: dict[str, Path]) -> dict[str, LocalGenerator]:
    """A generator a family; the weights are large, so that the next token depends on every one before."""
    return generators_of(small_models)


@pytest.fixture
def started(monkeypatch) -> list[tuple[int, int]]:
    """(prompts, replies to each) of every batch that starts."""
    found: list[tuple[int, int]] = []
    for kind in (PackedSteps, PaddedSteps):

        def noted(steps, prompts, n, start=kind.start):
            found.append((len(prompts), n))
            return start(steps, prompts, n)

        monkeypatch.setattr(kind, "start", noted)
    return found
