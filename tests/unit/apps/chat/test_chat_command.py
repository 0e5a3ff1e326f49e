"""`lmgym chat`: the session of eval_rewards_api.py with a policy and scorers of the command line."""

import io
import json
import os
import pty
import termios
from pathlib import Path

import pexpect
import pytest
from click.testing import CliRunner, Result
from launching import finish, launch, start
from patience import PATIENCE
from pexpect.fdpexpect import fdspawn

from eval_rewards_api import talk_to_models
from lmgym.apps.chat.records import load
from lmgym.cli.main import main

IN_A_TERMINAL = """
import os, sys

terminal = os.open(sys.argv.pop(1), os.O_RDWR)  # becomes the terminal of this session
for number, name in enumerate(("stdin", "stdout", "stderr")):
    os.dup2(terminal, number)
    setattr(sys, name, open(number, "w" if number else "r", buffering=1, closefd=False))
os.close(terminal)
from lmgym.cli.main import main

main(prog_name="lmgym")
"""


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
        ([], "Missing argument 'MODEL'"),
        (["./none"], "model ./none does not exist"),
        (["x", "--scorers", "a="], "--scorers 'a=': needed [name=]PATH,[name=]PATH"),
        (["x", "--scorers", "a=./none"], "scorer ./none does not exist"),
        (["x", "--rankd"], "No such option '--rankd'"),
        (["x", "--best_of", "0"], "best_of=0: needed 1 to 1,024 replies"),
        (["x", "--select_model", "a"], "there is no scorer 'a' in hh; available: none"),
        (["x", "--temperature", "-1"], "temperature=-1.0; needed: "),
        (["x", "--top_p", "0"], "top_p=0.0; needed: "),
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


def test_without_scorers_one_reply_comes_and_picks_among_several_are_kept(
    talkative_models: dict[str, Path], tmp_path: Path
) -> None:
    words = (talkative_models["llama"], "--json", "--sessions", tmp_path, "--persona", "A cat.")
    done = chat(*words, lines="hello\n%set max_new_tokens=4\n%best_of 3\nagain\n%pick 2\nmore\n")
    assert done.exit_code == 0, done.output
    first, second, third = map(json.loads, done.stdout.splitlines())
    assert [len(turn["candidates"]) for turn in (first, second, third)] == [1, 3, 3]
    assert (first["selected"], second["selected"]) == (0, 0)
    [kept] = tmp_path.iterdir()
    exchanges = load(kept).exchanges
    assert exchanges[2].human_pick == 1
    assert exchanges[3].prompt.turns[-2].text == second["candidates"][1]["text"]
    assert exchanges[1].prompt.persona == "A cat."


def test_settings_of_sampling_are_typed_as_anywhere(talkative_models: dict[str, Path], tmp_path: Path) -> None:
    words = (talkative_models["llama"], "--json", "--sessions")
    cold = [
        chat(*words, tmp_path / name, "--temperature", "0", "--max-new-tokens", "5", lines="hello\n") for name in "ab"
    ]
    replies = [json.loads(done.stdout)["candidates"][0] for done in cold]
    assert replies[0]["text"] == replies[1]["text"], "greedy"
    assert replies[0]["tokens"] <= 5
    assert "sampling: greedy" in cold[0].stderr
    assert "but for max_new_tokens, temperature)" in cold[0].stderr
    seeds = ["1", "1", "2"]
    warm = [
        chat(*words, tmp_path / f"s{n}", "--seed", seed, "--top_p", "1", lines="hello\n")
        for n, seed in enumerate(seeds)
    ]
    first, same, other = (json.loads(done.stdout)["candidates"][0]["text"] for done in warm)
    assert first == same
    assert first != other


def test_a_single_reply_without_scores_has_no_table(talkative_models: dict[str, Path], tmp_path: Path) -> None:
    done = chat(talkative_models["llama"], "--sessions", tmp_path, lines="%set max_new_tokens=2\nhello\n\n%more 1\n")
    assert done.exit_code == 0, done.output
    alone, more = done.stdout.split("bot> ")[:2]
    assert "┃" not in alone
    note = "note: cut off at max_new_tokens: the reply; %set max_new_tokens=4 allows longer ones"
    assert note in " ".join(alone.split())
    assert "┃" in more, "two replies have one"
    assert "error" not in done.output


def test_scorers_name_themselves(talkative_models: dict[str, Path], scorer_folders, tmp_path: Path) -> None:
    scorers = f"{scorer_folders['llama']},{scorer_folders['llama']},b={scorer_folders['gpt2']}"
    words = (talkative_models["llama"], "--scorers", scorers, "--best_of", 2, "--json", "--sessions", tmp_path)
    done = chat(*words, lines="hello\n")
    assert done.exit_code == 0, done.output
    assert list(json.loads(done.stdout)["candidates"][0]["scores"]) == ["llama", "llama_2", "b"]


def test_in_a_terminal_it_opens_without_a_question(
    talkative_models: dict[str, Path], scorers: str, tmp_path: Path
) -> None:
    script = tmp_path / "in_a_terminal.py"
    script.write_text(IN_A_TERMINAL)
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(ours, (50, 120))
    words = ["chat", talkative_models["llama"], "--scorers", scorers, "--best_of", 2, "--sessions", tmp_path / "kept"]
    environment = {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}  # or it waits for the cursor's place
    launched = start(launch("fork", os.ttyname(theirs), *words, script=script), **environment)
    child = fdspawn(ours, timeout=PATIENCE, encoding="utf-8")
    child.logfile_read = io.StringIO()
    child.expect("Scorers: a, b; a selects")
    os.close(theirs)  # open until now: a terminal whose last process has closed it has ended
    child.expect("you> ")
    child.sendline("hello")
    child.expect("turn 1")
    child.expect("you> ")
    child.sendline("exit")
    child.expect(pexpect.EOF)
    child.close()
    assert finish(launched).returncode == 0
    assert "Model prompt" not in child.logfile_read.getvalue()
