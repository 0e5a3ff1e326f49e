"""Aids: what stands for a result that is unknown, and the line on the reason."""

import pytest

from lmgym.aids import AIDS, aid, failures
from lmgym.errors import InputError, RunStopped


@pytest.fixture(autouse=True)
def own_aids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmgym.aids.AIDS", AIDS.copy())


def of(error: Exception, **settings) -> list[str]:
    """The result of an aid that raises this."""

    @aid("a guess at {0}", list, **settings)
    def guess(what: str) -> list[str]:
        raise error

    return guess("lengths")


def test_the_result_of_an_aid_that_fails_is_unknown_and_a_line_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert of(KeyError("name")) == []
    line = "warning: a guess at lengths failed (KeyError: 'name'); the work goes on"
    assert capsys.readouterr() == ("", f"{line}\n")
    assert failures() == [line]
    assert failures() == []


def test_a_line_is_said_once_in_a_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    @aid("a guess", list)
    def guess() -> list[str]:
        raise ValueError

    assert guess() == guess() == []
    assert capsys.readouterr().err.count("\n") == 1
    failures(last=True)
    guess()
    assert capsys.readouterr().err.count("\n") == 1
    monkeypatch.setenv("RANK", "1")
    failures(last=True)
    assert guess() == []
    assert capsys.readouterr().err == "", "the main rank says it"


def test_a_refusal_is_a_failure_as_any_other() -> None:
    assert of(InputError("needed: another")) == []


def test_a_run_that_is_stopped_stops() -> None:
    with pytest.raises(RunStopped):
        of(RunStopped("a full disk", "failed", 74))


def test_a_refusal_of_settings_is_raised_where_an_aid_may_refuse() -> None:
    with pytest.raises(InputError, match="needed: another"):
        of(InputError("needed: another"), refuses=True)


def test_two_aids_have_two_names() -> None:
    of(KeyError())
    with pytest.raises(AssertionError, match="two aids are called"):
        of(KeyError())
