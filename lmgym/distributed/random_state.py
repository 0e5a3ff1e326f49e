"""Random states that make a resumed run equal to an uninterrupted one, per rank and per place in the data."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def random_state() -> dict[str, Any]:
    """States of Python's, numpy's and torch's generators (CPU and this GPU), safe for `torch.load`."""
    kind, keys, place, has_gauss, gauss = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": (kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), place, has_gauss, gauss),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore_random_state(state: dict[str, Any]) -> None:
    """Set the generators to a `random_state`. Raises KeyError if one is missing."""
    kind, keys, *rest = state["numpy"]
    random.setstate(state["python"])
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def set_seed(seed: int) -> None:
    """Seed Python's, numpy's and torch's generators, GPUs' too, with one number, as transformers.set_seed does.

    That one comes with peft and GenerationMixin, half a second of imports.
    """
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def seed_all(*place: int) -> None:
    """Seed Python's, numpy's and torch's CPU generators with `place`."""
    seeds: Sequence[int] = np.random.SeedSequence(place).generate_state(3).tolist()
    random.seed(seeds[0])
    np.random.seed(seeds[1])
    torch.default_generator.manual_seed(seeds[2])


@contextmanager
def seeded(*place: int) -> Iterator[None]:
    """Within a `with`, random numbers on the CPU depend only on `place`; afterwards the old states are restored.

    So data preparation depends neither on the number of worker processes nor on where a run was resumed.
    """
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    seed_all(*place)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])
