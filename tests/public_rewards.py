"""Sixty reward functions with the signatures of public repositories, and calls of them as their libraries make them.

Signatures are those found in TRL's rewards and docs, open-r1, the GSM8K and countdown programs that are copied most,
verl's rewards and recipes, OpenRLHF's examples and programs made of them, and trlx's examples. The bodies are ours.
"""

import asyncio
import inspect
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

Call = Callable[[Callable[..., Any], Sequence[dict[str, Any]], Any], list[Any]]
"""of a function, given the replies (prompt, messages, prompt_text, reply, ids, columns) and the tokenizer"""
THINK = re.compile(r"<think>.*?</think>\s*<answer>(.*?)</answer>", re.DOTALL)
BOXED = re.compile(r"\\boxed\{([^}]*)\}")


def _last_number(text: str) -> str | None:
    return (re.findall(r"-?\d+(?:\.\d+)?", text) or [None])[-1]


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


# TRL, prompts and completions as texts


def unique_letters(completions, **kwargs):
    return [float(len(set(text))) for text in completions]


def near_twenty(completions, **kwargs):
    return [-abs(20 - len(text)) for text in completions]


def long_in_tokens(completion_ids, completions, **kwargs):
    return [float(len(ids)) for ids in completion_ids]


def longer_than_prompt(prompts, completions, **kwargs):
    return [float(len(text) > len(prompt)) for prompt, text in zip(prompts, completions, strict=True)]


async def asked_elsewhere(prompts, completions, **kwargs):
    await asyncio.sleep(0)
    return [len(prompt) + len(text) / 10 for prompt, text in zip(prompts, completions, strict=True)]


def equation_reward(completions, target, nums, **kwargs):
    found = []
    for text, goal, numbers in zip(completions, target, nums, strict=True):
        match = re.search(r"<answer>(.*?)</answer>", "<answer>" + text)
        used = sorted(map(int, re.findall(r"\d+", match[1]))) if match else []
        found.append(float(used == sorted(numbers)) + float(sum(used) == goal))
    return found


def starts_with_think(completions: list[str], **kwargs) -> list[float]:
    return [1.0 if re.match(r"^\s?<think>", text) else 0.0 for text in completions]


def strict_blank(completions, **_):
    return [float(text.startswith(" ")) - float(text.startswith("\n")) for text in completions]


def only_maths(completions, task, answer, **kwargs) -> list[float | None]:
    rows = zip(completions, task, answer, strict=True)
    return [None if kind != "math" else float(_last_number(text) == right) for text, kind, right in rows]


def no_other_columns(completions, answer=None):
    return [float(str(right) in text) for text, right in zip(completions, answer, strict=True)]


class BrevityReward:
    """Of which an instance is called."""

    def __init__(self, most: int) -> None:
        self.most = most

    def __call__(self, completions, **kwargs):
        return [min(1.0, self.most / (1 + len(text))) for text in completions]


# TRL, prompts and completions as messages


def think_format_reward(completions: list[list[dict[str, str]]], **kwargs) -> list[float]:
    return [
        1.0 if re.match(r"^<think>(?!.*<think>).*</think>", c[0]["content"], re.DOTALL) else 0.0 for c in completions
    ]


def accuracy_reward(completions, solution: list[str], **kwargs) -> list[float | None]:
    found: list[float | None] = []
    for completion, gold in zip(completions, solution, strict=True):
        boxed = BOXED.findall(gold)
        found.append(float(boxed[-1] in completion[0]["content"]) if boxed else None)
    return found


def format_reward(completions, **kwargs):
    return [float(bool(THINK.fullmatch(c[0]["content"].strip()))) for c in completions]


def tag_count_reward(completions, **kwargs) -> list[float]:
    tags = ("<think>", "</think>", "<answer>", "</answer>")
    return [sum(c[0]["content"].count(tag) == 1 for tag in tags) / len(tags) for c in completions]


def reasoning_steps_reward(completions, **kwargs):
    steps = [len(re.findall(r"(?:^|\n)\s*(?:\d+\.|-|First|Next)", c[0]["content"])) for c in completions]
    return [min(1.0, count / 3) for count in steps]


def len_reward(completions: list[dict[str, str]], solution: list[str], **kwargs) -> list[float]:
    lengths = [len(c[0]["content"]) for c in completions]
    span = max(lengths) - min(lengths)
    return [0.5 - (length - min(lengths)) / span if span else 0.0 for length in lengths]


def get_cosine_scaled_reward(most: float):
    def cosine_scaled_reward(completions, solution, **kwargs):
        return [0.5 + 0.5 * math.cos(min(1.0, len(c[0]["content"]) / most) * math.pi) for c in completions]

    return cosine_scaled_reward


