"""The forms of an answer: what is said, what a value becomes, and which row a name belongs to."""

from typing import Any

import pytest

from lmgym.runs.other_names.answers import Answer, read


@pytest.mark.parametrize(
    ("text", "said", "flags", "values"),
    [
        ("--epochs", "write --epochs", {}, [(3, 3), ("x", "x")]),
        ("--precision bf16", "write --precision bf16", {}, [(True, "bf16"), (False, None), (None, None), (2, "bf16")]),
        ("--num_rollouts * --num_generations", "write --num_rollouts: the value times --num_generations",
         {"num_generations": 5}, [(128, 640)]),
        ("--num_rollouts * --num_generations", "write --num_rollouts: the value times --num_generations",
         {}, [(128, 128)]),
        ("--adam_beta2 [1]", "write --adam_beta2: its second number", {}, [([0.9, 0.95], 0.95), ((1, 2), 2)]),
        ("--dropout not", "write --dropout false for true, true for false", {}, [(True, False), (False, True)]),
        ("--loss {sigmoid: dpo, ipo: ipo}", "write --loss: sigmoid is dpo", {}, [("sigmoid", "dpo"), ("kto", "kto")]),
        ("--top_k {-1: 0}", "write --top_k: -1 is 0", {}, [(-1, "0"), (50, 50)]),
        ("--engine {hf: -}", "write --engine: hf is no flag", {}, [("hf", None), ("vllm", "vllm")]),
        ("--scale {true: group, false: none}", "write --scale: true is group, false is none", {},
         [(True, "group"), (False, "none"), ("batch", "batch")]),
        ("--tracking {all: wandb,tensorboard, x: auto}", "write --tracking: all is wandb,tensorboard, x is auto", {},
         [("all", "wandb,tensorboard"), ("x", "auto")]),
    ],
)  # fmt: skip
def test_a_value_is_converted_as_is_said(text: str, said: str, flags: dict, values: list[tuple[Any, Any]]) -> None:
    answer = Answer(text)
    assert str(answer) == said
    for there, here in values:
        assert answer.convert(there, flags) == here


@pytest.mark.parametrize(
    ("text", "value"), [("--a [1]", 3), ("--a [1]", [1]), ("--a not", "x"), ("--a * --b", "x"), ("--a * --b", [1])]
)
def test_a_value_without_a_meaning_is_an_error(text: str, value: Any) -> None:
    with pytest.raises(ValueError, match="needed: "):
        Answer(text).convert(value, {})


@pytest.mark.parametrize("text", ["rows are packed", "--a and --b", "--push_to_hub OWNER/NAME", "--a; without it five"])
def test_a_sentence_names_no_flag_of_its_own(text: str) -> None:
    assert Answer(text).flag is None
    assert str(Answer(text)) == text


TABLE = read({
    "": {"lr": "--all", "optim.lr": "--long", "critic.optim.*": "--critic", "*profile*": "--profile", "model.x": "--x"},
    "ppo": {"lr": "--ppo"},
})  # fmt: skip


@pytest.mark.parametrize(
    ("name", "stage", "flag"),
    [
        ("lr", "sft", "all"),
        ("lr", "ppo", "ppo"),
        ("actor.optim.lr", "sft", "long"),
        ("critic.optim.lr", "sft", "critic"),
        ("optim.lr", "sft", "long"),
        ("model.lr", "sft", "all"),
        ("x", "sft", "x"),
        ("my_profiler", "sft", "profile"),
        ("elsewhere.lr", "sft", None),
        ("flr", "sft", None),
    ],
)
def test_the_row_that_fits_a_name_best_answers(name: str, stage: str, flag: str | None) -> None:
    found = TABLE.nearest(name, stage)[1]
    assert [row.answer.flag for row in found] == ([flag] if flag else [])
