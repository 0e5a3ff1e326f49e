"""Random walks, trlx's small benchmark: find shortest paths to a goal in a graph that only random walks show.

Graph and walks are drawn exactly as in trlx's examples/randomwalks, so that a seed gives the same graph in both. A
letter is a node, "a" is the goal, and shorter walks have higher rewards.
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
    """[nodes, nodes] bool: True for an edge from the row's node to the column's"""
    walks: tuple[str, ...] = ()
    """training data: each ends at the goal, or after ten nodes"""

    @property
    def prompts(self) -> list[str]:
        """The letters at which walks start: all but the goal."""
        return list(LETTERS[GOAL + 1 : len(self.edges)])

    @property
    def tasks(self) -> list[dict[str, str]]:
        """The prompts as tasks of an environment."""
        return [{"prompt": letter} for letter in self.prompts]

    @cached_property
    def shortest(self) -> np.ndarray:
        """[nodes] int: number of nodes on the shortest walk from each node to the goal, including both; at most 10."""
        steps = shortest_path(self.edges.T.astype(float), indices=GOAL, unweighted=True)
        return np.minimum(steps + 1, MOST_NODES).astype(int)

    def optimality(self, walks: Sequence[str]) -> np.ndarray:
        """[walks] float64 in [0, 1]: (10 - length) / (10 - shortest), lengths in nodes.

        A walk along a missing edge, or one that does not reach the goal within ten nodes, has length 10. Nodes after
        the goal are ignored. The optimality is 0 if even the shortest walk from the start has ten nodes.
        """
        nodes = self._nodes(walks)
        at_goal = nodes == GOAL
        arrival = np.where(at_goal.any(1), at_goal.argmax(1), MOST_NODES - 1)
        is_edge = self.edges[nodes[:, :-1], nodes[:, 1:]] & (nodes[:, :-1] != NO_NODE)
        is_after = np.arange(1, MOST_NODES) > arrival[:, None]
        length = np.where((is_edge | is_after).all(1), arrival + 1, MOST_NODES)
        best = MOST_NODES - self.shortest[nodes[:, 0]]
        return np.divide(MOST_NODES - length, best, out=np.zeros(len(nodes)), where=best > 0)

    def _nodes(self, walks: Sequence[str]) -> np.ndarray:
        """[walks, 10] int: the nodes of each walk; -1 after its end and for characters that are no node."""
        number = {letter: node for node, letter in enumerate(LETTERS[: len(self.edges)])}
        nodes = np.full((len(walks), MOST_NODES), NO_NODE)
        for row, walk in zip(nodes, walks, strict=True):
            row[: len(walk)] = [number.get(letter, NO_NODE) for letter in walk[:MOST_NODES]]
        return nodes

    def reward(
        self, samples: Sequence[str], prompts: Sequence[str], outputs: Sequence[str], tokenizer, **columns: Any
    ) -> list[float]:
        """Optimality of each sample (prompt and output)."""
        return self.optimality(samples).tolist()

    def metric(
        self, samples: Sequence[str], prompts: Sequence[str], outputs: Sequence[str], tokenizer, **columns: Any
    ) -> dict[str, float]:
        """Mean optimality of the samples."""
        return {"optimality": float(self.optimality(samples).mean())}


def draw_random_walks(seed: int = 1000, walks: int = WALKS) -> RandomWalks:
    """A graph of 21 nodes and random walks in it, as a function of the seed."""
    # the legacy generator and this order of draws are trlx's
    rng = np.random.RandomState(seed)
    edges = _draw_edges(rng)
    return RandomWalks(edges, tuple(_draw_walk(rng, edges) for _ in range(walks)))


def _draw_edges(rng: np.random.RandomState) -> np.ndarray:
    """[21, 21] bool: each edge with probability .1, redrawn until every node has an outgoing edge."""
    nodes = len(LETTERS)
    edges = np.zeros((nodes, nodes), dtype=bool)
    while not edges.any(1).all():
        edges = rng.rand(nodes, nodes) > 1 - EDGE_PROBABILITY
        np.fill_diagonal(edges, False)
    edges[GOAL] = False
    edges[GOAL, GOAL] = True  # the goal is absorbing
    return edges


def _draw_walk(rng: np.random.RandomState, edges: np.ndarray) -> str:
    """A random walk from any node but the goal, to the goal or for ten nodes."""
    node = GOAL
    while node == GOAL:
        node = int(rng.randint(len(edges)))
    nodes = [node]
    while node != GOAL and len(nodes) < MOST_NODES:
        node = int(rng.choice(np.flatnonzero(edges[node])))
        nodes.append(node)
    return "".join(LETTERS[node] for node in nodes)
