"""The prompts of other tools' rows, and the replies that they prefer, under lmgym's names.

Two replies with a verdict become `chosen` and `rejected`, or `replies` and `ranks` where the verdict is a tie; several
replies with scores or ranks become `replies` and `ranks`. One row gives one pair or one group. Formats of conversations
and single replies, and the list of all, are in lmgym/data/formats.py.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmgym.data.asked import Columns, Fields, Format, asked, is_blank, is_texts, message, read_text
from lmgym.data.rejections import NO_PROMPT, NO_REPLY, NO_VALUE, OUT_OF_RANGE, RowError
from lmgym.data.rows import number_of, whole_number
from lmgym.data.verdicts import STATUS, has_verdict, judged, side_of
from lmgym.errors import listed, shown

SCORES = ("overall_score", "fine-grained_score")
"""of UltraFeedback: the first that all completions of a row have"""
PAIRS = (
    ("chosen_response", "rejected_response"),
    ("chosen_messages", "rejected_messages"),
    ("response_chosen", "response_rejected"),
)
"""other names of `chosen` and `rejected`"""


# two replies


@dataclass(frozen=True)
class Choice:
    """The columns of two replies, and of the verdict on them."""

    first: str
    second: str
    verdict: str
    places: Mapping[Any, int | None]
    """by verdict: 0 where the first reply is the better one, 1 where the second is, None for a tie"""
    prompt: str = ""
    """the column of the prompt; empty: found by its name"""


STRENGTHS = {-3: 0, -2: 0, -1: 0, 0: None, 1: 1, 2: 1, 3: 1}
CHOICES = (
    Choice("output_1", "output_2", "preference", {1: 0, 2: 1, 0: None}),  # AlpacaFarm
    Choice("response_0", "response_1", "better_response_id", {0: 0, 1: 1}),  # PKU-SafeRLHF
    Choice("human_ref_A", "human_ref_B", "labels", {1: 0, 0: 1}, "history"),  # SHP
    Choice("response_1", "response_2", "preference_strength", STRENGTHS),  # HelpSteer2
    Choice("response1", "response2", "overall_preference", STRENGTHS, "context"),  # HelpSteer3
)


def _choice(fields: Fields) -> Choice | None:
    if not is_blank(fields.get("chosen")):
        return None
    return next((one for one in CHOICES if {one.first, one.second, one.verdict} <= fields.keys()), None)


def _of_choice(fields: Fields) -> Columns:
    choice = _choice(fields)
    assert choice is not None
    value, sides = fields[choice.verdict], (choice.first, choice.second)
    number = number_of(value)
    if choice.verdict == "preference" and 1 < number < 2:  # AlpacaEval's, of output_2
        pair = _two(*_of(fields, sides), (choice.verdict,), 2 - number)
    elif number in choice.places:
        place = choice.places[number]
        pair = _two(*_of(fields, sides), (choice.verdict,), 0.5 if place is None else 1.0 - place)
    else:
        found = f"{shown(value)}; needed: one of {listed(choice.places)}"
        raise RowError(choice.verdict, found, NO_VALUE if is_blank(value) else OUT_OF_RANGE)
    if not choice.prompt:
        return asked(fields).and_also(pair)
    return Columns({"prompt": fields.get(choice.prompt)}, {"prompt": choice.prompt}).and_also(pair)


def _two(replies: Sequence[Any], sides: Sequence[str], verdict: Sequence[str], share: float) -> Columns:
    """The pair of two replies, the better one first; `share` is the probability that it is the first.

    Its `preference` is the share of the better one. A tie is a group of equal ranks, too.
    """
    place = int(share < 0.5)
    names = {"chosen": sides[place], "rejected": sides[1 - place]}
    fields = {"chosen": replies[place], "rejected": replies[1 - place]}
    if share not in (0, 1):
        fields["preference"] = max(share, 1 - share)
    elif "preference" in verdict:  # ours is a probability
        fields["preference"] = None
    if share == 0.5 and all(isinstance(reply, str) for reply in replies):
        fields |= {"replies": list(replies), "ranks": [1, 1]}
        names |= {"replies": sides[0], "ranks": verdict[0]}
    return Columns(fields, names | {"preference": verdict[0]}, tuple(verdict))


def _judged(fields: Fields) -> Columns:
    """Two replies with verdicts in words, one or several raters' (lmgym/data/verdicts.py)."""
    found = judged(fields)
    assert found is not None  # by `has_verdict`
    if found.verdicts == ("annotations",):  # Label Studio's, whose texts stand in `data`
        pair = _two(found.replies, ("data", "data"), found.verdicts, found.share)
        return Columns({"prompt": asked(found.asks).fields.get("prompt")}, {"prompt": "data"}).and_also(pair)
    return asked(found.asks).and_also(_two(found.replies, found.sides, found.verdicts, found.share))


