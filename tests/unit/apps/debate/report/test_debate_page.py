"""The report of a tournament: what the page holds, and what it does in Chromium."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from browser import needs_chromium, open_page

from lmgym.apps.debate.debate import Debate
from lmgym.apps.debate.formats import FIRST, JUDGE, SECOND, Format, consultancy, debate, judge_alone
from lmgym.apps.debate.prompts.debate import PROMPTS
from lmgym.apps.debate.questions import Question
from lmgym.apps.debate.report.figures import judge_panels, win_panels
from lmgym.apps.debate.report.page import debate_page
from lmgym.apps.debate.report.rounds import MOST_QUESTIONS, MOST_ROUNDS, round_panels
from lmgym.apps.debate.tournament.results import tournament_results
from lmgym.apps.debate.transcript import Transcript

HOSTILE = "</script><script>document.title='stolen'</script>"
TEXT = "At dawn the old cat sat on the mat. Nobody saw the dog near the hat at noon."
SAID = {
    FIRST: f"It sat: <quote>the old cat sat on teh mat</quote> and <quote>old cat sat on the mat</quote> {HOSTILE}",
    SECOND: "No: <quote>the dog near the hat at noon</quote> <quote>the moon is made of cheese</quote>",
}


def played(number: int, players: tuple[str, str], format: Format, question: str = "Where?", text: str = TEXT):
    round = Debate(format, PROMPTS)
    names = dict(zip(format.debaters, players, strict=False)) | {JUDGE: "j"}
    subject = Question(question, ("on the mat", "near the hat"), 0, text, question)
    round.reset({"transcript": Transcript(subject, format, number % 2 == 1, players=names, number=number)}, 0)
    while not round.ended:
        round.step({agent: SAID.get(agent, "Debater_A | 75%") for agent in round.speakers})
    speeches = [replace(s, p_first=0.6) if s.kind == "speech" else s for s in round.transcript.speeches]
    return replace(round.transcript, speeches=tuple(speeches))


ROUNDS = [played(0, ("x", "y"), debate(2)), played(1, ("y", "x"), debate(2)), played(2, ("x", "z"), debate(2))]


def page(rounds: list[Transcript]) -> str:
    return debate_page("test", rounds, tournament_results(rounds))


def viewer(rounds: list[Transcript]) -> dict:
    [panel] = round_panels(rounds)
    assert panel.viewer is not None
    return panel.viewer


def test_quotes_of_speeches_have_their_places_in_the_text() -> None:
    [question] = viewer(ROUNDS)["questions"]
    pieces = question["rounds"][0]["slots"][0]["speeches"][0]["pieces"]
    assert [(p["text"], p.get("status")) for p in pieces[:4]] == [
        ("It sat: ", None),
        ("the old cat sat on the mat.", "fuzzy"),
        (" and ", None),
        ("old cat sat on the mat", "exact"),
    ]
    start, end = pieces[3]["span"]
    assert TEXT[start:end].rstrip(".") == "old cat sat on the mat"
    # the text is cut where quotes begin and end, and nothing of it is lost
    assert "".join(piece for _, piece in question["text"]) == TEXT
    assert {start, end, pieces[1]["span"][0]} <= {at for at, _ in question["text"]}
    other = question["rounds"][0]["slots"][0]["speeches"][1]["pieces"]
    assert [(p["text"], p["status"], p["span"]) for p in other if p.get("status") == "invalid"] == [
        ("the moon is made of cheese", "invalid", None)
    ]


def test_a_round_has_its_sides_p_after_each_slot_and_its_verdict() -> None:
    [question] = viewer(ROUNDS)["questions"]
    first, second, _ = question["rounds"]
    assert [(s["agent"], s["player"], s["position"], s["correct"]) for s in second["sides"]] == [
        (FIRST, "y", "near the hat", False), (SECOND, "x", "on the mat", True),
    ]  # fmt: skip
    assert [slot["p_first"] for slot in first["slots"]] == [0.6, 0.6, None]
    assert first["verdict"] == {"p_first": 0.75, "winner": FIRST, "right": True, "readable": True}
    assert second["verdict"]["right"] is False


def test_a_large_tournament_has_some_rounds_of_many_questions_and_says_so() -> None:
    one = ROUNDS[0]
    rounds = [
        replace(one, question=replace(one.question, id=str(n % 60)), number=n) for n in range(60 * 20)
    ]  # fmt: skip
    [panel] = round_panels(rounds)
    assert panel.viewer is not None
    held = [len(question["rounds"]) for question in panel.viewer["questions"]]
    assert (len(held), sum(held)) == (MOST_QUESTIONS, MOST_ROUNDS)
    assert "300 of 1,200 rounds are here" in panel.about


def test_the_page_of_each_format_has_the_sections_that_it_can_fill() -> None:
    sections = {
        debate(1): {"judge", "wins", "speeches", "rounds"},
        consultancy(1): {"judge", "wins", "speeches", "rounds"},
        judge_alone(): {"judge", "rounds"},
    }
    for format, expected in sections.items():
        html = page([played(0, ("x", "y"), format)])
        assert set(re.findall(r'<section id="(\w+)">', html)) == expected, format.name
    assert "panel-ratings_table" in page([played(0, ("x",), consultancy(1))])  # says why there are none
    assert 'id="rounds"' not in page([])


def test_text_of_models_ends_no_script_and_is_no_markup() -> None:
    html = page(ROUNDS)
    assert HOSTILE not in html
    content = re.search(r'<script type="application/json" id="viewers-json">(.*?)</script>', html, re.DOTALL)
    assert content is not None
    assert HOSTILE in json.dumps(json.loads(content[1]), ensure_ascii=False).replace('\\"', '"')


def test_panels_show_the_figures_of_results() -> None:
    results = tournament_results(ROUNDS)
    [accuracy, after, calibration] = judge_panels(results, ROUNDS)
    assert accuracy.table is not None
    assert accuracy.table.rows[0] == ["right verdicts", "0.667 (–)", "3"]
    assert "one question is too few for a 95% interval" in accuracy.about
    assert after.chart is not None
    assert [row["x"] for row in after.chart["data"]["values"]] == ["round 1", "round 2"]
    assert calibration.chart is not None
    assert calibration.chart["data"]["values"] == [{"x": 0.75, "y": pytest.approx(2 / 3), "n": 3}]
    panels = {panel.id: panel for panel in win_panels(results)}
    assert set(panels) == {"wins_chart", "ratings_chart", "wins_table", "ratings_table", "pairs"}
    assert panels["pairs"].table is not None
    assert panels["pairs"].table.rows[0] == ["x", "–", "0.50", "1.00"]


@needs_chromium
def test_in_chromium_rounds_stand_side_by_side_and_a_quote_leads_to_the_text(tmp_path: Path) -> None:
    long = "A quiet line. " * 400
    rounds = [
        *ROUNDS,
        played(3, ("x", "y"), debate(1), "Which?", long + TEXT),
        played(4, ("y", "z"), debate(1), "Which?", long + TEXT),
    ]
    path = tmp_path / "report.html"
    path.write_text(page(rounds))
    with open_page(path) as opened:
        tab = opened.page
        assert (opened.said, opened.requested, opened.overflows) == ([], [path.as_uri()], False)
        assert tab.title() == "test · lmgym"
        assert tab.locator(".round:visible").count() == 2
        left, right = (tab.locator(".round").nth(side) for side in (0, 1))
        assert "Debater_A x: on the mat (right)" in left.inner_text()
        assert "Debater_A y: near the hat" in right.inner_text()
        assert left.locator(".bar").first.inner_text().split() == ["P(win):", "A", "0.600", "B", "0.400"]
        assert "Verdict: Debater_A wins, which is right" in left.inner_text()
        assert tab.locator("[data-chart] svg").count() == 4
        tab.locator("select.question").select_option("1")
        assert tab.locator(".round mark").count() == 0
        assert tab.evaluate("document.querySelector('.page').scrollTop") == 0
        tab.locator(".round a.quote.exact").first.click()
        assert tab.locator("mark.found").all_inner_texts() == ["old cat sat on the mat."]
        assert tab.evaluate("document.querySelector('.page').scrollTop") > 0
        tab.locator("select.right").select_option("0")
        assert "Debater_A x: near the hat" in right.inner_text()
    with open_page(path, width=400) as opened:
        assert not opened.overflows