def get_repetition_penalty_reward(ngram_size: int, max_penalty: float):
    def repetition_penalty_reward(completions, **kwargs) -> list[float]:
        found = []
        for completion in completions:
            words = _words(completion[0]["content"])
            grams = list(zip(*(words[i:] for i in range(ngram_size)), strict=False))
            found.append((1 - len(set(grams)) / len(grams)) * max_penalty if grams else 0.0)
        return found

    return repetition_penalty_reward


def correctness_reward_func(prompts, completions, answer, **kwargs) -> list[float]:
    assert prompts[0][-1]["role"] == "user"
    responses = [completion[0]["content"] for completion in completions]
    return [2.0 if _last_number(r) == a else 0.0 for r, a in zip(responses, answer, strict=True)]


def int_reward_func(completions, **kwargs) -> list[float]:
    texts = [re.search(r"<answer>(.*?)</answer>", completion[0]["content"], re.DOTALL) for completion in completions]
    return [0.5 if match and match[1].strip().isdigit() else 0.0 for match in texts]


def strict_format_reward_func(completions, **kwargs) -> list[float]:
    pattern = r"^<think>\n.*?\n</think>\n<answer>\n.*?\n</answer>\n$"
    return [0.5 if re.match(pattern, completion[0]["content"]) else 0.0 for completion in completions]


def xmlcount_reward_func(completions, **kwargs) -> list[float]:
    contents = [completion[0]["content"] for completion in completions]
    return [0.125 * text.count("\n<") - 0.001 * len(text.split("</answer>")[-1]) for text in contents]


def check_answer(prompts, completions, answer, **kwargs):
    questions = [prompt[-1]["content"] for prompt in prompts]
    rows = zip(questions, completions, answer, strict=True)
    return [3.0 * (a in c[0]["content"]) - 0.01 * len(q) for q, c, a in rows]


async def asked_a_judge(prompts, completions, completion_ids, answer, **kwargs):
    async def one(completion: list[dict[str, str]], ids: list[int]) -> float:
        await asyncio.sleep(0)
        return len(completion[0]["content"]) / len(ids)

    return await asyncio.gather(*map(one, completions, completion_ids))


def roles_are_assistants(completions, **kwargs):
    return [float(completion[-1]["role"] == "assistant") for completion in completions]


# verl


def gsm8k_score(solution_str, ground_truth, method="strict", format_score=0.0, score=1.0):
    found = re.search(r"#### (-?[0-9.,]+)", solution_str) if method == "strict" else None
    if found is None:
        return format_score
    return score if found[1].replace(",", "") == ground_truth else format_score


def math_score(solution_str, ground_truth) -> float:
    boxed = BOXED.findall(solution_str)
    return float(bool(boxed) and boxed[-1] == ground_truth)


def my_reward_fn(data_source, solution_str, ground_truth, extra_info=None):
    return len(solution_str) / 100


def by_source(data_source, solution_str, ground_truth, extra_info):
    if data_source == "openai/gsm8k":
        return float(_last_number(solution_str) == ground_truth)
    return -1.0


def dict_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    right = ground_truth in solution_str
    return {"score": 1.0 if right else -1.0, "acc": right, "pred": _last_number(solution_str)}


def split_of_row(data_source, solution_str, ground_truth, extra_info):
    return float(extra_info["index"]) + (extra_info.get("num_turns") or 0)


async def async_score(data_source, solution_str, ground_truth, extra_info):
    await asyncio.sleep(0)
    return {"score": float(solution_str.count("a")), "extra": ground_truth}


def with_settings(data_source, solution_str, ground_truth, extra_info=None, format_score=0.1, no_think_score=-2.0):
    return no_think_score if "<think>" not in solution_str else format_score


def prime_like(solution_str, ground_truth, extra_info=None):
    return bool(ground_truth) and ground_truth in solution_str


def batch_scores(data_sources, solution_strs, ground_truths, extra_infos):
    rows = zip(data_sources, solution_strs, ground_truths, extra_infos, strict=True)
    return [len(s) + len(text) + float(g in text) + e["index"] for s, text, g, e in rows]


def batch_of_dicts(solution_strs, ground_truths, **kwargs):
    return [{"score": float(g in text)} for text, g in zip(solution_strs, ground_truths, strict=True)]


def first_blank_matters(solution_str, ground_truth):
    return float(solution_str[:1].isspace())


def overlong(data_source, solution_str, ground_truth, extra_info=None):
    return min(0.0, (40 - len(solution_str)) / 10)


# OpenRLHF


def reward_func(queries, prompts, labels):
    return torch.tensor([float(label in q[len(p) :]) for q, p, label in zip(queries, prompts, labels, strict=True)])


