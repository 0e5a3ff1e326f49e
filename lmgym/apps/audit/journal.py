"""The scores of a suite's rows, written as they come, so that a run that was killed continues.

The file's first line names the scorer, with a fingerprint of its weights: scores of another one are never mixed in.
"""

import hashlib
import json
import math
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lmgym.apps.audit.suites import Item
from lmgym.errors import InputError, one_line, regular, shown, shown_path
from lmgym.report.run_files import is_number
from lmgym.report.status_line import StatusLine
from lmgym.runs.files import whole_lines
from lmgym.runs.record import timestamp
from lmgym.scoring.named_scorers import FUNCTION, JUDGE, RUBRIC
from lmgym.scoring.protocol import Scorer, ScorerFailed
from lmgym.text import Conversation

MOST_ROWS = 256  # that are scored together
LEAST_CHARACTERS, MOST_CHARACTERS = 4_096, 262_144
SECONDS = (2.0, 10.0)  # of a batch: below, the next one is twice as large, above it is half


@dataclass(frozen=True)
class RowScores:
    """The scores of a row's replies, first the right ones."""

    key: str
    scores: tuple[float, ...]
    """empty if scoring failed"""
    failed: str = ""
    truncated: int | None = None
    """replies whose text was too long, and lost its beginning; None of a scorer that does not say"""
    seconds: float = 0.0


def key_of(item: Item) -> str:
    """A digest of a row's texts."""
    texts = [repr(item.conversation), item.chosen, item.rejected]
    return hashlib.sha256(json.dumps(texts).encode("utf-8", "backslashreplace")).hexdigest()[:16]


def scorer_fingerprint(path: str) -> str:
    """A digest of what gives the scores: weights (lmgym/models/fingerprint.py), a file's content, an address."""
    if match := JUDGE.fullmatch(path):
        return _digest(path.partition(":")[0], scorer_fingerprint(match[1]))
    if (match := FUNCTION.fullmatch(path) or RUBRIC.fullmatch(path)) and os.path.isfile(match[1]):
        return _digest(regular(Path(match[1])).read_text(encoding="utf-8", errors="replace"), path[len(match[1]) :])
    whole = os.path.exists(os.path.expanduser(path))
    folder, _, rest = (path, "", "") if whole else path.partition("#")
    if ":" in folder and not os.path.exists(folder):
        return _digest(path)
    from lmgym.models.fingerprint import fingerprint
    from lmgym.scoring.ensembles import read_ensemble
    from lmgym.scoring.folders import is_ensemble

    if is_ensemble(folder):
        members, combination = read_ensemble(folder)
        return _digest(*map(scorer_fingerprint, members), rest or combination)
    return _digest(fingerprint(folder, role="scorer"), rest)


def _digest(*parts: str) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def read_journal(path: Path, scorer: str, fingerprint: str) -> dict[str, RowScores]:
    """The scores by row that a file has; a line that a kill left incomplete is cut off.

    Raises InputError for a file of another scorer, and one that is damaged.
    """
    try:
        lines = [json.loads(line) for line in whole_lines(path)[0]]
        header, rows = (lines[0], lines[1:]) if lines else ({}, [])
        found = {row["key"]: _read_row(row) for row in rows}
        of = header.get("fingerprint")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{shown_path(path)} is damaged ({one_line(str(error))}); delete it to score anew") from error
    if header and of != fingerprint:
        raise InputError(
            f"{shown_path(path)} has scores of {one_line(str(header.get('scorer')))}, which was another model than "
            f"{one_line(scorer)} now; name another --output, or delete the file to score anew"
        )
    return found


def _read_row(row: dict[str, Any]) -> RowScores:
    """A row of a file. Raises TypeError for one with values of other types."""
    found = RowScores(**(row | {"scores": tuple(row["scores"])}))
    numbers = (*found.scores, found.seconds, found.truncated or 0)
    if not (isinstance(found.key, str) and isinstance(found.failed, str) and all(map(is_number, numbers))):
        raise TypeError(f"row {shown(found.key)} has other values than scores")
    return found


def open_journal(path: Path, scorer: str, fingerprint: str) -> Any:
    """The file to append scores to, with its first line."""
    is_new = not path.exists() or path.stat().st_size == 0
    file = path.open("a", encoding="utf-8")
    if is_new:
        file.write(json.dumps({"scorer": scorer, "fingerprint": fingerprint, "began": timestamp()}) + "\n")
    return file


