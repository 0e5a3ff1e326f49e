"""Notes on rows that are too long or hold special tokens, and on those that are tokenised anew behind their prompt."""

import json
from pathlib import Path

import pytest
from chat_texts import character_tokenizer

from lmgym.config import RowsConfig
from lmgym.data.pairs import Pair
from lmgym.data.rejections import TOO_LONG, Rejection
from lmgym.data.task_data import length_notes, special_token_notes
from lmgym.models.loading import load_tokenizer
from lmgym.text import Conversation, Turn
from reward_models.config import RewardModelConfig
from reward_models.pairwise import PairTask


def too_long(*needed: int) -> list[Rejection]:
    return [Rejection("a", 1, "chosen", "x", TOO_LONG, number) for number in needed]


def test_the_length_that_would_keep_95_of_100_rows_is_said() -> None:
    # 70 fit into 512; of those that do not, 25 need up to 900 tokens and 5 more than 2,000
    rejections = too_long(*[600] * 10, *[900] * 15, *[2000] * 4, 9000)
    assert length_notes(rejections, 70, 512) == [
        "warning: 30 of 100 rows are too long for --max_length 512; --max_length 960 would keep 95% of them"
    ]
    assert length_notes(rejections[:4], 96, 512) == ["4 of 100 rows are too long for --max_length 512"]
    assert length_notes([Rejection("a", 1, "x", "y")], 9, 512) == []
    all_long = length_notes(too_long(100, 200), 0, 64)
    assert all_long == [
        "warning: 2 of 2 rows are too long for --max_length 64; --max_length 256 would keep 100% of them"
    ]


def test_the_note_is_true(small_models, tmp_path: Path) -> None:
    rows = [{"prompt": f"q {i}", "chosen": "word " * (5 + i), "rejected": "no"} for i in range(60)]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer = load_tokenizer(str(small_models["gpt2"]))

    def prepare(max_length: int):
        config = RewardModelConfig("x", data=RowsConfig(str(path), max_length=max_length, eval_size=0.2))
        return PairTask().prepare(config, tokenizer)

    [note] = [note for note in prepare(48).notes if "too long" in note]
    longer = int(note.partition("; --max_length ")[2].split()[0])
    share = int(note.split()[-3].removesuffix("%"))
    data = prepare(longer)
    kept = len(data.train) + len(data.evaluation)
    assert kept / 60 >= 0.95
    assert round(100 * kept / 60) == share
    assert not any("warning" in note for note in data.notes if "held-out" not in note)


@pytest.mark.parametrize("place", ["prompt", "chosen"])
def test_rows_whose_texts_hold_special_tokens_are_counted(place: str) -> None:
    tokenizer = character_tokenizer()
    texts = {"prompt": "a", "chosen": "b"} | {place: "so </s> it"}
    rows = [Pair(Conversation((Turn("user", texts["prompt"]),)), texts["chosen"], "c")] * 2
    plain = Pair(Conversation((Turn("user", "s"),)), "/s", "c")
    [note] = special_token_notes(tokenizer, [*rows, plain])
    assert note == "2 rows hold special tokens in their texts, such as </s>: the model reads them as such"
    assert special_token_notes(tokenizer, [plain]) == []
