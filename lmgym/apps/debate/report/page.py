"""The page of a tournament, from its transcripts and the figures that follow from them."""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from lmgym.apps.debate.report.figures import judge_panels, speech_panels, win_panels
from lmgym.apps.debate.report.rounds import round_panels
from lmgym.apps.debate.transcript import Transcript
from lmgym.errors import listed
from lmgym.report.page import render
from lmgym.report.panels import Card, Section, figure
from lmgym.report.samples import shown


def debate_page(title: str, transcripts: Sequence[Transcript], results: Mapping[str, Any]) -> str:
    """The report of these rounds as HTML; `results` are their tournament_results."""
    sections = [
        Section("judge", "The judge", judge_panels(results, transcripts)),
        Section("wins", "Wins and ratings", win_panels(results)),
        Section("speeches", "Quotes and lengths", speech_panels(results)),
        Section("rounds", "Rounds", round_panels(transcripts)),
    ]
    return render(
        title=shown(title),
        badge={"kind": "good", "words": f"{len(transcripts):,} rounds"},
        lead=_lead(transcripts, results),
        cards=_cards(results),
        sections=[section for section in sections if section.panels],
        style=_asset("rounds.css"),
        script=_asset("rounds.js"),
    )


def _lead(transcripts: Sequence[Transcript], results: Mapping[str, Any]) -> list[str]:
    formats = listed(dict.fromkeys(t.format.name for t in transcripts))
    judges = listed(dict.fromkeys(t.players.get("Judge", "judge") for t in transcripts))
    debaters = listed(results["players"]) or "none"
    return [
        shown(f"Format: {formats}. Debaters: {debaters}. Judge: {judges}. Questions: {results['questions']:,}."),
        "Every figure follows from transcripts.jsonl. Intervals are of 95%, over questions.",
    ]


def _cards(results: Mapping[str, Any]) -> list[Card]:
    judge = results["judge"]
    speeches = [s for p in results["players"].values() for s in (p["speeches_correct"], p["speeches_incorrect"])]
    valid, quotes = (sum(s[key] for s in speeches) for key in ("valid", "quotes"))
    return [
        Card("right verdicts", figure(judge["accuracy"]["value"])),
        Card("P(right answer)", figure(judge["probability_of_right"]["value"])),
        Card("Debater_A wins", figure(results["sides"]["first_wins"]["value"])),
        Card("valid quotes", f"{valid:,} of {quotes:,}"),
    ]


@cache
def _asset(name: str) -> str:
    return files("lmgym.apps.debate.report").joinpath(name).read_text(encoding="utf-8")
