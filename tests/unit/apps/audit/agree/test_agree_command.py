"""`lmgym agree`: figures, exit codes, files, failures, refusals, judges and reward models; the page in Chromium."""

import gzip
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from browser import needs_chromium, open_page
from click.testing import CliRunner, Result
from judge_server import JudgeServer, Places, judge_servers
from sklearn.metrics import cohen_kappa_score

from lmgym.apps.audit.agree.agreement import decision
from lmgym.cli.main import main
from lmgym.scoring.judge_prompts import NAMES
from lmgym.statistics import Estimate

SHARED = Path(__file__).parents[6] / "shared/data"
FUNCTIONS = """
def longer(conversations, replies):
    return [float(len(reply)) for reply in replies]


def constant(conversations, replies):
    return [1.0 for reply in replies]


def silent(conversations, replies):
    raise ValueError("nothing to say")


def partly(conversations, replies):
    if any("7" in conversation.turns[-1].text for conversation in conversations):
        raise ValueError("no sevens")
    return longer(conversations, replies)


def number(conversations, replies):
    return [float(conversation.turns[-1].text.split()[-1]) for conversation in conversations]


def early(conversations, replies):
    return [-float(len(conversation.turns)) for conversation in conversations]
"""


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("judges.py").write_text(FUNCTIONS)


def agree(source: str, *words: object, judge: str = "judges.py:longer") -> Result:
    return CliRunner().invoke(main, ["agree", source, "--judge", judge, "--output", "out", *map(str, words)])


def agreed(source: str, *words: object, judge: str = "judges.py:longer") -> dict:
    done = agree(source, *words, judge=judge)
    assert done.exit_code == 0, done.output
    return json.loads(Path("out/agreement.json").read_text())


def refused(source: str, *words: object, judge: str = "judges.py:longer") -> str:
    done = agree(source, *words, judge=judge)
    assert done.exit_code == 2, done.output
    [line] = done.stderr.strip().splitlines()[-1:]
    return line


def write(rows: list[dict], name: str = "labels.jsonl") -> str:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return name


def pairs(number: int, raters: int = 3, wrong: float = 0.2, ties: float = 0.05) -> list[dict]:
    """Raters who mostly prefer the longer reply."""
    rng = random.Random(0)
    rows = []
    for i in range(number):
        sides = ["x" * length for length in rng.sample(range(3, 40), 2)]
        row = {"prompt": f"question {i}", "answer_a": sides[0], "answer_b": sides[1]}
        right = "ab"[len(sides[1]) > len(sides[0])]
        for rater in range(raters):
            is_wrong = rng.random() < wrong
            row[f"rater_{rater}"] = "tie" if rng.random() < ties else {"a": "b", "b": "a"}[right] if is_wrong else right
        rows.append(row)
    return rows


def replies(number: int) -> list[dict]:
    """Grades of 1 to 4 that grow with the number in the prompt."""
    rng = random.Random(1)
    rows = []
    for i in range(number):
        grade = 1 + 4 * i // number
        ratings = [min(4, max(1, grade + rng.choice([-1, 0, 0, 1]))) for _ in range(3)]
        rows.append({"prompt": f"number {i}", "completion": "yes", "ratings": ratings})
    return rows


def value(results: dict, key: str) -> float:
    return results["coefficients"][key]["estimate"]["value"]


def test_figures_are_in_the_terminal_in_json_and_on_the_page() -> None:
    done = agree(write(pairs(60)))
    assert done.exit_code == 0, done.output
    results = json.loads(Path("out/agreement.json").read_text())
    kappa = f"{value(results, 'majority'):.3f}"
    assert f"judge, raters' majority                {kappa} (" in done.stdout
    assert "(alternative annotator test, epsilon 0.1): passes, winning rate 1.00" in done.stdout
    assert "labels.jsonl: one row an item, a column for each rater: rater_0, rater_1, rater_2" in done.stdout
    assert "60 rows, 3 raters, 180 votes: first " in done.stdout
    page = Path("out/report.html").read_text()
    assert kappa in page
    assert "Where people agree, and where they do not" in page
    rows = [json.loads(line) for line in Path("out/rows.jsonl").read_text().splitlines()]
    assert len(rows) == 60
    assert rows[0]["votes"][0].keys() == {"rater", "vote"}


