"""Preference pairs: one meaning for every accepted format, a reason for every row left out, splits without leaks."""

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from lmgym.config import ModelConfig, OptimizerConfig, RowsConfig
from lmgym.data.pairs import Pair, validate
from lmgym.data.records import Record
from lmgym.data.rejections import Rejection
from lmgym.data.rows import fingerprint
from lmgym.data.splitting import split_by_unit
from lmgym.errors import InputError
from lmgym.models.loading import load_tokenizer
from lmgym.text import Conversation, Turn
from reward_models.config import RewardModelConfig
from reward_models.data import tokenize_pairs


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def bot(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def system(text: str) -> dict[str, str]:
    return {"role": "system", "content": text}


def record(line: int = 1, **fields) -> Record:
    return Record("pairs.jsonl", line, fields)


GOOD = record(99, prompt="a good row beside the bad ones", chosen="yes", rejected="no")


def reject(bad: Record) -> Rejection:
    """The rejection of one bad row among good ones; the good one stays."""
    pairs, (rejection,) = validate([GOOD, bad])
    assert len(pairs) == 1
    assert (rejection.file, rejection.line) == (bad.file, bad.line)
    return rejection


PROMPT = [user("hello"), bot("hi there"), user("how are you?")]
HH_PROMPT = "\n\nHuman: hello\n\nAssistant: hi there\n\nHuman: how are you?"
FLAT_PROMPT = "User: hello\nBot: hi there\nUser: how are you?"
EXPECTED = Pair(
    Conversation((Turn("user", "hello"), Turn("bot", "hi there"), Turn("user", "how are you?"))), "fine", "awful"
)


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": HH_PROMPT, "chosen": "fine", "rejected": "awful"},
        {"prompt": f"{HH_PROMPT}\n\nAssistant:", "chosen": " fine", "rejected": " awful"},
        {"prompt": f"{FLAT_PROMPT}\nBot:", "chosen": " fine", "rejected": " awful\n"},
        {"prompt": PROMPT, "chosen": [bot("fine")], "rejected": [bot("awful")]},
        {"prompt": PROMPT, "chosen": "fine", "rejected": "awful"},
        {"prompt": None, "chosen": [*PROMPT, bot("fine")], "rejected": [*PROMPT, bot("awful")]},
        {"chosen": [*PROMPT, bot("fine")], "rejected": [*PROMPT, bot("awful")]},
        {"chosen": f"{HH_PROMPT}\n\nAssistant: fine", "rejected": f"{HH_PROMPT}\n\nAssistant: awful"},
        {"chosen": f"{FLAT_PROMPT}\nBot: fine", "rejected": f"{FLAT_PROMPT}\nBot: awful"},
    ],
)
def test_every_accepted_format_is_the_same_pair(fields: dict) -> None:
    pairs, rejections = validate([record(7, **fields)])
    assert rejections == []
    assert pairs == [replace(EXPECTED, file="pairs.jsonl", line=7)]


def test_a_persona_and_a_margin_are_kept() -> None:
    rows = [
        {
            side: [system("A pirate."), user("ahoy"), bot(reply)]
            for side, reply in (("chosen", "aye"), ("rejected", "no"))
        },
        {"prompt": [system("A pirate."), user("hey")], "chosen": [bot("aye")], "rejected": [bot("no")], "margin": 2},
    ]
    (first, second), _ = validate([record(**row) for row in rows])
    assert first.conversation == Conversation((Turn("user", "ahoy"),), "A pirate.")
    assert (second.conversation.persona, first.margin, second.margin) == ("A pirate.", 0.0, 2.0)


