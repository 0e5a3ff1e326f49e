"""Branching: trees of rounds, in which a speech's score is the mean P(win) of all rounds that go on from it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import product
from statistics import mean
from typing import Any, Literal

import numpy as np

from lmgym.apps.debate.debate import Debate
from lmgym.apps.debate.formats import DEBATERS, FIRST, other
from lmgym.apps.debate.players.protocol import Call, Judge, Player, Spoken
from lmgym.apps.debate.tournament.schedule import hash_seed
from lmgym.apps.debate.training.preferences import Preference
from lmgym.apps.debate.training.rows import pairs
from lmgym.apps.debate.transcript import Transcript
from lmgym.errors import InputError
from lmgym.text import Conversation

Branching = Literal["full", "half", "one"]
"""which speeches branch: those of both debaters, of one of them, or a single speech; drawn by the seed"""


@dataclass(frozen=True)
class Branch:
    """Several samples of one speech."""

    agent: str
    slot: int
    conversation: Conversation
    """that the agent had read"""
    texts: tuple[str, ...]
    won: tuple[list[float], ...]
    """by sample, the agent's P(win) of each leaf below it"""

    @property
    def samples(self) -> list[tuple[str, float]]:
        """(text, mean P(win) of its leaves)."""
        return [(text, mean(leaves)) for text, leaves in zip(self.texts, self.won, strict=True)]


@dataclass
class _Node:
    """A round as far as it has been played, and the samples on the way to it."""

    root: int
    debate: Debate
    path: list[tuple[Branch, int]] = field(default_factory=list)


def grow(
    rounds: Sequence[Debate], players: Mapping[str, Player], judge: Judge, branching: Branching = "full",
    width: int = 2, seed: int = 0,
) -> tuple[list[Branch], list[Transcript]]:  # fmt: skip
    """(branches, leaves) of rounds that have begun, with `width` samples of each speech that branches.

    A full tree of a debate of r rounds has width^(2 r) leaves. All nodes of one depth are one request to each player.
    Raises InputError for rounds whose judge writes its verdict, and for a width below 2.
    """
    if width < 2:
        raise InputError(f"width={width}; needed: 2 samples or more of a speech")
    if any(debate.verdict != "scorer" for debate in rounds):
        raise InputError("a tree of rounds needs probabilities at its leaves: Debate(..., verdict='scorer')")
    chosen = [_branching_speeches(debate, branching, seed, root) for root, debate in enumerate(rounds)]
    nodes = [_Node(root, copy(debate)) for root, debate in enumerate(rounds)]
    branches: list[Branch] = []
    while pending := [(i, node) for i, node in enumerate(nodes) if not node.debate.ended]:
        several = {
            (i, agent): (node.debate.slot, agent) in chosen[node.root]
            for i, node in pending
            for agent in node.debate.speakers
        }
        spoken = _ask(dict(pending), players, several, width, seed)
        grown: list[_Node] = []
        for i, node in enumerate(nodes):
            if node.debate.ended:
                grown.append(node)
                continue
            agents = node.debate.speakers
            read = node.debate.observations()
            made = {
                agent: Branch(
                    agent, node.debate.slot, _conversation(read[agent].prompt), tuple(s.text for s in spoken[i, agent]),
                    tuple([] for _ in spoken[i, agent]),
                )
                for agent in agents
                if several[i, agent]
            }  # fmt: skip
            branches += made.values()
            for picks in product(*(range(len(spoken[i, agent])) for agent in agents)):
                child = _Node(node.root, copy(node.debate), [*node.path])
                child.path += [(made[a], j) for a, j in zip(agents, picks, strict=True) if a in made]
                child.debate.step({a: spoken[i, a][j].text for a, j in zip(agents, picks, strict=True)})
                grown.append(child)
        nodes = grown
    leaves = [node.debate.transcript for node in nodes]
    for node, p in zip(nodes, judge.p_first(leaves), strict=True):
        for branch, sample in node.path:
            branch.won[sample].append(p if branch.agent == FIRST else 1 - p)
    return branches, leaves


def branch_rows(branches: Iterable[Branch], preference: Preference) -> Iterator[dict[str, Any]]:
    """Preference rows: the best sample of each branch against those that are worse."""
    for branch in branches:
        yield from pairs(branch.conversation, branch.samples, preference)


def _branching_speeches(debate: Debate, branching: Branching, seed: int, root: int) -> set[tuple[int, str]]:
    """(slot, agent) of the speeches that branch; in a slot of whomever the judge picks, of either debater."""
    speeches = [
        (place, agent)
        for place, slot in enumerate(debate.format.slots)
        if slot.kind == "speech"
        for agent in (DEBATERS if slot.speakers[0] not in DEBATERS else slot.speakers)
    ]
    rng = np.random.default_rng([seed, root])
    if branching == "half":
        kept = rng.choice(debate.format.debaters)
        return {speech for speech in speeches if speech[1] == kept}
    return set(speeches) if branching == "full" else {speeches[rng.integers(len(speeches))]}


def _ask(
    nodes: Mapping[int, _Node], players: Mapping[str, Player], several: Mapping[tuple[int, str], bool], width: int,
    seed: int,
) -> dict[tuple[int, str], list[Spoken]]:  # fmt: skip
    """What the agents say at each node: one request a player, and another one for speeches that do not branch."""
    asked: dict[tuple[int, int], list[tuple[int, str]]] = {}
    for (i, agent), branches in several.items():
        asked.setdefault((id(players[agent]), width if branches else 1), []).append((i, agent))
    spoken: dict[tuple[int, str], list[Spoken]] = {}
    for (_, n), places in asked.items():
        calls = []
        for i, agent in places:
            debate = nodes[i].debate
            read = _conversation(debate.observations()[agent].prompt)
            own = hash_seed(seed, nodes[i].root, i, debate.slot, agent)
            calls.append(Call(debate, agent, read, own, players.get(other(agent)) if agent in DEBATERS else None))
        spoken |= zip(places, players[places[0][1]].speak(calls, n), strict=True)
    return spoken


def _conversation(prompt: Conversation | str) -> Conversation:
    assert isinstance(prompt, Conversation)
    return prompt
