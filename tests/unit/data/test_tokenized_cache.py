"""Tokenised data sets are found again while nothing changes that they depend on, and made anew where they cannot be."""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE

from lmgym.config import ColumnConfig, OptimizerConfig, RowsConfig
from lmgym.data import task_data, tokenized_cache
from lmgym.data.task_data import TaskData
from lmgym.models.loading import load_tokenizer
from preferences.config import LossConfig, PreferenceConfig
from preferences.tasks import PreferenceTask
from reward_models.config import RewardModelConfig
from reward_models.pairwise import PairTask


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setattr(tokenized_cache, "cache_folder", lambda: folder)
    return folder


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The data sets that were read and tokenised, rather than found."""
    found: list[Any] = []

    class Counted(task_data._Prepared):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            found.append(given)

    monkeypatch.setattr(task_data, "_Prepared", Counted)
    return found


def pairs(path: Path, count: int = 20) -> Path:
    rows = [{"prompt": f"question {i}", "chosen": f"yes {i}", "rejected": "no", "id": i} for i in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"prompt": "x", "chosen": None}]))
    return path


def prepare(path: Path, tokenizer, columns: ColumnConfig | None = None, seed: int = 0, **data: Any) -> TaskData:
    settings = RowsConfig(str(path), **{"max_length": 64, "eval_size": 0.25} | data)
    optimizer = OptimizerConfig(split_seed=seed)
    config = RewardModelConfig("x", data=settings, optimizer=optimizer, columns=columns or ColumnConfig())
    return PairTask().prepare(config, tokenizer)


def content(data: TaskData) -> dict[str, Any]:
    sides = {"train": list(data.train), "evaluation": list(data.evaluation), "lengths": data.lengths.tolist()}
    return {name: getattr(data, name) for name in ("rejections", "fingerprint", "notes", "rows", "counts")} | sides


@pytest.fixture
def tokenizer(small_models):
    return load_tokenizer(str(small_models["gpt2"]))


def test_rows_are_tokenised_once_and_found_again_as_they_were(made, tokenizer, tmp_path: Path) -> None:
    path = pairs(tmp_path / "a.jsonl")
    first = content(prepare(path, tokenizer))
    again = content(prepare(path, tokenizer))
    assert len(made) == 1
    assert again == first
    assert len(again["train"]) + len(again["evaluation"]) == 20
    assert again["notes"] == [
        "a.jsonl: 21 rows; read: prompt (plain text), chosen (plain text), rejected (plain text); not read: id (20)",
        "warning: 5 held-out pairs are too few for an interval to rely on; give --eval_dataset or more rows",
        "split by first message: 0 of 5 held-out pairs share their first message with a training row",
    ]
    assert again["counts"]["rejected_rows"] == 1


def test_what_rows_depend_on_makes_them_anew(made, tokenizer, small_models, tmp_path: Path) -> None:
    path = pairs(tmp_path / "a.jsonl")
    prepare(path, tokenizer)
    changes: list[dict[str, Any]] = [
        {"max_length": 32}, {"eval_size": 0.5}, {"seed": 1}, {"train_size": 5}, {"max_rows": 12},
        {"columns": ColumnConfig(chosen_column="rejected", rejected_column="chosen")},
        {"columns": ColumnConfig(prompt_format="transcript")},
    ]  # fmt: skip
    for number, change in enumerate(changes, 2):
        prepare(path, tokenizer, **change)
        assert len(made) == number, change
    other = load_tokenizer(str(small_models["gpt2"]))
    other.chat_template = other.chat_template.replace("Bot", "Robot")
    prepare(path, other)
    prepare(path, load_tokenizer(str(small_models["bert"])))
    path.write_text(path.read_text().replace("yes 3", "yes 9"))  # of the same size
    prepare(path, tokenizer)
    assert len(made) == len(changes) + 4
    path.rename(tmp_path / "b.jsonl")  # rejected rows name their file
    assert prepare(tmp_path / "b.jsonl", tokenizer).rejections[0].file.endswith("b.jsonl")


def test_stages_and_tasks_do_not_find_each_others_rows(made, tokenizer, tmp_path: Path) -> None:
    path = pairs(tmp_path / "a.jsonl")
    data = RowsConfig(str(path), max_length=64, eval_size=0.25)
    for loss in ("dpo", "bon", "kto"):
        task = PreferenceTask(LossConfig(loss))
        found = [task.prepare(PreferenceConfig("x", data=data, loss=task.settings), tokenizer) for _ in range(2)]
        assert content(found[0]) == content(found[1])
    prepare(path, tokenizer)
    assert len(made) == 4
    liked = [asdict(example) for example in found[0].train]
    assert {example["liked"] for example in liked} == {True, False}
    assert any(example["mismatched"] != example["replies"] for example in liked)


@pytest.mark.parametrize("damage", ["facts", "table", "gone"])
def test_a_damaged_folder_is_no_hindrance(damage: str, made, tokenizer, own_cache: Path, tmp_path: Path) -> None:
    path = pairs(tmp_path / "a.jsonl")
    first = content(prepare(path, tokenizer))
    [folder] = own_cache.iterdir()
    if damage == "facts":
        (folder / "facts.json").write_text('{"rejections"')
    elif damage == "table":
        file = folder / "train.arrow"
        file.write_bytes(file.read_bytes()[:200])
    else:
        (folder / "train.arrow").unlink()
    assert content(prepare(path, tokenizer)) == first
    assert len(made) == 2


def test_where_nothing_can_be_written_rows_are_held_in_memory(made, tokenizer, own_cache: Path, tmp_path: Path) -> None:
    own_cache.write_text("a file in its place")
    path = pairs(tmp_path / "a.jsonl")
    assert content(prepare(path, tokenizer)) == content(prepare(path, tokenizer))
    assert len(made) == 2


def test_a_half_written_folder_is_not_left_behind(tokenizer, own_cache: Path, tmp_path: Path, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(task_data, "write_batches", full)
    assert len(prepare(pairs(tmp_path / "a.jsonl"), tokenizer).train)
    assert list(own_cache.iterdir()) == []


def test_only_the_first_rank_of_a_machine_writes(made, tokenizer, own_cache: Path, tmp_path: Path, monkeypatch) -> None:
    path = pairs(tmp_path / "a.jsonl")
    monkeypatch.setenv("LOCAL_RANK", "1")
    alone = content(prepare(path, tokenizer))  # its first rank could not write
    assert (len(made), own_cache.exists()) == (1, False)
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert content(prepare(path, tokenizer)) == alone
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert content(prepare(path, tokenizer)) == alone
    assert len(made) == 2


@pytest.mark.parametrize("variables", [{"HF_HOME": "~/home"}, {"HF_DATASETS_CACHE": "/x/y"}])
def test_the_folder_lies_in_that_of_the_datasets_library(variables: dict[str, str]) -> None:
    code = (
        "from lmgym.data.tokenized_cache import cache_folder\nfound = cache_folder()\n"
        "from datasets import config\nassert found == config.HF_DATASETS_CACHE / 'lmgym', found"
    )
    others = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    subprocess.run([sys.executable, "-c", code], env=others | variables, check=True, timeout=PATIENCE)
