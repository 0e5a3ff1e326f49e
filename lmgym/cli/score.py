"""`lmgym score`: a scorer's opinion of the replies in a file, one JSON line per row, and the figures of them all."""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from lmgym.config import ColumnConfig
from lmgym.console import say
from lmgym.data.mixing import DataSet
from lmgym.data.pairs import COLUMNS, RANKED, is_pair, read_pair, reads_pair
from lmgym.data.reading import USUAL, Wanted, interpret
from lmgym.data.records import Record
from lmgym.data.rejections import NO_REPLY, UNFIT, UNJUDGED, Rejection, RowError, tally
from lmgym.data.rows import prompt_key, read_rows
from lmgym.errors import InputError, one_line, shown_path
from lmgym.report.status_line import StatusLine
from lmgym.runs.files import write_lines
from lmgym.scoring.comparing_judge import BothOrders, ComparingJudge
from lmgym.scoring.function_forms import Given, RewardInput
from lmgym.scoring.function_scorers import FileScorer
from lmgym.scoring.judge_settings import JudgeConfig
from lmgym.scoring.named_scorers import load_scorer
from lmgym.scoring.protocol import NoVerdict, Scorer, read_scores
from lmgym.shell import command
from lmgym.statistics import notes, share
from lmgym.text import Conversation, Reply, as_reply, words_of
from lmgym.training.length_rule import LengthRule

MOST_ROWS, MOST_CHARACTERS = 1024, 32_768  # that are scored together: about one batch of a model
NEEDED = (
    "columns chosen and rejected (and optionally prompt); prompt and reply or completion; messages; or input_text and "
    "output_text"
)
FORMS = (COLUMNS, RANKED, ("prompt", "completion"), ("messages",), ("input_text", "output_text"), ("text",))


@dataclass(frozen=True)
class ScoredRow:
    """A conversation with its reply, or with the chosen and the rejected one; and the row itself."""

    record: Record
    conversation: Conversation
    replies: tuple[Reply, ...]

    @property
    def is_pair(self) -> bool:
        """True for a chosen and a rejected reply."""
        return len(self.replies) == 2

    @property
    def columns(self) -> dict[str, Any]:
        """The row's fields beside the conversation and its replies, for a function."""
        read = {
            *_reads(self.record.fields),
            *(ours for ours, name in (self.record.names or {}).items() if ours != name),
        }
        return {name: value for name, value in self.record.fields.items() if name not in read}

    def line(self, scores: Sequence[float]) -> dict[str, Any]:
        """The row's fields with its scores."""
        names = ("score_chosen", "score_rejected") if self.is_pair else ("score",)
        return dict(self.record.row or self.record.fields) | dict(zip(names, scores, strict=True))


@dataclass(frozen=True)
class ScoreConfig:
    """Flags of `lmgym score`."""

    columns: ColumnConfig = field(default_factory=ColumnConfig)
    asking: JudgeConfig = field(default_factory=JudgeConfig)


def score_file(
    path: str, source: str, output: str | None, columns: ColumnConfig = USUAL, asking: JudgeConfig | None = None
) -> None:
    """Scores the replies of a file, a folder or a hub id; prints figures, and writes a line for each row in order.

    `path` is a scorer's (lmgym/scoring/named_scorers.py); `asking`: how a judge's model is asked. Raises
    InputError if no row can be scored, and for an `output` that is the file itself.
    """
    target = Path(os.path.expanduser(output or f"outputs/scores/{_stem(source)}.jsonl"))
    if target.exists() and Path(source).expanduser().exists() and target.samefile(Path(source).expanduser()):
        raise InputError(f"--output {shown_path(target)} is the file to score; needed: another one")
    if (Path(source).expanduser() / "config.json").is_file():
        raise InputError(
            f"{shown_path(source)} is a model's folder; needed: the data behind the scorer: "
            f"{command('lmgym', 'score', shown_path(source), shown_path(path))}"
        )
    reading: list[str] = []
    records, wanted = DataSet(source, "train"), replace(WANTED, reads=_reads)
    rows, rejections = read_rows(interpret([records], wanted, columns, reading), read_row)
    _refuse_none(source, rows, rejections, len(records))
    _make_folder(target)  # before hours of scoring
    for note in reading:
        say(note)
    scorer = load_scorer(path, asking=asking, given=Given(frozenset().union(*(row.columns for row in rows))))
    replies = sum(len(row.replies) for row in rows)
    say(f"{len(rows):,} rows to score, with {replies:,} replies", error=True)
    if hasattr(scorer, "announce"):
        scorer.announce([row.conversation for row in rows], [row.replies for row in rows])
    with StatusLine("scoring", len(rows), "rows", plain=True) as status:
        scored, unfit = score_rows(scorer, rows, status)
    rejections += unfit
    _refuse_none(source, scored, rejections, len(records))
    details = [_details(scorer, row) for row, _ in scored]
    write_lines(target, (row.line(scores) | own for (row, scores), own in zip(scored, details, strict=True)))
    for line in [*figures(scored), *comparing_figures([row for row, _ in scored], details)]:
        say(line)
    if rejections:
        say(f"{tally(rejections, len(records)).line}; the first: {rejections[0]}")
    say(f"{len(scored):,} rows with their scores are in {target}")


