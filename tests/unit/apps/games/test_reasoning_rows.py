"""reasoning-gym's rows as tasks of one turn, judged by their own verifier."""

import sys

import pytest

from lmgym.apps.games import reasoning_rows
from lmgym.apps.games.reasoning_rows import ReasoningRow
from lmgym.errors import InputError


def test_without_reasoning_gym_the_message_has_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    reasoning_rows._data.cache_clear()
    with pytest.raises(InputError, match=r"needs reasoning_gym .*; needed: pip install 'lmgym\[reasoning-gym\]'"):
        ReasoningRow("countdown")


def test_a_row_is_a_task_whose_verifier_rewards_the_answer() -> None:
    pytest.importorskip("reasoning_gym")
    game = ReasoningRow("word_sorting")
    shown = game.reset({"row": 3}, 0)
    assert shown["policy"].prompt.turns[0].text == game.entry["question"].strip()
    for reply, reward in (
        (game.entry["answer"], 1.0),
        (f"I think <answer>x</answer>, no, <answer> {game.entry['answer']} </answer>.", 1.0),
        ("", 0.0),
    ):
        game.reset({"row": 3}, 9)
        result = game.step({"policy": reply})
        assert (result.rewards["policy"], result.terminated, result.info) == (reward, True, {"solved": reward})


def test_without_a_row_the_seed_chooses_it() -> None:
    pytest.importorskip("reasoning_gym")
    game, other = ReasoningRow("countdown"), ReasoningRow("countdown", data_seed=1)
    assert game.reset({}, 5) == game.reset({"row": 5}, 0) != other.reset({}, 5)
    assert game.reset({}, 2**62) != game.reset({}, 6)


def test_unknown_names_and_settings_are_refused() -> None:
    pytest.importorskip("reasoning_gym")
    with pytest.raises(InputError, match=r"reasoning-gym has no 'countdwn'; did you mean countdown\?"):
        ReasoningRow("countdwn")
    with pytest.raises(InputError, match=r"countdown cannot be made with {'size_': 1}: .*; needed: its own settings"):
        ReasoningRow("countdown", settings={"size_": 1})
