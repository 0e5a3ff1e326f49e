"""SFT of a trlx program: the command that it becomes."""

import sys

import pytest

from lmgym.errors import InputError
from ppo.trlx import supervised


def test_values_of_flags_keep_their_capitals_but_for_true_and_none(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    ran: list[list[str]] = []

    class Ended:
        returncode = 3

    monkeypatch.setattr(supervised.subprocess, "run", lambda command, check: (ran.append(command), Ended())[1])
    flags = {"model": "My/Model", "merge_adapter": True, "deepspeed": None, "seed": 7, "run_name": "", "packed": False}
    with pytest.raises(InputError, match="exit code 3"):
        supervised._run(flags)
    words = ["--model", "My/Model", "--merge_adapter", "true", "--deepspeed", "none", "--seed", "7"]
    assert ran == [[sys.executable, "-m", "sft.experiments.chat", *words]]
    assert "lmgym train sft chat --model My/Model" in capsys.readouterr().out
