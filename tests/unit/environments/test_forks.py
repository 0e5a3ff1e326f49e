"""Forks: an episode is replayed up to a step and goes on in another way."""

import pytest
from acting import TOKENIZER, FakeReward, Scripted

from lmgym.apps.games.prisoners import PrisonersDilemma, tit_for_tat
from lmgym.environments.episodes import Episode
from lmgym.environments.rollout_engine import run_episodes
from lmgym.errors import InputError
from lmgym.generation.protocol import Sampling, ScriptedGenerator

OTHERS = {"second": ScriptedGenerator(tit_for_tat)}


def _play(reply: str, beginnings=None, members=None, others=OTHERS) -> list[Episode]:
    games = len(beginnings) if beginnings else 1
    return run_episodes(
        [PrisonersDilemma(4) for _ in range(games)], [{}] * games, [5] * games, Scripted(lambda text, seed: reply),
        TOKENIZER, Sampling(), FakeReward(), others, members=members, beginnings=beginnings,
    )  # fmt: skip


def test_an_episode_keeps_the_actions_of_all_its_agents() -> None:
    [episode] = _play("defect")
    assert episode.seed == 5
    assert [dict(actions) for actions in episode.actions] == [
        {"first": "defect", "second": "cooperate"}, *3 * [{"first": "defect", "second": "defect"}]
    ]  # fmt: skip


def test_a_fork_goes_on_from_the_state_that_the_first_actions_lead_to() -> None:
    [whole] = _play("defect")
    [fork] = _play("cooperate", [whole.actions[:2]])
    assert len(fork.steps) == 2  # what is replayed leaves no steps
    assert "Round 3?" in fork.steps[0].prompt_text
    assert [step.reward for step in fork.steps] == [0.0, 3.0]  # the other remembers the last move that was replayed
    assert list(fork.actions[:2]) == list(whole.actions[:2])
    assert fork.info == {"first_cooperated": 2.0, "second_cooperated": 2.0}


def test_forks_of_several_lengths_are_played_together() -> None:
    [whole] = _play("defect")
    forks = _play("cooperate", [whole.actions[:k] for k in (0, 1, 3)], members=[1, 2, 3])
    alone = [_play("cooperate", [whole.actions[:k]], members=[k])[0] for k in (0, 1, 3)]
    assert [f.total_reward for f in forks] == [f.total_reward for f in alone] == [12.0, 6.0, 0.0]


def test_members_of_a_fork_sample_by_other_seeds() -> None:
    generator = Scripted(lambda text, seed: f"defect {seed}")
    [whole] = _play("defect")
    forks = run_episodes(
        [PrisonersDilemma(4) for _ in range(2)], [{}] * 2, [5] * 2, generator, TOKENIZER, Sampling(), None, OTHERS,
        members=[0, 1], beginnings=2 * [whole.actions[:3]],
    )  # fmt: skip
    assert forks[0].steps[0].completion.text != forks[1].steps[0].completion.text


def test_an_agent_that_only_acted_in_the_beginning_has_no_episode_and_its_later_rewards_are_dropped() -> None:
    [whole] = _play("defect")
    assert _play("defect", [whole.actions]) == []


@pytest.mark.parametrize(
    ("beginning", "found"),
    [
        ([{"first": "defect"}], r"waits for \['first', 'second'\], and its beginning has actions of \['first'\]"),
        (5 * [{"first": "defect", "second": "defect"}], "has ended, and its beginning has actions"),
    ],
)
def test_actions_of_another_game_are_refused(beginning, found) -> None:
    with pytest.raises(InputError, match=found):
        _play("defect", [beginning])
