"""Spaces as text: what is shown, which replies are actions and which are none, and what cannot be text."""

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")

from gymnasium.spaces import (  # noqa: E402
    Box,
    Dict,
    Discrete,
    Graph,
    MultiBinary,
    MultiDiscrete,
    OneOf,
    Sequence,
    Text,
    Tuple,
)

from lmgym.apps.interop.spaces import listed, read, show, unreadable, wanted, write  # noqa: E402

TORQUE = Box(-2.0, 2.0, (1,), np.float32)
ARM = Box(np.array([-1.0, 0.0]), np.array([1.0, np.inf]), dtype=np.float64)
BOARD = Box(0, 2, (2, 3), np.int8)
MOVE = Dict({"move": Discrete(4), "force": Box(-1.0, 1.0, (2,), np.float32)})
WORD = Text(5, charset="abc")
ACTIONS = (
    Discrete(4),
    Discrete(3, start=-1),
    TORQUE,
    ARM,
    Box(-np.inf, np.inf, (2, 2), np.float32),
    Box(0.0, 1.0, (), np.float64),
    Box(-128, 127, (3,), np.int8),
    MultiDiscrete([5, 2, 3], start=[0, 1, -1]),
    MultiDiscrete([[2, 2], [3, 3]]),
    MultiBinary(4),
    MultiBinary([2, 2]),
    WORD,
    MOVE,
    Tuple((Discrete(2), Text(4), MultiBinary(2), Dict({"deep": Tuple((TORQUE,))}))),
)


@pytest.mark.parametrize("space", ACTIONS, ids=str)
def test_every_action_is_read_as_it_was_written(space) -> None:
    assert unreadable(space, acts=True) == ""
    space.seed(0)
    for _ in range(50):
        action = space.sample()
        found = read(space, write(space, action))
        assert space.contains(found)
        assert write(space, found) == write(space, action)


@pytest.mark.parametrize(
    ("space", "value", "text"),
    [
        (Discrete(500), np.int64(314), "314"),
        (
            Box(-5, 5, (4,)),
            np.array([0.0273956, -0.00611216, 1234.5678, -0.0], np.float32),
            "[0.0274, -0.006112, 1235, 0]",
        ),
        (Box(-np.inf, np.inf, (2,)), np.array([np.inf, 1e30], np.float32), "[inf, 1e+30]"),
        (BOARD, np.array([[0, 1, 2], [2, 1, 0]], np.int8), "[[0, 1, 2], [2, 1, 0]]"),
        (Box(0, 1, (2,), bool), np.array([True, False]), "[1, 0]"),
        (Box(0.0, 1.0, ()), np.float32(0.5), "0.5"),
        (MultiBinary(3), np.array([1, 0, 1], np.int8), "[1, 0, 1]"),
        (Tuple((Discrete(32), Discrete(11), Discrete(2))), (14, 10, 0), "14, 10, 0"),
        (Text(20), "hello", "hello"),
        (
            Dict({"bag": Tuple((Discrete(2), WORD)), "where": Dict({"x": Discrete(9), "y": Discrete(9)})}),
            {"where": {"x": 3, "y": 4}, "bag": (1, "ab")},
            'bag: (1, "ab")\nwhere: {x: 3, y: 4}',
        ),
        (Sequence(Discrete(5)), (1, 2, 4), "[1, 2, 4]"),
    ],
    ids=str,
)
def test_an_observation_is_short_text(space, value, text: str) -> None:
    assert unreadable(space) == ""
    assert show(space, value) == text


def test_every_sample_of_a_space_can_be_shown() -> None:
    for space in (*ACTIONS, Sequence(MOVE)):
        space.seed(0)
        for _ in range(20):
            assert isinstance(show(space, space.sample()), str)