def random_like(queries, prompts, labels, **kwargs):
    reward = torch.tensor([float(len(query)) for query in queries])
    return {"rewards": reward, "scores": reward / 100, "extra_logs": {"dummy_scores": reward}}


def old_form(queries, prompts):
    return torch.tensor([len(q) - len(p) for q, p in zip(queries, prompts, strict=True)]).float()


def label_may_lack(queries, prompts, labels=None):
    return [
        0.0 if labels is None else float(label == _last_number(q)) for q, label in zip(queries, labels, strict=True)
    ]


def math_reward(queries: list[str], prompts: list[str], labels: list[str], **kwargs) -> dict:
    rewards = []
    for query, prompt, label in zip(queries, prompts, labels, strict=True):
        response = query[len(prompt) :] if prompt in query else query
        rewards.append(1.0 if BOXED.findall(response)[-1:] == [label] else 0.0)
    return {"rewards": torch.tensor(rewards), "extra_logs": {"accuracy": sum(rewards) / len(rewards)}}


def ends_by_itself(queries, prompts, labels):
    return torch.tensor([float(query.endswith(("</s>", "<|eos|>"))) for query in queries])


def marks_of_the_template(queries, prompts, labels):
    return [float(query.startswith(prompt)) + query.count("\n") for query, prompt in zip(queries, prompts, strict=True)]


def of_a_list(queries, prompts, labels, **kwargs):
    return {"rewards": [len(_words(query)) for query in queries]}


def format_and_answer(queries, prompts, labels):
    texts = [query[len(prompt) :] for query, prompt in zip(queries, prompts, strict=True)]
    return torch.tensor([0.5 * bool(THINK.search(t)) + (label in t) for t, label in zip(texts, labels, strict=True)])


# trlx


def counts_dogs(samples: list[str], **kwargs):
    return [sample.count("dog") for sample in samples]


def samples_alone(samples):
    return torch.tensor([float(len(sample)) for sample in samples])


def all_three(samples, prompts, outputs):
    rows = zip(samples, prompts, outputs, strict=True)
    return [float(sample == prompt + output) + len(output) for sample, prompt, output in rows]


def of_kwargs(samples: list[str], **kwargs) -> list[float]:
    return [float(a in o) for a, o in zip(kwargs["answer"], kwargs["outputs"], strict=True)]


def against_the_original(samples, prompts, original_output, **kwargs):
    rows = zip(samples, prompts, original_output, strict=True)
    return [len(sample[len(prompt) :]) - len(original) for sample, prompt, original in rows]


def dense_reward_fn(
    samples: list[str], prompts: list[str], outputs: list[str], tokenizer, **kwargs
) -> list[list[float]]:
    return [[0.0] * (len(tokenizer(text).input_ids) - 1) + [float(len(text))] for text in outputs]


def outputs_alone(outputs, **metadata):
    return [float(text.endswith(".")) for text in outputs]


def with_tokenizer(samples, prompts, outputs, tokenizer):
    return [float(len(tokenizer(text).input_ids)) for text in outputs]


def summary_score(samples, prompts, outputs, original_summaries, **kwargs):
    rows = zip(outputs, original_summaries, strict=True)
    return [len(set(_words(text)) & set(_words(original))) / 10 for text, original in rows]


# lmgym


def of_turns(conversations, replies):
    return [len(c.turns) + len(reply) / 100 for c, reply in zip(conversations, replies, strict=True)]


def of_a_column(conversations, replies, answer, **columns):
    return [float(a in reply) + len(columns["data_source"][0]) for reply, a in zip(replies, answer, strict=True)]


async def of_ids(conversations, replies, output_ids):
    await asyncio.sleep(0)
    return [len(reply) / len(ids) for reply, ids in zip(replies, output_ids, strict=True)]


def call_trl_text(function, replies, tokenizer) -> list[Any]:
    return _trl(function, replies, [r["prompt"] for r in replies], [r["reply"] for r in replies])


def call_trl_chat(function, replies, tokenizer) -> list[Any]:
    said = [[{"role": "assistant", "content": r["reply"]}] for r in replies]
    return _trl(function, replies, [r["messages"] for r in replies], said)


def _trl(function, replies, prompts, completions) -> list[Any]:
    named = inspect.signature(function).parameters
    columns = {name: [r["columns"][name] for r in replies] for name in replies[0]["columns"]}
    if not any(one.kind is one.VAR_KEYWORD for one in named.values()):  # TRL would refuse it, its author meant so
        columns = {name: values for name, values in columns.items() if name in named}
        return _done(function(completions=completions, **columns))
    ids = [list(r["ids"]) for r in replies]
    also = {"trainer_state": object(), "log_extra": print, "log_metric": print}
    return list(_done(function(prompts=prompts, completions=completions, completion_ids=ids, **columns, **also)))


