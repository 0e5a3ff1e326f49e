"""Rows, replies and notes as stages show them: whatever the data hold, nothing of it drives the terminal."""

from types import SimpleNamespace

import pytest
from attacks import ATTACKS, drives

import reward_models.report
import sft.report
from lmgym.training.reporting import show_notes, show_samples


class Letters:
    """A tokenizer whose tokens are characters."""

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))


def ids_of(text: str) -> list[int]:
    return [ord(character) for character in text]


@pytest.mark.parametrize("name", ATTACKS)
def test_rows_of_sft_are_shown_harmlessly(name: str, capsys) -> None:
    ids = ids_of(f"[/b]{ATTACKS[name]} and {ATTACKS[name]}")
    replies = SimpleNamespace(dropped_turns=0, shortened=0)
    example = SimpleNamespace(
        ids=ids, places=[len(ids) - 2], targets=[ids[-1]], replies=replies, origin=f"{ATTACKS[name]}.jsonl:1"
    )
    sft.report.show_rows(Letters(), [example])  # type: ignore[list-item]
    shown = capsys.readouterr().out
    assert "[/b]" in shown
    assert drives(shown) == []


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("suffixes", [1, 2])
def test_rows_of_reward_models_are_shown_harmlessly(name: str, suffixes: int, capsys) -> None:
    replies = SimpleNamespace(
        dropped_turns=0, shortened=0, prefix=ids_of(f"[/b]{ATTACKS[name]}"), suffixes=[ids_of("x")] * suffixes
    )
    example = SimpleNamespace(replies=replies, origin=f"{ATTACKS[name]}.jsonl:1")
    task = SimpleNamespace(suffixes=lambda example: [f"chosen {ATTACKS[name]}", "rejected"][:suffixes])
    reward_models.report.show_rows(task, Letters(), [example])  # type: ignore[arg-type]
    shown = capsys.readouterr().out
    assert "[/b]" in shown
    assert drives(shown) == []


@pytest.mark.parametrize("name", ATTACKS)
def test_samples_are_shown_harmlessly(name: str, capsys) -> None:
    row = {"prompt": ATTACKS[name], "reply": f"[/b]{ATTACKS[name]}"}
    show_samples(ATTACKS[name], [row], [{ATTACKS[name]: ATTACKS[name]}])
    shown = capsys.readouterr().out
    assert "[/b]" in shown
    assert drives(shown) == []


@pytest.mark.parametrize("name", ATTACKS)
def test_a_note_is_one_printable_line_of_bounded_length(name: str, capsys) -> None:
    show_notes([f"[/b]{ATTACKS[name]}\nof a reward function", ATTACKS[name] * 10**5])
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("[/b]")
    assert drives(first + second) == []
    assert len(second) < 3000