def _is_tied(fields: Fields) -> bool:
    """True of a pair whose status says that it is none."""
    has_both = all(not is_blank(fields.get(name)) for name in ("chosen", "rejected"))
    return has_both and side_of(fields.get(STATUS), ("chosen", "rejected")) == 0.5


def _webgpt(fields: Fields) -> Columns:
    """WebGPT's comparisons: two answers with a score each, and a question whose text is `full_text`."""
    names = ("score_0", "score_1")
    if bad := [name for name in names if not is_score(fields[name])]:
        raise RowError(bad[0], f"{shown(fields[bad[0]])}; needed: a number", OUT_OF_RANGE)
    share = 0.5 if fields[names[0]] == fields[names[1]] else float(fields[names[0]] > fields[names[1]])
    question = fields.get("question")
    asks = {"prompt": question.get("full_text")} if isinstance(question, dict) else {"prompt": question}
    return Columns(asks, {"prompt": "question"}).and_also(_two(*_of(fields, ("answer_0", "answer_1")), names, share))


def _of(fields: Fields, sides: Sequence[str]) -> tuple[list[Any], Sequence[str]]:
    return [fields[side] for side in sides], sides


def _is_webgpt(fields: Fields) -> bool:
    return {"answer_0", "answer_1", "score_0", "score_1"} <= fields.keys() and is_blank(fields.get("chosen"))


def _summaries(fields: Fields) -> Columns:
    """The comparisons of summarize-from-feedback, whose prompts are written as their authors did."""
    info, summaries, place = fields["info"], fields["summaries"], whole_number(fields.get("choice"))
    texts = [one.get("text") for one in summaries if isinstance(one, dict)] if isinstance(summaries, list) else []
    if len(texts) != 2:
        raise RowError("summaries", f"{shown(summaries)}; needed: two objects with a text", NO_REPLY)
    if place not in (0, 1):
        raise RowError("choice", f"{shown(fields.get('choice'))}; needed: 0 or 1", OUT_OF_RANGE)
    post, article = read_text(info, "post"), read_text(info, "article")
    if not post and not article:
        raise RowError("info", "has neither a post nor an article", NO_PROMPT)
    if post:
        heads = (("SUBREDDIT: r/", "subreddit"), ("TITLE: ", "title"))
        said = [f"{head}{read_text(info, name)}" for head, name in heads if read_text(info, name)]
        said.append(f"POST: {post}")
    else:
        said = [f"Article:\n{article}"]
    columns = {"prompt": [message("user", "\n\n".join((*said, "TL;DR:")))], "chosen": texts[place]}
    names = {"prompt": "info", "chosen": "summaries", "rejected": "summaries"}
    return Columns(columns | {"rejected": texts[1 - place]}, names, ("choice",))


def _pair_names(fields: Fields) -> tuple[str, str] | None:
    if not is_blank(fields.get("chosen")):
        return None
    return next((names for names in PAIRS if set(names) <= fields.keys()), None)


def _named_pair(fields: Fields) -> Columns:
    names = _pair_names(fields)
    assert names is not None
    found = dict(zip(("chosen", "rejected"), names, strict=True))
    return asked(fields).and_also(Columns({ours: fields[theirs] for ours, theirs in found.items()}, found))


def _is_openais(fields: Fields) -> bool:
    return isinstance(fields.get("input"), dict) and {"preferred_output", "non_preferred_output"} <= fields.keys()


def _openais(fields: Fields) -> Columns:
    """OpenAI's file for preferences: `input` with `messages` and perhaps `tools`, and lists of one message."""
    names = {"prompt": "input", "chosen": "preferred_output", "rejected": "non_preferred_output"}
    columns = {"prompt": fields["input"].get("messages"), "chosen": fields[names["chosen"]]}
    columns["rejected"] = fields[names["rejected"]]
    if not is_blank(tools := fields["input"].get("tools")):
        columns, names = {**columns, "tools": tools}, {**names, "tools": "input"}
    return Columns(columns, names)


def _repeats_prompt(fields: Fields) -> bool:
    """True if the prompt is the text of the message before the chosen reply: one message, whatever its text."""
    prompt, chosen = fields.get("prompt"), fields.get("chosen")
    if not isinstance(prompt, str) or not isinstance(chosen, list) or len(chosen) < 2:
        return False
    last = chosen[-2]
    content = last.get("content") if isinstance(last, dict) else None
    return isinstance(content, str) and content.strip() == prompt.strip()


# several replies


def _chosen_list(fields: Fields) -> bool:
    return is_texts(fields.get("chosen")) and is_texts(fields.get("rejected"))


def _reward_bench_2(fields: Fields) -> Columns:
    """Lists of right and of wrong replies."""
    good, bad = fields["chosen"], fields["rejected"]
    columns = {"replies": [*good, *bad], "ranks": [1] * len(good) + [2] * len(bad), "chosen": None, "rejected": None}
    return asked(fields).and_also(Columns(columns, {"replies": "chosen", "ranks": "rejected"}))


