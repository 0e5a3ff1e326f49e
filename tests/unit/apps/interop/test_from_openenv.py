"""OpenEnv servers as environments: a stub that speaks their protocol, well or badly."""

import json
from typing import Any

import pytest
from openenv_stub import Guess, Stub, answer

from lmgym.apps.interop import from_openenv
from lmgym.environments import engine
from lmgym.environments.engine import play
from lmgym.environments.named import NamedEnvironment, load_environment
from lmgym.environments.players import ScriptPlayer
from lmgym.environments.protocol import POLICY
from lmgym.environments.session import EpisodeFailed, Session
from lmgym.errors import InputError
from lmgym.text import Turn

pytest.importorskip("websockets")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(from_openenv, "WAITS", (0.05, 0.05))
    monkeypatch.setattr(engine, "ROOM_SECONDS", 0.05)


@pytest.fixture(scope="module")
def guess():
    with Stub() as stub:
        yield stub


def turns_of(seen) -> list[tuple[str, str]]:
    return [(turn.speaker, turn.text) for turn in seen.observation.prompt.turns]


def count_up(environment, seen, rng) -> str:
    return str(sum(turn.speaker == "bot" for turn in seen.prompt.turns))


def played(named: NamedEnvironment, seeds: list[int], script=count_up) -> list:
    environments = [named.environment() for _ in seeds]
    tasks = [named.tasks[0] for _ in seeds]
    return play(environments, tasks, seeds, {POLICY: ScriptPlayer(script, lambda seed: [seed])})


def test_an_episode_is_a_conversation_with_the_servers_rewards_and_numbers(guess: Stub):
    named = load_environment(f"openenv:{guess.url}")
    assert (named.about, named.tasks, named.eval_tasks) == ("A game of tests", ({},), ())
    with Session(named) as session:
        seen = session.reset({}, 4)
        assert turns_of(seen) == [("user", "Guess the number of seed 4.")]
        seen = session.reply(" 7 ")
        assert (seen.reward, seen.ended) == (0.0, False)
        assert turns_of(seen)[1:] == [("bot", " 7 "), ("user", "Not 7.")]
        seen = session.reply("4")
        assert (seen.reward, seen.terminated, seen.observation) == (1.0, True, None)
        own = {"openenv/replies": 2, "openenv/illegal": 0, "openenv/resumed": 0}
        assert {name: seen.info[name] for name in own} == own
        assert (seen.info["guesses"], seen.info["illegal"]) == (2, 7)
    assert not guess.open


def test_arguments_of_the_address_and_the_seed_go_to_reset(guess: Stub):
    named = load_environment(f"openenv:{guess.url}?level=2&name=x y&illegal_reward=-0.5")
    guess.asked.clear()
    with Session(named) as session:
        session.reset({"index": 3}, 2**40 + 5)
    assert guess.asked == [("reset", {"seed": 5, "level": 2, "name": "x y", "index": 3})]


def test_a_reply_that_the_server_refuses_is_no_action(guess: Stub):
    named = load_environment(f"openenv:{guess.url}?illegal_reward=-0.5")
    with Session(named) as session:
        session.reset({}, 0)
        seen = session.reply("  ")
        assert (seen.reward, seen.info["openenv/illegal"]) == (-0.5, 1)
        assert turns_of(seen)[-1][1] == "That is no action (Invalid message; : message); needed: text"


def test_a_reply_that_is_no_action_is_not_sent():
    number = {"properties": {"message": {"type": "integer"}}, "required": ["message"]}

    class Numbers(Guess):
        def step(self, message: int) -> dict[str, Any]:
            assert type(message) is int
            return super().step(str(message))

    with Stub(Numbers, number) as stub:
        named = load_environment(f"openenv:{stub.url}?max_steps=2")
        stub.asked.clear()
        with Session(named) as session:
            seen = session.reset({}, 3)
            assert seen.observation.prompt.persona == "Answer with a whole number"
            seen = session.reply("three")
            assert seen.reward == -1.0
            assert turns_of(seen)[-1] == ("user", "That is no action; needed: a whole number")
            seen = session.reply("four")
            assert (seen.terminated, seen.truncated) == (False, True)
        assert stub.asked == [("reset", {"seed": 3})]
        with Session(named) as session:
            session.reset({}, 3)
            assert session.reply("It is 3!").reward == 1.0


