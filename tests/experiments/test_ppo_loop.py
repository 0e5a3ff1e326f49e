"""The effects of settings on PPO's loop, seen in the metrics and messages of small runs."""

import json
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from launching import read_lines, read_metrics, words
from ppo_in_process import Go, shortness

from lmgym.data.prompts import read_prompts
from lmgym.environments.scored_chat import ScoredChat
from lmgym.environments.scorer_reward import ScorerReward
from lmgym.errors import InputError, RunStopped
from lmgym.generation.local_generation import LocalGenerator
from lmgym.text import Conversation
from ppo.config import PPOConfig
from ppo.task_setups import Prepare, TaskSetup, text_with_function


@dataclass
class Opinion:
    """A scorer that likes letters, and after each call likes all by `drift` more; in call `stops` it stops the run."""

    level: float = 100.0
    drift: float = 0.0
    stops: int = -1
    given: list[list[float]] = field(default_factory=list)

    def score(self, conversations: list[Conversation], replies: list[str]) -> torch.Tensor:
        if len(self.given) == self.stops:
            self.stops = -1
            raise RunStopped("the budget is spent", "failed", 69)
        each = [self.level + self.drift * len(self.given) + 0.01 * len(reply) for reply in replies]
        self.given.append(each)
        return torch.tensor(each, dtype=torch.float32)


def judged_by(scorer: Opinion, gold: Opinion | None = None) -> Prepare:
    """Chats whose replies a scorer rewards and another one watches."""

    def prepare(config: PPOConfig, tokenizer) -> TaskSetup:
        prompts = read_prompts(config.rollout, 0)
        watched = {} if gold is None else {"eval_scorer": gold}
        reward_function = ScorerReward({"letters": scorer}, {"letters": 1.0}, clip=None)
        return TaskSetup(
            prompts.train, prompts.evaluation, ScoredChat, reward_function, prompts.fingerprint, monitors=watched
        )

    return prepare


def letters(samples, prompts, outputs, tokenizer) -> list[float]:
    return [float(len(text)) for text in outputs]


def test_the_kl_coefficient_is_led_by_nats_a_reply(go: Go) -> None:
    settings = {"learning_rate": 1e-2, "max_updates": 12, "init_kl_coef": 0.1, "horizon": 100.0}
    free = read_metrics(go(text_with_function(letters, as_text=False), name="free", **settings))
    a_token, a_reply = free["kl/reference_per_token"][8], free["kl/reference"][8]
    assert a_reply == pytest.approx(a_token * free["rollout/trained_tokens"][8] / 16)
    assert 0 < 2 * a_token < a_reply
    target = (a_token * a_reply) ** 0.5
    folder = go(text_with_function(letters, as_text=False), name="led", target=target, **settings)
    found = read_metrics(folder)
    kl = found["kl/reference_per_token"][8] * found["rollout/trained_tokens"][8] / 16
    assert found["kl/reference_per_token"][8] < target < kl, "nats a token would lower it, nats a reply raise it"
    # no KL at first: the change is cut at -+.2, of 16 replies in a horizon of 100
    lowered = 0.1 * (1 - 0.2 * 16 / 100)
    wanted = [0.1, lowered, lowered * (1 + min(kl / target - 1, 0.2) * 16 / 100)]
    assert list(found["kl/coefficient"].values()) == pytest.approx(wanted)


def test_a_metric_that_names_output_ids_has_the_sampled_ids_of_each_reply(go: Go) -> None:
    def sampled(samples, prompts, outputs, tokenizer, output_ids) -> dict[str, list[int]]:
        return {"sampled": [len(ids) for ids in output_ids]}

    found = read_metrics(go(text_with_function(letters, sampled, as_text=False), max_updates=4))
    assert found["metrics/sampled"][4] == pytest.approx(found["eval/rollout/reply_tokens"][4])


def test_a_scorer_has_mean_0_and_std_1_on_the_replies_before_step_1(go: Go) -> None:
    scorer = Opinion()
    folder = go(judged_by(scorer))
    reference = scorer.given[0]
    assert len(reference) == 16
    mean, std = statistics.fmean(reference), statistics.pstdev(reference)
    rows = [row for file in sorted((folder / "samples").glob("*.jsonl")) for row in read_lines(file)]
    assert len(rows) >= 2 * 8 + 2 * 6
    given = {round(one, 3) for call in scorer.given for one in call}
    for row in rows:
        assert round(row["scores"]["letters"], 3) in given, "the raw opinion is kept"
        assert row["reward"] == pytest.approx((row["scores"]["letters"] - mean) / std, abs=1e-3)
    plain = go(judged_by(Opinion()), name="plain", normalize="none")
    assert read_metrics(plain)["reward/mean"][4] > 99, "where that is not asked for they are as they are"


