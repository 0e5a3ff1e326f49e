"""Thoughts and answers in the forms of public models, and texts that only look like them."""

import pytest

from lmgym.generation.thoughts import split_thought

FORMS = {
    "DeepSeek-R1, Qwen3": ("<think>\nhm\n</think>\n\n7", "hm", "7"),
    "its prompt opens the thought": ("hm, so\n</think>\n\n7", "hm, so", "7"),
    "Magistral": ("[THINK]hm[/THINK]7", "hm", "7"),
    "Seed-OSS": ("<seed:think>hm</seed:think>7", "hm", "7"),
    "Kimi-VL": ("◁think▷hm◁/think▷7", "hm", "7"),
    "Sky-T1": ("<|begin_of_thought|>\nhm\n<|end_of_thought|>\n\n7", "hm", "7"),
    "prompted": ("<reasoning>hm</reasoning>\n7", "hm", "7"),
    "Anthropic's old prompts": ("<thinking>hm</thinking>\n\n7", "hm", "7"),
    "two thoughts": ("<think>a</think>1<think>b</think>2", "a\n\nb", "1\n\n2"),
    "gpt-oss": (
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>7<|return|>",
        "hm",
        "7",
    ),
    "gpt-oss, special tokens dropped": ("analysishm, soassistantfinal7", "hm, so", "7"),
    "gpt-oss, cut": ("<|channel|>analysis<|message|>hm", "hm", ""),
    "cut within the thought": ("<think>hm, perhaps [[1]]", "hm, perhaps [[1]]", ""),
    "an empty thought": ("<think>\n\n</think>\n\n7", "", "7"),
}


@pytest.mark.parametrize("name", FORMS)
def test_thought_and_answer_are_told_apart(name: str) -> None:
    text, thought, answer = FORMS[name]
    assert split_thought(text) == (thought, answer)


@pytest.mark.parametrize(
    "text",
    [
        " an answer with blanks around it ",
        "analysis of the reply: it is good",
        "I think 7 <b>or</b> 8",
        "<answer>7</answer>",
        "an answer that names <think> and ends",
        "",
        "a < b and [c] > d",
    ],
)
def test_a_reply_without_a_thought_stays_as_it_is(text: str) -> None:
    assert split_thought(text) == ("", text)