@pytest.mark.parametrize(
    ("fields", "field", "found"),
    [
        ({"prompt": "q", "chosen": None, "rejected": "b"}, "chosen", "null"),
        ({"prompt": "q", "chosen": "a"}, "rejected", "missing"),
        ({"prompt": "q", "chosen": "a", "rejected": []}, "rejected", "empty"),
        ({"prompt": "q", "chosen": " \n", "rejected": "b"}, "chosen", "an empty reply"),
        ({"prompt": "q", "chosen": [bot("a")], "rejected": [bot("")]}, "rejected", "an empty reply"),
        ({"chosen": PROMPT, "rejected": [*PROMPT, bot("b")]}, "chosen", "an empty reply"),
        ({"prompt": "q", "chosen": "a", "rejected": " a "}, "rejected", "identical to chosen"),
        ({"chosen": [*PROMPT, bot("b")], "rejected": [*PROMPT, bot("b")]}, "rejected", "identical to chosen"),
        ({"prompt": "q", "chosen": 5, "rejected": "b"}, "chosen", "5; needed: text or messages"),
        ({"prompt": "q", "chosen": "a", "rejected": {"content": "b"}}, "rejected", "an object with 1 field;"),
        ({"prompt": 5, "chosen": "a", "rejected": "b"}, "prompt", "5; needed: text or messages"),
        ({"prompt": [], "chosen": "a", "rejected": "b"}, "prompt", "no turn before the reply"),
        ({"chosen": [bot("a")], "rejected": [bot("b")]}, "prompt", "no turn before the reply"),
        ({"prompt": [{"role": "tool", "content": "q"}], "chosen": "a", "rejected": "b"}, "prompt", "result of a tool"),
        ({"prompt": "q", "chosen": [user("a")], "rejected": [bot("b")]}, "chosen", "turns of user; needed: one turn"),
        ({"prompt": "q", "chosen": [bot("a")], "rejected": [user("x"), bot("b")]}, "rejected", "turns of user, bot;"),
        ({"prompt": "q", "chosen": [system("s"), bot("a")], "rejected": [bot("b")]}, "chosen", "turns of system, bot;"),
        ({"prompt": "q", "chosen": [{"role": "assistant"}], "rejected": [bot("b")]}, "chosen", "1 has no content"),
        ({"chosen": [*PROMPT, bot("a"), user("x"), bot("b")], "rejected": [*PROMPT, bot("c")]},
         "chosen", "after the 3 turns that both share: bot, user, bot"),
        ({"chosen": [*PROMPT, bot("a")], "rejected": [*PROMPT, bot("b"), bot("c")]}, "rejected", "bot, bot"),
        ({"chosen": [*PROMPT, user("a")], "rejected": [*PROMPT, bot("b")]}, "chosen", "user; needed: one bot turn"),
        ({"chosen": "plain text", "rejected": "another"}, "chosen", "a single text, and no prompt in the row"),
        ({"chosen": [system("A"), user("q"), bot("a")], "rejected": [system("B"), user("q"), bot("b")]},
         "rejected", "another persona"),
        ({"prompt": "q", "chosen": "a", "rejected": "b", "margin": math.nan}, "margin", "nan"),
        ({"prompt": "q", "chosen": "a", "rejected": "b", "margin": math.inf}, "margin", "inf"),
        ({"prompt": "q", "chosen": "a", "rejected": "b", "margin": "much"}, "margin", "'much'"),
        ({"prompt": "q", "chosen": "a", "rejected": "b", "margin": True}, "margin", "True"),
        ({"prompt": "q", "chosen": "a", "rejected": "b", "margin": 10**400}, "margin", "an integer of 1,329 bits;"),
        ({"prompt": "q", "chosen": "a", "rejected": "b", "margin": [1.0]}, "margin", "a list of 1 item"),
    ],
)  # fmt: skip
def test_a_bad_row_is_rejected_with_its_line_and_what_was_found(fields: dict, field: str, found: str) -> None:
    rejection = reject(record(3, **fields))
    assert rejection.field == field
    assert found in rejection.found


def test_a_duplicate_and_a_conflicting_duplicate_name_the_first_line() -> None:
    rows = [
        record(1, prompt="q", chosen="a", rejected="b"),
        record(2, chosen=[user("q"), bot("a")], rejected=[user("q"), bot("b")]),
        record(3, prompt="q", chosen="b", rejected="a"),
        record(4, prompt="q", chosen="a", rejected="c"),
    ]
    pairs, rejections = validate(rows)
    assert [pair.line for pair in pairs] == [1, 4]
    assert [(r.line, r.field, r.found) for r in rejections] == [
        (2, "(row)", "duplicate of line 1"),
        (3, "(row)", "conflicting duplicate: line 1 prefers the other reply"),
    ]


