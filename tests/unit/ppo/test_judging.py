"""Pairs as a judge's tasks: both orders with their labels, rewards of verdicts, and figures over both orders."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from acting import TOKENIZER

from lmgym.errors import InputError
from lmgym.scoring.judge_settings import JUDGE_FILE
from ppo.config import PPOConfig, RewardConfig, RolloutConfig
from ppo.judging import JudgedPair, both_orders, judge_of_pairs, save_settings, verdict_of


def rows(folder: Path, count: int = 12) -> str:
    """A file of pairs."""
    pairs = [{"prompt": f"q{i}", "chosen": f"good {i}", "rejected": f"bad {i}"} for i in range(count)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    return str(folder / "pairs.jsonl")


def config(folder: Path, **settings: object) -> PPOConfig:
    given = {"prompts": rows(folder), "eval_size": 4, "policy_over": "actions", **settings}
    return PPOConfig("x", rollout=RolloutConfig(**given))  # type: ignore[arg-type]


def test_each_pair_is_asked_in_both_orders_with_the_letter_of_the_preferred_reply(tmp_path: Path) -> None:
    setup = judge_of_pairs(config(tmp_path), TOKENIZER)
    assert (len(setup.tasks), len(setup.eval_tasks)) == (16, 8)
    first, second = setup.tasks[:2]
    assert (first["label"], second["label"], first["pair"], second["pair"]) == ("A", "B", 0, 0)
    for task, letter in ((first, "A"), (second, "B")):
        shown = task["prompt"].turns[0].text.split(f"<reply-{letter}-")[1]
        assert shown.split("\n")[1].startswith("good ")
        assert "Answer with the letter alone" in task["prompt"].turns[0].text
    orders = [task["label"] for task in setup.eval_tasks]
    assert orders == ["A"] * 4 + ["B"] * 4, "both orders of a pair are on one rank if ranks divide the pairs"
    reasons = judge_of_pairs(config(tmp_path, policy_over="tokens"), TOKENIZER)
    assert "First give your reasons" in reasons.tasks[0]["prompt"].turns[0].text
    assert reasons.fingerprint != setup.fingerprint


def test_where_rows_have_reasons_a_line_says_what_learns_them_first(tmp_path: Path) -> None:
    assert not [line for line in judge_of_pairs(config(tmp_path), TOKENIZER).reading if "reasons" in line]
    file = tmp_path / "pairs.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    given = RolloutConfig(prompts=str(tmp_path / "with.jsonl"), eval_size=4, policy_over="actions")
    (tmp_path / "with.jsonl").write_text("".join(json.dumps(row | {"reason": "It is good."}) + "\n" for row in rows))
    settings = PPOConfig("x", rollout=given)
    assert judge_of_pairs(settings, TOKENIZER).reading[-1] == (
        "rows have a rater's reasons, which are not read here: lmgym train sft judge_rationales --dataset "
        f"{tmp_path / 'with.jsonl'} learns them first (docs/judges.md)"
    )
    (tmp_path / JUDGE_FILE).write_text("{}")
    learned = replace(settings, policy=replace(settings.policy, model=str(tmp_path)))
    assert "reasons" not in judge_of_pairs(learned, TOKENIZER).reading[-1]


def test_a_right_verdict_earns_1_a_wrong_one_0_and_none_loses_1() -> None:
    texts = ["[[A]]", "[[B]]", "<think>[[B]]?</think>It is [[A]]", "I like both", "[[C]]"]
    assert [verdict_of(text) for text in texts] == ["A", "B", "A", "", ""]
    rewards = []
    for text in texts:
        environment = JudgedPair()
        asked = environment.reset({"prompt": "which?", "label": "A", "pair": 0}, 0)["policy"]
        assert tuple(asked.actions) == ("[[A]]", "[[B]]")
        rewards.append(environment.step({"policy": text}).rewards["policy"])
    assert rewards == [1.0, 0.0, 1.0, -1.0, -1.0]


def test_figures_are_of_both_orders_together() -> None:
    outputs = ["[[A]]", "[[A]]", "nothing", "[[B]]", "[[A]]", "[[B]]", "[[A]]"]
    label, pair = ["A", "A", "A", "B", "B", "B", "A"], [0, 1, 2, 0, 1, 2, 3]
    found = both_orders(None, None, outputs, None, label=label, pair=pair)
    assert found["accuracy"] == [1, 1, 0, 1, 0, 1, 1]
    assert found["verdicts"] == [1, 1, 0, 1, 1, 1, 1]
    assert found["both_orders_right"] == [1, 0, 0, 1, 0, 0, 0], "an order of pair 3 is missing"
    assert found["changes_with_order"] == [0, 1, 0, 0, 1, 0, 0]


def test_rows_without_pairs_and_rewards_of_ones_own_are_refused(tmp_path: Path) -> None:
    (tmp_path / "single.jsonl").write_text('{"prompt": "a", "reply": "b"}\n')
    with pytest.raises(InputError, match="chosen and rejected"):
        judge_of_pairs(PPOConfig("x", rollout=RolloutConfig(prompts=str(tmp_path / "single.jsonl"))), TOKENIZER)
    own = replace(config(tmp_path), reward=RewardConfig(reward="a.py:f"))
    with pytest.raises(InputError, match="the labels of the pairs reward here"):
        judge_of_pairs(own, TOKENIZER)


def test_a_judge_that_reasons_says_so_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    dry = config(tmp_path)
    save_settings(replace(dry, run=replace(dry.run, dry_run=True)), tmp_path)
    assert not (tmp_path / "model" / JUDGE_FILE).exists()
    for over, asked in (("actions", None), ("tokens", 128)):
        save_settings(config(tmp_path, policy_over=over, max_new_tokens=128), tmp_path)
        assert json.loads((tmp_path / "model" / JUDGE_FILE).read_text()) == {"judge_tokens": asked}