def test_kappa_is_scikit_learns_of_the_judge_and_the_majority() -> None:
    rows = pairs(60)
    results = agreed(write(rows))
    judge, majority = [], []
    for row in rows:
        votes = [row[f"rater_{rater}"] for rater in range(3)]
        best = [vote for vote in ("a", "tie", "b") if votes.count(vote) >= 2]
        if best:
            majority.append(best[0])
            judge.append("ab"[len(row["answer_b"]) > len(row["answer_a"])])
    assert value(results, "majority") == pytest.approx(cohen_kappa_score(judge, majority))
    right = sum(a == b for a, b in zip(judge, majority, strict=True))
    splits = results["where_people_agree"]
    assert [split["name"] for split in splits] == ["all agree", "two thirds agree", "fewer agree"]
    assert sum(split["accuracy"]["value"] * split["accuracy"]["rows"] for split in splits[:2]) == pytest.approx(right)
    assert splits[0]["accuracy"]["value"] > splits[1]["accuracy"]["value"]


@pytest.mark.parametrize(
    ("low", "high", "code", "word"),
    [
        (0.4, 0.6, 0, "passes"),
        (0.1, 0.39, 1, "fails"),
        (0.3, 0.5, 3, "undecided"),
        (0.39, 0.4, 3, "undecided"),
        (None, None, 3, "undecided"),
    ],
)
def test_the_lower_limit_passes_the_upper_limit_fails_and_all_else_is_undecided(
    low: float | None, high: float | None, code: int, word: str
) -> None:
    words, found = decision(Estimate(0.5, low, high, 50, 50, "" if low else "too few"), 0.4)
    assert found == code
    assert word in words


@pytest.mark.parametrize(("flags", "code"), [("0.2", 0), ("0.9 --kappa raters", 1), ("0.76", 3)])
def test_the_exit_code_is_that_of_the_decision(flags: str, code: int) -> None:
    done = agree(write(pairs(60)), "--at_least", *flags.split())
    assert done.exit_code == code, done.output
    results = json.loads(Path("out/agreement.json").read_text())
    assert results["decision"]["exit_code"] == code
    assert results["decision"]["words"] in done.stdout
    assert {0: "passes", 1: "fails", 3: "undecided"}[code] in Path("out/report.html").read_text()


def test_the_kappa_with_single_raters_may_have_to_reach_the_bound() -> None:
    source = write(pairs(60))
    whole, single = (agree(source, "--at_least", 0.7, "--kappa", kappa) for kappa in ("majority", "raters"))
    assert (whole.exit_code, single.exit_code) == (0, 1)


def test_flags_may_stand_before_the_labels() -> None:
    source = write(pairs(40))
    words = ["agree", "--judge", "judges.py:longer", "--output", "out", "--epsilon", "0.2", source]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert "epsilon 0.2" in done.stdout


def test_a_row_without_a_verdict_is_counted_with_its_reason() -> None:
    results = agreed(write(pairs(60)), judge="judges.py:partly")
    sevens = sum("7" in str(i) for i in range(60))
    assert sum(results["without_verdict"].values()) == sevens
    assert results["coverage"]["value"] == pytest.approx((60 - sevens) / 60)
    assert results["coefficients"]["raters"]["estimate"]["rows"] == 60 - sevens
    assert "no sevens" in next(iter(results["without_verdict"]))
    assert "all figures are of those" in agree("labels.jsonl", judge="judges.py:partly").stdout


def test_a_judge_that_never_gives_a_verdict_is_one_line() -> None:
    said = refused(write(pairs(20)), judge="judges.py:silent")
    assert said.startswith("error: silent scored none of 20 rows; the first: ")
    assert "nothing to say" in said


