"""Usage errors of click's command lines: one printable line on stderr, and exit code 2."""

from pathlib import Path

import click
import pytest
from attacks import drives
from click.testing import CliRunner

import eval_rewards_api
from lmgym.cli import main as lmgym

COMMANDS = [("lmgym", command) for command in lmgym.main.commands.values()] + [
    ("eval", command) for command in eval_rewards_api.main.commands.values()
]
NEEDED = {
    "world": ["--output", "x"], "world-model": ["--world", "x", "--output", "y"], "deploy": ["bots", "--output", "x"],
    "launch": ["hh_pairwise"], "watch": ["x"], "chat": ["x", "--scorers", "a=y"],
    "world-policy": ["--world", "x", "--output", "y"], "baselines": ["--world", "x"], "ab": ["bots", "bots"],
    "talk_to_models": ["--experiment_name", "random_baseline", "--select_model", "random_a"],
    "convo_evolution": ["--experiment_name", "random_baseline"],
}  # fmt: skip
NUMBERS = [
    (which, command.name, option.opts[0], option.type is click.FLOAT)
    for which, command in COMMANDS
    for option in command.params
    if option.type in (click.INT, click.FLOAT)
]


def usage_error(which: str, *words: str) -> str:
    """The error line of a wrong command, which must not write anything."""
    group = lmgym.main if which == "lmgym" else eval_rewards_api.main
    with CliRunner().isolated_filesystem():
        done = CliRunner().invoke(group, words)
        assert list(Path().iterdir()) == []
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert drives(done.stderr) == []
    assert len(done.stderr) < 1000
    return done.stderr


def test_all_commands_with_numeric_options_are_found() -> None:
    assert {name for _, name, _, _ in NUMBERS} == {*NEEDED, "demo"}
    assert ("lmgym", "ab", "--temperature", True) in NUMBERS


@pytest.mark.parametrize(("which", "command", "option", "fraction"), NUMBERS)
def test_every_numeric_option_is_bounded(which: str, command: str, option: str, fraction: bool) -> None:
    for value in ("1" + "0" * 30, "-7", *(("nan", "inf", "-inf") if fraction else ())):
        message = usage_error(which, command, *NEEDED.get(command, []), option, value)
        assert "; needed: " in message or ": needed" in message
    assert "Invalid value for" in usage_error(
        which, command, *NEEDED.get(command, []), option, "many\x1b[31m\n" + "x" * 10**5
    )


@pytest.mark.parametrize("which", ["lmgym", "eval"])
def test_unknown_and_missing_commands_and_flags_are_one_line(which: str) -> None:
    assert "No such command 'wrld'" in usage_error(which, "wrld")
    assert "(see --help)" in usage_error(which, "x\x1b[31m\n" * 1000)
    assert "option" in usage_error(which, "--bogus")
    command = "world" if which == "lmgym" else "convo_evolution"
    assert "--bogus" in usage_error(which, command, *NEEDED[command], "--bogus")


def test_a_group_alone_still_shows_its_help() -> None:
    done = CliRunner().invoke(lmgym.main, [])
    assert "Set up:" in done.output
    assert "error" not in done.output


def leaves(command: click.Command, words: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Command]]:
    """Every command that is no group, behind its words."""
    if not isinstance(command, click.Group):
        return [(words, command)]
    return [leaf for name, one in command.commands.items() for leaf in leaves(one, (*words, name))]


@pytest.mark.parametrize("words", [words for words, _ in leaves(lmgym.main)], ids=" ".join)
def test_an_option_that_keeps_one_value_is_not_given_twice(words: tuple[str, ...]) -> None:
    [command] = [one for own, one in leaves(lmgym.main) if own == words]
    for option in command.params:
        if isinstance(option, click.Option) and not (option.multiple or option.is_flag):
            name = next(one for one in option.opts if one.startswith("--"))
            message = usage_error("lmgym", *words, name, "1", f"{name}=2")
            assert f"{option.opts[0]} is given 2 times; needed: it once, " in message
