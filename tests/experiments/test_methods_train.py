"""Methods without a critic from a config to folders, in this process: groups, refills, games, and other references."""

from functools import partial
from pathlib import Path
from typing import get_args

import pytest
from launching import read_lines, read_metrics, words
from ppo_in_process import Go, shortness
from transformers import AutoModelForCausalLM

from lmgym.apps.games.prisoners import PrisonersDilemma
from lmgym.errors import InputError
from ppo.algorithms.methods import MethodName
from ppo.task_setups import TaskSetup, text_with_function


@pytest.fixture
def go(go: Go) -> Go:
    """Of four replies to a prompt."""
    return partial(go, num_generations=4)


@pytest.mark.parametrize("method", [name for name in get_args(MethodName) if name != "ppo"])
def test_a_method_without_a_critic_makes_none_and_logs_its_groups(method: str, go: Go, capsys) -> None:
    folder = go(method=method, max_updates=4)
    metrics = read_metrics(folder)
    assert not (folder / "critic").exists()
    assert not [name for name in metrics if name.startswith(("values/", "returns/", "loss/value"))]
    assert metrics["groups/reward_std"][4] > 0
    assert metrics["sampler/kl"][4] == pytest.approx(0, abs=1e-5)
    assert metrics["policy/ratio"][4] == pytest.approx(1, abs=0.2)
    said = words(capsys.readouterr().out)
    assert f"method {method}: 4 replies to a prompt" in said
    assert "rewards of 4 replies to a prompt: standard deviation 0." in said
    tasks = [row["prompt"] for row in read_lines(folder / "samples/rollouts-000004.jsonl")]
    assert len(set(tasks)) == 4, "16 replies are to four prompts, and come one of each"
    assert AutoModelForCausalLM.from_pretrained(folder / "model").config.vocab_size


def test_rewards_that_are_all_equal_are_warned_of_before_step_1(go: Go, capsys) -> None:
    def one(samples, prompts, outputs, tokenizer):
        return [1.0] * len(outputs)

    go(text_with_function(one, as_text=False), method="grpo", max_updates=4)
    said = words(capsys.readouterr().out)
    assert "warning: rewards of 4 replies to a prompt: standard deviation 0, all equal in every group" in said
    assert "needed: rewards that differ" in said


def test_groups_with_equal_rewards_are_replaced_by_others_a_few_times(go: Go) -> None:
    asked: list[list[str]] = []

    def some(samples, prompts, outputs, tokenizer):
        """Of the first call one prompt in two has replies that differ; later all have."""
        asked.append(list(prompts))
        known = list(dict.fromkeys(prompts))
        dull = set(known[::2]) if len(asked) == 2 else set()
        return [1.0 if prompt in dull else 1 / (1 + len(text)) for prompt, text in zip(prompts, outputs, strict=True)]

    folder = go(text_with_function(some, as_text=False), method="grpo", max_refills=3, max_updates=4)
    # an evaluation, an iteration of four groups, and one or two of its groups again; an evaluation
    assert [len(call) for call in asked][1] == 16
    assert len(asked[2]) in (4, 8)
    assert not set(asked[2]) & set(list(dict.fromkeys(asked[1]))[::2]) or len(set(asked[2])) == len(asked[2]) / 4
    metrics = read_metrics(folder)
    assert metrics["groups/refilled"][4] >= len(asked[2]) / 16
    assert metrics["groups/equal_rewards"][4] == 0


def test_a_failed_reward_leaves_its_group_and_has_no_loss(go: Go) -> None:
    def most(samples, prompts, outputs, tokenizer):
        return [None if i == 0 else x for i, x in enumerate(shortness(samples, prompts, outputs, tokenizer))]

    folder = go(
        text_with_function(most, as_text=False), method="rloo", max_updates=4, max_failed_rewards=0.5,
        eval_updates=0,
    )  # fmt: skip
    metrics = read_metrics(folder)
    assert metrics["rollout/failed_rewards"][4] == 1 / 16
    assert metrics["groups/reward_std"][4] > 0


def test_another_reference_is_where_the_kl_is_measured_from(go: Go, talkative_models, tmp_path: Path) -> None:
    moved = go(method="grpo", name="moved", learning_rate=1e-2, max_updates=4) / "model"
    folder = go(method="grpo", reference=moved, max_updates=4)
    assert read_metrics(folder)["kl/reference"][4] > 0.01, "the policy begins elsewhere than its reference"
    again = go(method="grpo", reference=talkative_models["gpt2"], max_updates=4, name="same", lora_rank=2)
    assert read_metrics(again)["kl/reference"][4] == pytest.approx(0, abs=1e-4)
    with pytest.raises(InputError, match=r"the reference .* is id .* needed: a reference with the policy's vocabulary"):
        go(method="grpo", reference=shifted_vocabulary(talkative_models["gpt2"], tmp_path / "shifted"), name="other")
    assert not (tmp_path / "other").exists()


def shifted_vocabulary(model: Path, folder: Path) -> Path:
    """The model, with two tokens' ids exchanged."""
    import json
    import shutil

    shutil.copytree(model, folder)
    file = folder / "tokenizer.json"
    kept = json.loads(file.read_text())
    vocabulary = kept["model"]["vocab"]
    first, second = list(vocabulary)[20:22]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    file.write_text(json.dumps(kept))
    return folder


@pytest.mark.parametrize("credit", ["episode", "turn"])
def test_two_agents_of_a_game_of_several_turns_are_each_compared_with_themselves(credit: str, go: Go) -> None:
    def game(config, tokenizer):
        return TaskSetup([{}] * 8, [{}] * 2, lambda: PrisonersDilemma(2), None, "a game", trained_agents=2)

    # two agents of each game: 32 episodes, of which a update has 8
    folder = go(game, method="rloo", credit=credit, max_updates=8)
    metrics = read_metrics(folder)
    assert metrics["rollout/turns"][8] == 2
    assert "groups/reward_std" in metrics


def test_a_dry_run_says_which_method_with_what_and_what_it_does_not_read(go: Go, capsys) -> None:
    go(method="gspo", init_kl_coef=0.02, lam=0.5, dry_run=True)
    said = words(capsys.readouterr().out)
    assert (
        "method gspo: 4 replies to a prompt, rewards scaled by group, ratio per sequence within 0.9997 and 1.0004"
        in said
    )
    assert "KL 0.02 in the loss (k3), 2 epochs" in said
    assert "gspo does not read lam=0.5 of the experiment" in said
