"""Examples as an Arrow table: made anew as they were, by place, slice and iteration, in memory and out of a file."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lmgym.data.example_rows import REALIGNED, SHORTENED, TRUNCATED, ExampleRows, encode, write_batches
from lmgym.text import Conversation, Replies, Turn
from preferences.examples import PairExample, RepliesOf, ThumbExample, WithReference
from reward_models.data import PairExample as ScoredPair
from reward_models.objectives import RankedExample
from sft.tokenization import Example

CHAT = Conversation((Turn("user", "höw\n?"), Turn("bot", "so", '{"a": 1}', learned=False)), "A bot.", '[{"b": 2}]')
ROW = Replies([1, 2, 3], [[4], [5, 60_000]], dropped_turns=2, shortened=7, ends=(9, 8), realigned=True)
EXAMPLES = [
    ScoredPair(ROW, 1.5, 3, (1, 2), "a.jsonl:1"),
    RankedExample(ROW, (2, 1), 0, "a.jsonl:2"),
    PairExample(ROW, 4, CHAT, "d/a.jsonl", 5, 0.75, (-1.25, -2.5)),
    ThumbExample(ROW, 1, CHAT, "a.jsonl", 9, True, mismatched=Replies([], [[7]])),
    Example(Replies([], [[1, 2, 3, 4]]), ((1, 2), (3, 4)), (5, 6), CHAT, "a.jsonl", 3, [0.5, 0.25]),
    Example(Replies([], [[1, 2]]), ((1, 2),), (5,), Conversation(()), "a.jsonl", 3),
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: type(e).__name__)
def test_an_example_is_made_anew_as_it_was(example, tmp_path: Path) -> None:
    kind = type(example)
    batches = [encode([example], kind), encode([], kind), encode([example, example], kind)]
    write_batches(tmp_path / "rows.arrow", batches, kind)
    for rows in (ExampleRows.of(batches, kind), ExampleRows.open(tmp_path / "rows.arrow", kind)):
        assert len(rows) == 3
        assert rows[0] == rows[-1] == example
        assert list(rows) == rows[:] == rows[0:9] == [example] * 3
        assert rows[0].replies.__class__ is Replies
        with pytest.raises(IndexError):
            rows[3]
    if getattr(example, "conversation", None) == CHAT:
        assert [turn.learned for turn in rows[0].conversation.turns] == [True, False]  # no part of equality


def test_tokens_and_counts_are_those_of_the_examples() -> None:
    short = replace(EXAMPLES[0], replies=Replies([1], [[2]]))
    rows = ExampleRows.of([encode([EXAMPLES[0], short], ScoredPair)], ScoredPair)
    assert rows.tokens.tolist() == [ROW.tokens, 2]
    assert rows.most_replies == 2
    assert [rows.count(name) for name in (TRUNCATED, SHORTENED, REALIGNED)] == [1, 1, 1]
    empty = ExampleRows.of([], ScoredPair)
    assert (len(empty), empty.most_replies, empty.count(TRUNCATED), list(empty)) == (0, 0, 0, [])


def test_a_pair_of_a_hundred_tokens_takes_less_than_a_kilobyte() -> None:
    replies = Replies(list(range(50_000, 50_060)), [list(range(60_000, 60_020))] * 2)
    chat = Conversation((Turn("user", "x" * 240),))
    examples = [PairExample(replies, i, chat, "data/pairs.jsonl", i) for i in range(1000)]
    rows = ExampleRows.of([encode(examples, PairExample)], PairExample)
    assert rows.table.nbytes / 1000 < 1000


def test_replies_and_references_of_examples_are_made_when_they_are_asked_for() -> None:
    pair, thumb = EXAMPLES[2], EXAMPLES[3]
    rows = ExampleRows.of([encode([pair] * 3, PairExample)], PairExample)
    found = RepliesOf(rows, [replace(pair, replies=Replies([], [[1]]))], [])
    assert len(found) == 4
    assert list(found) == [found[i] for i in range(4)] == [ROW, ROW, ROW, Replies([], [[1]])]
    both = RepliesOf([thumb], [thumb])
    assert list(both) == [both[i] for i in range(4)] == [ROW, thumb.mismatched] * 2
    values = np.array([[0.5, -1.0], [2.0, 3.0], [4.0, 5.0]])
    filled = WithReference(rows, values)
    assert [example.reference for example in filled] == [tuple(both) for both in values.tolist()]
    assert filled[1] == filled[1:2][0] == replace(pair, reference=(2.0, 3.0))
