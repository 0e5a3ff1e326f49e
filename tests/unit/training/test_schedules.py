"""The schedule of all stages, by numbers worked out by hand."""

import pytest

from lmgym.training.schedules import learning_rate


def test_the_rate_warms_up_and_comes_down() -> None:
    rate = learning_rate(1.0, "linear", 2, 6)
    assert [rate(i) for i in range(6)] == [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    rate = learning_rate(1.0, "cosine", 0.0, 4)
    assert [rate(i) for i in range(4)] == pytest.approx([1, (1 + 0.5**0.5) / 2, 0.5, (1 - 0.5**0.5) / 2])
    assert learning_rate(2.0, "constant_with_warmup", 0.5, 4)(3) == 2.0