WANTED = Wanted("replies", NEEDED, FORMS, lambda fields: (), others_go_to="the output")


def _refuse_none(source: str, left: Sequence[Any], rejections: Sequence[Rejection], rows: int) -> None:
    """Raises InputError if no row is left to score."""
    if not left:
        found = f"{tally(rejections, rows).line}; the first: {rejections[0]}" if rejections else "it holds 0 rows"
        raise InputError(f"{one_line(source)} has no reply to score: {found}; needed: {NEEDED}")


def _reads(fields: Mapping[str, Any]) -> tuple[str, ...]:
    from sft.conversations import reads_chat

    return reads_pair(fields) if is_pair(fields) else tuple({*reads_chat(fields)} - {"label", "kto_tag"})


def read_row(record: Record) -> ScoredRow:
    """The replies of a row. Raises RowError for a row without any that can be used."""
    from sft.conversations import read_chat

    if is_pair(record.fields):
        pair = read_pair(record)
        return ScoredRow(record, pair.conversation, (pair.chosen, pair.rejected))
    liked = {name: value for name, value in record.fields.items() if name not in ("label", "kto_tag")}
    chat = read_chat(replace(record, fields=liked))
    if chat.text:
        raise RowError("text", "plain text; needed: a conversation that ends in a reply", NO_REPLY)
    return ScoredRow(record, chat.prompt, (as_reply(chat.conversation.turns[-1]),))


def score_rows(
    scorer: Scorer, rows: Sequence[ScoredRow], line: StatusLine | None = None
) -> tuple[list[tuple[ScoredRow, list[float]]], list[Rejection]]:
    """(rows with the scores of their replies, rejections of rows that the scorer cannot read). `line` shows how far."""
    scored: list[tuple[ScoredRow, list[float]]] = []
    rejections: list[Rejection] = []
    for some in _together(rows):
        try:
            scored += list(zip(some, _score(scorer, some), strict=True))
        except InputError:  # of one row: the others are scored without it
            for row in some:
                try:
                    scored.append((row, _score(scorer, [row])[0]))
                except InputError as error:
                    why = UNJUDGED if isinstance(error, NoVerdict) else UNFIT
                    rejections.append(Rejection(row.record.file, row.record.line, "(row)", str(error), why))
        if line:
            line.update(len(scored) + len(rejections))
    return scored, rejections


def _together(rows: Sequence[ScoredRow]) -> Iterator[Sequence[ScoredRow]]:
    """The rows in parts that are small enough for progress to be seen, and large enough for a batch."""
    first = characters = 0
    for place, row in enumerate(rows):
        size = sum(len(turn.text) for turn in row.conversation.turns) + sum(len(words_of(r)) for r in row.replies)
        if place > first and (characters + size > MOST_CHARACTERS or place - first == MOST_ROWS):
            yield rows[first:place]
            first, characters = place, 0
        characters += size
    yield rows[first:]


