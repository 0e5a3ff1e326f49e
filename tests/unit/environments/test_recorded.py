"""Recorded episodes: what a line holds, that it can be played again, and the rows for SFT."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from lmgym.apps.games.alternating import Alternating
from lmgym.apps.games.tic_tac_toe import TicTacToe
from lmgym.environments.episodes import Episode, Step
from lmgym.environments.protocol import Observation, StepResult
from lmgym.environments.recorded import Selection, record_games, replay, training_rows
from lmgym.environments.scored_chat import ScoredChat
from lmgym.errors import InputError
from lmgym.generation.protocol import Completion
from lmgym.text import Conversation, Turn

ACTIONS = [{"first": "1"}, {"second": "5"}, {"first": "2"}, {"second": "7"}, {"first": "3"}]


def recorded(actions=ACTIONS, trained=("first", "second")) -> dict:
    """The row of a game of tic-tac-toe with these replies, as the engine would give it."""
    game, steps = Alternating(TicTacToe()), {agent: [] for agent in trained}
    shown, result = game.reset({}, 7), StepResult()
    for said in actions:
        for agent, reply in said.items():
            if agent in trained:
                completion = Completion(reply, "eos", (4, 1), (-0.5, -0.25))
                steps[agent].append(Step([2, 3], "p", completion, observed=shown[agent].prompt))
        result = game.step(said)
        shown = result.observations
    for agent, own in steps.items():
        own[-1] = replace(own[-1], reward=result.rewards[agent])
    episodes = [Episode(0, agent, own, True, False, None, result.info, 7, actions) for agent, own in steps.items()]
    [row] = record_games(episodes, [{}], [0.5, -1.0])
    return json.loads(json.dumps(row))


def test_a_line_is_a_game_with_what_each_trained_agent_saw_said_and_earned() -> None:
    row = recorded()
    assert (row["seed"], row["actions"], row["returns"]) == (7, ACTIONS, {"first": 1.0, "second": -1.0})
    first = row["agents"]["first"]
    assert [turn["reply"] for turn in first] == ["1", "2", "3"]
    assert [turn["reward"] for turn in first] == [0.0, 0.0, 1.0]
    assert first[1]["messages"][-1] == {"role": "user", "content": "You are X.\nX 2 3\n4 O 6\n7 8 9"}
    assert (first[0]["prompt_ids"], first[0]["ids"], first[0]["logprobs"]) == ([2, 3], [4, 1], [-0.5, -0.25])
    assert [turn.get("advantage") for turn in first] == [0.5, -1.0, None]
    assert list(recorded(trained=("second",))["agents"]) == ["second"]


def test_a_recorded_game_is_played_again_as_it_was() -> None:
    for trained in (("first", "second"), ("second",)):
        turns, different = replay(Alternating(TicTacToe()), recorded(trained=trained))
        assert different == []
        assert [(turn.agent, turn.reply) for turn in turns] == [next(iter(said.items())) for said in ACTIONS]
        assert turns[-1].reward == (1.0 if "first" in trained else None)
        assert turns[-2].reward == -1.0


def test_a_replay_says_what_differs() -> None:
    row = recorded()
    row["agents"]["first"][1]["messages"][-1]["content"] = "You are X.\nanother board"
    row["agents"]["second"][1]["reward"] = 0.5
    _, different = replay(Alternating(TicTacToe()), row)
    assert len(different) == 2
    assert different[0].startswith("step 2: first sees")
    assert "another b" in different[0].partition("in the record")[2]
    assert different[1] == "step 3: second earns -1, in the record 0.5"
    shorter = recorded() | {"actions": ACTIONS[:3]}
    assert replay(Alternating(TicTacToe()), shorter)[1][-1].startswith(
        "the end: terminated, truncated are (False, False)"
    )
    longer = recorded() | {"actions": [*ACTIONS, {"second": "9"}]}
    assert replay(Alternating(TicTacToe()), longer)[1] == ["step 5: the game has ended, and in the record second acted"]


def test_tasks_with_conversations_are_played_again_and_scores_are_not_asked_for() -> None:
    chat = Conversation((Turn("user", "Hi"), Turn("bot", "Hello."), Turn("user", "Bye")), "A bot.")
    step = Step([1], "p", Completion("See you.", "eos", (3,), (-1.0,)), 0.75, {"letters": 0.75}, observed=chat)
    episode = Episode(0, "policy", [step], True, False, None, {}, 3, [{"policy": "See you."}])
    [row] = record_games([episode], [{"prompt": chat, "answer": 4}])
    [turn], different = replay(ScoredChat(), json.loads(json.dumps(row)))
    assert different == []
    assert (turn.scored, turn.recorded) == (True, 0.75)


@pytest.mark.parametrize(
    "row", [{}, {"task": 3}, {"task": {}, "agents": {}, "actions": [], "seed": "x", "terminated": 1}]
)
def test_what_is_no_record_is_refused(row: dict) -> None:
    with pytest.raises(InputError, match="not a recorded episode"):
        replay(Alternating(TicTacToe()), row)


def test_good_episodes_become_rows_and_the_others_are_counted() -> None:
    refused: Counter[str] = Counter()
    rows = list(training_rows([recorded(), recorded()], Selection(1.0), refused))
    assert [row["completion"] for row in rows] == [[{"role": "assistant", "content": move}] for move in "123"]
    assert rows[0]["prompt"][-1]["content"].startswith("You are X.")
    assert refused == {"a return below 1": 4, "a duplicate": 3}
    failed, cut = recorded(), recorded()
    failed["returns"]["first"] = None
    cut["agents"]["first"][0]["finish"] = "length"
    refused.clear()
    assert len(list(training_rows([failed, cut], Selection(-1.0, "first"), refused))) == 2
    assert refused == {"another agent": 4, "a failed reward": 3, "a reply cut at the limit": 1}


def test_observations_of_plain_text_become_prompts_of_plain_text() -> None:
    step = Step([1], "p", Completion("b", "eos", (3,), (-1.0,)), 1.0, observed=Observation("a").prompt)
    [row] = record_games([Episode(0, "policy", [step], True, False, None, {})], [{}])
    [made] = training_rows([row], Selection(0.0), Counter())
    assert (made["prompt"], made["completion"]) == ("a", "b")
