"""The end of a program of a user's on an error that its user can fix."""

import sys

import pytest

from lmgym.console import show_exception
from lmgym.errors import InputError
from lmgym.runs import refusals


def test_the_hooks_of_others_stay_and_an_interactive_session_goes_on(monkeypatch, capsys) -> None:
    def own(*_) -> None: ...

    for before, kept in ((own, True), (sys.__excepthook__, False), (show_exception, False)):
        monkeypatch.setattr(sys, "excepthook", before)
        refusals.end_in_one_line()
        assert (sys.excepthook is before) == kept
    with pytest.raises(SystemExit, match="2"):
        sys.excepthook(InputError, InputError("wrong"), None)
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    sys.excepthook(InputError, InputError("wrong"), None)
    assert capsys.readouterr().err == "error: wrong\n" * 2
