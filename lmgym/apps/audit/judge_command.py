"""`lmgym judge`: scores the rows of a suite by each scorer, resumably, and writes the scorecard, its page and table."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lmgym.apps.audit.journal import RowScores, key_of, open_journal, read_journal, score_items, scorer_fingerprint
from lmgym.apps.audit.scorecard import ScoredBy, in_words, markdown, scorecard
from lmgym.apps.audit.scorecard_page import scorecard_page
from lmgym.apps.audit.suites import Item, Read, Suite, read_suite
from lmgym.console import say
from lmgym.errors import InputError, one_line, shown_path
from lmgym.report.page import REPORT
from lmgym.report.status_line import StatusLine
from lmgym.runs.files import write_json, write_text
from lmgym.runs.locks import FolderLock
from lmgym.scoring.judge_settings import JudgeConfig
from lmgym.scoring.named_scorers import JUDGE, RUBRIC, load_scorer, read_names
from lmgym.scoring.protocol import Scorer

SCORECARD, TABLE = "scorecard.json", "scorecard.md"


def run_judge(
    words: Sequence[str],
    suite: str,
    dataset: str | None,
    output: str | None,
    ties: str,
    max_rows: int | None,
    asking: JudgeConfig | None = None,
) -> None:
    """Scores a suite by the scorers that `words` name; prints the figures.

    `asking`: how a judge's model is asked, in place of its rubric's.

    Raises InputError for unknown suites, scorers that do not load, rows of another form, and a folder with scores of
    another scorer.
    """
    paths = read_names(",".join(words), "SCORER")
    read = read_suite(suite, dataset, max_rows)
    folder = Path(output).expanduser() if output else default_folder(paths, read)
    lock = FolderLock(folder)
    try:
        judge_in(folder, paths, read, ties, asking)
    finally:
        lock.release()


def default_folder(paths: dict[str, str], read: Read) -> Path:
    """outputs/judge/NAME/SUITE, of several scorers with their names joined."""
    return Path("outputs/judge") / "_vs_".join(paths) / read.suite.name.partition(".")[0]


def judge_in(
    folder: Path, paths: dict[str, str], read: Read, ties: str = "protocol", asking: JudgeConfig | None = None
) -> dict[str, Any]:
    """The scorecard of the scorers, which is in the folder then, with what was scored before in it."""
    scorers = {name: _scored_by(folder, name, path, read, ties, asking) for name, path in paths.items()}
    card = scorecard(read, scorers)
    write_json(folder / SCORECARD, card)
    write_text(folder / TABLE, markdown(card))
    write_text(folder / REPORT, scorecard_page(card, read.items, scorers))
    say(f"{read.suite.name}: {len(read.items):,} rows of {read.source}")
    for line in in_words(card):
        say(line)
    say(f"{folder / SCORECARD}, {TABLE} for a model card, {REPORT}")
    return card


def _scored_by(folder: Path, name: str, path: str, read: Read, ties: str, asking: JudgeConfig | None) -> ScoredBy:
    fingerprint, scores = journaled_scores(folder, name, path, read.items, asking)
    return ScoredBy(path, fingerprint, scores, tie_of(read.suite, path, ties))


def journaled_scores(
    folder: Path, name: str, path: str, items: Sequence[Item], asking: JudgeConfig | None
) -> tuple[str, dict[str, RowScores]]:
    """(the scorer's fingerprint, the scores of all rows by `key_of`): those of the folder's journal, and of the rest by
    the scorer, which loads only if it is needed.

    Raises InputError for scores of another scorer, and where no row could be scored.
    """
    fingerprint = scorer_fingerprint(path)
    journal = folder / f"scores_{name}.jsonl"
    found = read_journal(journal, path, fingerprint)
    left = list({key: item for item in items if (key := key_of(item)) not in found}.values())  # each text once
    scorer = load_scorer(path, asking=asking) if left else None
    if scorer is None:
        say(f"{name}: all {len(items):,} rows have their scores in {journal}; nothing to score", error=True)
    else:
        done = sum(key_of(item) in found for item in items)
        if done:
            say(f"{name}: {done:,} of {len(items):,} rows have their scores in {journal}; scoring the rest", error=True)
        if hasattr(scorer, "announce"):
            scorer.announce([item.conversation for item in left], [[*item.chosen, *item.rejected] for item in left])
        scorer = without_saturation(scorer, path)
        with open_journal(journal, path, fingerprint) as file, StatusLine(name, len(left), "rows", plain=True) as line:
            found |= score_items(scorer, left, file, line)
    scores = {key: found[key] for key in map(key_of, items)}
    _refuse_all_failed(name, scores, journal)
    return fingerprint, scores


def without_saturation(scorer: Scorer, path: str) -> Scorer:
    """The scorer, one of two classes by the difference of its logits: equal order, but no ties of rounded softmaxes."""
    from lmgym.scoring.scorers import HFScorer

    if isinstance(scorer, HFScorer) and scorer.reduce == "softmax[1]" and "#" not in path:
        scorer.reduce = "difference"
    return scorer


def tie_of(suite: Suite, path: str, ties: str) -> float:
    """The value of equal scores of a pair: as asked, or by the suite's protocol for this kind of scorer."""
    if ties != "protocol":
        return {"strict": 0.0, "half": 0.5}[ties]
    return suite.judge_tie if is_judge(path) else 0.0


def is_judge(path: str) -> bool:
    """True of a model that is asked for its verdict, rather than a classifier or a function."""
    return bool(JUDGE.fullmatch(path) or RUBRIC.fullmatch(path))


def _refuse_all_failed(name: str, scores: dict[str, RowScores], journal: Path) -> None:
    if scores and all(row.failed for row in scores.values()):
        journal.unlink()  # so that the scorer can be mended
        first = next(iter(scores.values()))
        raise InputError(f"{shown_path(name)} scored none of {len(scores):,} rows; the first: {one_line(first.failed)}")
