"""Branching: trees of rounds, in which a speech's score is the mean P(win) of all rounds that go on from it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import product
from statistics import mean
from typing import Any, Literal

import numpy as np

from lmgym.apps.debate.debate import Debate
from lmgym.apps.debate.formats import DEBATERS, FIRST, JUDGE
from lmgym.apps.debate.players.judges import JudgePlayer
from lmgym.apps.debate.players.protocol import Judge, request_for, texts_of
from lmgym.apps.debate.tournament.config import Tournament
from lmgym.apps.debate.tournament.schedule import ScheduledRound, hash_seed
from lmgym.apps.debate.training.preferences import Preference
from lmgym.apps.debate.training.rows import pairs
from lmgym.apps.debate.transcript import Transcript
from lmgym.environments.players import Player, ask
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
    rounds: Sequence[Debate],
    players: Mapping[str, Player],
    judge: Judge,
    branching: Branching = "full",
    width: int = 2,
    seed: int = 0,
) -> tuple[list[Branch], list[Transcript]]:
    """(branches, leaves) of rounds that have begun, with `width` samples of each speech that branches.

    A full tree of a debate of r rounds has width^(2 r) leaves. All nodes of one depth are one request to each player.
    Rounds are copied here, since `play` cannot split an episode: each depth of the tree would be another play, which
    replays all earlier speeches. Raises InputError for rounds whose judge writes its verdict, and for a width below 2.
    """
    if width < 2:
        raise InputError(f"width={width}; needed: 2 samples or more of a speech")
    if any(debate.verdict != "scorer" for debate in rounds):
        raise InputError("a tree of rounds needs probabilities at its leaves: Debate(..., verdict='scorer')")
    chosen = [_branching_speeches(debate, branching, seed, root) for root, debate in enumerate(rounds)]
    nodes = [_Node(root, copy(debate)) for root, debate in enumerate(rounds)]
    branches: list[Branch] = []
    while any(not node.debate.ended for node in nodes):
        said = _say(nodes, players, chosen, width, seed)
        nodes = [child for i, node in enumerate(nodes) for child in _children(node, said[i], branches)]
    leaves = [node.debate.transcript for node in nodes]
    for node, p in zip(nodes, judge.p_first(leaves), strict=True):
        for branch, sample in node.path:
            branch.won[sample].append(p if branch.agent == FIRST else 1 - p)
    return branches, leaves


def grow_rounds(
    tournament: Tournament, rounds: Sequence[ScheduledRound], branching: Branching, seed: int
) -> tuple[list[Branch], list[Transcript]]:
    """(branches, leaves) of trees of a tournament's rounds. Raises InputError for a judge that writes its verdict."""
    judge = tournament.judge
    if not isinstance(judge, Judge):
        raise InputError("a tree of rounds needs probabilities, and the judge writes; needed: a judge with p_first")
    by_players: dict[tuple[str, ...], list[Debate]] = {}
    for scheduled in rounds:
        own = tournament.own_prompts_of(scheduled.players)
        debate = Debate(tournament.format, tournament.prompts, verdict="scorer", own_prompts=own)
        question = tournament.questions[scheduled.question]
        debate.reset({**question.task, "flipped": scheduled.flipped}, scheduled.seed)
        by_players.setdefault(scheduled.players, []).append(debate)
    branches: list[Branch] = []
    leaves: list[Transcript] = []
    for names, begun in by_players.items():
        agents = zip(tournament.format.debaters, names, strict=True)
        players = {agent: tournament.players[name] for agent, name in agents} | {JUDGE: JudgePlayer(judge)}
        grown, ends = grow(begun, players, judge, branching, seed=hash_seed(seed, *names))
        branches, leaves = branches + grown, leaves + ends
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


def _say(
    nodes: Sequence[_Node],
    players: Mapping[str, Player],
    chosen: Sequence[set[tuple[int, str]]],
    width: int,
    seed: int,
) -> list[dict[str, list[str]]]:
    """The samples of each agent that acts, by node: `width` of a speech that branches, and one of another."""
    samples: list[dict[str, list[str]]] = [{} for _ in nodes]
    for branches in (True, False):
        asked = {}
        for i, node in enumerate(nodes):
            debate = node.debate
            for agent in () if debate.ended else debate.speakers:
                if ((debate.slot, agent) in chosen[node.root]) == branches:
                    own = hash_seed(seed, node.root, i, debate.slot, agent)
                    asked[i, agent] = players[agent], request_for(debate, agent, own, players)
        for (i, agent), actions in ask(asked, width if branches else 1).items():
            samples[i][agent] = texts_of(actions)
    return samples


def _children(node: _Node, said: Mapping[str, list[str]], branches: list[Branch]) -> Iterator[_Node]:
    """The node after each combination of what its agents said; a branch is added for each that said several things."""
    if node.debate.ended:
        yield node
        return
    agents = node.debate.speakers
    made = {}
    for agent in agents:
        if len(said[agent]) > 1:
            read, texts = node.debate.observation(agent).conversation, tuple(said[agent])
            made[agent] = Branch(agent, node.debate.slot, read, texts, tuple([] for _ in texts))
    branches += made.values()
    for picks in product(*(range(len(said[agent])) for agent in agents)):
        picked = list(zip(agents, picks, strict=True))
        child = _Node(node.root, copy(node.debate), [*node.path, *((made[a], j) for a, j in picked if a in made)])
        child.debate.step({agent: said[agent][j] for agent, j in picked})
        yield child
