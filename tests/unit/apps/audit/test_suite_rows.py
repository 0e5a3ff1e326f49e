"""Rows of suites in the columns in which they are published."""

import json
from pathlib import Path

import pytest

from lmgym.apps.audit.journal import LEAST_CHARACTERS, key_of, scorer_fingerprint, take
from lmgym.apps.audit.judge_command import tie_of
from lmgym.apps.audit.suites import SUITES, Item, read_suite
from lmgym.errors import InputError
from lmgym.text import Conversation, Turn

PAIR = {
    "pair_id": "p1",
    "source": "mmlu-pro-law",
    "question": "Q?",
    "response_A": "a",
    "response_B": "b",
    "label": "B>A",
}


def write(path: Path, *rows: dict) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_pair_of_judgebench_is_right_by_its_label_and_in_the_category_of_its_source(tmp_path: Path) -> None:
    other = {**PAIR, "pair_id": "p2", "source": "livebench-reasoning", "label": "A>B"}
    first, second = read_suite("judgebench", write(tmp_path / "a.jsonl", PAIR, other)).items
    assert (first.subset, first.chosen, first.rejected) == ("Knowledge", ("b",), ("a",))
    assert (second.subset, second.chosen) == ("Reasoning", ("a",))
    assert first.conversation == Conversation((Turn("user", "Q?"),))


def test_judgebench_keeps_the_pairs_of_other_response_models_apart(tmp_path: Path) -> None:
    rows = [{**PAIR, "pair_id": str(i), "response_model": m} for i, m in enumerate(["gpt-4o-2024-05-13", "claude"])]
    assert [i.subset for i in read_suite("judgebench", write(tmp_path / "a.jsonl", *rows)).items] == [
        "Knowledge",
        "pairs of claude",
    ]


def test_a_row_of_judgebench_without_a_usable_label_is_left_out_and_counted(tmp_path: Path) -> None:
    read = read_suite("judgebench", write(tmp_path / "a.jsonl", PAIR, {**PAIR, "label": "A=B"}))
    assert (len(read.items), len(read.rejections)) == (1, 1)
    assert "A>B or B>A" in str(read.rejections[0])


def test_llmbars_own_folders_are_its_subsets(tmp_path: Path) -> None:
    row = {"input": "Sort them.", "output_1": "x", "output_2": "y", "label": 2}
    for folder in ("Natural", "Adversarial/Neighbor", "Adversarial/GPTInst"):
        path = tmp_path / folder / "dataset.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps([row]))
    items = read_suite("llmbar", str(tmp_path)).items
    assert {item.subset for item in items} == {"llmbar-natural", "llmbar-adver-neighbor", "llmbar-adver-GPTInst"}
    assert {(item.chosen, item.rejected) for item in items} == {(("y",), ("x",))}


def test_llmbar_is_read_from_rewardbenchs_rows_and_the_rest_is_said_to_be_left_out(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "chosen": "b", "rejected": "c", "subset": s} for s in ("llmbar-natural", "math-prm")]
    read = read_suite("llmbar", write(tmp_path / "a.jsonl", *rows))
    assert [item.subset for item in read.items] == ["llmbar-natural"]
    assert any("math-prm (1)" in note for note in read.notes)


def test_texts_are_scored_as_they_were_published(tmp_path: Path) -> None:
    row = {"prompt": " a\n", "chosen": "\n b ", "rejected": "", "subset": "math-prm"}
    [item] = read_suite("rewardbench", write(tmp_path / "a.jsonl", row)).items
    assert (item.conversation.turns[0].text, item.chosen, item.rejected) == (" a\n", ("\n b ",), ("",))


def test_a_prompt_may_be_messages(tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    row = {"prompt": talk, "chosen": "d", "rejected": "e", "subset": "mt-bench-hard"}
    [item] = read_suite("rewardbench", write(tmp_path / "a.jsonl", row)).items
    assert [turn.speaker for turn in item.conversation.turns] == ["user", "bot", "user"]


def test_ids_of_ties_are_needed_to_pair_their_rows(tmp_path: Path) -> None:
    row = {"prompt": "a", "chosen": ["b"], "rejected": ["c"], "subset": "Ties", "id": "7"}
    read = read_suite("rewardbench2", write(tmp_path / "a.jsonl", {**row, "id": "ref:7"}, row))
    assert [item.id for item in read.items] == ["ref:7"]
    assert "ref:NUMBER or tied:NUMBER" in str(read.rejections[0])


def test_the_first_rows_of_each_subset_are_taken(tmp_path: Path) -> None:
    rows = [
        {"prompt": str(i), "chosen": "b", "rejected": "c", "subset": f"hep-{'go' if i % 3 else 'js'}"} for i in range(9)
    ]
    read = read_suite("rewardbench", write(tmp_path / "a.jsonl", *rows), max_rows=2)
    assert [item.conversation.turns[0].text for item in read.items] == ["0", "1", "2", "3"]


def test_a_dataset_beside_a_file_of_rows_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", PAIR)
    with pytest.raises(InputError, match="names rows itself"):
        read_suite(path, path)


@pytest.mark.parametrize(
    ("suite", "path", "ties", "counts"),
    [
        ("rewardbench", "outputs/scorer/model", "protocol", 0.0),
        ("rewardbench", "judge:openai:gpt-5", "protocol", 0.5),
        ("llmbar", "rubric.yaml", "protocol", 0.5),
        ("llmbar", "scorers.py:longer", "protocol", 0.0),
        ("judgebench", "compare:openai:gpt-5", "protocol", 0.0),
        ("judgebench", "compare:openai:gpt-5", "half", 0.5),
        ("rewardbench", "judge:openai:gpt-5", "strict", 0.0),
    ],
)
def test_a_tie_counts_by_suite_and_kind_of_scorer(suite: str, path: str, ties: str, counts: float) -> None:
    assert tie_of(SUITES[suite], path, ties) == counts


def test_the_fingerprint_follows_what_gives_the_scores(tmp_path: Path, scorer_folders: dict[str, Path]) -> None:
    file = tmp_path / "f.py"
    file.write_text("def a(c, r): return [0.0] * len(r)\n")
    first = scorer_fingerprint(f"{file}:a")
    assert scorer_fingerprint(f"{file}:b") != first
    file.write_text("def a(c, r): return [1.0] * len(r)\n")
    assert scorer_fingerprint(f"{file}:a") != first
    gpt2, llama = (scorer_fingerprint(str(scorer_folders[name])) for name in ("gpt2", "llama"))
    assert gpt2 != llama
    assert scorer_fingerprint(f"{scorer_folders['gpt2']}#mean_sigmoid") != gpt2
    assert scorer_fingerprint("judge:openai:a") != scorer_fingerprint("judge:openai:b")


def item(prompt: str, size: int = 10) -> Item:
    return Item("", "", Conversation((Turn("user", prompt),)), ("x" * size,), ("y",))


def test_rows_are_scored_together_until_the_texts_are_long_or_a_prompt_repeats() -> None:
    rows = [item(str(i), 1000) for i in range(10)]
    assert len(take(rows, LEAST_CHARACTERS)) == 4
    assert len(take(rows, 10**6)) == 10
    assert len(take([item("a", 10**6), item("b")], LEAST_CHARACTERS)) == 1
    assert len(take([item("a"), item("b"), item("a", 20)], 10**6)) == 2


def test_rows_with_other_texts_have_other_keys() -> None:
    assert len({key_of(one) for one in (item("a"), item("b"), item("a", 11), item("a"))}) == 3