def call_verl(function, replies, tokenizer) -> list[Any]:
    found = []
    for r in replies:
        info = {**r["columns"]["extra_info"], "num_turns": None, "rollout_reward_scores": {}}
        truth = r["columns"]["reward_model"]["ground_truth"]
        given = {"data_source": r["columns"]["data_source"], "solution_str": r["reply"], "ground_truth": truth}
        named = inspect.signature(function).parameters
        given = {name: value for name, value in {**given, "extra_info": info}.items() if name in named}
        answer = _done(function(**given))
        found.append(answer["score"] if isinstance(answer, dict) else answer)
    return found


def call_verl_batch(function, replies, tokenizer) -> list[Any]:
    answer = function(
        data_sources=[r["columns"]["data_source"] for r in replies],
        solution_strs=[r["reply"] for r in replies],
        ground_truths=[r["columns"]["reward_model"]["ground_truth"] for r in replies],
        extra_infos=[{**r["columns"]["extra_info"], "rollout_reward_scores": {}} for r in replies],
    )
    return [one["score"] if isinstance(one, dict) else one for one in answer]


def call_openrlhf(function, replies, tokenizer) -> list[Any]:
    queries = [r["prompt_text"] + tokenizer.decode(r["ids"], skip_special_tokens=False) for r in replies]
    given = [queries, [r["prompt_text"] for r in replies], [r["columns"]["label"] for r in replies]]
    answer = function(*given[: len([n for n in inspect.signature(function).parameters if n != "kwargs"])])
    answer = answer["rewards"] if isinstance(answer, dict) else answer
    return answer.tolist() if hasattr(answer, "tolist") else answer


def call_trlx(function, replies, tokenizer) -> list[Any]:
    given = {
        "samples": [r["prompt_text"] + r["reply"] for r in replies], "prompts": [r["prompt_text"] for r in replies],
        "outputs": [r["reply"] for r in replies], "tokenizer": tokenizer,
        **{name: [r["columns"][name] for r in replies] for name in replies[0]["columns"]},
    }  # fmt: skip
    named = inspect.signature(function).parameters
    if not any(one.kind is one.VAR_KEYWORD for one in named.values()):
        given = {name: value for name, value in given.items() if name in named}
    answer = function(**given)
    return answer.tolist() if hasattr(answer, "tolist") else answer


def call_lmgym(function, replies, tokenizer) -> list[Any]:
    columns = {name: [r["columns"][name] for r in replies] for name in replies[0]["columns"]}
    columns = columns if "columns" in inspect.signature(function).parameters else {}
    if "output_ids" in inspect.signature(function).parameters:
        columns = {"output_ids": [list(r["ids"]) for r in replies]}
    given = {"conversations": [r["conversation"] for r in replies], "replies": [r["reply"] for r in replies]}
    return _done(function(**given, **columns))


def _done(answer: Any) -> Any:
    return asyncio.run(answer) if inspect.isawaitable(answer) else answer


BY_CALL: dict[Call, list[Callable[..., Any]]] = {
    call_trl_text: [
        unique_letters, near_twenty, long_in_tokens, longer_than_prompt, asked_elsewhere, equation_reward,
        starts_with_think, strict_blank, only_maths, no_other_columns, BrevityReward(30),
    ],
    call_trl_chat: [
        think_format_reward, accuracy_reward, format_reward, tag_count_reward, reasoning_steps_reward, len_reward,
        get_cosine_scaled_reward(80.0), get_repetition_penalty_reward(2, -1.0), correctness_reward_func,
        int_reward_func, strict_format_reward_func, xmlcount_reward_func, check_answer, asked_a_judge,
        roles_are_assistants,
    ],
    call_verl: [
        gsm8k_score, math_score, my_reward_fn, by_source, dict_score, split_of_row, async_score, with_settings,
        prime_like, first_blank_matters, overlong,
    ],
    call_verl_batch: [batch_scores, batch_of_dicts],
    call_openrlhf: [
        reward_func, random_like, old_form, label_may_lack, math_reward, ends_by_itself, marks_of_the_template,
        of_a_list, format_and_answer,
    ],
    call_trlx: [
        counts_dogs, samples_alone, all_three, of_kwargs, against_the_original, dense_reward_fn, outputs_alone,
        with_tokenizer, summary_score,
    ],
    call_lmgym: [of_turns, of_a_column, of_ids],
}  # fmt: skip
FUNCTIONS = [(call, function) for call, functions in BY_CALL.items() for function in functions]