@pytest.mark.parametrize(
    ("space", "value", "message"),
    [
        (ARM, np.array([0.0, np.nan]), "has NaN"),
        (ARM, np.array([0.0]), r"float64 of shape \(1,\); needed: numbers of shape \(2,\)"),
        (ARM, "left", "needed: numbers"),
        (ARM, None, "needed: numbers"),
        (Discrete(3), "left", "needed: numbers"),
        (MOVE, {"move": 1}, "has no 'force'"),
        (MOVE, 3, "has no 'move'|has no 'force'"),
        (Tuple((Discrete(2), Discrete(2))), (1,), "has no 1"),
        (WORD, 3, "a int; needed: a text"),
    ],
    ids=str,
)
def test_an_observation_that_its_space_does_not_have_is_named(space, value, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        show(space, value)


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ("2", 2),
        ("I choose 2.", 2),
        ("2! Yes, 2.", 2),
        ("(2)", 2),
        ("+2", 2),
        ("2.0", 2),
        ("", None),
        ("two", None),
        ("4", None),
        ("-1", None),
        ("2.5", None),
        ("1 or 2", None),
        ("1, 2", None),
        ("1,2", None),
        ("2,002", None),
        ("1,001", None),
        ("222,222", None),
        ("02", None),
        ("2nd", None),
        ("2nd or 3", None),
        ("1.2.3", None),
        ("0x2", None),
        ("2_0", None),
        ("1e999", None),
        ("nan", None),
        ("9" * 5000, None),
        ("٢", None),
    ],
)
def test_a_discrete_action_is_the_one_number_that_a_reply_names(reply: str, action) -> None:
    assert read(Discrete(4), reply) == action
    assert read(Discrete(10**6), reply) == (4 if reply == "4" else action)


@pytest.mark.parametrize(
    ("space", "reply", "action"),
    [
        (TORQUE, "0.5", [0.5]),
        (TORQUE, "Torque: [-1.25]", [-1.25]),
        (TORQUE, "-.5", [-0.5]),
        (TORQUE, "2.5", None),
        (TORQUE, "0.5 0.5", None),
        (TORQUE, "inf", None),
        (ARM, "0.5, 1e3", [0.5, 1000]),
        (ARM, "0.5,7", [0.5, 7]),
        (ARM, "0.5", None),
        (ARM, "0.5, 1e300", [0.5, 1e300]),
        (Box(-np.inf, np.inf, (1,), np.float32), "1e300", None),
        (Box(-128, 127, (1,), np.int8), "300", None),
        (Box(-128, 127, (1,), np.int8), "1.5", None),
        (MultiDiscrete([5, 2]), "[4, 1]", [4, 1]),
        (MultiDiscrete([5, 2]), "4 1", [4, 1]),
        (MultiDiscrete([5, 2]), "5 1", None),
        (MultiDiscrete([5, 2]), f"{10**30} 1", None),
        (MultiBinary(3), "1 0 1", [1, 0, 1]),
        (MultiBinary(3), "101", None),
        (MultiBinary(3), "1 0 2", None),
        (BOARD, "[[0, 1, 2], [2, 1, 0]]", [[0, 1, 2], [2, 1, 0]]),
    ],
    ids=str,
)
def test_numbers_of_an_array_are_as_many_as_it_has(space, reply: str, action) -> None:
    found = read(space, reply)
    assert found is None if action is None else np.array_equal(found, np.array(action, space.dtype))


@pytest.mark.parametrize(
    "reply",
    [
        "2",
        "{",
        '{"move": 2}',
        '{"move": 2, "force": [0.5]}',
        '{"move": 2, "force": [[0.5, 0]]}',
        '{"move": 2, "force": [0.5, "0"]}',
        '{"move": 2, "force": [0.5, true]}',
        '{"move": 2, "force": [0.5, [1]]}',
        '{"move": 2, "force": [0.5, Infinity]}',
        '{"move": true, "force": [0.5, 0]}',
        '{"move": 2.5, "force": [0.5, 0]}',
        '{"move": NaN, "force": [0.5, 0]}',
        '{"move": 4, "force": [0.5, 0]}',
        '{"move": 2, "force": [0.5, 0], "why": 1}',
        '{"move": 2, "force": [0.5, 0]} or {"move": 1, "force": [0.5, 0]}',
        "[" * 20000,
        '{"move": ' + "9" * 5000 + ', "force": [0, 0]}',
    ],
)
def test_json_that_is_no_action_of_a_dict_is_none(reply: str) -> None:
    assert read(MOVE, reply) is None


