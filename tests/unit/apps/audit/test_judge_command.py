"""`lmgym judge`: figures, files, resumption, failures, comparisons, errors; and the page in Chromium."""

import gzip
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from browser import needs_chromium, open_page
from click.testing import CliRunner, Result
from judge_server import JudgeServer, Places, judge_servers
from launching import BIN, finish, launch, start
from patience import PATIENCE

from lmgym.cli.main import main
from lmgym.models.loading import load_classifier, load_tokenizer
from lmgym.models.saving import save_classifier
from lmgym.scoring.judge_prompts import NAMES
from lmgym.scoring.scorers import HFScorer
from lmgym.text import Conversation, Turn

SHARED = Path(__file__).parents[5] / "shared/data"
LONGER = "def longer(conversations, replies):\n    return [float(len(reply)) for reply in replies]\n"
SHORTER = "def shorter(conversations, replies):\n    return [-float(len(reply)) for reply in replies]\n"
ODD = (
    "def odd(conversations, replies):\n"
    "    return [float('nan') if 'broken' in reply else float(len(reply)) for reply in replies]\n"
)
SLOW = (
    "import time\n\n"
    "def slow(conversations, replies):\n    time.sleep(0.2)\n    return [float(len(reply)) for reply in replies]\n"
)
FOLDER = Path("out")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for text in (LONGER, SHORTER, ODD, SLOW):
        Path(f"{text.partition('def ')[2].partition('(')[0]}.py").write_text(text)


def judge(*words: object) -> Result:
    return CliRunner().invoke(main, ["judge", *map(str, words), "--output", str(FOLDER)])


def judged(*words: object) -> dict:
    done = judge(*words)
    assert done.exit_code == 0, done.output
    return json.loads((FOLDER / "scorecard.json").read_text())


def refused(*words: object) -> str:
    done = judge(*words)
    assert done.exit_code == 2, done.output
    return done.stderr


def write(name: str, rows: list[dict]) -> Path:
    path = Path(name)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def row(number: int, chosen: str, rejected: str, subset: str = "llmbar-natural") -> dict:
    return {"prompt": f"question {number}", "chosen": chosen, "rejected": rejected, "subset": subset}


LLMBAR_ROWS = [
    *(row(i, "a long answer", "short") for i in range(7)),
    *(row(i, "short", "a long answer") for i in range(7, 10)),
    *(row(i, "a long answer", "short", "llmbar-adver-manual") for i in range(10, 12)),
    *(row(i, "same5", "five5", "llmbar-adver-GPTInst") for i in range(12, 14)),
]


def figures(card: dict, scorer: str) -> dict[str, float]:
    return {figure["name"]: figure["value"] for figure in card["scorers"][scorer]["figures"]}


def test_a_scorecard_has_figures_with_intervals_and_says_what_they_lack() -> None:
    done = judge("longer.py:longer", "--suite", "llmbar", "--dataset", write("rows.jsonl", LLMBAR_ROWS))
    assert done.exit_code == 0, done.output
    card = json.loads((FOLDER / "scorecard.json").read_text())
    found = figures(card, "longer")
    assert (found["Natural"], found["Adversarial"], found["overall"]) == pytest.approx((0.7, 0.5, 1.7 / 3))
    natural = next(f for f in card["scorers"]["longer"]["figures"] if f["name"] == "Natural")
    assert (natural["rows"], natural["units"]) == (10, 10)
    assert natural["low"] == pytest.approx(0.397, abs=1e-3)  # Wilson's interval of 7 of 10
    assert "llmbar-adver-neighbor" in card["lacks"]
    assert "90 of 100 rows of llmbar-natural" in card["lacks"]
    assert card["scorers"]["longer"]["tied_pairs"] == 2
    assert "2 tied, each wrong" in done.stdout
    assert "overall (part)           56.7 (" in done.stdout
    assert "pairs a second" in done.stdout
    table = (FOLDER / "scorecard.md").read_text()
    assert "| Natural without 90 of 100 rows of llmbar-natural | 70.0 (39.7 to 89.2) |" in table


