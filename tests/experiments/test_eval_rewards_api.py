"""The command line from a pipe, in a terminal and in IPython, and control characters that must not reach it."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest
from click.testing import CliRunner
from launching import launch, run
from patience import PATIENCE, wait_until

import eval_rewards_api
from lmgym.apps.chat.records import load
from lmgym.data.pairs import validate
from lmgym.data.records import read_records

ROOT = Path(__file__).parents[2]
SCRIPT = str(ROOT / "eval_rewards_api.py")
TALK = ("talk_to_models", "--experiment_name", "random_baseline", "--select_model", "random_b")
OWN = ("talk_to_models", "--select_model", "a", "--experiment_name")
PLAIN = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "dumb", "PYTHONIOENCODING": "utf-8"}
# a pseudo-terminal does not say where its cursor is: prompt_toolkit would wait a second for it at every line
COLOURED = {**PLAIN, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
STYLE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]")
HOSTILE = (
    '"""Says what would drive a terminal."""\n'
    "import time\n"
    "from lmgym.generation.protocol import ScriptedGenerator\n"
    "from lmgym.scoring.random_scorer import RandomScorer\n"
    "ODD = '\\x1b[31mred\\x1b]0;owned\\x07 \\x9b2J \\u202erev\\u2066 \\x08\\x7f \\x1b' + '[2J'\n"
    "class Hostile:\n"
    "    capabilities = None\n"
    "    def reply(self, conversations, n, sampling, progress=None):\n"
    "        for i in range(600 if conversations[0].turns[-1].text == 'slow' else 0):\n"
    "            time.sleep(0.1)\n"
    "            progress and progress(i, 600)\n"
    "        fuzz = lambda rng: bytes(rng.integers(0, 256, 80).astype('uint8')).decode('utf-8', 'surrogateescape')\n"
    "        script = ScriptedGenerator(lambda c, rng: ODD + fuzz(rng))\n"
    "        return script.reply(conversations, n, sampling)\n"
    "class Breaks:\n"
    "    def score(self, conversations, replies):\n"
    "        if len(conversations[0].turns) > 1:\n"
    "            raise ValueError(ODD)\n"
    "        return [1.0] * len(replies)\n"
    "def get_base_model():\n"
    "    return Hostile()\n"
    "def get_reward_models():\n"
    "    return {'random': RandomScorer(), 'breaks': Breaks()}\n"
)
ATTACKS = ("\x1b[31mred", "\x1b]0;owned", "\x9b", "\u202e", "\u2066", "\x7f")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with the script, in which it saves its sessions."""
    (tmp_path / "eval_rewards_api.py").symlink_to(SCRIPT)
    return tmp_path


def piped(
    home: Path, *arguments: str, lines: str = "", ipython: bool = False, encoding: str = "utf-8"
) -> subprocess.CompletedProcess[str]:
    """The script, given lines from a pipe; a fork, unless Python's start decides how it reads and writes."""
    if not ipython and encoding == "utf-8":
        with tempfile.TemporaryFile("w+", encoding="utf-8") as stdin:
            stdin.write(lines)
            stdin.flush()
            return run(launch("fork", *arguments, script=home / "eval_rewards_api.py"), home, stdin=stdin)
    words = ["-m", "IPython", "-i", "--"] if ipython else []
    return subprocess.run(
        [sys.executable, *words, "eval_rewards_api.py", *arguments], input=lines, capture_output=True, text=True,
        cwd=home, env={**PLAIN, "PYTHONIOENCODING": encoding}, timeout=PATIENCE, encoding=encoding,
    )  # fmt: skip


