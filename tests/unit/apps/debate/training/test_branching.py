"""Trees of rounds: their leaves, and means of P(win) by hand."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from lmgym.apps.debate.debate import Debate
from lmgym.apps.debate.formats import FIRST, SECOND, Format, debate
from lmgym.apps.debate.players.judges import LetterJudge
from lmgym.apps.debate.prompts.debate import PROMPTS
from lmgym.apps.debate.synthetic import synthetic_questions
from lmgym.apps.debate.tournament.config import Tournament, TournamentConfig
from lmgym.apps.debate.tournament.running import run_tournament
from lmgym.apps.debate.tournament.schedule import hash_seed
from lmgym.apps.debate.training.branching import grow
from lmgym.environments.players import ActionRequest
from lmgym.environments.protocol import Action
from lmgym.errors import InputError

TASK = {"question": "Where?", "options": ["here", "there"], "correct": 0, "text": "It is here.", "flipped": False}


@dataclass
class Counting:
    """Sample j of a speech has j + 1 letters l; Debater_B's are twice as many."""

    asked: list[int] = field(default_factory=list)

    def act(self, requests: Sequence[ActionRequest], n: int = 1) -> list[list[Action]]:
        self.asked.append(len(requests) * n)
        return [[Action("l" * ((1 + j) * (1 + (r.agent == SECOND)))) for j in range(n)] for r in requests]


def tree(format: Format, branching, player: Counting, number: int = 1, seed: int = 0):
    rounds = [Debate(format, PROMPTS, verdict="scorer") for _ in range(number)]
    for round in rounds:
        round.reset(TASK, 0)
    return grow(rounds, {FIRST: player, SECOND: player}, LetterJudge("l"), branching, seed=seed)


def test_a_full_tree_of_two_rounds_has_16_leaves_and_means_over_descendants() -> None:
    player = Counting()
    branches, leaves = tree(debate(2), "full", player)
    assert len(leaves) == 16
    assert len({tuple(s.text for s in leaf.speeches) for leaf in leaves}) == 16
    assert player.asked == [4, 16]  # one request a round: 2 speeches and 8, of 2 samples each
    # A has said a1 + a2 letters and B twice b1 + b2, each 1 or 2: P(A) = (a1 + a2) / (a1 + a2 + 2 (b1 + b2))
    first = next(b for b in branches if b.agent == FIRST and b.slot == 0)
    of_one = [(1 + a) / (1 + a + 2 * (x + y)) for a in (1, 2) for x in (1, 2) for y in (1, 2)]
    of_two = [(2 + a) / (2 + a + 2 * (x + y)) for a in (1, 2) for x in (1, 2) for y in (1, 2)]
    assert first.samples == [("l", pytest.approx(sum(of_one) / 8)), ("ll", pytest.approx(sum(of_two) / 8))]
    # the last speech of B after a1 = 1 and b1 = 2 letters: A adds 1 or 2, and B 2 or 4
    last = [b for b in branches if b.agent == SECOND and b.slot == 1]
    assert len(last) == 4
    assert last[0].samples[1] == ("llll", pytest.approx((6 / (6 + 2) + 6 / (6 + 3)) / 2))


@pytest.mark.parametrize(("branching", "leaves", "branches"), [("full", 16, 10), ("half", 4, 3), ("one", 2, None)])
def test_half_a_tree_branches_for_one_debater_and_one_speech_gives_two_leaves(branching, leaves, branches) -> None:
    for seed in range(4):
        made, ends = tree(debate(2), branching, Counting(), seed=seed)
        assert len(ends) == leaves
        assert len({b.agent for b in made}) == (2 if branching == "full" else 1)
        assert len(made) == (branches or 1)


def test_the_one_speech_and_the_half_are_drawn_anew_for_each_round() -> None:
    made, _ = tree(debate(2), "one", Counting(), number=40)
    assert {(b.agent, b.slot) for b in made} == {(FIRST, 0), (SECOND, 0), (FIRST, 1), (SECOND, 1)}


def test_in_turn_the_second_speaker_answers_each_sample_of_the_first() -> None:
    branches, leaves = tree(debate(1, simultaneous=False), "full", Counting())
    assert len(leaves) == 4
    answers = [b for b in branches if b.agent == SECOND]
    assert ["ll" in b.conversation.turns[-1].text.split("\n") for b in answers] == [False, True]


def test_the_seed_of_a_speech_is_a_hash_of_its_tree_its_node_the_slot_and_the_agent() -> None:
    seeds: list[tuple[str, int]] = []

    class Noting(Counting):
        def act(self, requests: Sequence[ActionRequest], n: int = 1) -> list[list[Action]]:
            seeds.extend((request.agent, request.seed) for request in requests)
            return super().act(requests, n)

    tree(debate(1, simultaneous=False), "full", Noting(), number=2, seed=5)
    nodes = [(0, 0, 0, FIRST), (1, 1, 0, FIRST), *((i // 2, i, 1, SECOND) for i in range(4))]
    assert seeds == [(node[-1], hash_seed(5, *node)) for node in nodes]


def test_trees_need_probabilities_and_two_samples() -> None:
    round = Debate(debate(1), PROMPTS)
    with pytest.raises(InputError, match="verdict='scorer'"):
        grow([round], {}, LetterJudge())
    with pytest.raises(InputError, match="width=1"):
        grow([], {}, LetterJudge(), width=1)


def test_a_tournament_with_branching_writes_preference_rows_of_its_rounds(tmp_path: Path) -> None:
    def setup(config: TournamentConfig) -> Tournament:
        players = {"first": Counting(), "second": Counting()}
        return Tournament(synthetic_questions(3), players, LetterJudge("l"), debate(1), PROMPTS)

    def writes(config: TournamentConfig) -> Tournament:
        return replace(setup(config), judge=Counting())

    config = TournamentConfig("trees", sides="fixed", branching="full", output=str(tmp_path / "trees"))
    run_tournament(config, setup)
    rows = [json.loads(line) for line in (tmp_path / "trees/preferences.jsonl").read_text().splitlines()]
    assert len(rows) == 6  # both speeches of each round, whose longer sample wins more
    assert all(len(row["chosen"]) > len(row["rejected"]) and row["preference"] > 0.5 for row in rows)
    assert not (tmp_path / "trees/transcripts.jsonl").exists()
    with pytest.raises(InputError, match="branching changed"):
        run_tournament(replace(config, branching=None), setup)
    with pytest.raises(InputError, match="needs probabilities, and the judge writes"):
        run_tournament(replace(config, output=str(tmp_path / "written")), writes)

    def alike(config: TournamentConfig) -> Tournament:
        return replace(setup(config), judge=LetterJudge("z"))

    with pytest.raises(InputError, match="6 branches have no sample that is better"):
        run_tournament(replace(config, output=str(tmp_path / "alike")), alike)
    with pytest.raises(InputError, match="branching with transcripts"):
        replace(config, transcripts="x")