def test_a_tie_counts_a_half_where_it_is_asked_to() -> None:
    rows = write("rows.jsonl", LLMBAR_ROWS)
    card = judged("longer.py:longer", "--suite", "llmbar", "--dataset", rows, "--ties", "half")
    assert figures(card, "longer")["llmbar-adver-GPTInst"] == 0.5


def test_packed_rows_are_read_and_rm_bench_has_its_matrix() -> None:
    rows = [
        {
            "domain": "chat",
            "id": i,
            "prompt": f"q{i}",
            "chosen": ["ab", "abcd", "abcdef"],
            "rejected": ["abc", "abcd", "a"],
        }
        for i in range(4)
    ]
    card = judged("longer.py:longer", "--suite", "rm-bench", "--dataset", write("rows.jsonl.gz", rows))
    found = figures(card, "longer")
    assert (found["easy"], found["normal"], found["hard"]) == pytest.approx((1.0, 1 / 3, 2 / 3))
    assert card["scorers"]["longer"]["matrices"]["chat"] == [[0, 0, 1], [1, 0, 1], [1, 1, 1]]
    assert card["published"]["overall_percent"] == {"Skywork-Reward-V2-Llama-3.1-8B-40M": 96.0}


def test_rewardbench_2_shares_a_tie_for_the_best_and_says_what_is_missing() -> None:
    rows = [
        {"id": "1", "prompt": "a", "chosen": ["best!"], "rejected": ["b", "c", "d"], "subset": "Math"},
        {"id": "2", "prompt": "b", "chosen": ["four"], "rejected": ["also", "c", "d"], "subset": "Math"},
        {"id": "ref:1", "prompt": "c", "chosen": ["long one"], "rejected": ["x"], "subset": "Ties"},
        {"id": "tied:1", "prompt": "c", "chosen": ["long one", "longer one"], "rejected": ["x"], "subset": "Ties"},
    ]
    done = judge("longer.py:longer", "--suite", "rewardbench2", "--dataset", write("rows.jsonl", rows))
    assert done.exit_code == 0, done.output
    card = json.loads((FOLDER / "scorecard.json").read_text())
    found = figures(card, "longer")
    ties = 0.6 + 0.4 + 0.01 * math.tanh(7 / 2 - 1)  # margins of 7, and 2 characters between the right replies
    assert (found["Math"], found["Ties"]) == (0.75, pytest.approx(ties))
    assert found["overall"] == pytest.approx((0.75 + ties) / 2)
    assert "100 of 102 rows of Ties" in card["lacks"]
    assert "one of k best being 1/k right" in done.stdout


def test_a_file_of_pairs_and_of_several_replies_is_a_suite_of_its_own() -> None:
    rows = [
        {"prompt": "a", "chosen": "longer reply", "rejected": "short", "subset": "one"},
        {"prompt": "b", "replies": ["x", "the best one", "yy"], "ranks": [2, 1, 3], "subset": "two"},
        {"prompt": "c", "replies": ["the worst one", "yy", "x"], "ranks": [2, 1, 3], "subset": "two"},
    ]
    found = figures(judged("longer.py:longer", "--suite", write("mine.jsonl", rows)), "longer")
    assert found == pytest.approx({"overall": 2 / 3, "one": 1.0, "two": 0.5})


def test_several_scorers_are_compared_on_the_same_rows() -> None:
    rows = [row(i, "a long answer", "short") for i in range(40)]
    words = ["a=longer.py:longer", "b=shorter.py:shorter", "--suite", "llmbar", "--dataset", write("rows.jsonl", rows)]
    done = judge(*words)
    assert done.exit_code == 0, done.output
    assert "b - a, Natural: -100.0 (-100.0 to -" in done.stdout
    card = json.loads((FOLDER / "scorecard.json").read_text())
    overall = next(c for c in card["comparisons"] if c["figure"] == "overall")
    assert (overall["first"], overall["second"], overall["estimate"]["value"]) == ("a", "b", -1.0)
    assert overall["adjusted"] < 0.01


