"""`lmgym agree`: scores the rows of LABELS by a judge, resumably, and compares its verdicts with those of people."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from lmgym.apps.audit.agree.agree_page import agreement_page
from lmgym.apps.audit.agree.agree_tables import in_words
from lmgym.apps.audit.agree.agreement import MAJORITY, Agreement, agreement, content, decision
from lmgym.apps.audit.agree.coefficients import require_packages
from lmgym.apps.audit.agree.forms import Named
from lmgym.apps.audit.agree.judging import AUTO, NO_VERDICT, Judgements, check_judge, item_of, judgements
from lmgym.apps.audit.agree.labels import Labels, Reading, read_labels
from lmgym.apps.audit.judge_command import journaled_scores
from lmgym.config import ColumnConfig, Range, check_ranges
from lmgym.console import say
from lmgym.errors import MOST_SCORE, InputError
from lmgym.report.page import REPORT
from lmgym.runs.files import write_json, write_lines, write_text
from lmgym.runs.locks import FolderLock
from lmgym.scoring.judge_settings import JudgeConfig
from lmgym.scoring.named_scorers import read_names

RESULTS, ROWS = "agreement.json", "rows.jsonl"


@dataclass(frozen=True)
class AgreeConfig:
    """Flags of `lmgym agree`."""

    judge: str = ""
    """the judge, [name=]SPEC: judge:MODEL, compare:MODEL, a reward model's folder, FILE.py:FUNCTION, ..."""
    at_least: Annotated[float | None, Range(-1, 1, also=(None,))] = None
    """the kappa to reach: exit code 0 if the lower limit is at least that, 1 if the upper limit is below, else 3"""
    kappa: Literal["majority", "raters"] = "majority"
    """which Cohen's kappa has to reach it: of the judge with the raters' majority (of grades their median), or with a
    single rater"""
    epsilon: Annotated[float, Range(0, 1)] = 0.1
    """of the alternative annotator test: by how much the judge may fall behind a rater, for being cheaper. The paper
    has .2 beside experts, .15 beside skilled annotators, .1 beside crowd workers"""
    rows: str | None = None
    """file with the texts, where LABELS have an id in their place"""
    item_column: str | None = None
    """column of the id that LABELS and --rows share; none: the one by which most labels find a row"""
    rater_column: str | None = None
    """column of the rater, of one row a rating, or of lists of raters; none: found by its name"""
    vote_column: str | None = None
    """column of the vote, or of lists of votes; none: found by its name"""
    rater_columns: str | None = None
    """a column for each rater, separated by commas; none: found by their names, such as rater_1 and annotator_kim"""
    unit_column: str | None = None
    """column whose rows depend on each other, such as the dialogue that replies are from; none: the prompt"""
    levels: str | None = None
    """labels of single replies from the worst to the best, separated by commas; none: numbers in their order"""
    cuts: str = AUTO
    """how scores of single replies become labels: scale, the nearest number; shares, as often as raters have
    them; rising numbers at which scores are cut, such as .5; auto: scale for a judge whose scale is the raters', else
    shares"""
    tie_margin: Annotated[float, Range(0, MOST_SCORE)] = 0.0
    """scores of two replies that are at most so far apart are a tie"""
    output: str | None = None
    """folder for the results; none: outputs/agree/NAME/LABELS"""
    columns: ColumnConfig = field(default_factory=ColumnConfig)
    asking: JudgeConfig = field(default_factory=JudgeConfig)

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def reading(self) -> Reading:
        """Settings of reading LABELS."""
        named = Named(
            self.vote_column or self.columns.verdict_column or self.columns.label_column or "",
            self.rater_column or "",
            _parts(self.rater_columns),
        )
        return Reading(
            named, self.item_column or "", self.unit_column or "", self.rows or "", _parts(self.levels), self.columns
        )


def _parts(words: str | None) -> tuple[str, ...]:
    return tuple(filter(None, map(str.strip, (words or "").split(","))))


def run_agree(source: str, config: AgreeConfig) -> Agreement:
    """Compares the judge with the raters of a file, prints the figures, and writes agreement.json, rows.jsonl and the
    page. Raises SystemExit with the code of the decision where one was asked for.

    Raises InputError for labels that cannot be read, and for a judge that cannot judge them or gives no verdict at all.
    """
    if not config.judge:
        raise InputError("no --judge; needed: --judge SPEC, such as --judge judge:MODEL, or a reward model's folder")
    paths = read_names(config.judge, "--judge")
    if len(paths) > 1:
        raise InputError(f"--judge names {len(paths)} scorers; needed: one; run the command once for each")
    [(name, path)] = paths.items()
    require_packages()
    labels = read_labels(source, config.reading)
    check_judge(path, labels, config.cuts)
    stem = Path(source).name.partition(".")[0] or "labels"
    folder = Path(config.output).expanduser() if config.output else Path("outputs/agree") / name / stem
    lock = FolderLock(folder)
    try:
        items = [item_of(row) for row in labels.rows]
        _, scores = journaled_scores(folder, name, path, items, config.asking)
        judged = judgements(labels, scores, path, config.cuts, config.tie_margin)
        found = agreement(labels, judged, config.epsilon)
        asked = config.at_least
        decided = None if asked is None else decision(found.figure(config.kappa or MAJORITY), asked)
        results = content(labels, judged, found, path, config.epsilon, decided)
        write_json(folder / RESULTS, results)
        write_lines(folder / ROWS, _rows(labels, judged))
        write_text(folder / REPORT, agreement_page(name, labels, judged, found, results))
    finally:
        lock.release()
    for line in in_words(name, labels, judged, found, results):
        say(line)
    say(f"{folder / RESULTS}; {ROWS}: each row with its votes and the judge's verdict; {REPORT}: the same to read")
    if decided:
        raise SystemExit(decided[1])
    return found


def _rows(labels: Labels, judged: Judgements) -> list[dict]:
    """Each row with its votes by rater and the judge's verdict."""
    names = labels.levels.names
    votes: list[list[dict[str, str]]] = [[] for _ in labels.rows]
    for rating in labels.ratings:
        rater = {"rater": rating.rater} if labels.has_raters else {}
        votes[rating.row].append(rater | {"vote": names[rating.level]})
    return [
        {
            "line": row.line,
            "prompt": row.conversation.turns[-1].text if row.conversation.turns else "",
            "replies": list(row.replies),
            "votes": votes[number],
            "judge": None if judged.levels[number] == NO_VERDICT else names[judged.levels[number]],
            "scores": list(judged.scores[number]),
        }
        for number, row in enumerate(labels.rows)
    ]
