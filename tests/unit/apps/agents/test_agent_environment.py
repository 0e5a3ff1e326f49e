"""`AgentEnvironment`: the same agent as an environment of the rollout engine; and environments by their ids."""

import sys
from typing import Any

import pytest
from walking import Walk, Walker

from lmgym.apps.agents.blackjack import BlackjackAgent
from lmgym.apps.agents.environment import AgentEnvironment
from lmgym.apps.agents.training import agent_episodes
from lmgym.apps.games.gym_text import make_gymnasium
from lmgym.environments.protocol import POLICY
from lmgym.errors import InputError
from lmgym.text import Turn
from ppo.config import PPOConfig, RolloutConfig


class Reader(Walker):
    """Reads 0 and 1."""

    def extract_action(self, response: str) -> Any:
        return int(response)


def of(rule: str, retries: int = 1) -> type[Reader]:
    return type("Reader", (Reader,), {"on_invalid": rule, "retries": retries})


def test_an_episode_is_a_dialogue_of_observations_and_replies() -> None:
    environment = AgentEnvironment(Reader, Walk)
    shown = environment.reset({}, seed=3)[POLICY].prompt
    assert shown.persona == "this is what they were"
    assert shown.turns == (Turn("user", "I am at 0"),)
    results = [environment.step({POLICY: reply}) for reply in ("1", " 0", "1", "1")]
    assert [turn.text for turn in results[1].observations[POLICY].prompt.turns] == [
        "I am at 0", "1", "I am at 1", "0", "I am at 2",
    ]  # fmt: skip
    walk = Walk()
    walk.reset(seed=3)
    assert [result.rewards[POLICY] for result in results] == [walk.step(action)[1] for action in (1, 0, 1, 1)]
    assert [result.terminated for result in results] == [False, False, False, True]
    assert not results[-1].observations
    assert environment.reset({}, seed=3)[POLICY].prompt == shown


@pytest.mark.parametrize("reply", ["right", "7"])
def test_an_invalid_reply_does_not_step_the_environment(reply: str) -> None:
    kind = type("Bounded", (Reader,), {"action_space": type("Space", (), {"contains": lambda self, a: a < 2})()})
    environment = AgentEnvironment(kind, Walk)
    environment.reset({}, 0)
    result = environment.step({POLICY: reply})
    assert result.rewards == {POLICY: -1.0}
    assert [turn.text for turn in result.observations[POLICY].prompt.turns] == ["I am at 0", reply, "I am at 0"]
    assert result.info == {"invalid": 1}
    assert not result.terminated
    assert not result.truncated
    assert environment.env.place == 0


def test_a_retry_shows_the_same_prompt_and_the_last_one_truncates() -> None:
    environment = AgentEnvironment(of("retry"), Walk)
    shown = environment.reset({}, 0)
    results = [environment.step({POLICY: "right"}) for _ in range(2)]
    assert [result.observations for result in results] == [shown, shown]
    assert [result.truncated for result in results] == [False, True]
    assert [result.rewards for result in results] == [{POLICY: 0.0}] * 2


def test_an_invalid_reply_may_truncate_at_its_cost() -> None:
    environment = AgentEnvironment(of("truncate"), Walk)
    environment.reset({}, 0)
    result = environment.step({POLICY: "right"})
    assert result.truncated
    assert result.rewards == {POLICY: -1.0}
    assert result.observations[POLICY].prompt.turns[-1] == Turn("user", "I am at 0")


def test_an_episode_is_truncated_by_its_environment_and_after_max_turns() -> None:
    for environment in (AgentEnvironment(Reader, lambda: Walk(limit=2)), AgentEnvironment(Reader, Walk, max_turns=2)):
        environment.reset({}, 0)
        assert not environment.step({POLICY: "1"}).truncated
        result = environment.step({POLICY: "1"})
        assert (result.terminated, result.truncated) == (False, True)
        assert result.observations[POLICY].prompt.turns[-1] == Turn("user", "I am at 2")


def test_a_template_without_a_system_role_gets_the_prompt_in_the_first_turn() -> None:
    shown = AgentEnvironment(Reader, Walk, has_system=False).reset({}, 0)[POLICY].prompt
    assert shown.persona == ""
    assert shown.turns == (Turn("user", "this is what they were\n\nI am at 0"),)


def test_what_cannot_be_played_at_once_is_refused() -> None:
    own = type("Own", (Reader,), {"act": lambda self, observation: 1})
    with pytest.raises(InputError, match="Own has an act or llm of its own"):
        AgentEnvironment(own, Walk)
    with pytest.raises(InputError, match="max_turns=0; needed: 1 to"):
        AgentEnvironment(Reader, Walk, max_turns=0)
    wordless = type("Wordless", (Reader,), {"format_observation": lambda self, observation: [observation]})
    with pytest.raises(InputError, match="format_observation of Wordless gave a list; needed: the observation as text"):
        AgentEnvironment(wordless, Walk).reset({}, 0)


def test_an_id_that_cannot_be_made_is_refused_before_anything_is_loaded(
    tokenizers, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gymnasium")
    config = PPOConfig("agents")
    with pytest.raises(InputError, match="has no 'BlackJack-v1'; did you mean Blackjack-v1"):
        agent_episodes(BlackjackAgent, "BlackJack-v1")(config, tokenizers["gpt2"])
    with pytest.raises(InputError, match="eval_size=0; needed: a number of episodes to evaluate on"):
        agent_episodes(BlackjackAgent, "Blackjack-v1")(PPOConfig("agents", rollout=RolloutConfig(eval_size=0)), None)
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(InputError, match=r"needs gymnasium .*; needed: pip install 'lmgym\[gym\]'"):
        agent_episodes(BlackjackAgent, "Blackjack-v1")(config, tokenizers["gpt2"])


def test_the_blackjack_agent_plays_a_hand_by_words() -> None:
    pytest.importorskip("gymnasium")
    environment = AgentEnvironment(BlackjackAgent, lambda: make_gymnasium("Blackjack-v1", {"sab": False}))
    shown = environment.reset({}, 0)[POLICY].prompt
    assert shown.turns[-1].text.endswith("Hit or stick?")
    total = environment.observation[0]
    assert not environment.step({POLICY: "hit or stick"}).terminated
    assert environment.observation[0] == total
    assert environment.step({POLICY: "I stick."}).terminated
