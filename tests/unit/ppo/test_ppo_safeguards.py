"""Bounds that end a run, the alarm for hacked rewards, and what must hold before the first update."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

from lmgym.config import ModelConfig, OptimizerConfig, RunConfig
from lmgym.environments.episodes import Episode, Step
from lmgym.environments.scored_chat import ScoredChat
from lmgym.errors import InputError
from lmgym.generation.protocol import Completion
from lmgym.models.forward.freezing import frozen_modules
from lmgym.models.loading import load_tokenizer
from lmgym.runs.flags import override
from lmgym.scoring.alarm import Reading
from lmgym.scoring.retries import WHOLE_STALLS
from lmgym.text import Conversation, Turn
from ppo.actor_critic import Reference
from ppo.best import best_key, check_best_metric
from ppo.check import bias_notes, check_prompts, check_settings, count_iterations
from ppo.config import CriticConfig, LimitConfig, MethodConfig, PPOConfig, RewardConfig, RolloutConfig
from ppo.experience import LogprobMismatch
from ppo.monitoring.metrics import rollout_sums
from ppo.monitoring.safeguards import (
    check_finite,
    check_first_rollouts,
    check_ratio,
    check_sampler,
    collapse,
    critic_notes,
    reward_notes,
    rounding_notes,
    server_notes,
)
from ppo.rollouts import Rollouts, gather
from ppo.setup import build, make_engine, make_estimator, make_experience
from ppo.state import BestPolicy, LoopState
from ppo.task_setups import TaskSetup
from ppo.train import train
from ppo.weight_sync import Rounding, SamplingPolicy

EOS = 1
HEALTHY = {"kl/reference": 5.0, "rollout/reply_tokens": 20.0, "reward/mean": 0.3}


@pytest.mark.parametrize(
    ("found", "method", "why"),
    [
        ({}, {}, ""),
        ({"kl/reference": 101.0}, {}, "101.0 nats per reply from its reference, more than max_kl=100"),
        ({"kl/reference": 101.0}, {"max_kl": 0.0}, ""),
        ({"kl/reference": math.nan}, {"max_kl": 0.0}, "nan nats"),
        ({"rollout/reply_tokens": 1.9}, {}, "1.9 tokens on average, 20.0 at first"),
        ({"rollout/reply_tokens": 1.9}, {"min_length": 0.0}, ""),
        ({"reward/mean": -2.0}, {}, ""),
    ],
)
def test_a_run_ends_beyond_its_bounds_and_says_which(found: dict, method: dict, why: str) -> None:
    said = collapse(HEALTHY | found, LimitConfig(**method), first_length=20.0)
    assert (why in said) if why else said == ""


@pytest.mark.parametrize(
    ("explained", "iterations", "percent"),
    [
        ([0.5] * 6 + [0.02, 0.04, 0.06], 12, "4%"),
        ([0.0] * 6 + [0.02, 0.04, 0.3], 12, ""),  # its mean is 12%
        ([0.5] * 6 + [-0.5, -0.5, None], 12, "0%"),  # null in metrics.jsonl: the returns had no variance
        ([None] * 9, 12, ""),
        ([0.0] * 6, 7, ""),  # too few iterations to tell
    ],
)
def test_three_quarters_through_a_run_a_critic_that_explains_little_is_warned_of_once(
    explained: list[float | None], iterations: int, percent: str, tmp_path: Path
) -> None:
    lines = [{"step": 0, "eval/reward/mean": 0.1}]
    lines += [{"step": step, "values/explained_variance": share} for step, share in enumerate(explained, 1)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    said = [note for i in range(1, iterations + 1) for note in critic_notes(tmp_path, i, iterations)]
    assert len(said) == (percent != "")
    if said:
        assert f"the critic explains {percent} of the variance of the returns (iterations 7 to 9 of 12)" in said[0]
        for flag in ("--num_rollouts", "--max_updates"):
            assert flag in said[0]
        assert critic_notes(tmp_path, 9, iterations) == said
        assert critic_notes(tmp_path, 8, iterations) == critic_notes(tmp_path, 10, iterations) == []


def test_the_loops_state_comes_back_from_json_as_it_was() -> None:
    config = PPOConfig("x", method=MethodConfig(init_kl_coef=0.1, target=1.0))
    state = LoopState.fresh(config.algorithm.init_kl_coef, config.method)
    state.kl.update(5.0, 128)
    state.moments.update(torch.tensor([0.1, 0.7, 1 / 3]))
    state.scorer_moments, state.iteration, state.first_length = {"a": (0.1, 1 / 3)}, 3, 17.3
    for update in range(2):
        state.alarm.update(update, Reading.of([0.1, update], ["a", "b"]), Reading(0.5, 0.1, 9), 0.3)
    state.before, state.rounding = {"eval/eval_scorer": 0.2}, 1 / 30
    state.watch.breaches(0.02, 0.001, 1.0, 0.001)
    for update in (0, 8):
        state.best.add(update, Reading.of([0.25, update], ["a", "b"]))
    state.reward_is_flat, state.equal_iterations = True, -1
    state.begins_at_reference, state.starting_replies = False, {"a prompt": "hello"}
    found, fresh = (
        LoopState.fresh(config.algorithm.init_kl_coef, config.method),
        LoopState.fresh(config.algorithm.init_kl_coef, config.method),
    )
    found.restore(json.loads(json.dumps(state.as_json())))
    for part in fields(LoopState):
        was, now, new = (getattr(one, part.name) for one in (state, found, fresh))
        was, now, new = (one.state_dict() if hasattr(one, "state_dict") else one for one in (was, now, new))
        assert now == was, part.name
        assert now != new, f"{part.name} is not what a new run begins with"


def test_rewards_without_variance_are_told_once_and_again_after_others() -> None:
    def played(*rewards: float | None) -> list[Episode]:
        steps = [Step([5], "", Completion("", "eos", (1,), (0.0,), 1), reward) for reward in rewards]
        return [Episode(i, "policy", [step], True, False, None, {}) for i, step in enumerate(steps)]

    config = PPOConfig("x")
    state = LoopState.fresh(config.algorithm.init_kl_coef, config.method)
    heard = [played(0.1, 0.1, None), played(0.1, 0.1), played(0.1, 0.1000001), played(None, None), played(-2.0)]
    said = []
    for state.iteration, episodes in enumerate(heard):
        said.append(reward_notes(config.algorithm, state, episodes, {}))
    assert [len(notes) for notes in said] == [1, 0, 0, 0, 1]
    assert said[0][0].startswith("warning: every reward of iteration 1 is 0.1: the reward has no variance")
    assert "a higher --temperature" in said[0][0]
    grouped, spread = (
        PPOConfig("x", method=MethodConfig("grpo")),
        {"groups/reward_std": 0.0, "groups/equal_rewards": 1.0},
    )
    [told] = reward_notes(
        grouped.algorithm, LoopState.fresh(grouped.algorithm.init_kl_coef, grouped.method), heard[0], spread
    )
    assert "all equal in every group" in told


def spreads_told(config: PPOConfig, shares: Sequence[float], state: LoopState | None = None) -> list[list[str]]:
    """The lines of iterations in which these shares of the groups have equal rewards."""
    state = state or LoopState.fresh(config.algorithm.init_kl_coef, config.method)
    said = []
    for share in shares:
        metrics = {"groups/reward_std": 0.1, "groups/equal_rewards": share}
        said.append(reward_notes(config.algorithm, state, [episode((EOS,), 0.1), episode((EOS,), 0.2)], metrics))
        state.iteration += 1
    return said


def test_most_groups_of_equal_rewards_are_warned_of_once_in_a_run() -> None:
    config = PPOConfig("x", rollout=RolloutConfig(num_generations=4), method=MethodConfig("grpo"))
    first, *others = spreads_told(config, [0.75, 0.75, 0.0, 0.75, 0.75])
    assert len(first) == 1
    assert first[0].startswith("warning: rewards of 4 replies to a prompt: standard deviation 0.1, all equal in 75%")
    assert "of the groups, which teach nothing" in first[0]
    assert "--max_refills 10 (dynamic sampling), more --num_generations" in first[0]
    assert others == [[], [], [], []]
    assert spreads_told(config, [0.5]) == [
        ["rewards of 4 replies to a prompt: standard deviation 0.1; all equal in 50% of the groups"]
    ]


def test_later_in_a_run_two_iterations_in_a_row_are_needed_for_that_warning() -> None:
    config = PPOConfig("x", rollout=RolloutConfig(num_generations=4), method=MethodConfig("grpo"))
    said = spreads_told(config, [0.1, 0.9, 0.2, 0.9, 0.6, 0.9])
    assert [len(lines) for lines in said] == [1, 0, 0, 0, 1, 0]
    assert "warning: iteration 5: " in said[4][0]
    assert "60% of the groups" in said[4][0]
    assert len(said[4][0]) < 300
    resumed = LoopState.fresh(config.algorithm.init_kl_coef, config.method)
    resumed.iteration, resumed.equal_iterations = 5, -1
    assert spreads_told(config, [0.9, 0.9], resumed) == [[], []]


def test_the_warning_suggests_what_is_not_set_yet_and_is_for_methods_that_compare_replies() -> None:
    dapo = PPOConfig("x", rollout=RolloutConfig(num_generations=4), method=MethodConfig("dapo"))
    assert "by a larger --max_refills, more" in spreads_told(dapo, [0.75])[0][0]
    alone = PPOConfig("x", rollout=RolloutConfig(num_generations=4), method=MethodConfig("reinforce_pp"))
    assert [len(lines) for lines in spreads_told(alone, [0.75, 0.75])] == [1, 0]
    assert "warning" not in spreads_told(alone, [0.75])[0][0]


@pytest.mark.parametrize(
    ("given", "key"),
    [(None, ""), ("eval_scorer", "eval/eval_scorer"), ("eval/monitor/polite", "eval/monitor/polite"),
     ("polite", "eval/monitor/polite")],
)  # fmt: skip
def test_a_monitor_is_named_by_itself_or_by_its_metric(given: str | None, key: str) -> None:
    settings = RewardConfig(scorers="a=x", best_metric=given)
    check_best_metric(settings, ["eval_scorer", "polite"])
    assert best_key(settings, ["eval_scorer", "polite"]) == key


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("reward", "the policy is optimised for it, and the one with most of it is the one that exploits it most"),
        ("eval/reward/mean", "the policy is optimised for it"),
        ("scores/a", "the policy is optimised for it"),
        ("a", "the policy is optimised for it"),
        ("rude", "no such monitor; needed: a scorer that is never optimised, here eval_scorer, polite; or none"),
    ],
)
def test_the_reward_never_chooses_the_policy(given: str, why: str) -> None:
    settings = RewardConfig(scorers="a=x", best_metric=given)
    with pytest.raises(InputError, match=re.escape(f"best_metric={given!r}: {why}")):
        check_best_metric(settings, ["eval_scorer", "polite"])
    with pytest.raises(InputError, match="here none \\(--eval_scorer and --monitor_scorers name them\\)"):
        check_best_metric(settings, [])


def test_an_evaluation_is_the_best_if_its_score_is_higher_and_after_an_update() -> None:
    best = BestPolicy()
    heard = [(0, [9.0]), (4, [1.0]), (8, [1.0]), (12, []), (16, [2.0]), (20, [1.5])]
    found = []
    for update, scores in heard:
        best.add(update, Reading.of(scores, ["a"][: len(scores)]))
        found.append(best.update)
    assert found == [-1, 4, 4, 4, 16, 16]
    assert best.score == 2.0


def configured(folder: Path, **method) -> PPOConfig:
    return PPOConfig(
        "x", ModelConfig(str(folder), precision="fp32"), RolloutConfig(max_new_tokens=4), method=MethodConfig(**method),
        optimizer=OptimizerConfig(micro_batch=4),
    )  # fmt: skip


def episode(ids: tuple[int, ...], reward=1.0, reason: str = "eos") -> Episode:
    said = Completion("", reason, ids, (-1.0,) * len(ids), len(ids))  # type: ignore[arg-type]
    return Episode(0, "policy", [Step([7, 8, 9], "", said, reward)], True, False, None, {})


def checked(rollouts: Rollouts, folder: Path, episodes: list[Episode], eos: int = EOS) -> None:
    if not len(rollouts.old_logprobs):
        rollouts.old_logprobs = rollouts.reference_logprobs = rollouts.sampler_logprobs
    check_first_rollouts("fp32", load_tokenizer(str(folder)), [eos], episodes, rollouts)


def test_a_score_on_another_token_than_the_last_is_found_before_step_1(small_models: dict[str, Path]) -> None:
    folder, episodes = small_models["gpt2"], [episode((20, 21, EOS)), episode((22, 23, 24, 25), 2.0, "length")]
    checked(gather(episodes, RewardConfig()), folder, episodes)
    shifted = gather(episodes, RewardConfig())
    shifted.scores = shifted.scores.roll(-1)
    with pytest.raises(
        InputError, match=r"a score is on token 2 of reply 1, .* \(id 24\), which is not a reply's last token"
    ):
        checked(shifted, folder, episodes)


def test_dense_rewards_may_stand_anywhere(small_models: dict[str, Path]) -> None:
    episodes = [episode((20, 21, EOS), (1.0, 2.0, 3.0))]
    checked(gather(episodes, RewardConfig()), small_models["gpt2"], episodes)


def test_an_eos_that_was_dropped_and_one_within_a_reply_that_did_not_end_are_found(small_models) -> None:
    dropped, kept = [episode((20, 21))], [episode((20, EOS), 1.0, "length")]
    for episodes in (dropped, kept):
        with pytest.raises(InputError, match="eos must be sampled, kept and rewarded"):
            checked(gather(episodes, RewardConfig()), small_models["gpt2"], episodes)


def test_another_reference_is_found_and_pad_may_be_eos(small_models: dict[str, Path]) -> None:
    folder, episodes = small_models["gpt2"], [episode((20, 21, EOS))]
    tokenizer = load_tokenizer(str(folder))
    same = gather(episodes, RewardConfig())
    same.old_logprobs = same.reference_logprobs = same.sampler_logprobs
    check_first_rollouts("fp32", tokenizer, [EOS, tokenizer.pad_token_id], episodes, same)
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(EOS)  # rows are packed: the end of a reply has a loss
    check_first_rollouts("fp32", tokenizer, [EOS], episodes, same)
    other = gather(episodes, RewardConfig())
    other.old_logprobs, other.reference_logprobs = torch.zeros(3), torch.tensor([0.0, 0.0, 0.1])
    with pytest.raises(InputError, match=r"differ by 0.1 nats a token .*, most at token 2 of reply 0, .* \(id 1\)"):
        checked(other, folder, episodes)


def test_in_fp32_the_sampler_may_be_four_times_as_far_from_fp64_as_the_trainer_is(small_models) -> None:
    folder, rollouts = small_models["gpt2"], gather([episode((20, 21, EOS)), episode((22, 23))], RewardConfig())
    rollouts.old_logprobs = rollouts.sampler_logprobs + torch.tensor([0, 0, 0, 0.01, 0])
    tokenizer = load_tokenizer(str(folder))
    with pytest.raises(InputError) as caught:
        check_sampler(tokenizer, rollouts, Rounding(2e-4, 0.01, 5, "fp32"))
    assert "the sampler's fp32 is 0.01 nats at one token from the trainer's forward in fp64" in str(caught.value)
    assert re.search(r"which allows 0\.0008 \(5 tokens\), most at token 0 of reply 1, .* \(id 22\)", str(caught.value))
    check_sampler(tokenizer, rollouts, Rounding(2e-4, 7e-4, 5, "fp32"))  # a peaked policy's own rounding
    check_sampler(tokenizer, rollouts, Rounding(1e-7, 9e-5, 5, "fp32"))  # so little changes no update
    with pytest.raises(InputError, match=r"allows 0\.0001"):
        check_sampler(tokenizer, rollouts, Rounding(1e-7, 2e-4, 5, "fp32"))


def test_in_16_bits_the_sampler_may_be_as_far_from_fp32_as_the_trainer_is_and_half_more(small_models) -> None:
    folder, rollouts = small_models["gpt2"], gather([episode((20, 21, EOS)), episode((22, 23))], RewardConfig())
    rollouts.old_logprobs = rollouts.sampler_logprobs + torch.tensor([0, 0, 0, 0.5, 0])
    tokenizer = load_tokenizer(str(folder))
    check_sampler(tokenizer, rollouts, Rounding(trainer=0.03, sampler=0.045, tokens=10**6))
    with pytest.raises(InputError) as caught:
        check_sampler(tokenizer, rollouts, Rounding(trainer=0.03, sampler=0.2, tokens=400))
    assert str(caught.value).startswith(
        "sampler and trainer differ: the sampler's bf16 is 0.2 nats a token from the trainer's forward in fp32, the "
        "trainer's own 0.03, which allows 0.05 (400 tokens), most at token 0 of reply 1"
    )
    with pytest.raises(InputError, match=r"is 0\.05 nats a token from"):
        check_sampler(tokenizer, rollouts, Rounding(0.03, 0.05, 10**6))
    check_sampler(tokenizer, rollouts, Rounding(0.03, 0.05, 100))  # the mean of few tokens is uncertain
    check_sampler(tokenizer, rollouts, Rounding(0.0, 0.001, 10**6))  # and so little changes no update


def test_a_policy_that_16_bits_are_coarse_for_is_warned_of(small_models: dict[str, Path]) -> None:
    folder, rollouts = small_models["gpt2"], gather([episode((20, 21, EOS))], RewardConfig())
    rollouts.old_logprobs = rollouts.sampler_logprobs
    check_sampler(load_tokenizer(str(folder)), rollouts, Rounding(0.3, 0.3, 1000))
    assert rounding_notes(Rounding(0.1, 0.3, 1000), 0.2) == []
    [said] = rounding_notes(Rounding(0.3, 0.3, 1000), 0.2)
    assert said.startswith("warning: bf16 is coarse for this policy: its log-probabilities differ by 0.3 nats a token")
    assert said.endswith("ratios are clipped at 1.2; --precision fp32 learns from more than rounding")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_log_probability_that_is_no_number_is_found_with_its_token(precision, small_models: dict[str, Path]) -> None:
    folder, rollouts = small_models["gpt2"], gather([episode((20, 21, EOS)), episode((22, 23))], RewardConfig())
    rollouts.old_logprobs = rollouts.sampler_logprobs + torch.tensor([0, math.nan, 0, 0, math.nan])
    tokenizer = load_tokenizer(str(folder))
    with pytest.raises(InputError, match=r"token 1 of reply 0, .* \(id 21\) the log-probability nan: its weights hold"):
        check_finite(precision, tokenizer, rollouts)


def test_a_first_ratio_that_is_not_1_names_its_token(small_models: dict[str, Path]) -> None:
    folder, rollouts = small_models["gpt2"], gather([episode((20, 21, EOS)), episode((22, 23))], RewardConfig())
    rollouts.old_logprobs = torch.tensor([-1.0, -2.0, -3.0, -4.0, -5.0])
    tokenizer, places = load_tokenizer(str(folder)), torch.tensor([3, 4])
    check_ratio("fp32", tokenizer, rollouts, places, torch.tensor([-4.0, -5.0]))
    check_ratio("fp32", tokenizer, rollouts, places[:0], torch.zeros(0))
    with pytest.raises(InputError, match=r"differ by 0.01 nats a token .*, most at token 1 of reply 1, .* \(id 23\)"):
        check_ratio("fp32", tokenizer, rollouts, places, torch.tensor([-4.0, -5.01]))
    with pytest.raises(
        InputError, match=r"differ by inf nats a token \(.*fp32 is 0 from fp64, .*\), most at token 0 of reply 1"
    ):
        check_ratio("fp32", tokenizer, rollouts, places, torch.tensor([math.nan, -5.0]))


def test_a_first_ratio_in_16_bits_is_held_to_what_was_measured(small_models: dict[str, Path]) -> None:
    folder, rollouts = small_models["gpt2"], gather([episode((20, 21, EOS)), episode((22, 23))], RewardConfig())
    rollouts.old_logprobs = torch.tensor([-1.0, -2.0, -3.0, -4.0, -5.0])
    tokenizer = load_tokenizer(str(folder))
    places, off = torch.tensor([3, 4]), torch.tensor([-4.0, -5.1])  # 0.05 on average, of two tokens
    check_ratio("bf16", tokenizer, rollouts, places, off, 0.03)
    with pytest.raises(InputError, match=r"by 0.05 nats a token \(the policy's own bf16 is 0.003 from fp32, which all"):
        check_ratio("bf16", tokenizer, rollouts, places, off, 0.003)


@pytest.mark.parametrize(("precision", "rounding"), [("bf16", 0.03), ("fp32", 0.2)])
def test_a_servers_distance_stands_for_the_policys_own_rounding(precision, rounding: float) -> None:
    config, found = PPOConfig("x", ModelConfig(precision=precision)), LogprobMismatch(0.03, 0.2, 2500)
    state = LoopState.fresh(config.algorithm.init_kl_coef, config.method)
    [note] = server_notes(precision, config.correction, state, found)
    assert note.startswith("server and trainer differ by 0.03 nats a token, at most 0.2 (2,500 tokens); corrected by ")
    assert state.rounding == rounding, "what the first update's ratio is held to"
    state.iteration = 1
    assert server_notes(precision, config.correction, state, LogprobMismatch(9, 9, 9)) == []
    assert state.rounding == rounding


def test_long_prompts_are_counted_or_refused_before_step_1(small_models: dict[str, Path]) -> None:
    config, tokenizer = configured(small_models["gpt2"]), load_tokenizer(str(small_models["gpt2"]))
    long = Conversation((Turn("user", "many words " * 40),))
    tasks = [{"prompt": "short"}, {"prompt": long}, {"prompt": Conversation((Turn("user", "a"),))}, {"start": 3}]
    assert check_prompts(config, tokenizer, 1000, tasks) == []
    [said] = check_prompts(config, tokenizer, 34, tasks)
    assert said.startswith("1 of 3 prompts have more than 30 tokens, the longest ")
    assert "they lose their oldest turns; of 1 only the end of the last turn is left" in said
    refusing = replace(config, rollout=replace(config.rollout, long_prompts="refuse"))
    with pytest.raises(InputError, match=r"1 of 3 prompts have more than 30 tokens.*needed: shorter ones"):
        check_prompts(refusing, tokenizer, 34, tasks)
    narrow = replace(config, rollout=replace(config.rollout, max_prompt=12))
    assert check_prompts(narrow, tokenizer, 1000, tasks)


def test_a_biased_sampler_is_warned_of() -> None:
    assert bias_notes(PPOConfig("x")) == []
    [said] = bias_notes(PPOConfig("x", rollout=RolloutConfig(top_k=5, top_p=0.9, repetition_penalty=1.2)))
    assert said.startswith("warning: top_k=5, top_p=0.9, repetition_penalty=1.2 in rollouts")


@pytest.mark.parametrize(
    ("rollout", "method", "optimizer", "said"),
    [
        ({}, {}, {"global_batch": 63}, "63 cannot be shared by 2 ranks; use 62 or 64"),
        ({"num_rollouts": 100}, {}, {}, "num_rollouts=100 is not a multiple of global_batch=64; use 64 or 128"),
        ({"num_rollouts": 0}, {}, {}, "num_rollouts=0; needed: 1 to 1,048,576"),
        ({"temperature": 0.0}, {}, {}, "temperature=0.0; needed: above 0"),
        ({}, {"ppo_epochs": 0}, {}, "ppo_epochs=0"),
        ({"num_generations": 24}, {}, {}, "num_rollouts=128 is not a multiple of num_generations=24; use 120 or 144"),
        ({"num_generations": 1}, {"method": "rloo"}, {}, "num_generations=1 with --method rloo"),
        ({}, {"delta": 1.1}, {}, "delta=1.1 with epsilon_high=0.2; needed: a delta above 1.2"),
        ({}, {"num_layers_unfrozen": 0}, {}, "num_layers_unfrozen=0"),
        ({}, {"target": 6.0, "init_kl_coef": 0.0}, {}, "target needs init_kl_coef above 0"),
    ],
)
def test_numbers_that_do_not_go_together_are_refused(rollout, method, optimizer, said: str) -> None:
    config = PPOConfig("x", rollout=RolloutConfig(**rollout), method=MethodConfig(**method))
    with pytest.raises(InputError, match=said.replace("(", r"\(")):
        check_settings(replace(config, optimizer=replace(config.optimizer, **optimizer)), 2)
    check_settings(PPOConfig("x"), 2)


@pytest.mark.parametrize(
    ("group", "changes", "said"),
    [
        ("method", {"horizon": 25.0, "target": 6.0}, "horizon=25 with num_rollouts=128; needed: a horizon above 25.6"),
        ("method", {"horizon": 0.0}, "horizon=0.0; needed: above 0"),
        ("method", {"target": -1.0}, "target=-1.0; needed: above 0"),
        ("critic", {"gamma": 1.1}, "gamma=1.1; needed: 0 to 1"),
        ("critic", {"vf_coef": -1.0}, "vf_coef=-1.0; needed: 0 to 1,000"),
        ("critic", {"cliprange_value": 0.0}, "cliprange_value=0.0; needed: above 0"),
        ("method", {"num_layers_unfrozen": -7}, "num_layers_unfrozen=-7; needed: 1 to 65,536, or -1; -1 trains all"),
        ("reward", {"cliprange_reward": 0.0}, "cliprange_reward=0.0; needed: above 0; at most 1,000,000, or inf"),
        ("run", {"eval_updates": -1}, "eval_updates=-1; needed: 0 to 1,000,000,000; 0: five"),
        ("run", {"save_updates": -2}, "save_updates=-2; needed: -1 to 1,000,000,000; 0: five checkpoints"),
        ("run", {"save_total_limit": 0}, "save_total_limit=0; needed: 1 to 10,000; --save_updates -1"),
        ("run", {"stall_timeout": -1.0}, "stall_timeout=-1.0; needed: 0 to 2,592,000; 0 waits"),
        ("run", {"memory_gb": 0.0}, "memory_gb=0.0; needed: above 0"),
        ("optimizer", {"learning_rate": 0.0}, "learning_rate=0.0; needed: above 0"),
        ("optimizer", {"weight_decay": -0.1}, "weight_decay=-0.1; needed: 0 to 100"),
        ("optimizer", {"adam_beta2": 1.0}, "adam_beta2=1.0; needed: 0 or more, below 1"),
        ("optimizer", {"warmup": -3.0}, "warmup=-3.0; needed: 0 to 1,000,000,000; below 1 a share of all updates"),
        ("optimizer", {"epochs": 0.0}, "epochs=0.0; needed: above 0"),
        ("optimizer", {"max_updates": 0}, "max_updates=0; needed: 1 to 1,000,000,000, or -1; -1 stops"),
        ("optimizer", {"max_grad_norm": 0.0}, "max_grad_norm=0.0; needed: above 0"),
        ("optimizer", {"seed": -1}, "seed=-1; needed: 0 to 4,294,967,295"),
        ("policy", {"lora_rank": -1}, "lora_rank=-1; needed: 0 to 65,536; 0 trains"),
        ("rollout", {"max_new_tokens": 0}, "max_new_tokens=0; needed: 1 to 1,048,576"),
        ("rollout", {"top_p": 0.0}, "top_p=0.0; needed: above 0; at most 1"),
        ("rollout", {"top_k": -4}, "top_k=-4; needed: 0"),
        ("rollout", {"repetition_penalty": 0.0}, "repetition_penalty=0.0; needed: above 0"),
        ("rollout", {"eval_size": -3.0}, "eval_size=-3.0; needed: 0 to 1,000,000,000; below 1 a share"),
        ("rollout", {"eval_size": 2.5}, "eval_size=2.5; needed: a share below 1, or a whole number"),
        ("rollout", {"max_prompt": -1}, "max_prompt=-1; needed: 0 to 16,777,216; 0 is what the context leaves"),
        ("rollout", {"generation_batch_size": 0}, "generation_batch_size=0; needed: 1 to 1,048,576"),
        ("reward", {"missing_eos_penalty": -1.0}, "missing_eos_penalty=-1.0; needed: 0 to 1,000,000"),
        ("reward", {"reward_timeout": 0.0}, "reward_timeout=0.0; needed: above 0; at most 2,592,000; seconds"),
        ("method", {"stop_kl": -1.0}, "stop_kl=-1.0; needed: 0 to 1,000,000; 0.02 to 0.1 is usual"),
        ("critic", {"critic_warmup": -1}, "critic_warmup=-1; needed: 0 to 1,000,000,000"),
        ("limits", {"max_kl": -1.0}, "max_kl=-1.0; needed: 0 to 1,000,000; 0 never stops"),
        ("limits", {"min_length": 5.0}, "min_length=5.0; needed: 0 or more, below 1; a share of the first length"),
    ],
)
def test_numbers_that_would_do_harm_or_nothing_are_refused_before_models_are_loaded(group, changes, said: str) -> None:
    config = PPOConfig("x", policy=ModelConfig("nowhere"))
    with pytest.raises(InputError, match=said):
        train(replace(config, **{group: replace(getattr(config, group), **changes)}), pytest.fail)


def test_fp16_is_refused_where_it_would_not_take_effect(monkeypatch) -> None:
    policy = ModelConfig("nowhere", precision="fp16")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="--precision fp16 needs a GPU and none was found; use bf16 or fp32"):
        train(PPOConfig("x", policy=policy), pytest.fail)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("lmgym.training.precision.computes_in_bf16", lambda: True)
    with pytest.raises(InputError, match=r"fp16 without --deepspeed.*use bf16 or fp32, or add --deepspeed"):
        train(PPOConfig("x", policy=policy), pytest.fail)
    check_settings(PPOConfig("x", policy=policy, run=RunConfig(deepspeed="configs/zero2.json")), 2)


def test_numbers_that_mean_something_are_not_refused() -> None:
    method = MethodConfig(cliprange=math.inf, horizon=26.0, target=6.0)
    critic = CriticConfig(vf_coef=0.0, cliprange_value=math.inf)
    config = PPOConfig("x", method=method, critic=critic, reward=RewardConfig(cliprange_reward=math.inf))
    check_settings(config, 2)
    # each is at its edge: a hair further it is refused
    with pytest.raises(InputError, match=r"^horizon="):
        check_settings(replace(config, method=replace(method, horizon=25.6)), 2)


def test_a_run_ends_with_the_iteration_in_which_its_updates_are_reached_and_says_so(capsys) -> None:
    config = PPOConfig("x", optimizer=OptimizerConfig(global_batch=128, max_updates=6))
    assert (
        config.updates_per_iteration * count_iterations(config, TaskSetup([{}] * 1000, [], ScoredChat, None, "")) == 8
    )
    with pytest.raises(SystemExit):
        override(config, ["--help"])
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "PPO: at the end of the iteration that reaches them" in shown


@pytest.mark.parametrize("changes", [{"num_layers_unfrozen": 1}, {}, {"lora": 4}])
def test_the_reference_is_the_policy_before_step_1_and_shares_what_is_frozen(changes, small_models) -> None:
    lora = changes.get("lora", 0)
    config = configured(small_models["llama"], **{k: v for k, v in changes.items() if k != "lora"})
    config = replace(config, policy=replace(config.policy, lora_rank=lora))
    tokenizer = load_tokenizer(config.policy.model)
    actor, reference = build(config, tokenizer)
    assert (reference is None) == bool(lora), "a policy with adapters is its own reference, without them"
    sampler = SamplingPolicy(actor, tokenizer, "fp32", False, False, 8)
    engine = make_engine(config, actor, None)
    rollouts = gather([episode((20, 21, EOS)), episode((22, 23, 24, 25), reason="length")], RewardConfig())
    experience = make_experience(config, engine, reference, torch.device("cpu"))
    experience.measure(rollouts)
    assert torch.equal(rollouts.old_logprobs, rollouts.reference_logprobs), "the KL is exactly 0"
    sums = rollout_sums(rollouts, make_estimator(config)(rollouts, 0.1), 0.1)
    assert sums["kl/reference"][0] == sums["kl/reference_k3"][0] == 0
    with torch.no_grad():
        for name, parameter in actor.policy.named_parameters():
            if parameter.requires_grad:
                parameter.add_(0.05 if "lora_B" in name or not lora else 0.0)
    before = rollouts.reference_logprobs.clone()
    sampler.sync()
    experience.measure(rollouts)
    assert torch.allclose(rollouts.reference_logprobs, before, atol=1e-6), "the reference has not moved"
    assert (rollouts.old_logprobs - before).abs().max() > 1e-3, "the policy has"
    if isinstance(reference, Reference):
        shared = {id(p) for p in actor.parameters()} & {id(p) for p in reference.model.parameters()}
        frozen = frozen_modules(actor.causal, 1) if changes else []
        assert shared == {id(p) for module in frozen for p in module.parameters()}


def test_rewards_that_always_stall_are_given_up_before_the_run_counts_as_stalled() -> None:
    assert RewardConfig().reward_timeout * (WHOLE_STALLS + 1) < RunConfig().stall_timeout