def _ultrafeedback(fields: Fields) -> Columns:
    said, completions = read_text(fields, "instruction"), fields["completions"]
    if not said:
        raise RowError("instruction", "missing or empty", NO_PROMPT)
    if not isinstance(completions, list) or not completions:
        raise RowError("completions", f"{shown(completions)}; needed: at least 2 with their scores", NO_REPLY)
    for number, one in enumerate(completions, 1):
        if not isinstance(one, dict) or not isinstance(one.get("response"), str):
            raise RowError("completions", f"completion {number} has no response; needed: text", NO_REPLY)
    name = next((name for name in SCORES if all(is_score(one.get(name)) for one in completions)), None)
    if name is None:
        found = f"a completion without a score; needed: a number as {' or '.join(SCORES)} of each"
        raise RowError("completions", found, OUT_OF_RANGE)
    columns = {
        "prompt": [message("user", said)],
        "replies": [one["response"] for one in completions],
        "ranks": ranks_of([float(one[name]) for one in completions]),
    }
    return Columns(columns, {"prompt": "instruction", "replies": "completions", "ranks": "completions"})


def ranks_of(scores: Sequence[float]) -> list[int]:
    """Ranks of scores, 1 the highest; equal scores have equal ranks."""
    order = sorted(set(scores), reverse=True)
    return [order.index(score) + 1 for score in scores]


def is_score(value: Any) -> bool:
    """True for a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _has_ranked_answers(fields: Fields) -> bool:
    answers = fields.get("answers")
    return isinstance(answers, list) and bool(answers) and all(isinstance(a, dict) and "rank" in a for a in answers)


def _nectar(fields: Fields) -> Columns:
    """`answers`, each with an `answer` and a `rank`, beside a prompt."""
    columns = {"replies": [one.get("answer") for one in fields["answers"]]}
    columns["ranks"] = [one["rank"] for one in fields["answers"]]
    return asked(fields).and_also(Columns(columns, {"replies": "answers", "ranks": "answers"}))


def _is_tree(fields: Fields) -> bool:
    prompt = fields.get("prompt")
    return isinstance(prompt, dict) and isinstance(prompt.get("replies"), list)


def _tree(fields: Fields) -> Columns:
    """A tree of OpenAssistant's: its first question that has two ranked answers, with the turns before it.

    A tree without one is the question at its root.
    """
    root = fields["prompt"]
    waiting: list[tuple[Any, list[dict[str, Any]]]] = [(root, [])]
    while waiting:
        node, before = waiting.pop()
        if not _is_said(node):
            continue
        asks = node.get("role") == "prompter"
        chat = [*before, message("user" if asks else "assistant", node["text"])]
        replies = node["replies"] if isinstance(node.get("replies"), list) else []
        ranked = [one for one in replies if _is_said(one) and whole_number(one.get("rank")) is not None]
        if asks and len(ranked) > 1:
            columns = {"prompt": chat, "replies": [one["text"] for one in ranked]}
            names = dict.fromkeys(("prompt", "replies", "ranks"), "prompt")
            return Columns(columns | {"ranks": [one["rank"] for one in ranked]}, names)
        waiting += [(one, chat) for one in reversed(replies)]
    said = read_text(root, "text")
    return Columns({"prompt": [message("user", said)] if said else None}, {"prompt": "prompt"})


def _is_said(node: Any) -> bool:
    return isinstance(node, dict) and not node.get("deleted") and isinstance(node.get("text"), str)


PREFERENCES = (
    Format("OpenAssistant's tree", _is_tree, _tree),
    Format("OpenAI's preferences", _is_openais, _openais),
    Format(
        "UltraFeedback, binarized",
        _repeats_prompt,
        lambda f: Columns({"prompt": f["chosen"][:-1]}, {"prompt": "chosen"}, ("prompt",)),
    ),
    Format("RewardBench 2", _chosen_list, _reward_bench_2),
    Format("named pairs", lambda f: _pair_names(f) is not None, _named_pair),
    Format("WebGPT", _is_webgpt, _webgpt),
    Format("summaries", lambda f: isinstance(f.get("info"), dict) and "summaries" in f, _summaries),
    Format("two replies and a number", lambda f: _choice(f) is not None, _of_choice),
    Format("two replies and a verdict", has_verdict, _judged),
    Format("a pair that is a tie", _is_tied, lambda f: Columns({"preference": 0.5}, {"preference": STATUS})),
    Format("Nectar", _has_ranked_answers, _nectar),
    Format(
        "UltraFeedback",
        lambda f: "instruction" in f and "completions" in f and not (f.get("prompt") or f.get("messages")),
        _ultrafeedback,
    ),
)
"""the first that recognises a row converts it"""
