"""`--help all` of a method lists the settings that it reads, and no other ones."""

import re
from typing import get_args

import pytest

from lmgym.runs.fields import flatten
from lmgym.runs.flags import override
from ppo.algorithms.methods import MethodName
from ppo.experiments.hh_harmless import CONFIG


@pytest.mark.parametrize("over", ["tokens", "actions"])
@pytest.mark.parametrize("method", get_args(MethodName))
def test_the_help_of_a_method_lists_what_it_reads(method: str, over: str, capsys: pytest.CaptureFixture) -> None:
    words = ["--method", method, "--policy_over", over]
    config = override(CONFIG, words)
    with pytest.raises(SystemExit) as ended:
        override(CONFIG, [*words, "--help", "all"])
    assert ended.value.code == 0
    shown = set(re.findall(r"^[│ ] --(\w+)", capsys.readouterr().out, re.MULTILINE))
    assert shown == flatten(config).keys() - config.unread
    assert ("vf_coef" in shown) == (method == "ppo")


def test_a_setting_with_the_name_of_its_group_hides_no_other(capsys: pytest.CaptureFixture) -> None:
    """`critic` is both."""
    with pytest.raises(SystemExit):
        override(CONFIG, ["--help", "all"])
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "--critic STR" in shown
    assert "reward model that the critic starts from" in shown, "its text is that of the group's own class"
