"""benchmarks/best_of_n.py counts each part of a turn at the side's quicker precision."""

import best_of_n
import pytest


class Way:
    """One whose turns take the given seconds of generation and scoring."""

    def __init__(self, *turns: tuple[float, float]) -> None:
        self.turns = list(turns)

    def forget(self) -> None:
        """Nothing to forget."""


def work(way: Way, spent: best_of_n.Spent) -> None:
    generated, scored = way.turns.pop(0)
    spent["generate"] += generated
    spent["score"] += scored


def test_each_part_counts_at_the_sides_quicker_precision_by_its_median() -> None:
    ways = {
        "transformers fp32": Way((3, 9), (4, 8), (9, 7)),
        "ours fp32": Way((2, 2), (2, 2), (9, 9)),
        "transformers bf16": Way((5, 4), (5, 4), (1, 4)),
        "ours bf16": Way((3, 0.5), (3, 0.5), (3, 9)),
    }
    found = best_of_n.interleaved(ways, work, 3)
    assert found["medians"]["transformers fp32"] == {"generate": 4, "score": 8}
    assert found["best"] == {"transformers": 4 + 4, "ours": 2 + 0.5}
    assert found["ratio"] == pytest.approx(8 / 2.5)
