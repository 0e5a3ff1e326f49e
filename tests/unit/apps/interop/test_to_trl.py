"""Our environments as TRL's: the same observations and rewards, turn by turn."""

import inspect
from typing import Any

import pytest
from interop import EXPORTED, SAYINGS, Recorded, record
from transformers.utils import get_json_schema

from lmgym.apps.interop.to_trl import ENDED, TRLEnvironment, reward, rows
from lmgym.environments.named import TRAIN, VALIDATION, NamedEnvironment, load_environment, schemes
from lmgym.environments.protocol import POLICY, Observation, StepResult
from lmgym.environments.session import Session
from lmgym.errors import InputError
from lmgym.text import Conversation, Turn

EPISODES = 100


def of(words: str) -> type[TRLEnvironment]:
    return type("Named", (TRLEnvironment,), {"ENVIRONMENT": words})


def as_trl_plays(
    environment: TRLEnvironment, row: dict[str, Any], episode: Recorded, last_is_text: bool
) -> float | None:
    """The reward of a rollout of TRL's loop: a call of the tool for each reply, or text for the last one."""
    environment.reset(**row)
    assert "\n\n".join(m["content"] for m in row["prompt"] if m["role"] != "system") == episode.texts[0]
    said: list[dict[str, Any]] = []
    calls = episode.replies[:-1] if last_is_text else episode.replies
    for reply, shown in zip(calls, episode.texts[1:], strict=False):
        assert environment.reply(text=reply) == (shown or ENDED)
        said += [{"role": "assistant", "tool_calls": [reply]}, {"role": "tool", "content": shown}]
    said.append({"role": "assistant", "content": episode.replies[-1] if last_is_text else "Done."})
    [total] = reward(completions=[said], environments=[environment], prompts=[row["prompt"]])
    return total


@pytest.mark.parametrize("words", EXPORTED)
@pytest.mark.parametrize("last_is_text", [False, True])
def test_a_hundred_episodes_are_equal_turn_by_turn(words: str, last_is_text: bool) -> None:
    recorded, environment = record(words, EPISODES), of(words)
    made = rows(environment, EPISODES)
    one = environment()
    for row, episode in zip(made, recorded, strict=True):
        assert as_trl_plays(one, row, episode, last_is_text) == pytest.approx(sum(episode.rewards))
    assert len({sum(episode.rewards) for episode in recorded}) > 1


def begins_alike(words: str, turns: int = 4) -> bool:
    """True if the first turns are the same there as here; False for what is not installed or has several agents."""
    try:
        named = load_environment(words)
        session = Session(named)
    except InputError:
        return False
    [row] = rows(of(words), 1)
    environment = of(words)()
    environment.reset(**row)
    with session:
        seen = session.reset(*named.episode(TRAIN, 0))
        assert "\n\n".join(m["content"] for m in row["prompt"] if m["role"] != "system") == seen.text, words
        for saying in SAYINGS[:turns]:
            if seen.ended or seen.observation is None:
                break
            reply = seen.observation.actions[0] if seen.observation.actions else saying
            seen = session.reply(reply)
            assert environment.reply(text=reply) == (seen.text or ENDED), words
    return True


def test_every_listed_environment_that_is_installed_begins_there_as_here() -> None:
    listed = [f"{name}:{one}" for name, scheme in schemes().items() for one in scheme.names()]
    assert sum(begins_alike(words) for words in listed) > 20


def test_rows_of_the_other_split_are_other_episodes() -> None:
    train, held_out = rows(of("arithmetic:+"), 90), rows(of("arithmetic:+"), 10, VALIDATION)
    asked = {row["prompt"][-1]["content"] for row in train}
    assert len(asked) == 90
    assert asked.isdisjoint(row["prompt"][-1]["content"] for row in held_out)
    with pytest.raises(InputError, match="split='test'; needed: train or validation"):
        rows(of("arithmetic:+"), 1, "test")


def test_the_one_tool_is_described_as_transformers_wants_it() -> None:
    public = [name for name, _ in inspect.getmembers(TRLEnvironment, inspect.isfunction) if not name.startswith("_")]
    assert public == ["reply", "reset"]
    function = get_json_schema(of("games:shop")().reply)["function"]
    assert function["name"] == "reply"
    assert function["parameters"]["required"] == ["text"]


def test_a_reply_after_the_end_changes_nothing() -> None:
    environment = of("arithmetic:+")()
    [row] = rows(type(environment), 1)
    environment.reset(**row)
    assert environment.reply("no number") == ENDED
    numbers = row["prompt"][-1]["content"].removeprefix("What is ").removesuffix("?").split(" + ")
    assert environment.reply(str(sum(map(int, numbers)))) == ENDED
    assert reward([[{"role": "assistant", "content": "x"}]], [environment]) == [0.0]


def test_an_environment_that_fails_gives_no_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fails:
        def reset(self, task, seed):
            return {POLICY: Observation(Conversation((Turn("user", "Well?"),)))}

        def step(self, actions):
            return StepResult(rewards={POLICY: float("nan")}, terminated=True)

    monkeypatch.setattr("lmgym.apps.interop.to_trl.named", lambda words: NamedEnvironment(words, Fails))
    environment = of("x")()
    [row] = rows(type(environment), 1)
    environment.reset(**row)
    assert reward(["text"], [environment]) == [None]
    environment.reset(**row)
    assert environment.reply("text") == ENDED
    assert reward(["text"], [environment]) == [None]