def test_an_episode_goes_on_after_the_server_was_away():
    with Stub() as stub:
        named = load_environment(f"openenv:{stub.url}")
        with Session(named) as session:
            session.reset({}, 8)
            session.reply("1")
            stub.stop()
            stub.start()
            stub.asked.clear()
            seen = session.reply("8")
            assert (seen.reward, seen.terminated) == (1.0, True)
            assert (seen.info["openenv/resumed"], seen.info["guesses"]) == (1, 2)
        sent = [data for _, data in stub.asked]
        assert sent == [{"seed": 8}, {"message": "1"}, {"message": "8"}]


def test_an_episode_that_is_another_after_the_server_was_away_has_failed():
    class Random(Guess):
        made = 0

        def reset(self, seed: int = 0, **_: Any) -> dict[str, Any]:
            type(self).made += 1
            return super().reset(seed) | {"observation": {"question": f"Guess {self.made}."}}

    with Stub(Random) as stub:
        named = load_environment(f"openenv:{stub.url}")
        assert named.about.endswith("one seed begin differently, so that those of a group are of different tasks")
        with Session(named) as session:
            session.reset({}, 8)
            stub.stop()
            stub.start()
            with pytest.raises(EpisodeFailed, match="does not answer the same seed and actions as before"):
                session.reply("8")


def test_an_episode_of_a_server_that_stays_away_has_failed_and_no_reward():
    with Stub() as stub:
        named = load_environment(f"openenv:{stub.url}")
        stub.stop()
        [episode] = played(named, [0])
        assert "went away" in episode.error
        stub.start()


@pytest.mark.parametrize(("reply", "why"), [("crash", "refuses to step: the board is broken"), ("sleep", "0.5 s")])
def test_an_episode_that_the_server_breaks_or_leaves_hanging_has_failed(guess: Stub, reply: str, why: str):
    named = load_environment(f"openenv:{guess.url}?timeout=0.5")

    def say(environment, seen, rng) -> str:
        return reply if "seed 1" in seen.prompt.turns[0].text else "2"

    episodes = played(named, [1, 2], say)
    assert why in episodes[0].error
    assert (episodes[1].error, episodes[1].result.rewards) == ("", {POLICY: 1.0})


@pytest.mark.parametrize(("reward", "why"), [("good", "'good'"), (None, "without a reward"), (1e300, "1e"), ([1], "1")])
def test_what_is_no_reward_fails_the_episode(reward, why: str):
    class Odd(Guess):
        def step(self, message: str) -> dict[str, Any]:
            return answer({"question": "Well"}, reward, True)

    with Stub(Odd) as stub:
        named = load_environment(f"openenv:{stub.url}")
        with Session(named) as session:
            session.reset({}, 0)
            with pytest.raises(EpisodeFailed, match=why):
                session.reply("x")


@pytest.mark.parametrize("sessions", [1, 3])
def test_a_server_with_few_sessions_plays_so_many_episodes_at_once(sessions: int):
    with Stub(sessions=sessions) as stub:
        named = load_environment(f"openenv:{stub.url}")
        episodes = played(named, list(range(8)))
        assert [episode.error for episode in episodes] == [""] * 8
        assert [episode.step_number for episode in episodes] == list(range(1, 9))
        assert (stub.most, bool(stub.refused)) == (sessions, True)


def test_episodes_fail_where_others_keep_all_sessions(monkeypatch):
    monkeypatch.setattr(engine, "ROOM_TRIES", 3)
    with Stub(sessions=1) as stub:
        named = load_environment(f"openenv:{stub.url}?timeout=1")
        with Session(named) as session:
            session.reset({}, 0)
            assert ["no room" in episode.error for episode in played(named, [1, 2])] == [True, True]
            with pytest.raises(InputError, match="has no session left: Server at capacity"):
                load_environment(f"openenv:{stub.url}?timeout=1")


def test_tasks_are_those_of_the_servers_splits():
    with Stub(splits={"train": 3, "validation": 2, "test": 1}) as stub:
        named = load_environment(f"openenv:{stub.url}")
        assert named.tasks == [{"split": "train", "index": i} for i in range(3)]
        assert named.eval_tasks == [{"split": "validation", "index": i} for i in range(2)]
        named = load_environment(f"openenv:{stub.url}?split=test")
        assert (named.tasks, named.eval_tasks) == ([{"split": "test", "index": 0}], ())
        with pytest.raises(InputError, match="has no split dev; needed: train, validation, test"):
            load_environment(f"openenv:{stub.url}?split=dev")