def score_items(scorer: Scorer, items: Sequence[Item], file: Any, status: StatusLine) -> dict[str, RowScores]:
    """The scores of rows, each batch of which is written to the file before the next begins."""
    found: dict[str, RowScores] = {}
    first, characters = 0, LEAST_CHARACTERS
    while first < len(items):
        some = take(items[first:], characters)
        began = time.perf_counter()
        scored = _score(scorer, some)
        seconds = time.perf_counter() - began
        for row in scored:
            found[row.key] = replace(row, seconds=seconds / len(some))
            file.write(json.dumps(asdict(found[row.key])) + "\n")
        file.flush()
        first += len(some)
        status.update(first)
        if seconds < SECONDS[0]:
            characters = min(2 * characters, MOST_CHARACTERS)
        elif seconds > SECONDS[1]:
            characters = max(characters // 2, LEAST_CHARACTERS)
    return found


def take(items: Sequence[Item], characters: int) -> Sequence[Item]:
    """The first rows, of about so many characters and of different prompts: a judge may compare the replies to one."""
    total, prompts = 0, set[Conversation]()
    for place, item in enumerate(items[:MOST_ROWS]):
        total += sum(len(t.text) for t in item.conversation.turns) + sum(map(len, (*item.chosen, *item.rejected)))
        if place and (total > characters or item.conversation in prompts):
            return items[:place]
        prompts.add(item.conversation)
    return items[:MOST_ROWS]


def _score(scorer: Scorer, items: Sequence[Item]) -> list[RowScores]:
    """The scores of a batch; where the scorer refuses it, of each row by itself, so that the others are scored."""
    from lmgym.scoring.function_scorers import FileScorer

    try:
        return _of_batch(scorer, items)
    except (ValueError, ScorerFailed) as error:
        if isinstance(error, ScorerFailed) and not isinstance(scorer, FileScorer):
            raise  # a server that is gone: the run continues when it is back
        if len(items) == 1:
            return [RowScores(key_of(items[0]), (), one_line(str(error)))]
    return [row for item in items for row in _score(scorer, [item])]


def _of_batch(scorer: Scorer, items: Sequence[Item]) -> list[RowScores]:
    conversations = [item.conversation for item in items for _ in (*item.chosen, *item.rejected)]
    replies = [reply for item in items for reply in (*item.chosen, *item.rejected)]
    if (verdicts := _both_orders(scorer, items)) is not None:
        scores, cut = verdicts, None
    else:
        scores, cut = _scores_of(scorer, conversations, replies)
    if len(scores) != len(replies):
        raise InputError(f"the scorer gave {len(scores)} scores for {len(replies)} replies; needed: one a reply")
    rows, first = [], 0
    for item in items:
        last = first + len(item.chosen) + len(item.rejected)
        own, truncated = tuple(scores[first:last]), None if cut is None else sum(cut[first:last])
        bad = next((score for score in own if not math.isfinite(score)), None)
        failed = "" if bad is None else f"the scorer gave {bad}"
        rows.append(RowScores(key_of(item), () if failed else own, failed, truncated))
        first = last
    return rows


def _both_orders(scorer: Scorer, items: Sequence[Item]) -> list[float] | None:
    """Of a judge that compares and of pairs: the share of both orders that each reply wins, a tie being half a win.

    JudgeBench's rule follows: a reply that wins once and ties once is ahead, and one that wins in one order is level.
    None for other scorers and rows.
    """
    from lmgym.scoring.comparing_judge import ComparingJudge

    if not isinstance(scorer, ComparingJudge) or any(len(i.chosen) != 1 or len(i.rejected) != 1 for i in items):
        return None
    sides = [item.chosen[0] for item in items], [item.rejected[0] for item in items]
    scores: list[float] = []
    for found in scorer.compare([item.conversation for item in items], *sides):
        won = sum((p > 0.5) + (p == 0.5) / 2 for p in (found.shown_first, found.shown_second)) / 2
        scores += [won, 1 - won]
    return scores


def _scores_of(scorer: Scorer, conversations: list, replies: list[str]) -> tuple[list[float], list[bool] | None]:
    """(scores, whether each text was truncated, or None if the scorer does not say)."""
    from lmgym.scoring.scorers import HFScorer

    if isinstance(scorer, HFScorer):
        judged = scorer.judge(conversations, replies)
        cut = [bool(turns or tokens) for turns, tokens in zip(judged.dropped_turns, judged.shortened, strict=True)]
        return judged.scores.tolist(), cut
    return [float(score) for score in scorer.score(conversations, replies)], None