def test_scores_that_are_no_numbers_are_counted_with_the_reason_and_are_wrong() -> None:
    rows = [row(0, "broken and long", "x"), *(row(i, "a long answer", "x") for i in range(1, 4))]
    card = judged("odd.py:odd", "--suite", "llmbar", "--dataset", write("rows.jsonl", rows))
    assert figures(card, "odd")["Natural"] == 0.75
    failed = card["scorers"]["odd"]["failed"]
    assert failed["rows"] == 1
    assert "nan" in str(failed["reasons"])


def test_a_scorer_that_fails_on_every_row_is_refused_and_can_be_mended() -> None:
    rows = write("rows.jsonl", [row(i, "broken", "broken too") for i in range(3)])
    assert "odd scored none of 3 rows" in refused("odd.py:odd", "--suite", "llmbar", "--dataset", rows)
    Path("odd.py").write_text(ODD.replace("float('nan')", "1.0"))
    assert figures(judged("odd.py:odd", "--suite", "llmbar", "--dataset", rows), "odd")["Natural"] == 0


def test_rows_that_are_too_long_for_a_model_are_scored_and_counted(scorer_folders: dict[str, Path]) -> None:
    rows = [row(0, "a " * 600, "b " * 600), row(1, "hello", "bye")]
    card = judged(f"tiny={scorer_folders['llama']}", "--suite", "llmbar", "--dataset", write("rows.jsonl", rows))
    of_scorer = card["scorers"]["tiny"]
    assert of_scorer["truncated"] == {"rows": 1, "replies": 2}
    assert of_scorer["failed"]["rows"] == 0
    scores = [json.loads(line) for line in (FOLDER / "scores_tiny.jsonl").read_text().splitlines()[1:]]
    talk = Conversation((Turn("user", "question 1"),))
    wanted = HFScorer.load(scorer_folders["llama"]).score([talk, talk], ["hello", "bye"]).tolist()
    assert scores[1]["scores"] == pytest.approx(wanted, abs=1e-5)


def test_a_model_of_two_classes_has_no_ties_of_rounded_probabilities(
    scorer_folders: dict[str, Path], tmp_path: Path
) -> None:
    tokenizer = load_tokenizer(str(scorer_folders["llama"]))
    model, _ = load_classifier(str(scorer_folders["llama"]), tokenizer, num_labels=2)
    with torch.no_grad():
        model.score.weight.mul_(1e4)
    save_classifier(model, model.state_dict(), tmp_path / "two", tokenizer, {"reduce": "softmax[1]"})
    rows = write("rows.jsonl", [row(i, f"this is reply {i}", f"that was {i}") for i in range(20)])
    words = ["--suite", "llmbar", "--dataset", rows]
    card = judged(f"logits={tmp_path / 'two'}", f"rounded={tmp_path / 'two'}#softmax[1]", *words)
    assert card["scorers"]["logits"]["tied_pairs"] == 0
    assert card["scorers"]["rounded"]["tied_pairs"] > 0


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., JudgeServer]]:
    monkeypatch.setenv("LMGYM_VERDICTS", str(tmp_path / "verdicts.sqlite"))
    with judge_servers() as start:
        yield start


def names_the_first(prompt: str, begun: str) -> Places:
    return [{NAMES[0]: 0.9, NAMES[1]: 0.1}]


def judgebench_rows(number: int) -> list[dict]:
    row = {"source": "livecodebench", "response_A": "a", "response_B": "b", "label": "A>B"}
    return [{**row, "pair_id": str(i), "question": f"question {i}"} for i in range(number)]


def test_a_judge_that_names_what_it_reads_first_contradicts_itself_and_ties(serve) -> None:
    judge_path = f"j=compare:{serve(names_the_first).spec}"
    rows = write("rows.jsonl", [row(i, "yes", "no") for i in range(4)])
    card = judged(judge_path, "--suite", "llmbar", "--dataset", rows)
    assert (figures(card, "j")["Natural"], card["scorers"]["j"]["tied_pairs"]) == (0.5, 4)
    pairs = write("pairs.jsonl", judgebench_rows(4))
    card = judged(judge_path, "--suite", "judgebench", "--dataset", pairs)
    assert figures(card, "j")["Coding"] == 0  # a pair is right only if both orders say so, or one does and one ties


