"""The demo on a real model: its pairs, its steps and what it shows."""

import importlib
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from lmgym.apps.world.demos import real
from lmgym.apps.world.demos import toy as demo
from lmgym.apps.world.demos.samples import MAX_NEW_TOKENS, TEMPERATURE
from lmgym.cli.main import main
from lmgym.runs.flags import override


def rows_of(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_no_question_is_trained_and_evaluated_on() -> None:
    train, held_out = rows_of(real.PAIRS), rows_of(real.HELD_OUT)
    assert (len(train), len(held_out)) == (215, 80)
    questions, others = {row["prompt"] for row in train}, {row["prompt"] for row in held_out}
    assert (len(questions), len(others), questions & others) == (122, 40, set())


def test_the_pairs_are_short_differ_and_are_not_told_apart_by_length() -> None:
    rows = rows_of(real.PAIRS) + rows_of(real.HELD_OUT)
    assert all(set(row) == {"prompt", "chosen", "rejected"} for row in rows)
    replies = [row[side] for row in rows for side in ("chosen", "rejected")]
    assert max(len(reply.split()) for reply in replies) < 50
    assert len({row["chosen"] for row in rows}) == len(rows)
    longer = sum(len(row["chosen"]) > len(row["rejected"]) for row in rows) / len(rows)
    assert 0.4 < longer < 0.6


def test_the_log_is_all_replies_of_the_training_pairs() -> None:
    log = sorted((row["prompt"], row["completion"]) for row in rows_of(real.REPLIES))
    assert log == sorted((row["prompt"], row[side]) for row in rows_of(real.PAIRS) for side in ("chosen", "rejected"))


def test_each_step_uses_the_outputs_of_those_before_it(tmp_path: Path) -> None:
    steps = {step.name: step for step in real._steps(tmp_path, seed=3, iterations=6)}
    assert list(steps) == list(real.ABOUT)

    def config(step: str, stage: str):
        words = steps[step].words
        [file] = [word for word in words if word.endswith(".py")]
        of_experiment = importlib.import_module(f"{stage}.experiments.{Path(file).stem}").CONFIG
        return override(of_experiment, words[words.index(file) + 1 :])

    scorer, policy, sft = config("scorer", "reward_models"), config("policy", "ppo"), config("sft", "sft")
    assert scorer.scorer.model == sft.policy.model == str(real.MODEL) == str(steps["model"].done.parent)
    assert policy.policy.model == f"{tmp_path}/sft/model" == str(steps["sft"].done.parent)
    assert (sft.data.dataset, sft.merge_adapter) == (str(real.REPLIES), True)
    assert (scorer.data.dataset, scorer.data.eval_dataset) == (str(real.PAIRS), str(real.HELD_OUT))
    assert (policy.rollout.prompts, policy.rollout.eval_prompts) == (str(real.PAIRS), str(real.HELD_OUT))
    assert policy.reward.scorers == f"helpful={tmp_path}/scorer/model"
    assert str(steps["scorer"].done.parent) == f"{tmp_path}/scorer/model"
    assert (policy.optimizer.seed, policy.optimizer.max_updates, policy.algorithm.num_generations) == (3, 24, 8)
    assert (policy.rollout.max_new_tokens, policy.rollout.temperature) == (MAX_NEW_TOKENS, TEMPERATURE)
    for name, model in zip(real.WHEN, (f"{tmp_path}/sft/model", f"{tmp_path}/policy/model"), strict=True):
        assert steps[name].words[3:6] == [model, str(real.HELD_OUT), f"{tmp_path}/scorer/model"]


def test_results_have_the_change_of_each_measure_with_its_interval(tmp_path: Path, capsys) -> None:
    def write(name: str, *scores: float, finished: bool) -> None:
        rows = [
            {"prompt": f"Why {n}?", "replies": [f"{name} {n}"], "scores": [score], "finished": [finished]}
            for n, score in enumerate(scores)
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    write("before", 0.0, 0.5, 1.0, finished=False)
    write("after", 1.0, 1.5, 1.4, finished=True)
    for folder in ("scorer", "policy"):
        (tmp_path / folder).mkdir()
    metrics = {"accuracy": 0.9, "accuracy_low": 0.8, "accuracy_high": 0.95, "length_accuracy": 0.55}
    (tmp_path / "scorer/evaluation.json").write_text(json.dumps({"metrics": metrics}))
    (tmp_path / "policy/metrics.jsonl").write_text('{"step": 4, "kl/reference": 1.25}\n')
    figures = real.show_results(tmp_path)
    assert figures["score"]["change"] == pytest.approx(0.8)
    assert figures["score"]["change_low"] < 0.8 < figures["score"]["change_high"]
    assert (figures["finished"]["change"], figures["words"]["change"], figures["kl"]) == (1, 0, 1.25)
    shown = capsys.readouterr().out
    expected = ("0.900 (0.800 to 0.950)", "0.550", "+0.80", "Why 0?", "before 0", "after 0", "1.25 nats")
    assert [word for word in expected if word not in shown] == []


@pytest.mark.parametrize(
    ("flags", "begun"), [([], ("world", "outputs/demo")), (["--real"], ("real", "outputs/demo_real"))]
)
def test_the_command_begins_the_demo_that_was_asked_for(flags: list[str], begun: tuple[str, str], monkeypatch) -> None:
    found: list[tuple[str, str]] = []
    monkeypatch.setattr(demo, "run_demo", lambda output, seed: found.append(("world", output)) or 7)
    monkeypatch.setattr(real, "run_real_demo", lambda output, seed: found.append(("real", output)) or 7)
    assert CliRunner().invoke(main, ["demo", *flags]).exit_code == 7
    assert found == [begun]
