"""Pairs with a rater's reasons as what a judge that compares is to answer: its own prompt, the reasons, the verdict.

Both orders of a pair are learned, so that no place is preferred. Reasons that name the replies by their places, as
"Response 2 is wrong", are learned in the order alone in which the row has the replies; a row of `chosen` and `rejected`
does not say which one that is, and is rejected.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from lmgym.config import ColumnConfig
from lmgym.data.mixing import read_sets
from lmgym.data.pairs import COLUMNS, Pair, read_pair, reads_pair
from lmgym.data.rationales import NAMES as RATIONALES
from lmgym.data.rationales import chosen_is_first, names_places, rationale_of
from lmgym.data.reading import USUAL, Wanted, interpret
from lmgym.data.records import Record
from lmgym.data.rejections import DUPLICATE, UNSUPPORTED, Rejection, RowError
from lmgym.data.rows import line_of, read_rows
from lmgym.distributed.ranks import rank
from lmgym.models.loading import load_tokenizer
from lmgym.runs.layout import trained_in
from lmgym.scoring.judge_prompts import NAMES, comparing_prompt
from lmgym.scoring.judge_settings import save_judge_tokens
from lmgym.scoring.llm_judge import MOST_CHARACTERS, ONE
from lmgym.text import Turn, tokenize_texts
from sft.config import SftConfig
from sft.conversations import TrainingChat

WANTED = Wanted(
    "pairs with reasons",
    f"chosen and rejected, or two replies with a verdict, beside {RATIONALES[1]} (or name yours by --rationale_column)",
    [(*COLUMNS, name) for name in RATIONALES],
    lambda fields: (*reads_pair(fields), *RATIONALES),
)
SPARE, STEP = 1.5, 64  # tokens of reasons beyond the longest that are learned; a multiple of which is the limit


def validate_rationales(
    *sets: Iterable[Record], columns: ColumnConfig = USUAL, notes: list[str] | None = None
) -> tuple[list[TrainingChat], list[Rejection]]:
    """The judge's answers to both orders of each pair, or to the one that its reasons are about.

    Raises InputError as `interpret` does, which reads the columns and adds to the notes.
    """
    seen: dict[tuple, Pair] = {}

    def read(record: Record) -> list[TrainingChat]:
        pair, reasons = read_pair(record), rationale_of(record)
        orders = _orders(record, reasons)
        key = (pair.conversation, *sorted(map(str, (pair.chosen, pair.rejected))))
        if key in seen:
            raise RowError("(row)", f"the replies of {line_of(seen[key], pair)}", DUPLICATE)
        seen[key] = pair
        return [_answer(pair, reasons, order, record) for order in orders]

    found, rejections = read_rows(interpret(sets, WANTED, columns, notes), read)
    once = sum(len(chats) == 1 for chats in found)
    if notes is not None and once:
        notes.append(f"{once:,} of {len(found):,} reasons name a reply by its place: learned in one order")
    return [chat for chats in found for chat in chats], rejections


def _orders(record: Record, reasons: str) -> Sequence[int]:
    """0: the preferred reply is shown first, 1: second. Raises RowError for reasons of an unknown order."""
    if not names_places(reasons):
        return 0, 1
    first = chosen_is_first(record)
    if first is None:
        found = "reasons that name a reply by its place, of a row that does not say which one is first"
        raise RowError("rationale", f"{found}; needed: columns such as response_a, response_b and winner", UNSUPPORTED)
    return (0,) if first else (1,)


def _answer(pair: Pair, reasons: str, order: int, record: Record) -> TrainingChat:
    first, second = (pair.rejected, pair.chosen) if order else (pair.chosen, pair.rejected)
    asked = comparing_prompt(pair.conversation, first, second, ONE, MOST_CHARACTERS, reasons=True).prompt
    whole = replace(asked, turns=(*asked.turns, Turn("bot", f"{reasons}\n\n[[{NAMES[order]}]]")))
    return TrainingChat(whole, (1,), file=record.file, line=record.line, field="rationale", about=pair.conversation)


def save_settings(config: SftConfig, folder: Path) -> None:
    """Writes how the judge in a run's folder is asked, which `compare:FOLDER` reads: with room for reasons that are
    half as long again as the longest of its rows. On rank 0.
    """
    weights = trained_in(folder)
    if rank() != 0 or weights is None or config.run.dry_run:
        return
    data, tokenizer = config.data, load_tokenizer(str(weights))
    sets = read_sets(data.dataset, data.dataset_split, data.max_rows, None)
    chats, _ = validate_rationales(*sets.values(), columns=config.columns)
    answers = [chat.conversation.turns[-1].text for chat in chats]
    longest = max(map(len, tokenize_texts(tokenizer, answers)))
    save_judge_tokens(folder, STEP * math.ceil(SPARE * longest / STEP))
