"""`Agent`: LlamaGym's loop, with exact ids and rules for replies that are no action."""

import itertools
from typing import Any

import pytest
import torch
from gymnasium.spaces import Discrete
from transformers import AutoModelForCausalLM, AutoTokenizer
from walking import Walk, Walker, play

from lmgym.agents import Agent, AutoModelForCausalLMWithValueHead
from lmgym.errors import InputError

SHORT = {"max_new_tokens": 5, "temperature": 1.0}
BATCH = {"batch_size": 2, "mini_batch_size": 1, "learning_rate": 1e-3, "init_kl_coef": 0.0}


@pytest.fixture
def made(small_models):
    """A function that makes an agent of a class around a new copy of a small model."""

    def make(kind=Walker, ppo=BATCH, family="llama", **settings) -> Any:
        model = AutoModelForCausalLMWithValueHead.from_pretrained(small_models[family])
        tokenizer = AutoTokenizer.from_pretrained(small_models[family])
        return kind(model, tokenizer, "cpu", SHORT, ppo, **settings)

    return make


def reads(*actions: Any) -> type[Agent]:
    """An agent that reads these actions, and again from the first one; an exception is raised."""

    class Scripted(Walker):
        left = itertools.cycle(actions)

        def extract_action(self, response: str) -> Any:
            action = next(self.left)
            if isinstance(action, Exception):
                raise action
            return action

    return Scripted


def roles(agent: Agent) -> list[str]:
    return [message["role"] for message in agent.current_episode_messages]


def test_a_loop_learns_at_every_batch_of_episodes(made) -> None:
    agent = made()
    before = {name: p.clone() for name, p in agent.model.named_parameters()}
    stats = [play(agent, Walk()) for _ in range(4)]
    assert [bool(one) for one in stats] == [False, True, False, True]
    assert stats[1].keys() >= {"reward/mean", "kl/reference", "loss/policy", "loss/value", "policy/learning_rate"}
    assert stats[1]["rollout/logprob_mismatch_max"] < 1e-4, "ids are those that were sampled"
    assert stats[1]["kl/reference"] == pytest.approx(0, abs=1e-4)
    assert abs(stats[3]["kl/reference"]) > 1e-4, "the policy has moved"
    changed = [name for name, p in agent.model.named_parameters() if not torch.equal(p, before.get(name, p * 0))]
    assert any("value_head" in name for name in changed)
    assert any("embed_tokens" in name for name in changed)


def test_messages_and_rewards_are_readable_before_the_end_and_new_after_it(made) -> None:
    agent = made(reads(1))
    assert agent.act(0) == 1
    agent.assign_reward(0.5)
    assert agent.act(1) == 1
    agent.assign_reward(torch.tensor(2.0))
    assert roles(agent) == ["system", "user", "assistant", "user", "assistant"]
    assert agent.current_episode_messages[1]["content"] == "I am at 0"
    assert agent.current_episode_rewards == [0.5, 2.0]
    assert agent.terminate_episode() == {}
    assert roles(agent) == ["system"]
    assert agent.current_episode_rewards == []
    [episode] = agent._learner.waiting
    assert [step.reward for step in episode.steps] == [0.5, 2.0]
    assert episode.terminated


def test_an_episode_without_training_leaves_nothing(made) -> None:
    agent = made(reads(1))
    seeds = {agent.current_episode_seed}
    for _ in range(3):
        agent.act(0)
        assert agent.terminate_episode(train=False) == {}
        seeds.add(agent.current_episode_seed)
    assert len(seeds) == 4
    assert agent.train_batch() == {}


def test_fewer_episodes_than_a_batch_are_learned_on_request(made) -> None:
    agent = made(reads(1), BATCH | {"batch_size": 4, "mini_batch_size": 2})
    for _ in range(3):
        agent.act(0)
        agent.assign_reward(1.0)
        assert agent.terminate_episode() == {}
    assert agent.train_batch()["reward/mean"] == 1.0
    assert agent.train_batch() == {}


def test_a_batch_of_turns_is_counted_as_llamagym_counts_it(made) -> None:
    """Walks of 4 turns and batches of 6: the turns beyond a batch count for the next one."""
    agent = made(reads(1), BATCH | {"batch_size": 6, "mini_batch_size": 3, "batch_unit": "turns"})
    stats = [play(agent, Walk()) for _ in range(6)]
    assert [bool(one) for one in stats] == [False, True, True, False, True, True]
    assert [one["rollout/trained_tokens"] > 0 for one in stats if one] == [True] * 4
    assert agent._learner.waiting == [], "an update has whole episodes, and all of them"
    parts = agent._learner._split(5, 3, 0, 1, (0, 0, 0))
    assert sorted(map(len, parts)) == [2, 3], "as many minibatches as a batch of turns has"
    with pytest.raises(InputError, match="batch_unit='tokens'; needed: episodes or turns, which batch_size counts"):
        made(reads(1), BATCH | {"batch_unit": "tokens"})