def test_a_judge_that_says_one_thing_and_raters_who_do_are_named() -> None:
    rows = [row | {"rater_9": "a"} for row in pairs(40)]
    results = agreed(write(rows), judge="judges.py:constant")
    assert "The judge says tie of every row: agreement beyond chance is 0" in results["notes"]
    assert any("rater_9: the first reply of a row, 40 times" in note for note in results["notes"])
    first = {rater["name"]: rater["first"] for rater in results["by_rater"]}
    assert first["rater_9"] == 1
    assert 0.2 < first["rater_0"] < 0.8


def test_raters_who_all_say_one_thing_have_no_coefficient_and_decide_nothing() -> None:
    rows = [{name: "a" if name.startswith("rater") else value for name, value in row.items()} for row in pairs(40)]
    done = agree(write(rows), "--at_least", 0.4, judge="judges.py:constant")
    assert done.exit_code == 3
    results = json.loads(Path("out/agreement.json").read_text())
    assert value(results, "alpha") is None


def test_one_rater_has_a_kappa_and_no_test() -> None:
    results = agreed(write(pairs(40, raters=1)))
    assert value(results, "majority") == pytest.approx(value(results, "raters"))
    assert results["alternative_annotator_test"]["passes"] is None
    assert value(results, "alpha") is None
    assert any(note.startswith("One rater: nothing says") for note in results["notes"])


def test_grades_are_compared_by_cuts_of_which_a_line_says_how_they_are_made() -> None:
    source = write(replies(60))
    by_shares = agreed(source, judge="judges.py:number")
    assert "fitted to how often these labels occur" in by_shares["scores_become_verdicts"]
    assert value(by_shares, "majority") > 0.8
    assert value(by_shares, "spearman") > 0.8
    by_numbers = agreed(source, "--cuts", "15,30,45", judge="judges.py:number")
    assert by_numbers["scores_become_verdicts"] == "scores are cut at 15, 30, 45"
    nearest = agreed(source, "--cuts", "scale", judge="judges.py:number")
    assert nearest["verdicts"]["4"] > 50
    assert "needed: auto, scale, shares, or 3 rising numbers between the levels 1, 2, 3, 4" in refused(
        source, "--cuts", "3,2,1", judge="judges.py:number"
    )


def test_categories_need_their_order_and_a_judge_that_compares_needs_two_replies() -> None:
    rows = [row | {"ratings": ["OTX"[grade % 3] for grade in row["ratings"]]} for row in replies(20)]
    said = refused(write(rows), judge="judges.py:number")
    assert "of which nothing says the order; needed: --levels with all of them from the worst to the best" in said
    assert agreed("labels.jsonl", "--levels", "X,T,O", judge="judges.py:number")["votes"].keys() == {"X", "T", "O"}
    assert "compares two replies, and the labels are of single ones" in refused(
        "labels.jsonl", judge="compare:openai:http://127.0.0.1:9#m"
    )


def test_mistakes_on_the_command_line_say_what_is_needed() -> None:
    source = write(pairs(20))
    done = CliRunner().invoke(main, ["agree", source])
    assert done.exit_code == 2
    assert "needed: --judge SPEC" in done.stderr
    assert "--judge names 2 scorers; needed: one" in refused(source, judge="judges.py:longer,judges.py:constant")
    assert "has no column 'dialogue' (--unit_column)" in refused(source, "--unit_column", "dialogue")
    assert "at_least" in refused(source, "--at_least", "7")
    assert "there is no file none.jsonl" in refused("none.jsonl")
    assert not Path("out").exists()


def test_scores_are_kept_and_a_reward_model_is_a_judge_too(scorer_folders: dict[str, Path]) -> None:
    source = write(pairs(12))
    words = f"tiny={scorer_folders['llama']}"
    first = agreed(source, judge=words)
    done = agree(source, judge=words)
    assert "all 12 rows have their scores in out/scores_tiny.jsonl" in done.stderr
    again = json.loads(Path("out/agreement.json").read_text())
    assert {**again, "written": ""} == {**first, "written": ""}


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., JudgeServer]]:
    monkeypatch.setenv("LMGYM_VERDICTS", str(tmp_path / "verdicts.sqlite"))
    with judge_servers() as start:
        yield start


