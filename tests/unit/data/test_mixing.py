"""Several data sets at once: which names a setting holds, in what proportion rows are drawn, and what is said of it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmgym.config import ModelConfig, OptimizerConfig, RowsConfig
from lmgym.data.columns import read_columns
from lmgym.data.mixing import Part, mix, read_sets, read_weights, set_names
from lmgym.data.pairs import validate
from lmgym.data.prompts import read_prompts
from lmgym.errors import InputError
from lmgym.models.loading import load_tokenizer
from ppo.config import RolloutConfig
from reward_models.behaviour import BehaviourTask
from reward_models.config import RewardModelConfig
from reward_models.metrics.labels import ACCEPTED_AND_CONTINUED
from reward_models.objectives import CROSS_ENTROPY
from reward_models.pairwise import PairTask
from sft.config import SftConfig
from sft.tasks import CHAT


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def pairs(path: Path, first: int, last: int) -> str:
    return write(path, [{"prompt": f"question {i}", "chosen": "yes", "rejected": "no"} for i in range(first, last)])


@pytest.fixture(scope="module")
def tokenizer(small_models):
    return load_tokenizer(str(small_models["gpt2"]))


def prepare(tokenizer, dataset: str, seed: int = 0, **data: Any):
    settings = RowsConfig(dataset, **{"max_length": 64, "eval_size": 0.25} | data)
    return PairTask().prepare(
        RewardModelConfig("x", data=settings, optimizer=OptimizerConfig(split_seed=seed)), tokenizer
    )


def test_sets_are_separated_by_commas_and_a_path_with_a_comma_that_exists_is_one(tmp_path: Path) -> None:
    assert set_names("a.jsonl, owner/name ,b") == ["a.jsonl", "owner/name", "b"]
    assert set_names("a.jsonl") == ["a.jsonl"]
    odd = pairs(tmp_path / "a,b.jsonl", 0, 3)
    assert set_names(odd) == [odd]
    assert list(read_sets(odd, "train")) == [odd]
    with pytest.raises(InputError, match=r"^a is named twice in a,b,a; needed: each set once"):
        set_names("a,b,a")
    with pytest.raises(InputError, match=r"dataset b\.jsonl does not exist"):
        validate(*read_sets(f"{pairs(tmp_path / 'a.jsonl', 0, 3)},b.jsonl", "train").values())


def test_the_first_rows_are_those_of_each_set(tmp_path: Path) -> None:
    both = f"{pairs(tmp_path / 'a.jsonl', 0, 5)},{pairs(tmp_path / 'b.jsonl', 5, 7)}"
    assert [len(records) for records in read_sets(both, "train", 3).values()] == [3, 2]
    write(tmp_path / "empty.jsonl", [])
    with pytest.raises(InputError, match=r"empty\.jsonl is empty: found 0 rows"):
        validate(*read_sets(f"{both},{tmp_path / 'empty.jsonl'}", "train").values())


@pytest.mark.parametrize(
    ("weights", "drawn"),
    [
        (None, [8, 20, 4]),
        ([1, 1, 1], [4, 4, 4]),
        ([2, 1, 1], [8, 4, 4]),
        ([0.5, 1, 0.25], [8, 16, 4]),
        ([4, 1, 1], [8, 2, 2]),
        ([1000, 1, 1], [8, 1, 1]),
    ],
)
def test_the_scarcest_set_is_drawn_whole_and_the_others_in_proportion(weights, drawn: list[int]) -> None:
    places = [0] * 8 + [1] * 20 + [2] * 4
    kept, parts = mix(places, ["a", "b", "c"], weights, 0)
    assert parts == [Part(name, n, k) for name, n, k in zip("abc", (8, 20, 4), drawn, strict=True)]
    assert np.bincount(np.array(places)[kept]).tolist() == drawn
    assert kept.tolist() == sorted(set(kept.tolist()))
    again, _ = mix(places, ["a", "b", "c"], weights, 0)
    assert again.tolist() == kept.tolist()


def test_another_seed_draws_other_rows() -> None:
    places = [0] * 10 + [1] * 100
    first, second = (mix(places, ["a", "b"], [1, 1], seed)[0].tolist() for seed in (0, 1))
    assert first[:10] == second[:10] == list(range(10))
    assert first[10:] != second[10:]


@pytest.mark.parametrize("words", ["2", "2,1,1", "2,x", "2,0", "2,-1", "nan,1", "inf,1", ""])
def test_weights_that_are_no_positive_number_of_each_set_are_refused(words: str) -> None:
    assert read_weights("2, 1", ["a", "b"], "dataset_weights") == [2.0, 1.0]
    with pytest.raises(InputError, match=r"^--dataset_weights '.*' for 2 data sets; needed: a number above 0 for each"):
        read_weights(words, ["a", "b"], "dataset_weights")


def test_pairs_of_two_sets_are_drawn_by_weight_and_counted(tokenizer, tmp_path: Path) -> None:
    both = f"{pairs(tmp_path / 'a.jsonl', 0, 10)},{pairs(tmp_path / 'b.jsonl', 10, 50)}"
    whole, mixed = prepare(tokenizer, both), prepare(tokenizer, both, dataset_weights="2,1")
    assert len(whole.train) + len(whole.evaluation) == 50
    origins = [example.origin.partition(":")[0] for example in (*mixed.train, *mixed.evaluation)]
    assert (origins.count("a.jsonl"), origins.count("b.jsonl")) == (10, 5)
    names = both.split(",")
    assert mixed.counts["drawn_by_dataset"] == {names[0]: 10, names[1]: 5}
    assert mixed.counts["unused_rows"] == 35
    assert [part.line("pairs") for part in mixed.parts][1] == f"{names[1]}: 5 of its 40 usable pairs drawn"
    others = prepare(tokenizer, both, seed=1, dataset_weights="2,1")
    assert {e.origin for e in (*mixed.train, *mixed.evaluation)} != {
        e.origin for e in (*others.train, *others.evaluation)
    }
    alone = prepare(tokenizer, names[0])
    assert (alone.parts, "drawn_by_dataset" in alone.counts) == ([], False)
    with pytest.raises(InputError, match="--dataset_weights '2,1' for 1 data set; needed"):
        prepare(tokenizer, names[0], dataset_weights="2,1")


def test_a_prompt_in_two_sets_is_on_one_side_and_a_pair_in_both_is_used_once(tokenizer, tmp_path: Path) -> None:
    first = pairs(tmp_path / "a.jsonl", 0, 20)
    rows = [{"prompt": f"Question {i} ", "chosen": "indeed", "rejected": "no"} for i in range(20)]
    second = write(tmp_path / "b.jsonl", [*rows, {"prompt": "question 7", "chosen": "yes", "rejected": "no"}])
    data = prepare(tokenizer, f"{first},{second}")
    assert len(data.train) + len(data.evaluation) == 40
    lines = [{int(e.origin.partition(":")[2]) for e in side} for side in (data.train, data.evaluation)]
    assert not lines[0] & lines[1], "line i of both sets has the prompt i"
    [duplicate] = data.rejections
    assert (duplicate.line, duplicate.found) == (21, "duplicate of line 8 of a.jsonl")


def test_a_set_without_a_usable_row_is_refused_with_the_reason(tokenizer, tmp_path: Path) -> None:
    good, again = pairs(tmp_path / "a.jsonl", 0, 5), pairs(tmp_path / "b.jsonl", 0, 3)
    with pytest.raises(InputError, match=r"none of the 3 rows of .*b.jsonl is a usable pair: 3 of 3 .*: 3 duplicates"):
        prepare(tokenizer, f"{good},{again}")


def test_conversations_and_prompts_of_several_sets_in_several_formats(tokenizer, small_models, tmp_path: Path) -> None:
    alpaca = write(tmp_path / "a.jsonl", [{"instruction": f"say {i}", "output": f"{i}"} for i in range(8)])
    chats = [
        {"conversations": [{"from": "human", "value": f"and {i}"}, {"from": "gpt", "value": "ok"}]} for i in range(40)
    ]
    sharegpt = write(tmp_path / "b.jsonl", chats)
    both = f"{alpaca},{sharegpt}"
    settings = RowsConfig(both, dataset_weights="1,2", max_length=64, eval_size=4)
    data = CHAT.prepare(SftConfig("x", ModelConfig(str(small_models["gpt2"])), settings), tokenizer)
    assert data.counts["drawn_by_dataset"] == {alpaca: 8, sharegpt: 16}
    assert len(data.train) + len(data.evaluation) == 24
    found = read_prompts(RolloutConfig(both, prompt_weights="1,2", eval_size=4), 0)
    assert [part.drawn for part in found.parts] == [8, 16]
    assert (len(found.train), len(found.evaluation), found.rows) == (20, 4, 48)
    with pytest.raises(InputError, match="--prompt_weights '1' for 2 data sets"):
        read_prompts(RolloutConfig(both, prompt_weights="1"), 0)


def test_evaluation_sets_may_be_several_too(tokenizer, tmp_path: Path) -> None:
    first, second, third = (pairs(tmp_path / f"{i}.jsonl", 10 * i, 10 * i + 10) for i in range(3))
    data = prepare(tokenizer, first, eval_dataset=f"{second},{third}")
    assert (len(data.train), len(data.evaluation)) == (10, 20)


def logs(path: Path, users: int, name: str) -> str:
    rows = [
        {"user_id": f"{name}{i // 4}", "input_text": f"User: hi {i}\nBot:", "output_text": "yes", "accepted": i % 2,
         "remaining_user_messages": 3}
        for i in range(4 * users)
    ]  # fmt: skip
    return write(path, rows)


def test_logs_of_several_sets_are_drawn_by_weight_and_split_by_user(tokenizer, tmp_path: Path) -> None:
    both = f"{logs(tmp_path / 'a.jsonl', 10, 'a')},{logs(tmp_path / 'b.jsonl', 30, 'b')}"
    settings = RowsConfig(both, dataset_weights="2,1", max_length=64, eval_size=0.25)
    config = RewardModelConfig("x", data=settings)
    data = BehaviourTask(ACCEPTED_AND_CONTINUED, CROSS_ENTROPY).prepare(config, tokenizer)
    origins = [example.origin.partition(":")[0] for side in (data.train, data.evaluation) for example in side]
    assert (origins.count("a.jsonl"), origins.count("b.jsonl")) == (40, 20)
    assert not set(data.train.users) & set(data.evaluation.users)
    assert data.counts["unused_rows"] == 100
    assert [part.drawn for part in data.parts] == [40, 20]


def test_the_first_rows_of_logs_are_those_of_each_set(tmp_path: Path) -> None:
    from lmgym.data.column_kinds import TEXT

    both = f"{logs(tmp_path / 'a.jsonl', 2, 'a')},{logs(tmp_path / 'b.jsonl', 1, 'b')}"
    found = read_columns(both, {"input_text": TEXT}, max_rows=6)
    assert np.bincount(found.file).tolist() == [6, 4]
    assert found.table["input_text"].to_pylist() == [f"User: hi {i}\nBot:" for i in (*range(6), *range(4))]
    assert found.sets == (0, 1)


def test_a_set_of_logs_without_a_usable_row_is_refused(tokenizer, tmp_path: Path) -> None:
    bad = write(tmp_path / "b.jsonl", [{"user_id": 1, "input_text": "a", "output_text": "b", "accepted": None}])
    config = RewardModelConfig(
        "x", data=RowsConfig(f"{logs(tmp_path / 'a.jsonl', 10, 'a')},{bad}", max_length=64, eval_size=0.1)
    )
    with pytest.raises(InputError, match=r"none of the rows of .*b.jsonl is usable: the first: .*b.jsonl, line 1"):
        BehaviourTask(ACCEPTED_AND_CONTINUED, CROSS_ENTROPY).prepare(config, tokenizer)
