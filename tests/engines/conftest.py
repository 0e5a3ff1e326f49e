"""A real vLLM, in an environment of its own, and small models whose heads its build for CPUs can run."""

from collections.abc import Callable
from pathlib import Path

import pytest

from lmgym.errors import InputError
from lmgym.generation.vllm_server import vllm_python


@pytest.fixture(scope="session")
def vllm() -> None:
    """Skips, and says how to make it, where vLLM's environment is absent."""
    try:
        vllm_python()
    except InputError as error:
        pytest.skip(f"{error}; `make test-full` makes it")


@pytest.fixture(scope="session")
def servable_models(made_once: Callable[[str, Callable[[Path], Path]], Path], demo_texts) -> dict[str, Path]:
    """Folders of causal models with heads of size 32 and their tokenizers."""
    from lmgym.models.small_models import make_small_model

    def make(root: Path) -> Path:
        for family in ("llama", "qwen3", "gpt2"):
            make_small_model(root / family, family, demo_texts, width=128, max_length=256)
        return root

    root = made_once("servable_models", make)
    return {path.name: path for path in root.iterdir()}