def test_a_comparing_judge_names_a_reply_in_both_orders_or_ties(serve: Callable[..., JudgeServer]) -> None:
    def names_the_good_one(prompt: str, begun: str) -> Places:
        if "unclear" in prompt:
            return [{NAMES[0]: 0.9, NAMES[1]: 0.1}]  # whatever is shown first
        is_first = prompt.index("good reply") < prompt.index("bad reply")
        return [{NAMES[0]: 0.9, NAMES[1]: 0.1} if is_first else {NAMES[0]: 0.1, NAMES[1]: 0.9}]

    rows = [
        {"prompt": f"clear {i}", "answer_a": "good reply", "answer_b": "bad reply", "rater_1": "a", "rater_2": "a"}
        for i in range(3)
    ]
    rows += [
        {"prompt": f"clear {i}", "answer_a": "bad reply", "answer_b": "good reply", "rater_1": "b", "rater_2": "tie"}
        for i in range(3, 5)
    ]
    rows += [{"prompt": "unclear", "answer_a": "good reply", "answer_b": "bad reply", "rater_1": "b", "rater_2": "a"}]
    results = agreed(write(rows), judge=f"j=compare:{serve(names_the_good_one).spec}")
    assert results["verdicts"] == {"first": 3, "tie": 1, "second": 2}


def test_a_grading_judge_on_the_raters_scale_is_read_as_it_is(serve: Callable[..., JudgeServer]) -> None:
    Path("rubric.json").write_text(json.dumps({"criteria": {"good": "Is it good?"}, "scale": [1, 4]}))

    def grade(prompt: str, begun: str) -> Places:
        return [{"3": 1.0}] if "number 7" in prompt else [{"1": 1.0}]

    server = serve(grade)
    rows = [{"prompt": f"number {i}", "completion": "yes", "ratings": [1 + i % 4, 1, 4]} for i in range(8)]
    results = agreed(write(rows), judge=f"j=rubric.json#{server.spec}")
    assert results["scores_become_verdicts"] == "the grade that is nearest to the score"
    assert results["verdicts"] == {"1": 7, "2": 0, "3": 1, "4": 0}


@needs_chromium
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_fits_its_window_and_needs_no_network(width: int) -> None:
    rows = [row | {"prompt": "a long prompt " * 80} if i == 3 else row for i, row in enumerate(pairs(60, wrong=0.4))]
    agreed(write(rows))
    with open_page(Path("out/report.html"), width) as opened:
        assert not opened.overflows
        assert opened.said == []
        assert all(url.startswith("file:") for url in opened.requested)
        text = opened.page.inner_text("body")
    assert "Judge and raters differ most" in text
    assert "The judge as one more rater" in text


@needs_chromium
@pytest.mark.slow
@pytest.mark.skipif(not (SHARED / "dbdc3-30-raters").is_dir(), reason="no ../shared/data")
def test_thirty_raters_of_real_replies_are_a_page() -> None:
    rows = []
    lines = gzip.decompress((SHARED / "dbdc3-30-raters/dialogues.jsonl.gz").read_bytes()).decode().splitlines()
    for dialogue in map(json.loads, lines):
        roles = {"bot": "assistant", "user": "user"}
        said = [{"role": roles[turn["speaker"]], "content": turn["text"]} for turn in dialogue["turns"]]
        rows += [
            {
                "dialogue": dialogue["dialogue"],
                "messages": said[: i + 1],
                "labels": list(turn["labels"]),
                "raters": turn["raters"],
            }
            for i, turn in enumerate(dialogue["turns"])
            if turn.get("labels")
        ]
    done = agree(
        write(rows), "--levels", "X,T,O", "--unit_column", "dialogue", "--at_least", 0.4, judge="judges.py:early"
    )
    assert done.exit_code == 1, done.output
    results = json.loads(Path("out/agreement.json").read_text())
    assert results["coefficients"]["fleiss"]["estimate"]["value"] == pytest.approx(0.100, abs=1e-3)
    assert results["raters"] == 1096
    for width in (1280, 390):
        with open_page(Path("out/report.html"), width) as opened:
            assert not opened.overflows
            assert opened.said == []