def test_one_right_order_and_a_tie_in_the_other_are_right_in_judgebench(serve) -> None:
    def half_sure(prompt: str, begun: str) -> Places:
        right_is_first = prompt.index("right reply") < prompt.index("wrong reply")
        return [{NAMES[0]: 0.9, NAMES[1]: 0.1} if right_is_first else {NAMES[0]: 0.5, NAMES[1]: 0.5}]

    rows = [
        {**one, "response_A": "wrong reply", "response_B": "right reply", "label": "B>A"} for one in judgebench_rows(3)
    ]
    judge_path = f"j=compare:{serve(half_sure).spec}"
    card = judged(judge_path, "--suite", "judgebench", "--dataset", write("pairs.jsonl", rows))
    assert figures(card, "j")["overall"] == 1


def test_a_server_that_dies_loses_no_verdict(serve) -> None:
    server = serve(names_the_first, dies_after=7)
    words = [f"j=compare:{server.spec}", "--suite", "judgebench", "--dataset", write("pairs.jsonl", judgebench_rows(8))]
    assert server.url in refused(*words)
    assert server.asked == 6  # beside the trial of a load
    server.dies_after = None
    assert figures(judged(*words), "j")["overall"] == 0
    assert server.asked == 16  # two orders of eight pairs


def test_verdicts_that_are_under_way_when_a_request_is_refused_are_kept(serve) -> None:
    def refuse_the_second(number: int, body: dict) -> tuple[int, dict, dict[str, str]] | None:
        if number == 2:
            return 400, {"error": {"message": "not this one"}}, {}
        time.sleep(0.5 if number else 0)
        return None

    server = serve(names_the_first, fault=refuse_the_second)
    words = [f"j=compare:{server.spec}", "--suite", "judgebench", "--dataset", write("pairs.jsonl", judgebench_rows(8))]
    judged(*words)  # which tries the rows once more
    assert server.asked == 16


def test_a_finished_folder_is_read_again_without_the_scorer(scorer_folders: dict[str, Path]) -> None:
    words = [f"tiny={scorer_folders['llama']}", "--suite", "llmbar", "--dataset", write("rows.jsonl", LLMBAR_ROWS)]
    first = judged(*words)
    done = judge(*words)
    assert "all 14 rows have their scores" in done.stderr
    again = json.loads((FOLDER / "scorecard.json").read_text())
    assert {**again, "written": ""} == {**first, "written": ""}


def test_scores_of_another_scorer_are_never_mixed_in(scorer_folders: dict[str, Path]) -> None:
    rows = write("rows.jsonl", LLMBAR_ROWS)
    judged("a=longer.py:longer", "--suite", "llmbar", "--dataset", rows)
    said = refused("a=shorter.py:shorter", "--suite", "llmbar", "--dataset", rows)
    assert "scores_a.jsonl has scores of longer.py:longer" in said
    assert "name another --output" in said
    Path("longer.py").write_text(LONGER.replace("len(reply)", "-len(reply)"))
    assert "was another model" in refused("a=longer.py:longer", "--suite", "llmbar", "--dataset", rows)