def drives(text: str) -> set[str]:
    """Characters that control a terminal."""
    return {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs") and c not in "\r\n\u200c\u200d"}


# --- from a pipe


def test_lines_from_a_pipe_are_turns_and_json_is_an_object_per_turn(home: Path) -> None:
    lines = "hello\nwhat's new, then?\n%pick 1\n\n%best_of 3\nbye\nexit\nnever said\n"
    done = piped(home, *TALK, "--best_of", "4", "--prompt", "A cat.", "--first_message", "meow", "--json", lines=lines)
    assert done.returncode == 0, done.stderr
    turns = [json.loads(line) for line in done.stdout.splitlines()]
    assert [t["user"] for t in turns] == ["hello", "what's new, then?", "bye"]
    assert [t["turn"] for t in turns] == [1, 2, 3]
    assert [len(t["candidates"]) for t in turns] == [4, 4, 3]
    for turn in turns:
        assert set(turn) == {"turn", "user", "reply", "selected", "candidates"}
        best = turn["candidates"][turn["selected"]]
        assert best["text"] == turn["reply"]
        assert best["ranks"]["random_b"] == 1
        assert set(best["scores"]) == set(best["ranks"]) == {"random_a", "random_b", "random_c"}
        for name in best["scores"]:
            found = [(c["scores"][name], c["ranks"][name]) for c in turn["candidates"]]
            assert all(rank == 1 + sum(other > score for other, _ in found) for score, rank in found)
    assert "empty line" not in done.stderr, "it is ignored"
    assert "Traceback" not in done.stderr
    [kept] = (home / "outputs/sessions").glob("*.jsonl")
    loaded = load(kept)
    assert loaded.exchanges[2].human_pick == 0
    assert loaded.exchanges[1].prompt.persona == "A cat."
    assert [t.text for t in loaded.exchanges[1].prompt.turns] == ["meow", "hello"]


def test_the_first_line_names_the_session_file_in_the_given_folder(home: Path) -> None:
    done = piped(home, *TALK, "--sessions", "mine/chats", lines="hello\n")
    assert done.returncode == 0, done.stderr
    [kept] = (home / "mine/chats").glob("*.jsonl")
    assert f"session file: {kept.relative_to(home)}\n" in done.stderr
    assert not (home / "outputs").exists()


def test_without_json_the_output_is_a_table_and_exported_preferences_are_valid_pairs(home: Path) -> None:
    done = piped(home, *TALK, "--ranked", lines="hello\n%pick 2\n%export prefs prefs.jsonl\n")
    assert done.returncode == 0, done.stderr
    assert re.search(r"│ +>?\d │ .* │ +[1-6] │ +[1-6] │ +[1-6] │", done.stdout)
    assert re.search(r"^bot> \w", done.stdout, re.MULTILINE)
    pairs, rejections = validate(read_records(str(home / "prefs.jsonl")))
    assert pairs
    assert rejections == []


@pytest.mark.parametrize(("ipython", "arguments", "expected"), [
    (True, (*TALK[:2], "nope", *TALK[3:]), "available: gptj_engagement, hh, random_baseline, world"),
    # what is wrong is found by the same lines in IPython: two of the four mistakes are enough
    pytest.param(True, (*TALK[:4], "nope"), "available: random_a, random_b, random_c", marks=pytest.mark.slow),
    (False, (*TALK[:4], "nope"), "available: random_a, random_b, random_c"),
    pytest.param(True, TALK[:1], "--experiment_name is missing", marks=pytest.mark.slow),
    (True, (*TALK[:2], "hh", "--scorers", "a=/absent/model"), "error: scorer /absent/model does not exist"),
    pytest.param(True, (*TALK, "--best_of", "many"), "'many' is not a valid integer", marks=pytest.mark.slow),
])  # fmt: skip
def test_a_mistake_at_the_start_is_one_line_with_what_is_available_and_exit_2(
    home: Path, ipython: bool, arguments: tuple[str, ...], expected: str
) -> None:
    done = piped(home, *arguments, lines="> 1 + 1\n", ipython=ipython)
    assert done.returncode == 2
    assert expected in done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stdout


@pytest.mark.parametrize(("arguments", "expected"), [
    (("talk_to_models",), "--experiment_name is missing; available"),
    (("talk_to_models", "--experiment_name", "world"), "there is no scorer in outputs/demo/scorer/model; `lmgym demo`"),
    ((*TALK, "--best_of", "0"), "needed 1 to 1,024"),
    ((*TALK, "--best_of", "1000000"), "needed 1 to 1,024"),
    ((*TALK, "--best_off", "3"), "did you mean --best_of?"),
    ((*TALK, "stray"), "unexpected argument 'stray'"),
    ((*TALK[:2], "../x/RANDOM", *TALK[3:]), "there is no file"),
    ((*TALK[:2], "Random_Baseline", *TALK[3:]), "no experiment 'Random_Baseline'"),
    ((*TALK[:2], "os", *TALK[3:]), "no experiment 'os'"),
    ((*TALK[:2], "hh", *TALK[3:], "--scorers", "a="), "needed [name=]PATH"),
    ((*TALK[:2], "hh", *TALK[3:], "--scorer", "a=b"), "did you mean --scorers? (see --help; hh also has --model, "),
    (("convo_evolution", "--experiment_name", "nope"), "available: gptj_engagement, hh, random_baseline, world"),
    (("convo_evolution", *TALK[1:3], "--dataset", "absent.jsonl"), "absent.jsonl does not exist"),
    (("convo_evolution", *TALK[1:3], "--conversations", "0"), "conversations=0; needed: 1 to 1,000,000,000"),
    ((*OWN, "./no_bot.py"), "no_bot is NoneType; needed: something with reply"),
    ((*OWN, "./no_scorer.py"), "scorer a of no_scorer is float; needed"),
    ((*OWN, "./no_name.py"), "scorer 1 of no_name: needed a name"),
])  # fmt: skip
def test_a_mistake_on_the_command_line_is_a_line_and_exit_2(
    home: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], expected: str
) -> None:
    bot = "def get_base_model():\n    return None\ndef get_reward_models():\n    return "
    for name, scorers in (
        ("no_bot", "{'a': RandomScorer()}"),
        ("no_scorer", "{'a': 1.0}"),
        ("no_name", "{1: RandomScorer()}"),
    ):
        (home / f"{name}.py").write_text(f"from lmgym.scoring.random_scorer import RandomScorer\n{bot}{scorers}\n")
    monkeypatch.chdir(home)
    done = CliRunner().invoke(eval_rewards_api.main, arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert not (home / "outputs/sessions").exists()


def test_the_help_lists_the_experiments_and_the_flags_that_they_add() -> None:
    for command in ("talk_to_models", "convo_evolution"):
        text = " ".join(CliRunner().invoke(eval_rewards_api.main, [command, "--help"]).stdout.split())
        for name in ("gptj_engagement", "hh", "random_baseline", "world"):
            assert f" {name} " in text
        assert "random_baseline A scripted bot and random scorers" in text
        assert "hh: --model folder, hub id, vllm:URL, vllm:FOLDER, openai:URL#MODEL or anthropic:MODEL [default" in text
        assert "hh: --scorers [name=]PATH of each scorer" in text


def test_a_single_scorer_selects_by_default(home: Path) -> None:
    (home / "single.py").write_text(HOSTILE.replace("'random': RandomScorer(), ", ""))
    done = piped(home, *TALK[:2], "./single.py", "--json", lines="a\n")
    assert done.returncode == 0, done.stderr
    assert list(json.loads(done.stdout)["candidates"][0]["scores"]) == ["breaks"]


def test_an_experiment_may_be_a_path_and_a_failing_scorer_has_its_column(home: Path) -> None:
    (home / "random.py").write_text(HOSTILE)  # the name of a module of the standard library does no harm
    done = piped(home, *TALK[:2], "./random.py", "--select_model", "breaks", "--json", lines="a\nb\n")
    assert done.returncode == 0, done.stderr
    turns = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.stdout.isascii()
    assert len(turns) == 2
    assert {c["scores"]["breaks"] for c in turns[1]["candidates"]} == {None}
    assert "ValueError" in turns[1]["failed"]["breaks"]
    assert "breaks failed" in done.stderr
    assert drives(done.stderr) == set()
    done = piped(home, *TALK[:2], "./random.py", "--select_model", "random", lines="caf\xe9\nb\n", encoding="latin-1")
    assert done.returncode == 0, done.stderr
    assert "[31mred" in done.stdout
    assert drives(done.stdout + done.stderr) == set()


def test_the_error_of_an_experiment_names_its_line_and_has_no_control_characters(home: Path, monkeypatch) -> None:
    (home / "broken.py").write_text("x = 1\nraise ImportError('no \x1b[31mmodule')\n")
    monkeypatch.chdir(home)
    done = CliRunner().invoke(eval_rewards_api.main, [*TALK[:2], "broken.py", "--select_model", "random"])
    assert done.exit_code == 2
    assert re.search(r"broken.py failed: ImportError: no \\x1b\[31mmodule .*broken.py, line 2", done.stderr)


def test_a_bot_that_emits_every_byte_sends_no_control_byte_to_a_terminal(home: Path) -> None:
    (home / "hostile.py").write_text(HOSTILE)
    arguments = [SCRIPT, *TALK[:2], "hostile.py", "--select_model", "random", "--best_of", "20"]
    with terminal(home, arguments, {**PLAIN, "NO_COLOR": "1"}) as child:
        child.expect("Model prompt")
        child.sendline("")
        child.expect("first message")
        child.sendline("")
        child.expect("you> ")
        for line in ("hello", "%retry", "%table z", "%pick 3", "%why 1", "%status", "more"):
            child.sendline(line)
            child.expect("you> $")
        output = child.seen()
    assert "owned" in output
    assert drives(output) == set()


def test_convo_evolution_prints_each_scorers_change_for_each_message_of_the_user(home: Path) -> None:
    chat = [("user", "hi"), ("assistant", "\x1b[31mho"), ("user", "hm")]
    rows = [{"messages": [{"role": role, "content": text} for role, text in turns]} for turns in (chat, chat[:1])]
    (home / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = piped(home, "convo_evolution", *TALK[1:3], "--dataset", "chats.jsonl")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("without this line") == 3
    found = re.findall(r"random_\w: ([\d.]+), without this line ([\d.]+), change ([+-][\d.]+)", done.stdout)
    assert all(abs(float(a) - float(b) - float(c)) < 2e-4 for a, b, c in found)
    assert "␛[31mho" in done.stdout
    assert "conversation 2" not in done.stdout, "no user answers a bot in it"
    note = (
        "note: 1 of 2 rows rejected: 1 without a user who answers a bot (field messages); the first: chats.jsonl, "
        "line 2, messages: no user answers"
    )
    assert note in done.stderr
    done = CliRunner().invoke(eval_rewards_api.main, ["convo_evolution", *TALK[1:3]])
    assert done.stdout.count("conversation") == 3


def test_the_random_baseline_starts_without_torch(home: Path) -> None:
    code = (
        "import runpy, sys\n"
        f"sys.argv = ['eval_rewards_api.py', *{TALK!r}, '--json']\n"
        "try:\n    runpy.run_path('eval_rewards_api.py', run_name='__main__')\n"
        "except SystemExit as left:\n    assert not left.code, left.code\n"
        "print(sorted({'torch', 'transformers', 'pandas', 'datasets'} & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input="hello\n", capture_output=True, text=True,
        cwd=home, env=PLAIN, timeout=PATIENCE,
    )  # fmt: skip
    assert json.loads(done.stdout)["turn"] == 1
    kept, modules = done.stderr.splitlines()
    assert kept.startswith("session file: outputs/sessions/")
    assert modules == "[]"


# --- at a terminal


class Terminal(pexpect.spawn):
    """A process in a pseudo-terminal; `seen()` is its whole output."""

    def seen(self) -> str:
        return self.logfile_read.getvalue()

    def text_until(self, pattern: str) -> str:
        """The output up to the pattern, without colours."""
        self.expect(pattern)
        return STYLE.sub("", self.before + self.after)


def restore_ctrl_c() -> None:
    """Restores Ctrl-C, which processes in the background of a shell ignore, and their children too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def terminal(home: Path, arguments: list[str], env: dict[str, str]) -> Terminal:
    import io

    child = Terminal(
        sys.executable, arguments, cwd=str(home), env=env, encoding="utf-8", codec_errors="surrogateescape",
        timeout=PATIENCE, dimensions=(50, 130), preexec_fn=restore_ctrl_c,
    )  # fmt: skip
    child.logfile_read = io.StringIO()
    return child


@pytest.fixture
def ipython(home: Path) -> Iterator[Terminal]:
    """The session in IPython with its questions answered."""
    env = {**COLOURED, "IPYTHONDIR": str(home / "ipython")}
    child = terminal(home, ["-m", "IPython", "-i", "--", "eval_rewards_api.py", *TALK], env)
    child.expect("Model prompt")
    child.sendline("A cat.")
    child.expect("first message")
    child.sendline("meow")
    child.expect("you> ")
    yield child
    child.close(force=True)


def kept(home: Path):
    [path] = (home / "outputs/sessions").glob("*.jsonl")
    return load(path)


def test_a_typed_line_in_ipython_is_the_next_turn_whatever_it_ends_with(ipython: Terminal, home: Path) -> None:
    typed = ["hello", "how are you?", 'an "open quote', "it's (unbalanced [", "a backslash\\", "exit()", "import os"]
    for number, line in enumerate(typed, 1):
        ipython.sendline(line)
        ipython.expect(rf"turn {number}\b")
        ipython.expect("bot> ")
    ipython.sendline("%pick 2")
    ipython.expect("picked")
    ipython.sendline("%write is {this} yours?")
    ipython.expect("written")
    ipython.sendline("> session.history[-1].df")
    assert "random_a" in ipython.text_until(r"\[6 rows x \d+ columns\]")
    ipython.sendline("> 'reply: ' + session.history[-1].reply.upper()")
    ipython.expect(r"reply: IS \{THIS\} YOURS\?")
    ipython.sendline("!echo shell$((40 + 2))")
    ipython.expect("shell42")
    ipython.sendline("%pick?")
    ipython.expect("continue with reply 3")
    ipython.sendline("q")  # were it in a pager; so it is a turn
    ipython.sendline("%edit 2 and you?")
    ipython.expect("bot> ")
    ipython.sendline("%status")
    ipython.expect("decided by you")
    ipython.sendline("%timeit -n 2 -r 1 sum([])")
    ipython.expect("loops each")
    ipython.sendline("%reset -f")
    ipython.send("%select r\t")
    ipython.expect("random_c")
    ipython.sendline("\x15\x1b[200~exit now\n%pick 1\n\x1b[201~")
    ipython.expect("turn 10")
    ipython.expect("bot> ")
    ipython.sendline("\x04")
    ipython.expect("really want to exit")
    ipython.sendline("n")
    ipython.sendline("exit")
    ipython.expect(pexpect.EOF)
    ipython.close()
    assert ipython.exitstatus == 0
    assert "Error" not in ipython.seen()
    exchanges = list(kept(home).exchanges.values())
    assert exchanges.pop().user == "exit now\n%pick 1", "what is pasted at once is one turn"
    assert len(exchanges) == len([*typed, "q", "and you?"]), "what %timeit runs is no turn"
    assert [e.user for e in exchanges][: len(typed)] == typed
    assert exchanges[len(typed) - 1].edited_text == "is {this} yours?"
    assert exchanges[-1].user == "and you?"
    assert [t.text for t in exchanges[0].prompt.turns] == ["meow", "hello"]


def test_ipython_shows_the_chat_and_not_itself(ipython: Terminal) -> None:
    screen = ipython.seen()
    banner = screen.index("An enhanced Interactive Python")
    # of 24 rows at least: pexpect sets the terminal's size while the program starts
    assert screen[banner:].count("\n") > 24, "the banner is scrolled out"
    assert banner < screen.index("\x1b[2J") < screen.index("Model prompt")
    ipython.sendline("hello")
    ipython.expect("chosen.*selects.*bar: worst to best")
    ipython.sendline("%pikc 2")
    ipython.expect("unknown command %pikc; did you mean %pick")
    ipython.sendline("%history")
    ipython.expect(r"turn 1  you> hello\s+bot> \w")
    ipython.sendline("> session.pick(9)")
    ipython.expect("error: there is no reply 9; needed: 1 to 6")
    before = len(ipython.seen())
    ipython.sendline("%pick 2")
    ipython.expect("turn 1: picked reply 2; bot> ")
    ipython.sendline("> 6 * 7")
    ipython.expect("42")
    assert "┃" not in ipython.seen()[before:], "no second table"
    for unwanted in ("Traceback", "UsageError", "In [", "Out["):
        assert unwanted not in STYLE.sub("", ipython.seen())


def test_ctrl_c_stops_the_reply_and_kill_9_loses_at_most_the_open_turn(home: Path) -> None:
    (home / "hostile.py").write_text(HOSTILE)
    arguments = ["-m", "IPython", "-i", "--", SCRIPT, *TALK[:2], "hostile.py", "--select_model", "random"]
    env = {**COLOURED, "IPYTHONDIR": str(home / "ipython")}
    with terminal(home, [*arguments, "--prompt", "", "--first_message", ""], env) as child:
        child.expect("you> ")
        child.sendline("slow")
        child.expect(r"\d+ of at most 600")
        child.sendintr()
        child.expect("stopped; nothing was added")
        for number, line in enumerate(("one", "two"), 1):
            child.sendline(line)
            child.expect(rf"turn {number}\b")
            child.expect("bot> ")
        child.sendline("> list(session.history[-1].df)")  # pandas would leave out columns where texts are wide
        child.expect("rank_random")
        child.sendline("> session.history, session.last.candidates")
        child.expect("finish_reason")
        child.sendline("%why 1")
        child.expect("breaks: failed")
        child.sendline("slow")
        child.expect(r"\d+ of at most 600")
        os.kill(child.pid, signal.SIGKILL)
        wait_until(lambda: not child.isalive(), seconds=60)
        output = child.seen()
    assert "owned" in output
    assert not [attack for attack in ATTACKS if attack in output]
    loaded = kept(home)
    assert [e.user for e in loaded.exchanges.values()] == ["one", "two"]
    assert loaded.corrupt == []


def paste(child: Terminal, text: str) -> None:
    """Sends what a terminal sends for a pasted text, with brackets if the program has asked for them."""
    asked = child.seen().rfind("\x1b[?2004h") > child.seen().rfind("\x1b[?2004l")
    typed = text.replace("\n", "\r")
    child.send(f"\x1b[200~{typed}\x1b[201~" if asked else typed)


@pytest.mark.parametrize("program", [[SCRIPT], ["-m", "IPython", "-i", "--", SCRIPT]], ids=["plain", "IPython"])
def test_a_paste_is_one_turn_and_keys_typed_ahead_wait_for_the_prompt(home: Path, program: list[str]) -> None:
    (home / "hostile.py").write_text(HOSTILE)
    arguments = [*program, *TALK[:2], "hostile.py", "--select_model", "random", "--prompt", "", "--first_message", ""]
    code = "Why?\n\ndef f(x):\n    return x\n%pick 1"
    long = "\n".join(f"line {i}, more than a terminal holds" for i in range(200))
    with terminal(home, arguments, {**COLOURED, "IPYTHONDIR": str(home / "ipython")}) as child:
        child.expect("you> ")
        paste(child, code)
        child.send("\r")
        child.expect(r"turn 1\b")
        child.expect("you> ")
        child.send("one\x1b\rtwo\r")  # Alt-Enter
        child.expect(r"turn 2\b")
        child.expect("you> ")
        child.send("\r   \rslow\r")
        child.expect(r"\d+ of at most 600")
        before = len(child.seen())
        child.send("typed ahead\r")
        paste(child, long)
        child.send("\runsent")
        for _ in range(5):
            child.expect(r"\d+ of at most 600")
        assert "typed" not in child.seen()[before:]
        assert "line 1" not in child.seen()[before:]
        child.sendintr()
        child.expect("stopped; nothing was added")
        child.expect(r"turn 3\b")
        child.expect(r"turn 4\b")
        child.expect("unsent")
        child.send("\x15exit\r")
        child.expect(pexpect.EOF)
        seen = STYLE.sub("", child.seen())
    assert "error" not in seen
    assert [e.user for e in kept(home).exchanges.values()] == [code, "one\ntwo", "typed ahead", long]


def test_the_plain_terminal_is_a_loop_with_help_that_ends_with_exit_only(home: Path) -> None:
    with terminal(home, [SCRIPT, *TALK, "--prompt", "", "--first_message", "hi"], COLOURED) as child:
        child.expect("you> ")
        child.sendline("please do not exit")
        child.expect("turn 1")
        child.expect("you> ")
        child.sendintr()
        child.expect("exit or quit leaves")
        child.send("%sel\t")
        child.expect("%select")
        child.sendline("\x15")
        child.sendline("?pick")
        child.expect("%export prefs PATH")
        child.sendline("> 1 + 1")
        child.expect("Python and the shell need IPython")
        child.sendline("%best_of 0")
        child.expect("needed 1 to 1,024")
        child.sendline("quit")
        child.expect(pexpect.EOF)
    assert child.exitstatus == 0
