"""A scorer's pairs in halves: which prompts, in which form, by which flags; and what is no scorer's run."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from lmgym.apps.lab.budget import CONSTANT, CONSTANT_KL, LOST_BY, Budget
from lmgym.apps.lab.budget_command import CAVEATS, kept_replies, show
from lmgym.apps.lab.halves import half_command, read_run_pairs, read_scorer_run, split, write_half
from lmgym.config.rows import ColumnConfig
from lmgym.data.pairs import Pair, validate
from lmgym.data.records import read_records
from lmgym.errors import InputError
from lmgym.runs.files import write_json, write_lines
from lmgym.text import Conversation, Turn

ROOT = Path(__file__).resolve().parents[4]


def pairs(number: int, prompts: int) -> list[Pair]:
    return [
        Pair(Conversation((Turn("user", f"question {i % prompts}"),), "a bot"), f"good {i}", f"bad {i}")
        for i in range(number)
    ]


def test_no_prompt_is_in_two_parts_and_every_pair_but_the_pools_is_in_one_half() -> None:
    prompts, first, second = split(pairs(900, 300), 40)
    keys = [{pair.prompt_key for pair in part} for part in (first, second)]
    asked = {Pair(prompt, "", "").prompt_key for prompt in prompts}
    assert len(prompts) == 40
    assert not asked & keys[0]
    assert not asked & keys[1]
    assert not keys[0] & keys[1]
    assert len(asked | keys[0] | keys[1]) == 300
    assert len(first) + len(second) == 900 - 3 * 40
    assert split(pairs(900, 300), 40)[1] == first


def test_a_fifth_of_the_prompts_is_the_most_that_the_pool_takes() -> None:
    assert len(split(pairs(900, 300), 1000)[0]) == 60


def test_few_pairs_are_refused() -> None:
    with pytest.raises(InputError, match=r"150 pairs with 150 prompts make halves of 65 and 65; needed: at least 100"):
        split(pairs(150, 150), 20)


def test_a_half_is_read_again_as_the_same_pairs(tmp_path: Path) -> None:
    known = [
        *pairs(3, 3),
        Pair(Conversation((Turn("user", "a"), Turn("bot", "b"), Turn("user", "c"))), "d", "e", margin=0.5),
        Pair(Conversation((Turn("user", "soft"),)), "d", "e", preference=0.75),
    ]
    write_half(known, tmp_path / "half.jsonl")
    found, rejected = validate(read_records(str(tmp_path / "half.jsonl")), soft=True)
    assert not rejected
    assert [(one.conversation, one.answers) for one in found] == [(one.conversation, one.answers) for one in known]


def test_a_half_is_trained_by_the_runs_own_flags_but_for_its_rows_and_its_folder() -> None:
    command = (
        "/old/python /code/hh_pairwise.py --model trunk --dataset 'all rows.jsonl' --prompt_column ask --seed 3 "
        "--eval_dataset=held.jsonl --freeze_embeddings --train_size 500 --learning-rate 1e-3 --output out --packed"
    )
    words = "--model trunk --seed 3 --freeze_embeddings --learning-rate 1e-3 --packed --tracking none"
    assert half_command(command) == [sys.executable, "/code/hh_pairwise.py", *shlex.split(words)]


def test_the_pairs_are_read_by_the_columns_of_the_run(tmp_path: Path) -> None:
    write_lines(tmp_path / "rows.jsonl", [{"ask": f"q {i}", "good": "a", "bad": "b"} for i in range(3)])
    columns = vars(ColumnConfig("ask", "good", "bad"))
    config = {"dataset": str(tmp_path / "rows.jsonl"), "dataset_split": "train", "max_rows": 2, **columns}
    assert [pair.chosen for pair in read_run_pairs({"config": config})] == ["a", "a"]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (None, "has no run.json"),
        ({"stage": "ppo", "outcome": "finished"}, "is a run of ppo, finished"),
        ({"stage": "reward_models", "outcome": "running"}, "is a run of reward_models, running"),
    ],
)
def test_what_is_no_finished_run_of_a_scorer_is_refused(tmp_path: Path, record: dict | None, message: str) -> None:
    if record:
        write_json(tmp_path / "run.json", record)
    with pytest.raises(InputError, match=message + "; needed: the folder of a finished run of `lmgym train reward`"):
        read_scorer_run(str(tmp_path))


def test_a_model_folder_stands_for_its_run(tmp_path: Path) -> None:
    write_json(tmp_path / "run.json", {"stage": "reward_models", "outcome": "finished"})
    assert read_scorer_run(str(tmp_path / "model"))["outcome"] == "finished"


def test_replies_are_kept_and_those_of_another_budget_are_refused(tmp_path: Path) -> None:
    path, asked = tmp_path / "out/replies.json", []

    def sample() -> list[list[str]]:
        asked.append(1)
        return [["a", "b"]]

    for _ in range(2):
        assert kept_replies(path, {"scorer": "a", "seed": 0}, sample) == [["a", "b"]]
    assert len(asked) == 1
    with pytest.raises(InputError, match="is of a budget with scorer a; needed: another --output"):
        kept_replies(path, {"scorer": "b", "seed": 0}, sample)


def test_a_policy_that_does_not_load_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail() -> list[list[str]]:
        raise InputError("no such model")

    with pytest.raises(InputError, match="no such model"):
        kept_replies(tmp_path / "replies.json", {"policy": "a"}, fail)
    assert kept_replies(tmp_path / "replies.json", {"policy": "b"}, lambda: [["a"]]) == [["a"]]


def test_the_budget_is_the_constant_and_what_halves_find_stands_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    show(Budget([1, 2, 4], [0, 0.2, 0.6], [0, 1, 2], [0, 0.5, 0.4]))
    said = capsys.readouterr().out
    assert said.startswith(
        "stop at a KL of 1.8 nats a reply, that of the best of 16, a constant: in six simulated worlds"
    )
    assert "the watching half is highest at N = 2, a KL of 0.20 nats a reply" in said
    assert all(caveat in said for caveat in CAVEATS)
    show(Budget([1, 2, 4], [0, 0.2, 0.6], [0, 1, 2], [0, 0.5, 0.6]))
    assert "halves find no KL at which to stop" in capsys.readouterr().out


def test_the_constant_and_what_it_lost_are_those_of_the_result_file() -> None:
    found = json.loads((ROOT / "benchmarks/results/over_optimisation.json").read_text())
    assert found["constant"] == {"n": CONSTANT, "kl": pytest.approx(CONSTANT_KL, abs=0.01)}
    assert {name: found["lost"][name]["value"] for name in LOST_BY} == pytest.approx(dict(LOST_BY), abs=5e-4)