@pytest.mark.parametrize("invalid", [ValueError("no"), None, 2])
def test_a_reply_that_is_no_action_costs_a_penalty_and_stays_in_the_dialogue(made, invalid) -> None:
    agent = made(reads(invalid, 1), action_space=Discrete(2))
    assert agent.act(0) is None
    assert agent.act(0) == 1
    agent.assign_reward(3.0)
    assert roles(agent) == ["system", "user", "assistant", "user", "assistant"]
    agent.terminate_episode()
    assert [step.reward for step in agent._learner.waiting[0].steps] == [-1.0, 3.0]


def test_a_reply_that_is_no_action_is_asked_for_again_with_the_same_prompt(made) -> None:
    agent = made(reads(None, ValueError("no"), 1), on_invalid="retry")
    assert agent.act(0) == 1
    agent.assign_reward(3.0)
    assert roles(agent) == ["system", "user", "assistant"]
    agent.terminate_episode()
    steps = agent._learner.waiting[0].steps
    assert [step.reward for step in steps] == [0, 0, 3.0]
    assert steps[0].prompt == steps[1].prompt == steps[2].prompt
    assert len({step.completion.ids for step in steps}) > 1, "another seed each time"


@pytest.mark.parametrize("rule", ["retry", "truncate"])
def test_an_episode_that_invalid_replies_stop_is_truncated(made, rule: str) -> None:
    agent = made(reads(1, None, None, None), on_invalid=rule)
    agent.retries = 2
    assert agent.act(0) == 1
    agent.assign_reward(0.5)
    assert agent.act(1) is None
    turns = len(agent.current_episode_messages)
    assert agent.act(2) is None, "it is over"
    agent.assign_reward(9.0)
    assert len(agent.current_episode_messages) == turns
    agent.terminate_episode()
    [episode] = agent._learner.waiting
    assert [step.reward for step in episode.steps] == ([0.5, 0, 0, 0] if rule == "retry" else [0.5, -1.0])
    assert episode.truncated
    assert episode.final_prompt


def test_there_are_never_two_user_turns_in_a_row(made) -> None:
    for rule in ("penalty", "retry", "truncate"):
        agent = made(reads(None, 1, ValueError("no"), None), on_invalid=rule)
        agent.retries = 0
        for place in range(8):
            agent.act(place)
            agent.observe(place)
            found = roles(agent)
            assert all(one != other for one, other in itertools.pairwise(found)), (rule, found)


def test_an_act_of_ones_own_learns_and_other_calls_of_the_model_do_not(made) -> None:
    class Own(Walker):
        def act(self, observation: Any) -> str:
            self.current_episode_messages += [{"role": "user", "content": self.format_observation(observation)}]
            reply = self.llm(self.current_episode_messages)
            self.current_episode_messages += [{"role": "assistant", "content": reply}]
            self.judged = self.llm([{"role": "user", "content": f"is {reply} what they were"}])
            return reply

    agent = made(Own)
    reply = agent.act(0)
    agent.assign_reward(1.0)
    agent.act(1)
    assert isinstance(agent.judged, str)
    agent.terminate_episode()
    [episode] = agent._learner.waiting
    assert [step.reward for step in episode.steps] == [1.0, 0.0]
    assert episode.steps[0].completion.text.strip() == reply.strip()


def test_the_prompt_is_the_tokenizers_own_template_and_the_ids_are_those_sampled(made) -> None:
    agent = made(reads(1))
    agent.act(0)
    expected = agent.tokenizer.apply_chat_template(
        agent.current_episode_messages[:2], tokenize=False, add_generation_prompt=True
    )
    agent.terminate_episode()
    [step] = agent._learner.waiting[0].steps
    assert step.prompt_text == expected
    assert len(step.completion.ids) == len(step.completion.logprobs)


def test_a_program_repeats_itself(made) -> None:
    def replies() -> list[str]:
        agent = made()
        for _ in range(3):
            play(agent, Walk())
        agent.act(0)
        return [message["content"] for message in agent.current_episode_messages]

    assert replies() == replies()


