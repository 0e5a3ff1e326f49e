"""Where a value came from decides what it may do."""

from pathlib import Path

import pytest

from lmgym.errors import InputError
from lmgym.origin import ENVIRONMENT, PACKAGED, TYPED, Origin, may_ask, names_code_or_address, origin_of, refuse


def test_an_address_is_asked_if_it_is_the_users_or_lies_beside_its_key(tmp_path: Path) -> None:
    registry, keys = origin_of(tmp_path / "model_registry.json"), origin_of(tmp_path / "key.json")
    home = Origin(str(tmp_path / ".clemcore/key.json"))
    for key in (None, ENVIRONMENT, home, origin_of(tmp_path / "other/key.json")):
        assert not may_ask(registry, key)
    assert may_ask(registry, keys)
    for address in (TYPED, PACKAGED, home):
        assert may_ask(address, None)
        assert may_ask(address, ENVIRONMENT)


def test_files_of_one_folder_are_one_origin_by_whatever_path_they_are_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("link").symlink_to(tmp_path)
    assert may_ask(origin_of("model_registry.json"), origin_of(tmp_path / "key.json"))
    assert may_ask(origin_of("link/model_registry.json"), origin_of("./key.json"))


@pytest.mark.parametrize(
    "value",
    [
        "evil.py", "a/evil.py:score", "s=evil.py:score", "http://evil/v1", "vllm:http://evil", "openai:gpt-5",
        "judge:x", "--scorers=s=judge:x", "a.jsonl,https://evil/b.jsonl", "file:///etc/passwd", "scheme.of-tomorrow:x",
    ],
)  # fmt: skip
def test_words_that_could_be_code_or_an_address_are_known_by_their_form(value: str) -> None:
    assert names_code_or_address(value)


@pytest.mark.parametrize(
    "value",
    [
        "outputs/x/model",
        "owner/name@" + "0" * 40,
        "a.jsonl,b.jsonl",
        "prompt=question",
        "3",
        "User:",
        "main.pyx",
        "a b: c",
    ],
)
def test_folders_hub_ids_columns_and_texts_are_neither_code_nor_an_address(value: str) -> None:
    assert not names_code_or_address(value)


def test_a_refusal_says_which_file_names_what_and_the_words_that_name_it_too() -> None:
    with pytest.raises(InputError, match=r"^x/run.json names evil.py; needed, to run it: --experiment evil.py$"):
        refuse(origin_of("x/run.json"), "evil.py", "to run it: --experiment evil.py")