def test_an_action_of_parts_is_the_one_json_value_of_a_reply() -> None:
    found = read(MOVE, 'I do {"force": [0.5, -1], "move": 2}, yes: {"move": 2, "force": [0.5, -1]}.')
    assert write(MOVE, found) == '{"force": [0.5, -1.0], "move": 2}'
    assert MOVE.contains(found)
    assert read(Tuple((Discrete(3), WORD)), '[1, "ab"]') == (1, "ab")
    assert read(Tuple((Discrete(3), WORD)), '[1, "xy"]') is None


def test_a_text_is_the_reply_itself_where_the_space_has_it() -> None:
    assert read(WORD, "abc") == "abc"
    assert read(WORD, " abc\n") == "abc"
    assert read(WORD, "xyz") is None
    assert read(Text(5, charset="abc "), " a ") == " a "


@pytest.mark.parametrize(
    ("space", "sentence"),
    [
        (Discrete(4), "Reply with one whole number from 0 to 3."),
        (Discrete(3, start=-1), "Reply with one whole number from -1 to 1."),
        (TORQUE, "Reply with one number from -2 to 2."),
        (ARM, "Reply with 2 numbers: from -1 to 1, of at least 0."),
        (Box(-np.inf, np.inf, (2, 2)), "Reply with 2 x 2 numbers."),
        (Box(-np.inf, 1.0, (2,)), "Reply with 2 numbers, each of at most 1."),
        (MultiDiscrete([5, 2]), "Reply with 2 whole numbers: from 0 to 4, from 0 to 1."),
        (MultiBinary(4), "Reply with 4 whole numbers, each from 0 to 1."),
        (WORD, "Reply with a text."),
        (
            MOVE,
            'Reply with JSON: {"force": a list of 2 numbers, each from -1 to 1, "move": a whole number from 0 to 3}.',
        ),
        (Tuple((Discrete(2), WORD)), "Reply with JSON: [a whole number from 0 to 1, a text in quotes]."),
    ],
    ids=str,
)
def test_a_sentence_says_what_an_action_looks_like(space, sentence: str) -> None:
    assert wanted(space) == sentence


def test_actions_are_listed_where_there_are_few_and_a_mask_leaves_some_out() -> None:
    assert listed(Discrete(3, start=-1)) == ("-1", "0", "1")
    assert listed(Discrete(3, start=-1), np.array([1, 0, 1], np.int8)) == ("-1", "1")
    assert listed(Discrete(10**9)) == ()
    assert listed(MultiBinary(2)) == listed(TORQUE) == ()


@pytest.mark.parametrize(
    ("space", "acts", "what"),
    [
        (Box(0, 255, (96, 96, 3), np.uint8), False, "an image of 96 x 96 x 3"),
        (Dict({"camera": Box(0, 255, (84, 84), np.uint8)}), False, "an image of 84 x 84"),
        (Graph(Discrete(2), None), False, "a Graph"),
        (OneOf((Discrete(2), Discrete(3))), False, "a OneOf"),
        (Sequence(Discrete(2)), True, "a Sequence"),
        (Sequence(Discrete(2), stack=True), False, "a Sequence"),
        (Tuple((Discrete(2), Graph(Discrete(2), None))), True, "a Graph"),
    ],
    ids=str,
)
def test_what_cannot_be_text_is_named(space, acts: bool, what: str) -> None:
    assert unreadable(space, acts) == what


def test_bytes_that_are_no_image_can_be_text() -> None:
    assert unreadable(Box(0, 255, (128,), np.uint8)) == ""
    assert unreadable(Box(0, 1, (8, 8), np.uint8)) == ""