@pytest.mark.parametrize("kind", ["model", "lora", "peft"])
def test_a_plain_model_and_adapters_learn(small_models, kind: str) -> None:
    folder, lora = small_models["llama"], {"r": 2, "lora_alpha": 4, "peft_type": "LORA", "target_modules": ["q_proj"]}
    given = folder if kind == "lora" else AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    if kind == "peft":
        from peft import LoraConfig, get_peft_model

        given = get_peft_model(given, LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    if kind == "lora":
        given = AutoModelForCausalLMWithValueHead.from_pretrained(folder, peft_config=lora)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    agent = reads(1, 0)(given, tokenizer, "cpu", SHORT, BATCH)
    trained = [name for name, p in agent.model.pretrained_model.named_parameters() if p.requires_grad]
    assert all("lora_" in name for name in trained) == (kind != "model")
    assert {p.dtype for p in agent.model.parameters()} == {torch.float32}
    for reward in (1.0, -1.0, 1.0, -1.0):
        agent.act(0)
        agent.assign_reward(reward)
        stats = agent.terminate_episode()
    assert stats["loss/value"] > 0
    assert stats["rollout/logprob_mismatch_max"] < 1e-4


def test_a_pad_token_that_is_the_eos_token_does_not_matter(small_models) -> None:
    model = AutoModelForCausalLM.from_pretrained(small_models["gpt2"])
    tokenizer = AutoTokenizer.from_pretrained(small_models["gpt2"])
    tokenizer.pad_token = tokenizer.eos_token
    agent = Walker(model, tokenizer, "cpu", SHORT, BATCH)
    assert play(agent, Walk()) == {}
    assert play(agent, Walk())


def test_tokens_may_be_added_between_loading_and_the_agent(small_models) -> None:
    model = AutoModelForCausalLMWithValueHead.from_pretrained(small_models["llama"]).to("cpu")
    tokenizer = AutoTokenizer.from_pretrained(small_models["llama"])
    tokenizer.add_special_tokens({"pad_token": "<pad>"})
    model.pretrained_model.resize_token_embeddings(len(tokenizer))
    agent = Walker(model, tokenizer, "cpu", SHORT, BATCH)
    play(agent, Walk())
    assert play(agent, Walk())


def test_a_saved_model_is_loaded_with_its_value_head(made, tmp_path) -> None:
    agent = made()
    for _ in range(2):
        play(agent, Walk())
    agent.model.save_pretrained(tmp_path)
    agent.tokenizer.save_pretrained(tmp_path)
    again = Walker(
        AutoModelForCausalLMWithValueHead.from_pretrained(tmp_path), agent.tokenizer, "cpu", SHORT, BATCH
    ).model.actor.state_dict()
    for name, value in agent.model.actor.state_dict().items():
        assert torch.equal(value, again[name]), name


def test_what_does_not_work_is_refused(made, small_models) -> None:
    agent = made(reads(1))
    with pytest.raises(InputError, match=r"a reward of 1.0 before an action; needed: act\(observation\) first"):
        agent.assign_reward(1.0)
    agent.act(0)
    with pytest.raises(InputError, match=r"of Scripted, step 1: .*nan is no reward; needed: a finite"):
        agent.assign_reward(float("nan"))
    agent.terminate_episode()
    agent.act(0)
    with pytest.raises(InputError, match="in the middle of an episode; needed: terminate_episode"):
        agent.train_batch()
    agent.format_observation = lambda observation: {"place": observation}
    with pytest.raises(InputError, match="format_observation of Scripted gave a dict; needed: the observation as text"):
        agent.act(1)
    with pytest.raises(InputError, match="on_invalid='ignore'; needed: penalty, retry, truncate"):
        made(on_invalid="ignore")
    with pytest.raises(InputError, match="action_space=a list of 2 items; needed: a space of Gymnasium"):
        made(action_space=[0, 1])
    with pytest.raises(InputError, match=r"Walker has no model here; needed: Walker\(model"):
        Walker(None, None, "cpu").act(0)
    with pytest.raises(InputError, match="load_in_8bit=True: quantised weights cannot be trained"):
        AutoModelForCausalLMWithValueHead.from_pretrained(small_models["llama"], load_in_8bit=True)
    tokenizer = AutoTokenizer.from_pretrained(small_models["gpt2"])
    tokenizer.eos_token = None
    with pytest.raises(InputError, match="the tokenizer has no eos token"):
        Walker(AutoModelForCausalLM.from_pretrained(small_models["gpt2"]), tokenizer, "cpu", SHORT, BATCH)
