"""The alarm of iterative DPO: the scorers' sum rises while the monitor's score falls, also across a resume."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from launching import read_lines, read_metrics, words

from lmgym.config import ModelConfig, OptimizerConfig, RunConfig, TrainerConfig
from lmgym.errors import RunStopped
from preferences.config import LossConfig
from preferences.iterative import check
from preferences.iterative.config import IterativeConfig, JudgeConfig, PromptConfig, RoundConfig
from preferences.iterative.train import train

Go = Callable[..., Path]
EVALUATIONS = 4  # of three rounds


class Drifting:
    """Likes long replies a little, and after each call all replies more by `drift`; call `stops` stops the run."""

    def __init__(self, drift: float, stops: int = -1, level: float = 0.0) -> None:
        self.drift, self.stops, self.level, self.calls = drift, stops, level, 0

    def score(self, conversations: Sequence, replies: Sequence[str]) -> torch.Tensor:
        if self.calls == self.stops:
            self.stops = -1
            raise RunStopped("the budget is spent", "failed", 69)
        self.calls += 1
        return torch.tensor([self.level + self.drift * self.calls + 0.01 * len(reply) for reply in replies])


@pytest.fixture
def go(talkative_models, few_pairs: Path, tmp_path: Path, monkeypatch) -> Go:
    """Three rounds of two updates, each with one call of the scorers for its replies and one for its evaluation."""

    def run(
        monitor: Drifting | None, scorer: Drifting | None = None, name: str = "run", loss: str = "dpo", best=None
    ) -> Path:
        judges = {"mine": scorer or Drifting(1.0)}, {} if monitor is None else {"gold": monitor}
        monkeypatch.setattr(check, "load", lambda config: judges)
        config = IterativeConfig(
            "drifting",
            ModelConfig(str(talkative_models["llama"]), precision="fp32"),
            PromptConfig(str(few_pairs), max_length=128, eval_size=8),
            RoundConfig(prompts_per_round=8, num_generations=3, max_new_tokens=6),
            JudgeConfig("mine=world:0", monitor_scorer=None if monitor is None else "gold=world:1"),
            LossConfig(loss),
            OptimizerConfig(1e-3, global_batch=4, micro_batch=4, max_updates=6),
            RunConfig(str(tmp_path / name), tracking="none", save_updates=2, save_total_limit=9),
            TrainerConfig(best_metric=best),
        )
        train(config)
        return tmp_path / name

    return run


def test_a_monitor_that_falls_while_the_scorers_rise_rings_once_and_is_in_the_report(go: Go, capsys) -> None:
    folder = go(Drifting(-1.0))
    said = words(capsys.readouterr().out)
    assert "monitor gold's alarm: 8 prompts show a fall of" in said
    assert f"up to the last of {EVALUATIONS} evaluations" in said
    assert said.count("ALARM") == 1
    assert re.search(r"ALARM at round 1: monitor gold's score fell from -0\.\d+ at round 0 to -\d\.\d+, by more ", said)
    assert "8 prompts), while the reward rose from" in said
    assert "or raise beta" in said
    assert read_metrics(folder)["alarm/monitor_falls"] == {0: 0.0, 2: 1.0, 4: 1.0, 6: 1.0}
    assert [event["step"] for event in read_lines(folder / "events.jsonl") if event["kind"] == "alarm"] == [2]
    assert "ALARM at round 1: monitor gold" in (folder / "report.html").read_text()


def test_a_healthy_run_and_one_without_a_monitor_are_silent(go: Go, capsys) -> None:
    assert set(read_metrics(go(Drifting(1.0), name="healthy"))["alarm/monitor_falls"].values()) == {0.0}
    assert "alarm/monitor_falls" not in read_metrics(go(None, name="alone"))
    said = words(capsys.readouterr().out)
    assert "ALARM" not in said
    assert "no alarm says when these are exploited; --monitor_scorer names another" in said


def test_a_run_that_goes_on_compares_with_the_looks_before_it_was_stopped(go: Go, capsys) -> None:
    scorer = Drifting(1.0, stops=3)  # as it scores the replies of the second round
    with pytest.raises(RunStopped, match="the budget is spent"):
        go(Drifting(0.0), scorer, loss="simpo")
    assert "ALARM" not in capsys.readouterr().out
    folder = go(Drifting(0.0, level=-1.0), scorer, loss="simpo")
    said = words(capsys.readouterr().out)
    assert "ALARM at round 2: monitor gold's score fell from 0." in said
    assert "or lower learning_rate" in said, "simpo has no KL"
    assert read_metrics(folder)["alarm/monitor_falls"] == {0: 0.0, 2: 0.0, 4: 1.0, 6: 1.0}


def test_the_best_by_the_monitor_says_how_few_prompts_chose_it(go: Go, capsys) -> None:
    folder = go(Drifting(-1.0), best="score/gold")
    said = words(capsys.readouterr().out)
    assert "after update 2, the best by score/gold (-1.9" in said
    assert "is the choice among 3 evaluations; all 8 prompts chose, with 60 or more half would measure" in said
    evaluation = json.loads((folder / "evaluation.json").read_text())
    assert (evaluation["update"], evaluation["choice"]["prompts_that_choose"]) == (2, 8)
    assert any("all 8 prompts chose" in event["text"] for event in read_lines(folder / "events.jsonl"))
