"""`lmgym env list`: every scheme with what is there."""

import pytest

from lmgym.apps.interop.listing import show_environments, show_names
from lmgym.environments.named import schemes
from lmgym.errors import InputError


def test_the_table_has_every_scheme(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMGYM_VERIFIERS", "/not/there")
    show_environments()
    printed = capsys.readouterr().out
    for scheme in schemes().values():
        assert scheme.form in printed
    assert "FILE.py:CLASS" in printed
    assert "lmgym env setup verifiers" in " ".join(printed.split())


def test_names_are_printed_as_they_are_typed(capsys: pytest.CaptureFixture[str]) -> None:
    show_names("games")
    assert "games:blackjack\n" in capsys.readouterr().out
    with pytest.raises(InputError, match="there is no scheme gamez; did you mean games"):
        show_names("gamez")


def test_a_scheme_that_is_not_installed_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMGYM_VERIFIERS", "/not/there")
    with pytest.raises(InputError, match="verifiers is not installed; needed: lmgym env setup verifiers"):
        show_names("verifiers")
