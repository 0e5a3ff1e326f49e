"""Random walks: trlx's small benchmark. Find the shortest way to a goal in a graph that is known by random walks alone.

Graph and walks are drawn as trlx's examples/randomwalks draws them, number by number, so that a graph's seed names the
same graph here and there. One letter is a node, "a" is the goal, and a walk is worth its shortness.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse.csgraph import shortest_path

LETTERS = "abcdefghijklmnopqrstu"
GOAL = 0
MOST_NODES = 10
WALKS = 1000
EDGE_PROBABILITY = 0.1
NO_NODE = -1


@dataclass(frozen=True, eq=False)
class RandomWalks:
    """A directed graph with one goal, and random walks in it.

    `reward` and `metric` have the signatures of trlx's reward_fn and metric_fn.
    """

    edges: np.ndarray
    """[nodes, nodes] bool: whether a step leads from a row's node to a column's"""
    walks: tuple[str, ...] = ()
    """to learn from: each ends at the goal, or after ten nodes"""

    @property
    def prompts(self) -> list[str]:
        """The letters that a walk may start at: all but the goal."""
        return list(LETTERS[GOAL + 1 : len(self.edges)])

    @property
    def tasks(self) -> list[dict[str, str]]:
        """The prompts as an environment takes them."""
        return [{"prompt": letter} for letter in self.prompts]

    @cached_property
    def shortest(self) -> np.ndarray:
        """[nodes] int: nodes on the shortest walk from each to the goal, both counted; at most 10."""
        steps = shortest_path(self.edges.T.astype(float), indices=GOAL, unweighted=True)
        return np.minimum(steps + 1, MOST_NODES).astype(int)

    def optimality(self, walks: Sequence[str]) -> np.ndarray:
        """[walks] float64 in [0, 1]: (10 - length) / (10 - shortest), lengths in nodes.

        A walk that takes a step that is none, or does not come to the goal within ten nodes, has length 10. What
        follows the goal does not count. A start from which no walk can do better than ten nodes is worth 0.
        """
        nodes = self._nodes(walks)
        at_goal = nodes == GOAL
        arrival = np.where(at_goal.any(1), at_goal.argmax(1), MOST_NODES - 1)
        is_step = self.edges[nodes[:, :-1], nodes[:, 1:]] & (nodes[:, :-1] != NO_NODE)
        is_after = np.arange(1, MOST_NODES) > arrival[:, None]
        length = np.where((is_step | is_after).all(1), arrival + 1, MOST_NODES)
        most = MOST_NODES - self.shortest[nodes[:, 0]]
        return np.divide(MOST_NODES - length, most, out=np.zeros(len(nodes)), where=most > 0)

    def _nodes(self, walks: Sequence[str]) -> np.ndarray:
        """[walks, 10] int: the nodes of each, -1 past its end and for what is no node's letter."""
        number = {letter: node for node, letter in enumerate(LETTERS[: len(self.edges)])}
        nodes = np.full((len(walks), MOST_NODES), NO_NODE)
        for row, walk in zip(nodes, walks, strict=True):
            found = [number.get(letter, NO_NODE) for letter in walk[:MOST_NODES]]
            row[: len(found)] = found
        return nodes

    def reward(
        self, samples: Sequence[str], prompts: Sequence[str], outputs: Sequence[str], tokenizer, **columns: Any
    ) -> list[float]:
        """The optimality of each sample, a prompt with its output."""
        return self.optimality(samples).tolist()

    def metric(
        self, samples: Sequence[str], prompts: Sequence[str], outputs: Sequence[str], tokenizer, **columns: Any
    ) -> dict[str, float]:
        """The mean optimality of the samples."""
        return {"optimality": float(self.optimality(samples).mean())}


def draw_random_walks(seed: int = 1000, walks: int = WALKS) -> RandomWalks:
    """A graph of 21 nodes and random walks in it, a function of the seed."""
    # the legacy generator, and this order of draws: they are trlx's
    rng = np.random.RandomState(seed)
    edges = _draw_edges(rng)
    return RandomWalks(edges, tuple(_draw_walk(rng, edges) for _ in range(walks)))


def _draw_edges(rng: np.random.RandomState) -> np.ndarray:
    """[21, 21] bool: each edge with probability .1, drawn anew until a step leads out of every node."""
    nodes = len(LETTERS)
    edges = np.zeros((nodes, nodes), dtype=bool)
    while not edges.any(1).all():
        edges = rng.rand(nodes, nodes) > 1 - EDGE_PROBABILITY
        np.fill_diagonal(edges, False)
    edges[GOAL] = False
    edges[GOAL, GOAL] = True  # no step leads away from the goal
    return edges


def _draw_walk(rng: np.random.RandomState, edges: np.ndarray) -> str:
    """Steps at random from anywhere but the goal, until there or ten nodes long."""
    node = GOAL
    while node == GOAL:
        node = int(rng.randint(len(edges)))
    nodes = [node]
    while node != GOAL and len(nodes) < MOST_NODES:
        node = int(rng.choice(np.flatnonzero(edges[node])))
        nodes.append(node)
    return "".join(LETTERS[node] for node in nodes)