def pair(prompt: str, chosen: str = "a", rejected: str = "b") -> Pair:
    return Pair(Conversation((Turn("user", prompt),)), chosen, rejected)


def many_pairs(prompts: int, each: int = 2) -> list[Pair]:
    return [pair(f"prompt {i}", f"chosen {j}") for i in range(prompts) for j in range(each)]


@pytest.mark.parametrize("eval_size", [0.1, 0.5, 40, 198])
def test_no_prompt_is_on_both_sides_and_the_sizes_are_about_right(eval_size: float) -> None:
    pairs = many_pairs(100)
    train, held_out = split_by_unit(pairs, eval_size, seed=0)
    assert not {p.prompt_key for p in train} & {p.prompt_key for p in held_out}
    assert len(train) + len(held_out) == 200
    assert {*train, *held_out} == {*pairs}
    wanted = eval_size * 200 if eval_size < 1 else eval_size
    assert 0 <= len(held_out) - wanted < 2


def test_prompts_that_differ_in_case_and_white_space_alone_stay_together() -> None:
    spellings = ("What is  soup {}?", "what IS soup\n{}?", " what is soup {}? ")
    pairs = [pair(spelling.format(i)) for spelling in spellings for i in range(30)]
    train, held_out = split_by_unit(pairs, 0.3, seed=1)
    assert len(held_out) == 27
    assert not {p.prompt_key for p in train} & {p.prompt_key for p in held_out}
    assert len({p.prompt_key for p in pairs}) == 30


def test_a_persona_and_the_speakers_are_part_of_a_prompt() -> None:
    chats = [
        Conversation((Turn("user", "a"),)),
        Conversation((Turn("user", "a"),), "pirate"),
        Conversation((Turn("bot", "a"),)),
        Conversation((Turn("user", "a"), Turn("bot", "b"))),
    ]
    assert len({Pair(chat, "x", "y").prompt_key for chat in chats}) == 4


def test_the_split_is_seeded_and_does_not_depend_on_the_order_of_rows() -> None:
    pairs = many_pairs(50)
    shuffled = random.Random(3).sample(pairs, len(pairs))
    once, again = split_by_unit(pairs, 0.2, 7), split_by_unit(shuffled, 0.2, 7)
    assert [set(side) for side in once] == [set(side) for side in again]
    assert set(once[1]) != set(split_by_unit(pairs, 0.2, 8)[1])
    assert once[0] == [p for p in pairs if p in set(once[0])]  # rows keep their order


@pytest.mark.parametrize(
    ("eval_size", "asked"),
    [
        (200, "asks for 200 of 200 pairs"),
        (201, "asks for 201 of 200"),
        (-0.1, "-0.1; needed: a share"),
        (-3, "-3; needed"),
        (math.nan, "nan; needed"),
    ],
)
def test_a_split_larger_than_the_data_is_refused_with_figures(eval_size: float, asked: str) -> None:
    with pytest.raises(InputError, match=f"--eval_size.*{asked}"):
        split_by_unit(many_pairs(100), eval_size, 0)


def test_one_prompt_alone_cannot_be_split() -> None:
    with pytest.raises(InputError, match=r"1 prompt.*--eval_dataset"):
        split_by_unit(many_pairs(1, 10), 0.1, 0)


@pytest.fixture
def tokenizer(small_models):
    return load_tokenizer(str(small_models["gpt2"]))


def test_tokenised_pairs_keep_margin_prompt_and_reply_lengths(tokenizer) -> None:
    pairs = [replace(pair("x", "yes", "no no no"), margin=1.5), pair("y"), pair("X ", "ok")]
    examples, rejections = tokenize_pairs(pairs, tokenizer, 64)
    assert rejections == []
    assert [e.prompt for e in examples] == [0, 1, 0]
    assert [e.margin for e in examples] == [1.5, 0.0, 0.0]
    replies = examples[0].replies
    sides = [tokenizer.decode(replies.prefix + suffix) for suffix in replies.suffixes]
    assert sides == [f"User: x\nBot: {reply}{tokenizer.eos_token}" for reply in ("yes", "no no no")]
    assert examples[0].lengths == tuple(len(tokenizer(f" {reply}").input_ids) for reply in ("yes", "no no no"))
    assert tokenize_pairs([], tokenizer, 64) == ([], [])


