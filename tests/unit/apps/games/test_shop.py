"""The tool-use game: calls in a model's own template or in plain words, results, and the answer."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from acting import TOKENIZER, Scripted

from lmgym.apps.games.ladder import GAMES
from lmgym.apps.games.shop import Shop, calculated, read_call, read_plain_call, use_the_tools
from lmgym.environments.protocol import StepResult
from lmgym.environments.rollout_engine import run_episodes
from lmgym.errors import InputError
from lmgym.generation.protocol import Sampling
from lmgym.models.loading import load_tokenizer
from lmgym.text import render

TEMPLATE = (
    "{% if tools %}[tools]{% for tool in tools %} {{ tool.function.name }}{% endfor %}{{ '\n' }}{% endif %}"
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}"
    "{% for call in m.tool_calls or [] %}<call>{{ call.function | tojson }}</call>{% endfor %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


@pytest.fixture(scope="module")
def with_tools(small_models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory):
    """A tokenizer whose template writes tools."""
    folder = shutil.copytree(small_models["gpt2"], tmp_path_factory.mktemp("tools") / "gpt2")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return load_tokenizer(str(folder))


def play(game: Shop, *replies: str) -> list[StepResult]:
    game.reset({}, 3)
    return [game.step({"policy": reply}) for reply in replies]


def order(game: Shop) -> tuple[str, str, int]:
    (first, a), (second, b) = game.order
    return a, b, first * game.prices[a] + second * game.prices[b]


def test_plain_calls_have_their_results_as_messages_of_the_user() -> None:
    game = Shop()
    game.reset({}, 3)
    item, _, total = order(game)
    results = play(game, f"look up {item}", "Calculate: 2 * (3 + 4) - 1", f"answer {total}")
    turns = results[1].observations["policy"].prompt.turns
    assert [turn.speaker for turn in turns] == ["user", "bot", "user", "bot", "user"]
    assert [turn.text for turn in turns[2::2]] == [str(game.prices[item]), "13"]
    assert "look up apple" in results[0].observations["policy"].prompt.persona
    assert results[-1].rewards == {"policy": 1.0}
    assert results[-1].terminated
    assert results[-1].info == {"calls": 2.0, "failed_calls": 0.0}


def test_a_template_with_tools_shows_functions_calls_and_results(with_tools) -> None:
    game = Shop(with_tools)
    shown = game.reset({}, 3)["policy"].prompt
    assert game.has_tools
    assert render(with_tools, shown).startswith("[tools] look_up calculate\n")
    item, _, _ = order(game)
    call = json.dumps({"name": "look_up", "arguments": {"item": item}})
    result = game.step({"policy": f"<tool_call>{call}</tool_call>"})
    text = render(with_tools, result.observations["policy"].prompt)
    assert f"<call>{call}</call>" in text
    assert f"[tool] {game.prices[item]}\n[assistant] " in text


@pytest.mark.parametrize("tokenizer", [None, TOKENIZER])
def test_without_such_a_template_tools_are_described_in_words(tokenizer) -> None:
    game = Shop(tokenizer)
    assert not game.has_tools
    assert not game.reset({}, 0)["policy"].prompt.tools


@pytest.mark.parametrize(
    ("reply", "call"),
    [
        ('{"name": "look_up", "arguments": {"item": "hat"}}', ("look_up", "hat")),
        ('<tool_call>\n{"name": "calculate", "arguments": {"expression": "1+1"}}\n', ("calculate", "1+1")),
        ('Sure! {"function": {"name": "look_up", "arguments": {"item": "egg"}}}', ("look_up", "egg")),
        ('{"name": "look_up", "parameters": {"item": "egg"}}', ("look_up", "egg")),  # as Llama 3 writes it
        ('{"name": "look_up", "arguments": "hat"}', ("look_up", "hat")),
        ('{"name": "look_up"}', ("look_up", "")),
        ('{ broken {"name": "look_up", "arguments": {}}', ("look_up", "")),
        ("the answer is {12}", None),
        ('{"name": 3, "arguments": {}}', None),
        ("42", None),
        ("", None),
    ],
)
def test_a_call_is_the_first_object_with_a_name(reply: str, call) -> None:
    assert read_call(reply) == call


def test_a_plain_call_begins_a_reply() -> None:
    assert read_plain_call("look up  hat ") == ("look_up", "hat")
    assert read_plain_call("I look up hat") is None
    assert read_plain_call("answer 3") is None


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("2 * 3 + 4", 10),
        ("-(2 - 5)", 3),
        ("2 ** 9", None),
        ("9" * 101, None),
        ("1/2", None),
        ("1.5", None),
        ("True", None),
        ("__import__('os')", None),
        ("(" * 60, None),
        ("", None),
        ("\x00", None),
    ],
)
def test_only_sums_of_integers_are_calculated(words: str, value: int | None) -> None:
    assert calculated(words) == value


def test_failed_calls_say_what_is_needed_and_are_counted() -> None:
    game = Shop()
    first, second, *_ = play(game, "look up car", "calculate x")
    assert first.observations["policy"].prompt.turns[-1].text.startswith("error; needed: one of apple, bread")
    assert second.info == {"calls": 2.0, "failed_calls": 2.0}


def test_wrong_answers_and_calls_without_end_earn_nothing() -> None:
    for reply in ("no idea", "answer 0", "9" * 5000, "-1"):
        [result] = play(Shop(), reply)
        assert (result.rewards, result.terminated) == ({"policy": 0.0}, True)
    results = play(Shop(max_steps=3), *["look up hat"] * 3)
    assert [(r.rewards["policy"], r.terminated) for r in results] == [(0.0, False), (0.0, False), (0.0, True)]
    with pytest.raises(InputError, match="max_steps=0; needed: 1 to"):
        Shop(max_steps=0)


def test_who_uses_the_tools_always_wins_with_either_kind_of_call(with_tools) -> None:
    game = GAMES["shop"]
    assert [game.measure(player, 100).mean > 0.99 for player in game.players.values()] == [False, False, True]
    shop, rng = Shop(with_tools), np.random.default_rng(0)
    seen = shop.reset({}, 5)["policy"]
    for _ in range(3):
        seen = shop.step({"policy": use_the_tools(shop, seen, rng)}).observations["policy"]
    assert shop.step({"policy": use_the_tools(shop, seen, rng)}).rewards == {"policy": 1.0}


def test_the_engine_plays_it_with_a_template_of_tools(with_tools) -> None:
    """The prompt of every turn is rendered by the template, with the calls and results so far."""
    call = '{"name": "look_up", "arguments": {"item": "hat"}}'
    policy = Scripted(lambda prompt, seed: "3" if "[tool]" in with_tools.decode([]) + prompt else call, 2000)
    [episode] = run_episodes([Shop(with_tools)], [{}], [0], policy, with_tools, Sampling(64), None)
    assert "[tools] look_up calculate" in episode.steps[0].prompt_text
    assert len(episode.steps) >= 2
    assert "[tool] " in episode.steps[1].prompt_text