def _score(scorer: Scorer, rows: Sequence[ScoredRow]) -> list[list[float]]:
    """The scores of each row's replies. A judge that compares is given those of a row, and of no other one."""
    if hasattr(scorer, "score_groups"):
        found: Any = scorer.score_groups([row.conversation for row in rows], [row.replies for row in rows])
        if missing := sum(math.isnan(score) for scores in found for score in scores):
            raise NoVerdict(f"the judge gave no verdict on {missing:,} replies")
        return found
    conversations = [row.conversation for row in rows for _ in row.replies]
    replies = [reply for row in rows for reply in row.replies]
    if isinstance(scorer, FileScorer):
        columns = [row.columns for row in rows for _ in row.replies]
        given = zip(conversations, replies, columns, strict=True)
        found = scorer.score_inputs([RewardInput(c, reply, columns=own) for c, reply, own in given])
    else:
        found = scorer.score(conversations, replies)  # type: ignore[arg-type]  # a model renders a turn with reasoning
    scores = iter(read_scores(found, len(replies)))
    return [[next(scores) for _ in row.replies] for row in rows]


def _details(scorer: Any, row: ScoredRow) -> dict[str, Any]:
    """The details of a judge beside its score: the grade of each criterion and its entropy in nats, or a comparison."""
    if isinstance(scorer, ComparingJudge):
        found = scorer.details(row.conversation, *row.replies) if row.is_pair else {}
        return {"comparison": found} if found else {}
    if not hasattr(scorer, "details"):
        return {}
    names = ("grades_chosen", "grades_rejected") if row.is_pair else ("grades",)
    details = scorer.details([row.conversation] * len(row.replies), row.replies)
    return dict(zip(names, details, strict=True))


def figures(scored: Sequence[tuple[ScoredRow, Sequence[float]]]) -> list[str]:
    """Lines with count, mean and spread of the scores, and the accuracy on pairs, in which a tie counts as wrong.

    Beside it the share of pairs of which the shorter reply is the chosen one, which is what length alone would get.
    """
    values = np.array([score for _, scores in scored for score in scores])
    low, high = np.percentile(values, [5, 95])
    lines = [
        f"scores: {len(values):,}; mean {values.mean():.4g}, standard deviation {values.std():.4g}, "
        f"5% to 95%: {low:.4g} to {high:.4g}, minimum {values.min():.4g}, maximum {values.max():.4g}"
    ]
    pairs = [row for row, _ in scored if row.is_pair]
    if pairs:
        margins = np.array([scores[0] - scores[1] for row, scores in scored if row.is_pair])
        accuracy = share(margins > 0, [prompt_key(row.conversation) for row in pairs])
        lengths = np.array([[len(words_of(reply)) for reply in row.replies] for row in pairs])
        shorter = LengthRule(shorter_wins=True).right(lengths).mean()
        lines.append(
            f"pairs: {len(pairs):,}; accuracy {accuracy:.4f}, mean margin {margins.mean():.4g}, "
            f"ties {(margins == 0).mean():.2%}; the shorter reply is the chosen one in {shorter:.2%}"
        )
        lines += notes([accuracy], "prompt")
    return lines


def comparing_figures(rows: Sequence[ScoredRow], details: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line on the verdicts of a judge that compares, on pairs: both orders together, their order, and calibration."""
    compared = [(row, own["comparison"]) for row, own in zip(rows, details, strict=True) if "comparison" in own]
    if not compared:
        return []
    prompts = [prompt_key(row.conversation) for row, _ in compared]
    shown_first, shown_second = ([one[order] for _, one in compared] for order in ("shown_first", "shown_second"))
    found = BothOrders.of(shown_first, shown_second, prompts)
    return [
        f"both orders: {found.right:.3f} of the pairs are right in both; the better reply changes with the order in "
        f"{found.changes:.3f}; calibration error of P, the mean of both: {found.calibration_error:.3f}",
        *notes([found.right], "prompt"),
    ]


def _stem(source: str) -> str:
    """A file name for the scores of a source, without its suffixes."""
    return Path(source).name.partition(".")[0] or "scores"


def _make_folder(target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(f"--output {shown_path(target)}: a folder in its path is a file; name another") from error
    if target.is_dir():
        raise InputError(f"--output {shown_path(target)} is a folder; needed: a file, such as {target}/scores.jsonl")
