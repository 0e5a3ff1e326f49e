"""Tests by lm-eval: figures that are computed here by hand, and the messages where a task cannot be run."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from transformers import AutoModelForCausalLM

from lmgym.config import CapabilitiesConfig
from lmgym.distributed.random_state import random_state
from lmgym.errors import InputError
from lmgym.models.loading import load_tokenizer
from lmgym.statistics import share
from lmgym.training.capabilities import Suite, check_capabilities, estimates, load_tasks, report_of

pytest.importorskip("lm_eval", reason="lm-eval is an extra: pip install 'lmgym[capabilities]'")

CHOICE = """
task: choice
dataset_path: json
dataset_kwargs: {data_files: {test: absent.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{answers}}"
doc_to_target: "{{right}}"
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
WRITTEN = """
task: written
dataset_path: json
dataset_kwargs: {data_files: {test: absent.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: [], do_sample: false, max_gen_toks: 4}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""
QUESTIONS = [f"What is {i} and {i + 1}?" for i in range(12)]
ANSWERS = ["yes", "no way", "a bird"]


@pytest.fixture(scope="module")
def model(small_models: dict[str, Path]):
    return AutoModelForCausalLM.from_pretrained(small_models["llama"]).eval()


@pytest.fixture(scope="module")
def tokenizer(small_models: dict[str, Path]):
    return load_tokenizer(str(small_models["llama"]))


@pytest.fixture
def write_task(tmp_path: Path):
    """Writes a task file and its rows; the flag that joins them."""

    def write(text: str, rows: list[dict], name: str) -> tuple[str, str]:
        file = tmp_path / f"{name}.yaml"
        file.write_text(text)
        with gzip.open(tmp_path / f"{name}.jsonl.gz", "wt") as lines:
            lines.writelines(json.dumps(row) + "\n" for row in rows)
        return str(file), f"{name}={tmp_path / name}.jsonl.gz"

    return write


@torch.no_grad()
def logprob(model, tokenizer, prompt: str, answer: str) -> float:
    """Of the answer's tokens, a space before them, behind the prompt."""
    before, ids = tokenizer(prompt).input_ids, tokenizer(f"{prompt} {answer}").input_ids
    assert ids[: len(before)] == before
    logits = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    return float(sum(logits[place - 1, ids[place]] for place in range(len(before), len(ids))))


@torch.no_grad()
def greedy(model, tokenizer, prompt: str, tokens: int = 4) -> str:
    ids = tokenizer(prompt).input_ids
    start = len(ids)
    while len(ids) < start + tokens and ids[-1] != tokenizer.eos_token_id:
        ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return tokenizer.decode(ids[start:], skip_special_tokens=True)


def test_a_choice_is_that_of_the_likeliest_answer(model, tokenizer, write_task) -> None:
    rows = [{"question": text, "answers": ANSWERS, "right": i % 3} for i, text in enumerate(QUESTIONS)]
    suite, data = write_task(CHOICE, rows, "choice")
    right = []
    for row in rows:
        scores = [logprob(model, tokenizer, row["question"], answer) for answer in ANSWERS]
        right.append(max(range(3), key=scores.__getitem__) == row["right"])
    assert 0 < sum(right) < len(right)
    found = Suite(load_tasks(suite, data), chat_template=False, batch_size=5).measure(model, tokenizer)
    assert found.estimates == {"choice": share(right)}
    assert [sample["acc"] for sample in found.results["samples"]["choice"]] == right
    few = Suite(load_tasks(suite, data), 7, chat_template=False).measure(model, tokenizer)
    assert few.estimates == {"choice": share(right[:7])}


def test_a_reply_is_generated_within_the_chat_template(model, tokenizer, write_task) -> None:
    def asked(text: str) -> str:
        return tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
        )

    replies = [greedy(model, tokenizer, asked(text)) for text in QUESTIONS]
    assert replies != [greedy(model, tokenizer, text) for text in QUESTIONS]
    rows = [
        {"question": t, "answer": r if i % 4 else "other"}
        for i, (t, r) in enumerate(zip(QUESTIONS, replies, strict=True))
    ]
    suite, data = write_task(WRITTEN, rows, "written")
    found = Suite(load_tasks(suite, data), batch_size=5).measure(model, tokenizer)
    assert found.estimates == {"written": share([i % 4 > 0 for i in range(len(rows))])}
    shorter = Suite(load_tasks(suite, data), max_new_tokens=1).measure(model, tokenizer)
    [[reply]] = shorter.results["samples"]["written"][0]["resps"]
    assert reply == greedy(model, tokenizer, asked(QUESTIONS[0]), 1)


def test_the_model_and_random_numbers_are_as_before(model, tokenizer, write_task) -> None:
    rows = [{"question": text, "answers": ANSWERS, "right": 0} for text in QUESTIONS]
    beats: list[int] = []
    suite = Suite(load_tasks(*write_task(CHOICE, rows, "choice")), batch_size=12, beat=lambda: beats.append(1))
    before, names = random_state(), dict(vars(model))
    model.lm_head.train()
    suite.measure(model, tokenizer)
    after = random_state()
    assert torch.equal(before["torch"], after["torch"])
    assert before["python"] == after["python"]
    assert torch.equal(before["numpy"][1], after["numpy"][1])
    assert vars(model).keys() == names.keys()
    assert not model._forward_pre_hooks
    assert model.lm_head.training
    assert not model.training
    assert beats
    model.eval()


