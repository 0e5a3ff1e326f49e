"""`lmgym chat`: the session of eval_rewards_api.py with a policy and scorers of the command line."""

import json
import sys
from pathlib import Path

import pexpect
import pytest
from click.testing import CliRunner, Result
from patience import PATIENCE

from eval_rewards_api import talk_to_models
from lmgym.cli.main import main


def chat(*words: object, lines: str = "") -> Result:
    return CliRunner().invoke(main, ["chat", *(str(word) for word in words)], input=lines)


@pytest.fixture
def scorers(scorer_folders: dict[str, Path]) -> str:
    return f"a={scorer_folders['llama']},b={scorer_folders['gpt2']}"


@pytest.mark.parametrize(("flags", "selects"), [((), "a"), (("--select_model", "b"), "b")])
def test_the_best_of_n_is_selected_by_the_first_scorer_or_by_the_named_one(
    flags: tuple[str, ...], selects: str, talkative_models: dict[str, Path], scorers: str, tmp_path: Path
) -> None:
    words = (talkative_models["llama"], "--scorers", scorers, "--best_of", 3, "--json", "--sessions", tmp_path, *flags)
    done = chat(*words, lines="hello\n")
    assert done.exit_code == 0, done.output
    turn = json.loads(done.stdout)
    scores = {name: [reply["scores"][name] for reply in turn["candidates"]] for name in ("a", "b")}
    assert len(scores["a"]) == 3
    assert turn["selected"] == scores[selects].index(max(scores[selects]))
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["x"], "Missing option '--scorers'"),
        (["x", "--scorers", "nonsense"], "--scorers 'nonsense': needed name=PATH,name=PATH"),
        (["x", "--scorers", "a=./none"], "scorer ./none does not exist"),
        (["x", "--scorers", "a=./none", "--rankd"], "unknown flag --rankd; did you mean --ranked?"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(words: list[str], message: str) -> None:
    done = chat(*words)
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_help_names_every_option_of_the_session() -> None:
    options = [word for option in talk_to_models.params for word in option.opts if word != "--experiment_name"]
    assert [word for word in options if word not in chat("--help").output] == []


def test_in_a_terminal_it_is_a_session(talkative_models: dict[str, Path], scorers: str, tmp_path: Path) -> None:
    words = ["-m", "lmgym.cli.main", "chat", str(talkative_models["llama"]), "--scorers", scorers, "--best_of", "2"]
    more = ["--prompt", "A cat.", "--first_message", "meow", "--sessions", str(tmp_path)]
    child = pexpect.spawn(sys.executable, [*words, *more], timeout=PATIENCE, encoding="utf-8", dimensions=(50, 120))
    child.expect("Scorers: a, b; a selects")
    child.expect("bot> meow")
    child.expect("you> ")
    child.sendline("hello")
    child.expect("you> ")
    child.sendline("exit")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