def test_a_run_that_was_killed_continues_where_it_was() -> None:
    # equal prompts are scored in batches of their own
    rows = write("rows.jsonl", [row(0, f"a long answer {i}", "short") for i in range(12)])
    words = ["judge", "slow.py:slow", "--suite", "llmbar", "--dataset", rows, "--output", FOLDER]
    journal = FOLDER / "scores_slow.jsonl"
    started = start(launch("fork", *words, script=BIN / "lmgym"), cwd=Path.cwd())
    deadline = time.monotonic() + PATIENCE
    while not (journal.exists() and journal.read_bytes().count(b"\n") >= 4) and time.monotonic() < deadline:
        time.sleep(0.02)
    started.process.kill()
    finish(started)
    before = journal.read_bytes()
    with journal.open("ab") as file:
        file.write(b'{"key": "torn')
    done = judge("slow.py:slow", "--suite", "llmbar", "--dataset", rows)
    assert done.exit_code == 0, done.output
    scored = before.count(b"\n") - 1
    assert f"{scored} of 12 rows have their scores" in done.stderr
    after = journal.read_bytes()
    assert after.startswith(before)
    assert after.count(b"\n") == 13


def test_mistakes_on_the_command_line_say_what_is_needed() -> None:
    rows = write("rows.jsonl", LLMBAR_ROWS)
    scorer = "longer.py:longer"
    assert "did you mean rewardbench?" in refused(scorer, "--suite", "rewardbnch")
    assert "lacks the column(s) domain" in (said := refused(scorer, "--suite", "rm-bench", "--dataset", rows))
    assert "these rows are of --suite rewardbench or llmbar" in said
    other = write("other.jsonl", [{"question": "a", "answer": "b"}])
    assert "lacks the column(s) prompt, chosen, rejected" in refused(
        scorer, "--suite", "rewardbench", "--dataset", other
    )
    lists = write("lists.jsonl", [{"prompt": "a", "chosen": ["b"], "rejected": ["c"], "subset": "Math"}])
    assert "these rows are of --suite rewardbench2" in refused(scorer, "--suite", "llmbar", "--dataset", lists)
    assert "none of them of rewardbench2" in refused(
        scorer,
        "--suite",
        "rewardbench2",
        "--dataset",
        write("x.jsonl", [{**json.loads(lists.read_text()), "subset": "x"}]),
    )
    assert not FOLDER.exists()


def test_a_hub_that_is_out_of_reach_says_which_file_to_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    said = refused("longer.py:longer", "--suite", "rewardbench")
    assert "allenai/reward-bench" in said
    assert "--dataset FILE" in said


@pytest.mark.parametrize(
    ("suite", "file", "rows"),
    [("llmbar", "llmbar/pairs.jsonl", 419), ("rm-bench", "rm-bench/three_by_three.jsonl.gz", 286)],
)
def test_real_rows_of_suites_are_all_scored(suite: str, file: str, rows: int) -> None:
    if not (SHARED / file).exists():
        pytest.skip(f"needs {file} of ../shared/data, which is not here")
    card = judged("longer.py:longer", "shorter.py:shorter", "--suite", suite, "--dataset", SHARED / file)
    assert (card["rows"], card["not_read"]) == (rows, "")
    longer, shorter = figures(card, "longer"), figures(card, "shorter")
    if suite == "llmbar":
        assert longer["Adversarial"] < 0.5  # where the worse reply looks better
        assert card["lacks"] == []
    else:
        assert longer["easy"] > 0.8 > 0.2 > longer["hard"]  # styles are ordered by length
        assert card["lacks"] == ["code", "math", "safety-refuse"]
    ties = card["scorers"]["longer"]["tied_pairs"]
    assert longer["overall"] + shorter["overall"] == pytest.approx(1, abs=0.06 if ties else 1e-9)


@needs_chromium
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_the_page_shows_scores_comparisons_and_mistakes_as_text(width: int, dark: bool) -> None:
    hostile = "</script><script>document.title='stolen'</script> and more, and much more"
    rows = [*LLMBAR_ROWS, row(99, "x", hostile)]
    judged("a=longer.py:longer", "b=shorter.py:shorter", "--suite", "llmbar", "--dataset", write("rows.jsonl", rows))
    with open_page(FOLDER / "report.html", width, dark) as opened:
        assert opened.said == []
        assert not opened.overflows
        assert "Scorecard: llmbar" in opened.page.title()
        text = opened.page.inner_text("body")
        assert "b − a" in text
        assert hostile in text
        assert "Overall figures are without" in text
        assert len(opened.requested) == 1
