"""Verdicts in the forms that real models write them: right, or no verdict."""

import pytest

from lmgym.generation.protocol import Completion
from lmgym.scoring.judge_models import LocalModel
from lmgym.scoring.label_probabilities import read_reply
from lmgym.scoring.verdict_cache import VerdictCache
from lmgym.scoring.verdicts import Verdicts
from lmgym.text import Conversation, Turn

GRADES = [str(grade) for grade in range(1, 11)]
PAIR = ("A", "B")
STYLES: dict[str, list[tuple[str, str]]] = {
    "the verdict alone": [("[[7]]", "7"), ("7", "7"), ("**8**\n", "8"), ("10.", "10")],
    "thoughts in tags": [
        ("<think>perhaps [[1]]? no.</think> [[7]]", "7"),
        ("<think>\nIt lacks a source. [[3]] seems harsh.\n</think>\n\n[[4]]", "4"),
        ("First the facts. [[2]]? They are right.\n</think>\n\n[[9]]", "9"),
        ("<think>The reply is [[8]].</think>\n\nI would rather not say.", ""),
        ("[THINK]Between [[5]] and [[6]].[/THINK][[6]]", "6"),
    ],
    "channels": [
        (
            "<|channel|>analysis<|message|>[[3]]?<|end|><|start|>assistant<|channel|>final<|message|>[[5]]<|return|>",
            "5",
        ),
        ("analysisThe user asked for a poem. [[2]] or more.assistantfinal[[8]]", "8"),
        ("<|channel|>analysis<|message|>[[9]] it is", ""),
    ],
    "reasons, then the verdict": [
        ("The reply answers the question and names its source.\n\n[[8]]", "8"),
        ("**Helpfulness**: high.\n**Honesty**: unclear.\n\nFinal grade: **[[6]]**", "6"),
        ("Step 1: it is short. Step 2: it is right. Grade: [[10]].", "10"),
        ("1. Correct.\n2. Complete.\n3. Polite.\n\n[[9]]", "9"),
    ],
    "a change of mind": [
        ("[[4]]\n\nOn reflection the second half is right, so [[6]].", "6"),
        ("I first thought of [[9]], but the date is wrong: [[5]]", "5"),
        ("[[7]]\n\nWait: the scale ends at 10, so [[12]] would be too much. [[8]]", "8"),
    ],
    "numbers that are no verdict": [
        ("On a scale from 1 to 10: 6", ""),
        ("Criterion 1: met. [[6]]", "6"),
        ("I would give it a 7 out of 10.", ""),
        ("Grade: 8/10", ""),
        ("The reply has 3 errors in 2 lines.", ""),
        ("-7", ""),
        ("v2", ""),
        ("seven", ""),
    ],
    "outside of the scale": [("[[0]]", ""), ("[[11]]", ""), ("[[7.5]]", ""), ("[[6]] no, [[seven]]", "")],
    "other marks": [
        ("[7]", "7"),
        ("\\boxed{7}", ""),
        ("((7))", "7"),
        ("[[ 7 ]]", "7"),
        ("`[[7]]`", "7"),
        ("[[**9**]]", "9"),
        ("[[7/10]]", ""),
    ],
    "refusals": [("I'm sorry, but I can't help with grading this.", ""), ("", "")],
    "which of two": [
        ("A close call, but [[B]]", "B"),
        ("Reply A is longer, but A repeats itself. [[B]]", "B"),
        ("[[a]]", "A"),
        ("Both are good.", ""),
        ("[[tie]]", ""),
        ("<think>[[A]]. No: B cites.</think>My verdict is [[B]]", "B"),
    ],
}
WRITTEN = [(style, text, label) for style, own in STYLES.items() for text, label in own]


@pytest.mark.parametrize(("style", "text", "label"), WRITTEN)
def test_a_written_verdict_is_right_or_none(style: str, text: str, label: str, tmp_path) -> None:
    verdict = judged(Completion(text, "eos"), PAIR if style == "which of two" else GRADES, tmp_path)
    assert (
        (verdict and max(zip(verdict.p, PAIR if style == "which of two" else GRADES, strict=True))[1]) or ""
    ) == label


@pytest.mark.parametrize(("style", "text", "label"), WRITTEN)
def test_a_verdict_that_was_cut_or_withheld_is_none(style: str, text: str, label: str, tmp_path) -> None:
    labels = PAIR if style == "which of two" else GRADES
    assert judged(Completion(text, "length"), labels, tmp_path) is None
    assert judged(Completion("", "eos", withheld="content_filter"), labels, tmp_path) is None


def judged(reply: Completion, labels, tmp_path):
    """The verdict of a model that gives this reply."""

    class Writes(LocalModel):
        def ask(self, conversations, labels, each) -> None:
            each(0, read_reply(reply, labels))

    verdicts = Verdicts(Writes(None, "tests", tokens=100), VerdictCache(tmp_path / f"{reply.finish_reason}.sqlite"))  # type: ignore[arg-type]
    [found] = verdicts.ask([Conversation((Turn("user", reply.text),))], labels)
    return found


def test_thoughts_that_a_server_set_aside_make_what_is_written_the_verdict() -> None:
    reading = read_reply(Completion("[[7]]", "eos", reasoning="[[1]]? No."), GRADES)
    assert (reading.text, reading.thought, reading.masses) == ("[[7]]", "[[1]]? No.", {})