def test_truncated_pairs_are_counted_and_those_that_cannot_fit_are_recorded(tokenizer) -> None:
    pairs = (pair("soup " * 60), pair("short", "ok", "soup " * 60), pair("short"))
    pairs = [replace(one, file="d/p.jsonl", line=line) for one, line in zip(pairs, (3, 5, 7), strict=True)]
    examples, rejections = tokenize_pairs(pairs, tokenizer, 32)
    assert [e.replies.truncated for e in examples] == [True, False]
    assert [e.origin for e in examples] == ["p.jsonl:3", "p.jsonl:7"]
    assert [(r.file, r.line, r.field) for r in rejections] == [("d/p.jsonl", 5, "rejected")]
    assert "max_length=32" in rejections[0].found
    assert all(len(e.replies.prefix + suffix) <= 32 for e in examples for suffix in e.replies.suffixes)


def config(model: Path, dataset: Path, **data) -> RewardModelConfig:
    return RewardModelConfig(
        "x",
        ModelConfig(str(model)),
        RowsConfig(str(dataset), **{"max_length": 128, "eval_size": 0.1} | data),
        OptimizerConfig(seed=1),
    )


def test_counts_add_up_to_the_rows_of_the_file(small_models, demo_file, tokenizer, tmp_path: Path) -> None:
    from reward_models.pairwise import PairTask

    good = demo_file.read_text().splitlines()[:60]
    bad = ["{", '{"chosen": null, "rejected": "x"}', good[0]]
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(good + bad))
    data = PairTask().prepare(config(small_models["gpt2"], path, eval_size=0.2, max_length=40), tokenizer)
    counts = data.counts
    assert counts["train_pairs"] + counts["eval_pairs"] + counts["rejected_rows"] == 63
    assert counts["rejected_rows"] == len(data.rejections) >= 3
    assert counts["truncated_pairs"] == sum(e.replies.truncated for e in (*data.train, *data.evaluation)) > 0


def test_an_evaluation_file_takes_its_prompts_out_of_training(small_models, demo_file, tokenizer, tmp_path) -> None:
    from reward_models.pairwise import PairTask

    lines = demo_file.read_text().splitlines()
    for name, part in (("train.jsonl", lines[:60]), ("test.jsonl", lines[50:90])):
        (tmp_path / name).write_text("\n".join(part))
    train, test = tmp_path / "train.jsonl", tmp_path / "test.jsonl"
    data = PairTask().prepare(config(small_models["gpt2"], train, eval_dataset=str(test)), tokenizer)
    leaks = [r for r in data.rejections if r.found == "is in the evaluation set too"]
    assert {r.line for r in leaks} >= set(range(51, 61))
    assert {r.file for r in leaks} == {str(train)}
    assert (len(data.train) + len(leaks), len(data.evaluation)) == (60, 40)


def test_a_file_without_a_usable_pair_is_refused_with_reasons(small_models, tokenizer, tmp_path: Path) -> None:
    from reward_models.pairwise import PairTask

    (tmp_path / "pairs.jsonl").write_text('{"prompt": "q", "chosen": "a", "rejected": "a"}\n')
    with pytest.raises(InputError, match=r"none of the 1 rows.*identical to chosen"):
        PairTask().prepare(config(small_models["gpt2"], tmp_path / "pairs.jsonl"), tokenizer)


def test_the_fingerprint_changes_with_any_pair_or_its_side() -> None:
    pairs = many_pairs(3)
    base = fingerprint(pairs[:4], pairs[4:])
    assert base == fingerprint(list(pairs[:4]), pairs[4:])
    others = [
        fingerprint(pairs[:3], pairs[3:]),
        fingerprint(pairs[:4], pairs[:3:-1]),
        fingerprint([replace(pairs[0], margin=1.0), *pairs[1:4]], pairs[4:]),
        fingerprint([replace(pairs[0], chosen="b", rejected="a"), *pairs[1:4]], pairs[4:]),
    ]
    assert len({base, *others}) == 5
