"""Fixtures of the experiments: a small PPO run in this process."""

from functools import partial
from pathlib import Path

import pytest
from ppo_in_process import Go, train_small


@pytest.fixture
def go(talkative_models: dict[str, Path], chats_file: Path, tmp_path: Path) -> Go:
    """Trains with some settings changed: the folder."""
    return partial(train_small, talkative_models["gpt2"], chats_file, tmp_path)
