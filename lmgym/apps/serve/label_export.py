"""The products of a folder of labels: rows with votes that every stage reads, and figures of its raters.

A row of labels.jsonl has `rater_1`, `rater_2`, ...: the word that names a reply or `tie`, which are votes by
lmgym/data/verdicts.py; `cannot say`, which is none; or null. A pair without a vote is no row.
"""

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from typing import Any, final

from lmgym.apps.serve.label_record import CANNOT_SAY, RECORD, SIDES, TIE, LabelRecord, Rater, StoredPair, Vote, key_of
from lmgym.console import say
from lmgym.errors import one_line
from lmgym.runs.files import write_json, write_lines
from lmgym.statistics import Estimate, holm, share

LABELS, SUMMARY = "labels.jsonl", "summary.json"
LEVEL = 0.05
"""the chance that any of the raters without a leaning to one place is said to have one"""


def label_rows(record: LabelRecord) -> list[dict[str, Any]]:
    """A row for each pair with a vote, in the order of the pairs."""
    with record.lock:
        raters = list(record.raters)
        decided = [pair for pair in record.pairs.values() if _decided(record, pair.id)]
        return [_row(pair, record.votes[pair.id], raters) for pair in decided]


def _decided(record: LabelRecord, pair: str) -> dict[str, str]:
    """The verdicts on a pair but "cannot say", by rater."""
    votes = record.votes.get(pair, {})
    return {rater: vote.verdict for rater, vote in votes.items() if vote.verdict != CANNOT_SAY}


def _row(pair: StoredPair, votes: Mapping[str, Vote], raters: Sequence[str]) -> dict[str, Any]:
    said = [votes[rater].verdict if rater in votes else None for rater in raters]
    columns = {f"rater_{i}": verdict for i, verdict in enumerate(said, 1)}
    counts = {"ties": said.count(TIE), "cannot_say": said.count(CANNOT_SAY)}
    return {**pair.row, **columns, **counts, "pair": pair.id}


def agreement(record: LabelRecord, name: str | None = None) -> Estimate:
    """The share of equal verdicts (a side or a tie) of two raters on one pair, with its interval over prompts.

    With a name: of this rater and each other one, on the pairs that this rater has judged. Else of all raters.
    """
    key, flags, units = None if name is None else key_of(name), list[bool](), list[str]()
    with record.lock:
        ids = record.votes if key is None else record.raters[key].judged if key in record.raters else ()
        for id in ids:
            if id not in record.pairs:
                continue
            for (one, verdict), (other, as_well) in combinations(_decided(record, id).items(), 2):
                if key is None or key in (one, other):
                    flags.append(verdict == as_well)
                    units.append(record.pairs[id].prompt_key)
    return share(flags, units)


def rater_figures(record: LabelRecord) -> list[dict[str, Any]]:
    """Of each rater: counts of verdicts by place and kind, and the share of decisions for the reply shown first.

    Sides are drawn for each pair by itself, so that pairs are independent and this share is a half, but for chance, of
    who looks at the texts: `leans` is by the exact binomial test, with Holm's correction over raters.
    """
    with record.lock:
        found = [_figures_of(record, key, rater) for key, rater in record.raters.items()]
    p_values = holm([_chance_of(one["first"], one["first"] + one["second"]) for one in found])
    for one, p in zip(found, p_values, strict=True):
        one["leans"] = "" if p >= LEVEL else "first" if one["first"] > one["second"] else "second"
    return found


def _chance_of(first: int, decided: int) -> float:
    """The two-sided exact p-value of so many decisions for one place, each of which has a chance of a half."""
    import scipy.stats  # half a second

    return float(scipy.stats.binomtest(first, decided).pvalue) if decided else 1.0


def _figures_of(record: LabelRecord, key: str, rater: Rater) -> dict[str, Any]:
    counts = Counter[str]()
    for id in rater.judged:
        vote = record.votes[id][key]
        place = vote.verdict if vote.verdict not in SIDES else "first" if vote.verdict == vote.first else "second"
        counts[place] += 1
    return {
        "column": f"rater_{rater.number}",
        "name": rater.name,
        "verdicts": len(rater.judged),
        **{name: counts[name] for name in ("first", "second")},
        "ties": counts[TIE],
        "cannot_say": counts[CANNOT_SAY],
        "undone": rater.undone,
        "share_first": numbers(share([True] * counts["first"] + [False] * counts["second"])),
    }


def numbers(estimate: Estimate) -> dict[str, Any]:
    """An estimate as JSON."""
    return {name: value for name, value in asdict(estimate).items() if name != "reason"}


def summary(record: LabelRecord) -> dict[str, Any]:
    """The figures of a folder."""
    with record.lock:
        rows = label_rows(record)
        only = sum(not _decided(record, id) for id, votes in record.votes.items() if votes)
        return {
            "pairs": len(record.pairs),
            "rows": len(rows),
            "rows_of_several_raters": sum(len(_decided(record, row["pair"])) > 1 for row in rows),
            "votes": sum(len(_decided(record, row["pair"])) for row in rows),
            "ties": sum(row["ties"] for row in rows),
            "cannot_say": sum(vote.verdict == CANNOT_SAY for votes in record.votes.values() for vote in votes.values()),
            "pairs_without_a_vote_that_somebody_could_not_judge": only,
            "agreement": numbers(agreement(record)),
            "raters": rater_figures(record),
        }


def in_words(figures: Mapping[str, Any]) -> Iterable[str]:
    """Lines of a summary."""
    yield (
        f"{figures['votes']:,} votes on {figures['rows']:,} of {figures['pairs']:,} pairs, {figures['ties']:,} of them "
        f'ties; "cannot say" {figures["cannot_say"]:,} times'
    )
    if (same := figures["agreement"])["rows"]:
        yield f"raters agree in {percent(same)} of {same['rows']:,} comparisons of two verdicts on a pair"
    for rater in figures["raters"]:
        first, decided = rater["share_first"], rater["first"] + rater["second"]
        line = f"{rater['column']}, {one_line(rater['name'])}: {rater['verdicts']:,} verdicts"
        if decided:
            line += f", {percent(first)} of {decided:,} decisions for the reply that was shown first"
        yield line + (f"; LEANS TO THE {rater['leans'].upper()} ONE, whatever it says" if rater["leans"] else "")


def percent(estimate: Mapping[str, Any]) -> str:
    """83% (36% to 99%)."""
    low, high = estimate["low"], estimate["high"]
    return f"{estimate['value']:.0%}" + ("" if low is None else f" ({low:.0%} to {high:.0%})")


@final
class LabelFiles:
    """The thread that keeps labels.jsonl and summary.json up to date: each writing has all verdicts before it."""

    def __init__(self, record: LabelRecord) -> None:
        self.record = record
        self._changed, self._ends = threading.Event(), threading.Event()
        self.write()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def note_change(self) -> None:
        """There is something to write."""
        self._changed.set()

    def write(self) -> None:
        """Writes both files. Raises OSError."""
        write_lines(self.record.folder / LABELS, label_rows(self.record))
        write_json(self.record.folder / RECORD / SUMMARY, summary(self.record))

    def close(self) -> None:
        """Writes what is left."""
        self._ends.set()
        self._changed.set()
        self._thread.join()
        self.write()

    def _run(self) -> None:
        while True:
            self._changed.wait()
            if self._ends.wait(1):  # seconds between two writings, of which each has every row
                return
            self._changed.clear()
            try:
                self.write()
            except OSError as error:  # the verdicts are in the record; the next writing tries again
                say(f"labels.jsonl could not be written: {one_line(str(error))}", error=True)
