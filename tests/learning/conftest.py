"""Fixtures that several learning tests begin from."""

from pathlib import Path

import pytest

from lmgym.environments.random_walks_model import make_start


@pytest.fixture(scope="session")
def start(tmp_path_factory) -> Path:
    """The walks' start, made once: 14 CPU seconds."""
    return make_start(tmp_path_factory.mktemp("walks"), graph_seed=1000, seed=0)
