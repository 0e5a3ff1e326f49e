"""Observations of OpenEnv servers as text, and replies as actions of their schema."""

import base64
import json

import pytest

from lmgym.apps.interop.openenv_texts import Actions, numbers_of, read_observation, read_result

MESSAGES = [{"role": "system", "content": "Play."}, {"role": "user", "content": "Your hand: 12"}]
PIXELS = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(range(100))).decode()
MOVES = {"$defs": {"Move": {"enum": ["UP", "DOWN"], "type": "string"}}}


def schema(required: list[str] | None = None, **fields: dict) -> Actions:
    given = list(fields) if required is None else required
    return Actions({"properties": {"metadata": {"type": "object"}, **fields}, "required": given, **MOVES})


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"question": "How many?", "score": None, "hints": [], "metadata": {"id": 1}}, "How many?"),
        ({"done": False, "reward": 0.0, "text": "Go on"}, "Go on"),
        ({"text": "Wall", "x": 0, "y": 2}, '{"text": "Wall", "x": 0, "y": 2}'),
        ({"board": [[0, 1], [1, 0]]}, '{"board": [[0, 1], [1, 0]]}'),
        ({"metadata": {"message": "Ready"}}, "Ready"),
        ({"metadata": {}}, "(nothing is shown)"),
        ({"actions": ["a", "b"]}, '{"actions": ["a", "b"]}'),
    ],
)
def test_one_text_is_the_text_and_other_fields_are_json(fields: dict, text: str):
    shown = read_observation(fields)
    assert shown.messages == [{"role": "user", "content": text}]
    assert not shown.is_whole


def test_messages_are_the_conversation_with_what_they_do_not_say():
    shown = read_observation({"text": "Your hand: 12", "messages": MESSAGES, "actions": ["hit", "stick"]})
    assert (shown.messages, shown.is_whole, shown.actions) == (MESSAGES, True, ["hit", "stick"])
    shown = read_observation({"messages": MESSAGES, "chips": 3, "note": "Careful"})
    assert shown.messages[-1]["content"] == 'Your hand: 12\n\n{"chips": 3, "note": "Careful"}'
    assert MESSAGES[-1]["content"] == "Your hand: 12"
    shown = read_observation({"messages": [*MESSAGES, {"role": "assistant", "content": "Hit"}], "card": "ten"})
    assert shown.messages[-1] == {"role": "user", "content": "ten"}


@pytest.mark.parametrize(
    "image",
    [
        PIXELS,
        f"data:image/png;base64,{PIXELS}",
        {"type": "image_url", "image_url": {"url": "http://x/y.png"}},
        {"type": "resource", "mimeType": "image/png", "data": "AAAA"},
        [[[0, 0, 255]] * 20] * 20,
    ],
)
def test_images_are_refused_wherever_they_are(image):
    with pytest.raises(ValueError, match="'screen' of the observation is an image"):
        read_observation({"text": "Look", "screen": {"frames": [image]}})
    with pytest.raises(ValueError, match="the result of 'look' is an image"):
        read_result({"tool_name": "look", "result": {"content": [image]}})


NO_IMAGES = ("A long text that is no image, " * 5, "Wörter: ❌" * 20, "abcd" * 40, [[1, 2, 3]] * 20, [[[1]] * 20] * 20)


@pytest.mark.parametrize("value", NO_IMAGES)
def test_texts_and_boards_are_no_images(value):
    [shown] = read_observation({"value": value}).messages
    assert shown["content"] == (value if isinstance(value, str) else json.dumps({"value": value}))


@pytest.mark.parametrize(
    ("spec", "reply", "value"),
    [
        ({"type": "string"}, " Some words\n", "Some words"),
        ({"type": "string"}, '{"other": 1}', '{"other": 1}'),
        ({"type": "string"}, '{"move": "inner"}', "inner"),
        ({"type": "integer"}, "I take 3.", 3),
        ({"type": "integer"}, "-2", -2),
        ({"type": "integer"}, "1 or 2", None),
        ({"type": "integer"}, "3 and 3", 3),
        ({"type": "integer"}, "2.5", None),
        ({"type": "integer"}, "none", None),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "4", 4),
        ({"type": "number"}, "about 2.5", 2.5),
        ({"type": "boolean"}, "That is True", True),
        ({"type": "boolean"}, "true or false", None),
        ({"$ref": "#/$defs/Move"}, "go up!", "UP"),
        ({"allOf": [{"$ref": "#/$defs/Move"}]}, "DOWN", "DOWN"),
        ({"$ref": "#/$defs/Move"}, "upwards", None),
        ({"$ref": "#/$defs/Move"}, "up or down", None),
        ({"type": "array"}, "[1, 2]", [1, 2]),
        ({"type": "array"}, "1, 2", None),
        ({}, "anything", "anything"),
    ],
)
def test_the_reply_is_the_one_required_field(spec: dict, reply: str, value):
    read = schema(["move"], move=spec, note={"type": "string"}).read(reply)
    assert read == (None if value is None else {"move": value})
    assert value is None or type(read["move"]) is type(value)


def test_several_required_fields_are_a_json_object_of_them():
    actions = schema(["x", "y"], x={"type": "integer"}, y={"$ref": "#/$defs/Move"}, note={"type": "string"})
    assert actions.read('I say {"x": 1, "y": "UP"}') == {"x": 1, "y": "UP"}
    assert actions.read('{"y": "UP", "x": 1, "note": "?"}') == {"x": 1, "y": "UP", "note": "?"}
    for reply in ("1 UP", '{"x": 1}', '{"x": 1, "y": "UP", "z": 0}', "{}", ""):
        assert actions.read(reply) is None
    assert actions.needed == (
        'a JSON object with "x" (a whole number), "y" (one of UP, DOWN), "note" (text; may be left out)'
    )
    assert not actions.is_text


def test_an_only_field_needs_not_be_required():
    assert schema([], text={"type": "string"}).read("hello") == {"text": "hello"}
    assert schema([], text={"type": "string"}).is_text
    assert schema([], a={"type": "string"}, b={"type": "string"}).read("hello") is None


def test_what_is_needed_says_limits_and_the_servers_own_words():
    spec = {"type": "integer", "minimum": 0, "maximum": 5, "description": "The column"}
    assert schema(column=spec).needed == "a whole number from 0 to 5: The column"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"tool_name": "add", "result": 5}, "5"),
        ({"tool_name": "add", "result": {"content": [{"type": "text", "text": "5"}], "data": 5}}, "5"),
        ({"tool_name": "add", "result": {"content": [{"type": "text", "text": "a"}], "data": None}}, "a"),
        ({"tool_name": "add", "result": {"sum": 5}}, '{"sum": 5}'),
        ({"tool_name": "add", "result": None, "error": {"error_type": "x", "message": "no b"}}, "error: no b"),
        ({"text": "over"}, "over"),
    ],
)
def test_results_of_tools_are_texts(fields: dict, text: str):
    assert read_result(fields) == text


def test_numbers_are_found_also_within_others():
    found = numbers_of({"a": 1, "b": {"c": 2.5, "d": "x"}, "e": True, "f": float("nan"), "g": [1]})
    assert found == {"a": 1.0, "b/c": 2.5, "e": 1.0}
