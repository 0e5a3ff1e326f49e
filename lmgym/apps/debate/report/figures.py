"""Panels of a tournament's figures: the judge, wins and ratings, quotes and lengths."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lmgym.apps.debate.transcript import Transcript
from lmgym.report.charts import bars, reliability_diagram
from lmgym.report.panels import Panel, Table, figure
from lmgym.statistics import Estimate, notes

Figures = Mapping[str, Any]
WINS = {
    "wins": "all",
    "wins_correct": "right answer",
    "wins_incorrect": "wrong answer",
    "wins_first": "as Debater_A",
    "wins_second": "as Debater_B",
}


def judge_panels(results: Figures, transcripts: Sequence[Transcript]) -> list[Panel]:
    """Accuracy, P(right answer) after each speech, and calibration."""
    judge = results["judge"]
    named = {
        "right verdicts": judge["accuracy"],
        "P(right answer)": judge["probability_of_right"],
        "Brier score": judge["brier"],
        "Debater_A wins": results["sides"]["first_wins"],
    }
    rows = [[name, interval(found), figure(found["rounds"])] for name, found in named.items()]
    if judge["readable"] is not None:
        rows.append(["readable verdicts", figure(judge["readable"]), ""])
    about = (
        "A tie is half right. P(right answer) also counts how sure the judge is; the Brier score is its squared error. "
        + _notes(map(estimate_of, named.values()))
    )
    panels = [
        Panel(
            "judge_accuracy",
            "Accuracy",
            about,
            table=Table(["", "value (95% interval)", "rounds"], rows, frozenset({1, 2})),
        )
    ]
    after = [_bar(_slot_name(transcripts, row["slot"]), row) for row in judge["after_speeches"] if _known(row)]
    if after:
        about = "What the judge would have decided after each slot of speeches; .5 is chance."
        panels.append(
            Panel("after_speeches", "P(right answer) after each speech", about, bars(after, "P(right answer)", 0.5))
        )
    if judge["calibration"]:
        points = [(b["confidence"], b["accuracy"], b["rounds"]) for b in judge["calibration"]]
        chart = reliability_diagram(points, "confidence of the judge: max(P, 1 − P)", "share of right verdicts")
        about = "On the dashed line the judge is right as often as it is confident. Larger points are more rounds."
        panels.append(Panel("calibration", "Calibration", about, chart))
    return panels


def win_panels(results: Figures) -> list[Panel]:
    """Wins by model, side and order, each pair, and Bradley-Terry and Elo."""
    players = {name: p for name, p in results["players"].items() if _known(p["wins"])}
    if not players:
        return []
    rows = [[name, *(interval(player[key]) for key in WINS)] for name, player in players.items()]
    about = "The share of rounds won; a tie is half a win. Rounds of a player against itself do not count. " + _notes(
        estimate_of(player[key]) for player in players.values() for key in WINS
    )
    panels = [
        Panel("wins_chart", "Wins", about, bars([_bar(name, p["wins"]) for name, p in players.items()], "wins", 0.5)),
        Panel(
            "wins_table",
            "Wins by answer and order",
            "",
            table=Table(["debater", *WINS.values()], rows, frozenset(range(1, len(WINS) + 1))),
            wide=True,
        ),
    ]
    ratings = results["ratings"]
    if ratings["players"]:
        about = (
            "P(i beats j) = 1 / (1 + 10^((Elo j − Elo i) / 400)); strengths are in nats. Both add up to 0. Each pair "
            "has a virtual draw besides its rounds, which keeps them finite. " + _notes(map(elo_of, ratings["players"]))
        )
        values = [(r["player"], r["elo"], r["low"], r["high"]) for r in ratings["players"]]
        columns = ["debater", "Elo (95% interval)", "Bradley-Terry"]
        rows = [[r["player"], f"{elo_of(r):+.0f}", f"{r['bradley_terry']:+.3f}"] for r in ratings["players"]]
        panels.insert(1, Panel("ratings_chart", "Elo", about, bars(values, "Elo", 0)))
        panels.append(
            Panel("ratings_table", "Bradley-Terry and Elo", "", table=Table(columns, rows, frozenset({1, 2})))
        )
    elif ratings["note"]:
        panels.append(Panel("ratings_table", "Bradley-Terry and Elo", f"No ratings: {ratings['note']}."))
    if len(players) > 2:
        about = "The share of rounds that the debater of the row won against that of the column."
        panels.append(Panel("pairs", "Wins of each pair", about, table=_matrix(list(players), results["pairs"])))
    return panels


def speech_panels(results: Figures) -> list[Panel]:
    """Quotes that the text has, and lengths, for right and wrong answers."""
    rows = []
    for name, player in results["players"].items():
        for side in ("correct", "incorrect"):
            own = player[f"speeches_{side}"]
            if own["speeches"]:
                answer = "right" if side == "correct" else "wrong"
                counts = [figure(own[key]) for key in ("speeches", "quotes", "valid", "fuzzy", "unclosed")]
                rows.append([name, answer, *counts, _share(own["valid_share"]), f"{own['words']:.1f}"])
    if not rows:
        return []
    columns = ["debater", "answer", "speeches", "quotes", "valid", "fuzzy", "unclosed", "valid share", "words"]
    about = "Valid quotes stand in the text; fuzzy ones nearly did, and were replaced by what it says. Words are means."
    return [Panel("quotes", "Quotes and lengths", about, table=Table(columns, rows, frozenset(range(2, 9))), wide=True)]


def interval(found: Figures) -> str:
    """`0.712 (0.650 to 0.771)`, or a dash."""
    return f"{estimate_of(found):.3f}"


def estimate_of(found: Figures) -> Estimate:
    """A figure of results.json."""
    names = ("value", "low", "high", "questions", "rounds", "reason")
    return Estimate(*(found[name] for name in names))


def elo_of(row: Figures) -> Estimate:
    """A player's rating in results.json."""
    return estimate_of({**row, "value": row["elo"]})


def _notes(found: Iterable[Estimate]) -> str:
    return " ".join(f"{note}." for note in notes(found, "question"))


def _matrix(names: Sequence[str], pairs: Sequence[Figures]) -> Table:
    wins: dict[tuple[str, str], float] = {}
    for pair in pairs:
        if _known(pair["wins"]):
            wins[pair["first"], pair["second"]] = pair["wins"]["value"]
            wins[pair["second"], pair["first"]] = 1 - pair["wins"]["value"]
    rows = [[name, *(_share(wins.get((name, other))) for other in names)] for name in names]
    return Table(["", *names], rows, frozenset(range(1, len(names) + 1)))


def _share(value: float | None) -> str:
    return figure(value) if value is None else f"{value:.2f}"


def _known(found: Figures) -> bool:
    return found["value"] is not None


def _bar(name: str, found: Figures) -> tuple[str, float, float | None, float | None]:
    return name, found["value"], found["low"], found["high"]


def _slot_name(transcripts: Sequence[Transcript], number: int) -> str:
    """The name of a slot by the round and, if one side alone speaks in it, by the speaker, of the first such format."""
    order = next(t.format.slots for t in transcripts if number < len(t.format.slots))
    slot = order[number]
    alone = f", {slot.speakers[0]}" if len(slot.speakers) == 1 else ""
    return f"round {slot.round}{alone}"
