"""The demo's chat world: repeatable, well-formed, noisy to a known degree, and not about length."""

import json
from pathlib import Path

import numpy as np
import pytest
from demo_pairs import (
    TEMPERATURE,
    TOPICS,
    WEIGHTS,
    _words,
    bayes_accuracy,
    demo_pairs,
    features,
    utility,
    write_demo_pairs,
)

PROMPT = [
    {"role": "user", "content": "i want to talk about soup."},
    {"role": "assistant", "content": "many people make soup these days. thank you."},
    {"role": "user", "content": "and noodles?"},
]


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    return demo_pairs(2000, seed=0)


def both_replies(row: dict) -> list[str]:
    return [row["chosen"][0]["content"], row["rejected"][0]["content"]]


def margins(rows: list[dict]) -> np.ndarray:
    return np.array([np.subtract(*(utility(row["prompt"], reply) for reply in both_replies(row))) for row in rows])


@pytest.mark.parametrize(
    ("reply", "present"),
    [
        ("noodles, always.", {"on_topic"}),
        ("i am glad you asked. why curry?", {"on_topic", "curious", "polite"}),
        ("jazz, always. why jazz?", set()),
        ("jazz, always. what about you?", {"curious"}),
        ("ok.", {"dull"}),
        ("", {"dull"}),
        ("how stupid.", {"dull", "rude"}),
        ("many people make soup these days. thank you.", {"on_topic", "polite", "repeats"}),
        ("soup, always. thank you.", {"on_topic", "polite"}),
    ],
)
def test_a_reply_has_the_features_that_a_reader_would_see(reply: str, present: set[str]) -> None:
    assert {name for name, found in features(PROMPT, reply).items() if found} == present
    assert utility(PROMPT, reply) == pytest.approx(sum(WEIGHTS[name] for name in present))


def test_the_same_seed_gives_the_same_rows_and_fewer_rows_are_a_prefix(rows: list[dict]) -> None:
    assert demo_pairs(2000, seed=0) == rows
    assert demo_pairs(50, seed=0) == rows[:50]
    assert demo_pairs(50, seed=1) != rows[:50]


def test_rows_are_in_the_conversational_format(rows: list[dict]) -> None:
    for row in rows:
        assert list(row) == ["prompt", "chosen", "rejected"]
        turns = (len(row["prompt"]) + 1) // 2
        roles = [turn["role"] for turn in row["prompt"]]
        assert roles == ["user", "assistant"] * (turns - 1) + ["user"]
        assert 1 <= turns <= 3
        assert [turn["role"] for turn in row["chosen"] + row["rejected"]] == ["assistant", "assistant"]
        for turn in row["prompt"] + row["chosen"] + row["rejected"]:
            assert list(turn) == ["role", "content"]
            assert turn["content"].strip() == turn["content"] != ""
            assert "{" not in turn["content"]


def test_no_row_comes_twice_no_pair_is_of_one_reply_and_most_prompts_differ(rows: list[dict]) -> None:
    assert len({json.dumps(row) for row in rows}) == len(rows) == 2000
    assert all(row["chosen"] != row["rejected"] for row in rows)
    assert len({json.dumps(row["prompt"]) for row in rows}) >= 0.6 * len(rows)


def test_no_word_belongs_to_two_topics_and_the_vocabulary_is_small(rows: list[dict]) -> None:
    words = [word for things in TOPICS.values() for word in things]
    assert len(set(words)) == len(words)
    turns = [turn for row in rows for side in row.values() for turn in side]
    used = {word for turn in turns for word in _words(turn["content"])}
    assert set(words) <= used
    assert len(used) < 1000


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_who_knows_the_utility_is_right_in_nine_of_ten_as_promised(seed: int) -> None:
    found = demo_pairs(2000, seed)
    assert 0.85 < bayes_accuracy(found) < 0.92
    realised = np.mean((np.sign(margins(found)) + 1) / 2)
    # three standard errors of 2,000 choices
    assert realised == pytest.approx(bayes_accuracy(found), abs=0.022)


def test_choices_follow_bradley_terry_at_every_margin() -> None:
    margin = margins(demo_pairs(6000, seed=3))
    for low, high in ((0.3, 1.0), (1.0, 2.0), (2.0, 4.0)):
        size = np.abs(margin)
        within = (low < size) & (size <= high)
        expected = np.mean(1 / (1 + np.exp(-size[within] / TEMPERATURE)))
        assert np.mean(margin[within] > 0) == pytest.approx(expected, abs=3 * (0.25 / within.sum()) ** 0.5)


def test_length_says_little_about_worth(rows: list[dict]) -> None:
    worth = [utility(row["prompt"], reply) for row in rows for reply in both_replies(row)]
    words = [len(reply.split()) for row in rows for reply in both_replies(row)]
    assert abs(np.corrcoef(worth, words)[0, 1]) < 0.4
    longer = [np.subtract(*(len(reply.split()) for reply in both_replies(row))) for row in rows]
    # pairs whose rejected reply is the longer one are needed to see a bias towards length
    assert np.mean(np.array(longer) < 0) > 0.3


def test_the_file_holds_the_rows(tmp_path: Path, rows: list[dict]) -> None:
    path = tmp_path / "data" / "pairs.jsonl"
    write_demo_pairs(path, 20, seed=0)
    assert [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] == rows[:20]