def test_a_folder_has_all_its_tasks_and_a_name_two_metrics(model, tokenizer, write_task, tmp_path: Path) -> None:
    rows = [{"question": t, "answers": ANSWERS, "right": 0, "answer": "x"} for t in QUESTIONS]
    acc, norm = "[{metric: acc,", "[{metric: acc_norm, aggregation: mean, higher_is_better: true}, {metric: acc,"
    twice = CHOICE.replace(acc, norm)
    (_, choice), (_, written) = write_task(twice, rows, "choice"), write_task(WRITTEN, rows, "written")
    tasks = load_tasks(str(tmp_path), f"{choice},{written}")
    found = Suite(tasks, 3).measure(model, tokenizer).estimates
    assert found.keys() == {"choice.acc", "choice.acc_norm", "written"}
    metrics = report_of(found).metrics
    assert metrics["written"] == metrics["written_low"] == 0 < metrics["written_high"] < 1


def test_rows_of_several_values_have_an_interval_over_rows_and_other_figures_none() -> None:
    kept = [{"filter": "none", "doc_id": i, "of_all": [True, i == 0], "odd": 1.0} for i in range(4)]
    results = {
        "results": {"ifeval": {"name": "ifeval", "of_all,none": 5 / 8, "of_all_stderr,none": "N/A", "odd,none": 7.0}},
        "group_subtasks": {},
        "samples": {"ifeval": kept},
    }
    found = estimates(results)
    assert found["ifeval.of_all"].value == 5 / 8
    assert (found["ifeval.of_all"].units, found["ifeval.of_all"].rows) == (4, 8)
    assert found["ifeval.of_all"].low is not None
    assert found["ifeval.odd"].value == 7
    assert found["ifeval.odd"].low is None
    assert "no mean" in found["ifeval.odd"].reason


def test_a_group_is_one_figure_over_the_rows_of_its_tasks() -> None:
    samples = {f"part{n}": [{"filter": "none", "doc_id": i, "acc": float(i < n)} for i in range(5)] for n in (1, 2)}
    results = {
        "results": {"part1": {"acc,none": 0.2}, "part2": {"acc,none": 0.4}, "all": {"acc,none": 0.3}},
        "groups": {"all": {"acc,none": 0.3}},
        "group_subtasks": {"all": ["part1", "part2"]},
        "samples": samples,
    }
    assert estimates(results) == {"all": share([i < n for n in (1, 2) for i in range(5)])}


@pytest.mark.parametrize(
    ("suite", "data", "said"),
    [
        (" , ", None, "no task is named"),
        ("absent.yaml", None, "there is no task file absent.yaml"),
        ("{folder}", None, "holds no task"),
        ("{file}", None, "the data of choice are not reached (Unable to find"),
        ("{file}", "absent.jsonl", "there are no rows absent.jsonl of choice"),
        ("{file}", "other={rows}", "are of no task here; needed: TASK=FILE, of choice"),
        ("{file}", "choice={wrong}", "the task choice does not load"),
    ],
)
def test_what_cannot_be_run_is_said_on_one_line(suite, data, said, write_task, tmp_path: Path) -> None:
    file, named = write_task(CHOICE, [{"question": "?", "answers": ANSWERS, "right": 0}], "choice")
    (empty := tmp_path / "empty").mkdir()
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text('{"text": "a row of another kind"}\n')
    words = {"folder": empty, "file": file, "rows": named.partition("=")[2], "wrong": wrong}
    with pytest.raises(InputError) as error:
        load_tasks(suite.format(**words), data and data.format(**words))
    assert said in str(error.value)
    assert len(str(error.value)) < 300 + len(str(tmp_path))
    assert "\n" not in str(error.value)


@pytest.mark.slow  # lm-eval reads its thousands of task files
def test_an_unknown_name_has_near_ones_and_a_known_one_needs_the_hub_or_a_file(tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(InputError, match="no task 'ifevl'; did you mean ifeval or"):
        load_tasks("ifevl")
    monkeypatch.setattr("lmgym.training.capability_tasks.hub_has_address", lambda: False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with pytest.raises(InputError, match=r"data of arc_easy are not reached .*; needed: the hub, or a file"):
        load_tasks("arc_easy")
    rows = tmp_path / "arc.jsonl"
    row = {"question": "?", "answerKey": "A", "choices": {"text": ["a", "b"], "label": ["A", "B"]}}
    rows.write_text((json.dumps(row) + "\n") * 3)
    [task] = load_tasks("arc_easy", str(rows))
    assert task.task_name == "arc_easy"
    assert len(task.eval_docs) == 3
    assert not constants.HF_HUB_OFFLINE  # a push of the same run asks the hub


def test_a_context_that_is_too_short_is_an_error_on_one_line(model, tokenizer, write_task) -> None:
    rows = [{"question": text, "answer": "x"} for text in QUESTIONS]
    suite = Suite(load_tasks(*write_task(WRITTEN, rows, "written")), max_new_tokens=10_000)
    with pytest.raises(InputError, match=r"lm-eval cannot run these tests: .*10000"):
        suite.measure(model, tokenizer)


def test_under_zero_3_capabilities_are_refused() -> None:
    settings = replace(CapabilitiesConfig(), capabilities="gsm8k")
    with pytest.raises(InputError, match=r"--capabilities under ZeRO-3.*lmgym eval OUTPUT"):
        check_capabilities(settings, {"zero_optimization": {"stage": 3}})
    assert check_capabilities(CapabilitiesConfig(), {"zero_optimization": {"stage": 3}}) == []