def test_images_are_refused_before_a_run():
    class Screen(Guess):
        def reset(self, seed: int = 0, **_: Any) -> dict[str, Any]:
            return answer({"screen": {"type": "image", "data": "AAAA"}})

    with Stub(Screen) as stub, pytest.raises(InputError, match="'screen' of the observation is an image; needed: obs"):
        load_environment(f"openenv:{stub.url}")


class Adds:
    """A tool adds; a call with the right sum ends the episode."""

    def reset(self, seed: int = 0, **_: Any) -> dict[str, Any]:
        self.calls = 0
        return answer({}, 0.0, metadata={"message": "What is 2 + 3?"})

    def step(self, type: str, tool_name: str = "", arguments: Any = None) -> dict[str, Any]:
        if type == "list_tools":
            schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
            return answer({"tools": [{"name": "add", "description": "Adds.", "input_schema": schema}]})
        self.calls += 1
        total = arguments["a"] + arguments["b"]
        return answer({"tool_name": tool_name, "result": {"content": [], "data": total}}, float(total == 5), total == 5)


CALLS = {"properties": {"type": {"const": "call_tool"}, "tool_name": {"type": "string"}, "arguments": {}}}


class WithTools:
    """A tokenizer whose template writes tools."""

    chat_template = "{{ messages }} {{ tools }}"


def test_tools_of_a_server_are_offered_and_called(monkeypatch):
    monkeypatch.setattr(from_openenv, "parts_left_out", lambda tokenizer, parts: [])
    with Stub(Adds, CALLS) as stub:
        named = load_environment(f"openenv:{stub.url}", WithTools())
        with Session(named) as session:
            seen = session.reset({}, 0)
            [function] = json.loads(seen.observation.prompt.tools)
            assert function["function"]["name"] == "add"
            assert turns_of(seen) == [("user", "What is 2 + 3?")]
            seen = session.reply("I call subtract")
            assert turns_of(seen)[-1] == ("user", "That is no action; needed: a call of add")
            seen = session.reply('Well, {"name": "add", "arguments": {"a": 1, "b": 1}}')
            call, result = seen.observation.prompt.turns[-2:]
            assert '"arguments": {"a": 1, "b": 1}' in call.extra
            assert result == Turn("tool", "2", '{"name": "add", "tool_call_id": "call00002"}')
            assert session.reply('{"name": "add", "arguments": {"a": 2, "b": 3}}').reward == 1.0


def test_tools_are_refused_without_a_template_that_writes_them():
    with (
        Stub(Adds, CALLS) as stub,
        pytest.raises(InputError, match="calls of tools, and the policy's chat template"),
    ):
        load_environment(f"openenv:{stub.url}")


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("http://127.0.0.1:1", "does not answer .*needed: the address of an OpenEnv server that runs"),
        ("127.0.0.1:1", "openenv:http://127.0.0.1:1 does not answer"),
        ("http://user:secret@127.0.0.1:1", "is no plain one"),
        ("{url}?timeout=0", "timeout=0"),
        ("{url}?max_steps=0", "max_steps=0"),
    ],
)
def test_what_is_no_server_is_refused_with_what_is_needed(guess: Stub, address: str, message: str):
    with pytest.raises(InputError, match=message) as refused:
        load_environment(f"openenv:{address.format(url=guess.url)}")
    assert "secret" not in str(refused.value)


def test_another_server_is_refused():
    class Other(Stub):
        def app(self):
            from fastapi import FastAPI

            return FastAPI()

    with Other() as stub, pytest.raises(InputError, match="has no /schema"):
        load_environment(f"openenv:{stub.url}")


def test_a_token_goes_to_servers_over_encrypted_connections_alone(monkeypatch):
    monkeypatch.setenv("LMGYM_TOKEN", "abc")
    with pytest.raises(InputError, match="not encrypted and LMGYM_TOKEN holds a token"):
        load_environment("openenv:http://192.0.2.1:8000")