def test_the_alarm_is_logged_and_told_once_where_the_watched_score_falls_while_the_reward_rises(go: Go, capsys) -> None:
    folder = go(judged_by(Opinion(drift=1.0), Opinion(drift=-1.0)), eval_updates=4, max_updates=12)
    alarm = read_metrics(folder)["alarm/eval_scorer_falls"]
    assert alarm == {0: 0.0, 4: 1.0, 8: 1.0, 12: 1.0}
    said = words(capsys.readouterr().out)
    assert re.search(r"ALARM at update 4: the evaluation scorer's score fell from 100\.\d+ at update 0 to 9\d\.", said)
    assert "the evaluation scorer's alarm: 6 prompts show a fall of" in said
    assert said.count("ALARM") == 1
    assert [event["step"] for event in read_lines(folder / "events.jsonl") if event["kind"] == "alarm"] == [4]
    healthy = go(judged_by(Opinion(drift=1.0), Opinion(drift=1.0)), name="healthy", eval_updates=4)
    assert set(read_metrics(healthy)["alarm/eval_scorer_falls"].values()) == {0.0}
    assert "ALARM" not in capsys.readouterr().out


def test_a_run_warns_of_rollouts_from_another_distribution(go: Go, capsys) -> None:
    go(dry_run=True, top_k=5)
    assert "warning: top_k=5 in rollouts" in words(capsys.readouterr().out)
    go(dry_run=True)
    assert "in rollouts" not in words(capsys.readouterr().out)


def test_running_moments_are_those_of_all_rewards_so_far(go: Go) -> None:
    calls: list[list[float]] = []

    def heard(samples, prompts, outputs, tokenizer) -> list[float]:
        calls.append(letters(samples, prompts, outputs, tokenizer))
        return calls[-1]

    found = read_metrics(go(text_with_function(heard, as_text=False), max_updates=12))
    given = [call for call in calls if len(call) == 16]
    assert len(given) == 3
    for update, iterations in ((4, 1), (8, 2), (12, 3)):
        so_far = [x for call in given[:iterations] for x in call]
        assert found["reward/running_mean"][update] == pytest.approx(statistics.fmean(so_far))
        assert found["reward/running_std"][update] == pytest.approx(statistics.pstdev(so_far))


def test_a_run_that_goes_on_keeps_moments_alarm_and_first_length(go: Go, capsys) -> None:
    settings = {"save_updates": 4, "eval_updates": 4, "max_updates": 12, "save_total_limit": 9}
    whole = go(judged_by(Opinion(drift=1.0), Opinion(drift=-1.0)), **settings)
    capsys.readouterr()
    # its calls: reference replies, evaluation, rollouts, evaluation, rollouts; the sixth one is an evaluation too late
    prepare = judged_by(Opinion(drift=1.0, stops=4), Opinion(drift=-1.0))
    with pytest.raises(RunStopped, match="the budget is spent"):
        go(prepare, name="again", **settings)
    assert capsys.readouterr().out.count("ALARM") == 1
    again = go(prepare, name="again", **settings)
    assert "ALARM" not in capsys.readouterr().out, "it was told before"
    states = [json.loads((folder / "checkpoints/step-00000012/loop.json").read_text()) for folder in (whole, again)]
    assert states[0] == states[1]
    assert read_metrics(again)["reward/mean"] == read_metrics(whole)["reward/mean"]
    state, metrics = states[1], read_metrics(whole)
    assert state["first_length"] == metrics["rollout/reply_tokens"][4]
    assert state["alarm"]["raised_at"] == 4
    assert state["alarm"]["looks"][0]["score"]["mean"] == pytest.approx(metrics["eval/eval_scorer"][0])
    assert state["scorer_moments"]["letters"][0] == pytest.approx(100, abs=1)


def test_a_sampler_that_differs_from_the_trainer_in_a_later_iteration_ends_the_run(
    go: Go, monkeypatch, tmp_path: Path
) -> None:
    judged: list[int] = []

    def heard(samples, prompts, outputs, tokenizer) -> list[float]:
        judged.append(len(outputs))
        return shortness(samples, prompts, outputs, tokenizer)

    generate = LocalGenerator.generate

    def drifted(self, prompts: Sequence[list[int]], n: int, sampling):
        """From the second iteration on tokens seem .01 nats likelier than they are."""
        off = 0.01 if judged.count(16) else 0.0
        found = generate(self, prompts, n, sampling)
        return [[replace(one, logprobs=tuple(x + off for x in one.logprobs)) for one in ones] for ones in found]

    monkeypatch.setattr(LocalGenerator, "generate", drifted)
    with pytest.raises(
        InputError, match=r"sampler and trainer differ: .* 0\.01 nats at one token .* token \d+ of reply"
    ):
        go(text_with_function(heard, as_text=False))
    assert list(read_metrics(tmp_path / "run")["rollout/logprob_mismatch"]) == [4], "the first iteration was well"
