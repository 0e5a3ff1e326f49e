"""Random numbers: saved and gone on with exactly, and drawn by place without a trace."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from lmgym.distributed.random_state import random_state, restore_random_state, seeded, set_seed


def draw() -> tuple[list[float], list[float], list[float]]:
    """Some of each generator; an odd number of numpy's normals leaves one that is cached."""
    return (
        [random.random(), random.gauss(0, 1), float(random.getrandbits(64))],
        [*np.random.standard_normal(3).tolist(), float(np.random.randint(1000))],
        [*torch.randn(3).tolist(), *torch.rand(2).tolist()],
    )


def saved_state(folder: Path) -> dict:
    """The state as a checkpoint keeps it: a file that is read without executing anything."""
    torch.save(random_state(), folder / "state.pt")
    return torch.load(folder / "state.pt", weights_only=True)


def test_a_restored_state_continues_exactly(tmp_path: Path) -> None:
    draw()
    random.gauss(0, 1)  # of Python too, one is cached
    assert np.random.get_state(legacy=True)[3] == 1  # the cached gaussian
    state = saved_state(tmp_path)
    expected = [draw() for _ in range(3)]
    for seed in (1, 2):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        assert all(a != b for a, b in zip(draw(), expected[0], strict=True))
        restore_random_state(state)
        assert [draw() for _ in range(3)] == expected


@pytest.mark.parametrize("name", ["python", "numpy", "torch"])
def test_a_state_that_lacks_a_generator_is_refused(name: str) -> None:
    state = random_state()
    del state[name]
    with pytest.raises(KeyError, match=name):
        restore_random_state(state)


def test_random_numbers_at_a_place_depend_only_on_the_place() -> None:
    def at(*place: int) -> tuple:
        with seeded(*place):
            return draw()

    first = at(3, 0, 7)
    draw()
    random.seed(5)
    torch.manual_seed(5)
    assert at(3, 0, 7) == first
    others = [at(3, 0, 8), at(3, 1, 7), at(4, 0, 7), at(7, 0, 3), at(3, 7)]
    for other in others:
        assert all(a != b for a, b in zip(other, first, strict=True))
    # unlike each other too
    assert len({str(other) for other in others}) == 5


def test_a_place_seeds_every_generator() -> None:
    """Numpy's own derivation of seeds, spelt out."""
    seeds = np.random.SeedSequence((3, 0, 7)).generate_state(3).tolist()
    expected = (
        random.Random(seeds[0]).random(),
        np.random.RandomState(seeds[1]).standard_normal(),
        torch.rand(1, generator=torch.Generator().manual_seed(seeds[2])).item(),
    )
    with seeded(3, 0, 7):
        assert (random.random(), np.random.standard_normal(), torch.rand(1).item()) == expected


@pytest.mark.parametrize("fails", [False, True])
def test_seeding_at_a_place_restores_all_generators(fails: bool) -> None:
    draw()
    state = random_state()
    expected = draw()
    restore_random_state(state)
    try:
        with seeded(1, 2):
            draw()
            draw()
            if fails:
                raise ArithmeticError
    except ArithmeticError:
        assert fails
    assert draw() == expected


def test_places_can_be_nested() -> None:
    with seeded(1):
        expected = draw(), draw()
    with seeded(1):
        first = draw()
        with seeded(2):
            draw()
        assert (first, draw()) == expected


def test_one_seed_for_all_is_transformers_own() -> None:
    import transformers

    transformers.set_seed(7)
    expected = draw()
    set_seed(8)
    assert draw() != expected
    set_seed(7)
    assert draw() == expected
