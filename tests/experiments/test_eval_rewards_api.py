"""The command as people type it: from a pipe, in a terminal, in IPython, and what no terminal must see."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from lmgym.pairs import validate
from lmgym.records import read_records
from reward_models.evaluation.records import load

ROOT = Path(__file__).parents[2]
SCRIPT = str(ROOT / "eval_rewards_api.py")
TALK = ("talk_to_models", "--experiment_name", "random_baseline", "--select_model", "random_b")
PLAIN = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "dumb", "PYTHONIOENCODING": "utf-8"}
STYLE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]")
HOSTILE = (
    '"""Says what would drive a terminal."""\n'
    "from lmgym.generation import ScriptedGenerator\n"
    "from lmgym.scorers import FunctionScorer, RandomScorer\n"
    "def get_base_model():\n"
    "    odd = '\\x1b[31mred\\x1b]0;owned\\x07 \\x9b2J \\u202erev\\u2066 \\x08\\x7f \\x1b' + '[2J'\n"
    "    fuzz = lambda rng: bytes(rng.integers(0, 256, 80).astype('uint8')).decode('utf-8', 'surrogateescape')\n"
    "    return ScriptedGenerator(lambda c, rng: odd + fuzz(rng))\n"
    "def breaks(conversations, replies):\n"
    "    return 1 / 0 if len(conversations[0].turns) > 1 else [1.0] * len(replies)\n"
    "def get_reward_models():\n"
    "    return {'lots': RandomScorer(), 'breaks': FunctionScorer(breaks)}\n"
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder in which the command finds itself under its own name, and keeps its sessions."""
    (tmp_path / "eval_rewards_api.py").symlink_to(SCRIPT)
    return tmp_path


def piped(home: Path, *arguments: str, lines: str = "", ipython: bool = False) -> subprocess.CompletedProcess[str]:
    words = ["-m", "IPython", "-i", "--"] if ipython else []
    return subprocess.run(
        [sys.executable, *words, "eval_rewards_api.py", *arguments],
        input=lines, capture_output=True, text=True, cwd=home, env=PLAIN, timeout=120, encoding="utf-8",
    )  # fmt: skip


# --- from a pipe


def test_lines_from_a_pipe_are_turns_and_json_is_an_object_a_turn(home: Path) -> None:
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
    assert "empty line" in done.stderr
    assert "Traceback" not in done.stderr
    [kept] = (home / "sessions").glob("*.jsonl")
    loaded = load(kept)
    assert loaded.exchanges[2].human_pick == 0
    assert loaded.exchanges[1].prompt.persona == "A cat."
    assert [t.text for t in loaded.exchanges[1].prompt.turns] == ["meow", "hello"]


def test_a_table_comes_without_json_ranks_where_asked_for_and_what_is_exported_is_taken(home: Path) -> None:
    done = piped(home, *TALK, "--ranked", lines="hello\n%pick 2\n%export prefs prefs.jsonl\n")
    assert done.returncode == 0, done.stderr
    assert re.search(r"│ +>?\d │ .* │ +[1-6] │ +[1-6] │ +[1-6] │", done.stdout)
    assert re.search(r"^Bot: \w", done.stdout, re.MULTILINE)
    pairs, rejections = validate(read_records(str(home / "prefs.jsonl")))
    assert pairs
    assert rejections == []


@pytest.mark.parametrize("ipython", [False, True])
@pytest.mark.parametrize(("arguments", "says"), [
    (("talk_to_models", "--experiment_name", "nope", "--select_model", "x"), "there are gptj_engagement, hh, random_"),
    (("talk_to_models", "--experiment_name", "random_baseline", "--select_model", "nope"), "there are random_a, rand"),
    (("convo_evolution", "--experiment_name", "nope"), "there are gptj_engagement, hh, random_baseline, world"),
])  # fmt: skip
def test_what_there_is_not_is_answered_with_what_there_is_and_exit_2(
    home: Path, ipython: bool, arguments: tuple[str, ...], says: str
) -> None:
    done = piped(home, *arguments, lines="> 1 + 1\n", ipython=ipython)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize(("arguments", "says"), [
    (("talk_to_models",), "--experiment_name is missing; there are"),
    (TALK[:3], "--select_model is missing; there are random_a"),
    ((*TALK, "--best_of", "0"), "needed 1 to 1,024"),
    ((*TALK, "--best_of", "1000000"), "needed 1 to 1,024"),
    ((*TALK, "--best_off", "3"), "did you mean --best_of?"),
    ((*TALK, "stray"), "unexpected argument 'stray'"),
    ((*TALK[:2], "../x/RANDOM", *TALK[3:]), "no experiment file"),
    ((*TALK[:2], "Random_Baseline", *TALK[3:]), "no experiment 'Random_Baseline'"),
    ((*TALK[:2], "os", *TALK[3:]), "no experiment 'os'"),
    ((*TALK[:2], "hh", *TALK[3:], "--scorers", "a"), "needed name=PATH"),
    ((*TALK[:2], "hh", *TALK[3:], "--scorer", "a=b"), "did you mean --scorers?"),
    (("convo_evolution", *TALK[1:3], "--dataset", "absent.jsonl"), "absent.jsonl does not exist"),
])  # fmt: skip
def test_a_mistake_on_the_command_line_is_a_line_and_exit_2(home: Path, arguments: tuple[str, ...], says: str) -> None:
    done = piped(home, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not (home / "sessions").exists()


def test_an_experiment_is_a_file_by_its_path_and_a_broken_one_is_told_by_its_line(home: Path) -> None:
    (home / "random.py").write_text(HOSTILE)  # the name of a module of the standard library does no harm
    done = piped(home, *TALK[:2], "./random.py", "--select_model", "breaks", "--json", lines="a\nb\n")
    assert done.returncode == 0, done.stderr
    turns = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.stdout.isascii()
    assert len(turns) == 2
    assert {c["scores"]["breaks"] for c in turns[1]["candidates"]} == {None}
    assert "ZeroDivisionError" in turns[1]["failed"]["breaks"]
    assert "breaks failed" in done.stderr
    (home / "broken.py").write_text("x = 1\nimport nothing_of_that_name\n")
    done = piped(home, *TALK[:2], "broken.py", "--select_model", "lots")
    assert done.returncode == 2
    assert re.search(r"broken.py failed: ModuleNotFoundError: .*broken.py, line 2", done.stderr)


def test_a_scripted_bot_that_emits_every_byte_puts_no_control_byte_on_a_terminal(home: Path) -> None:
    (home / "hostile.py").write_text(HOSTILE)
    arguments = [SCRIPT, *TALK[:2], "hostile.py", "--select_model", "lots", "--best_of", "20"]
    with terminal(home, arguments, {**PLAIN, "NO_COLOR": "1"}) as child:
        child.expect("Model prompt")
        child.sendline("")
        child.expect("first message")
        child.sendline("")
        child.expect("You: ")
        for line in ("hello", "%retry", "%table z", "%pick 3", "%why 1", "%status", "more"):
            child.sendline(line)
            child.expect("You: $", timeout=60)
        said = child.seen()
    assert "owned" in said
    bad = {c for c in said if unicodedata.category(c) in ("Cc", "Cf", "Cs") and c not in "\r\n\u200c\u200d"}
    assert bad == set()


def test_convo_evolution_prints_each_scorers_change_at_each_line_of_the_user(home: Path) -> None:
    said = [("user", "hi"), ("assistant", "\x1b[31mho"), ("user", "hm")]
    rows = [{"messages": [{"role": role, "content": text} for role, text in chat]} for chat in (said, said[:1])]
    (home / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = piped(home, "convo_evolution", *TALK[1:3], "--dataset", "chats.jsonl")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("without this line") == 3
    found = re.findall(r"random_\w: ([\d.]+), without this line ([\d.]+), change ([+-][\d.]+)", done.stdout)
    assert all(abs(float(a) - float(b) - float(c)) < 2e-4 for a, b, c in found)
    assert "␛[31mho" in done.stdout
    assert "conversation 2" not in done.stdout, "nobody answers a bot in it"
    assert piped(home, "convo_evolution", *TALK[1:3]).stdout.count("conversation") == 3


def test_the_random_baseline_starts_without_torch(home: Path) -> None:
    code = (
        "import runpy, sys\n"
        f"sys.argv = ['eval_rewards_api.py', *{TALK!r}, '--json']\n"
        "try:\n    runpy.run_path('eval_rewards_api.py', run_name='__main__')\n"
        "except SystemExit as left:\n    assert not left.code, left.code\n"
        "print(sorted({'torch', 'transformers', 'pandas', 'datasets'} & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input="hello\n", capture_output=True, text=True, cwd=home, env=PLAIN, timeout=60
    )
    assert json.loads(done.stdout)["turn"] == 1
    assert done.stderr == "[]\n"


# --- at a terminal


class Terminal(pexpect.spawn):
    """A child at a pseudo-terminal; `seen()` is all that it has put there."""

    def seen(self) -> str:
        return self.logfile_read.getvalue()

    def text_until(self, pattern: str) -> str:
        """What came until the pattern, without colours."""
        self.expect(pattern)
        return STYLE.sub("", self.before + self.after)


def heed_ctrl_c() -> None:
    """A shell starts what runs in its background deaf to Ctrl-C, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def terminal(home: Path, arguments: list[str], env: dict[str, str]) -> Terminal:
    import io

    child = Terminal(
        sys.executable, arguments, cwd=str(home), env=env, encoding="utf-8", codec_errors="surrogateescape",
        timeout=60, dimensions=(50, 130), preexec_fn=heed_ctrl_c,
    )  # fmt: skip
    child.logfile_read = io.StringIO()
    return child


@pytest.fixture
def ipython(home: Path) -> Iterator[Terminal]:
    """The session in the real IPython, the command word for word, its questions answered."""
    env = {**PLAIN, "TERM": "xterm", "IPYTHONDIR": str(home / "ipython")}
    child = terminal(home, ["-m", "IPython", "-i", "--", "eval_rewards_api.py", *TALK], env)
    child.expect("Model prompt")
    child.sendline("A cat.")
    child.expect("first message")
    child.sendline("meow")
    child.expect(r"1.*\]: ")
    yield child
    child.close(force=True)


def kept(home: Path):
    [path] = (home / "sessions").glob("*.jsonl")
    return load(path)


def wait_for(condition, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_typed_line_in_ipython_is_the_next_turn_whatever_it_ends_with(ipython: Terminal, home: Path) -> None:
    typed = ["hello", "how are you?", 'an "open quote', "it's (unbalanced [", "a backslash\\", "exit()", "import os"]
    for number, line in enumerate(typed, 1):
        ipython.sendline(line)
        ipython.expect(rf"turn {number}\b")
        ipython.expect("Bot: ")
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
    ipython.expect("reply 3 is the best")
    ipython.sendline("q")  # were it in a pager
    ipython.sendline("%edit 2 and you?")
    ipython.expect("Bot: ")
    ipython.sendline("%status")
    ipython.expect("turns 1 > ")
    ipython.sendline("exit")
    ipython.expect(pexpect.EOF)
    ipython.close()
    assert ipython.exitstatus == 0
    assert "Error" not in ipython.seen()
    exchanges = list(kept(home).exchanges.values())
    assert [e.user for e in exchanges][: len(typed)] == typed
    assert exchanges[len(typed) - 1].edited_text == "is {this} yours?"
    assert exchanges[-1].user == "and you?"
    assert [t.text for t in exchanges[0].prompt.turns] == ["meow", "hello"]


def test_kill_9_loses_at_most_the_open_turn(ipython: Terminal, home: Path) -> None:
    for number, line in enumerate(("one", "two"), 1):
        ipython.sendline(line)
        ipython.expect(rf"turn {number}\b")
        ipython.expect("Bot: ")
    os.kill(ipython.pid, signal.SIGKILL)
    wait_for(lambda: not ipython.isalive())
    loaded = kept(home)
    assert [e.user for e in loaded.exchanges.values()] == ["one", "two"]
    assert loaded.broken == []


def test_ctrl_c_stops_the_reply_and_not_the_session(home: Path) -> None:
    (home / "slow.py").write_text(
        "import time\nfrom lmgym.generation import ScriptedGenerator\nfrom lmgym.scorers import RandomScorer\n"
        "class Slow:\n    capabilities = None\n    def reply(self, conversations, n, sampling, progress=None):\n"
        "        for i in range(600 if conversations[0].turns[-1].text == 'slow' else 0):\n"
        "            time.sleep(0.1)\n            progress and progress(i, 600)\n"
        "        return ScriptedGenerator(['quick']).reply(conversations, n, sampling)\n"
        "def get_base_model():\n    return Slow()\ndef get_reward_models():\n    return {'a': RandomScorer()}\n"
    )
    arguments = ["-m", "IPython", "-i", "--", SCRIPT, *TALK[:2], "slow.py", "--select_model", "a"]
    env = {**PLAIN, "TERM": "xterm", "IPYTHONDIR": str(home / "ipython")}
    with terminal(home, [*arguments, "--prompt", "", "--first_message", ""], env) as child:
        child.expect(r"1.*\]: ")
        child.sendline("slow")
        child.expect(r"\d+ of at most 600 tokens")
        child.sendintr()
        child.expect("stopped; nothing was added")
        child.sendline("fast")
        child.expect("turn 1")
        child.expect("Bot: ")
        child.sendline("exit")
        child.expect(pexpect.EOF)
    assert [e.user for e in kept(home).exchanges.values()] == ["fast"]


def test_the_plain_terminal_is_a_loop_with_help_and_leaves_by_exit_alone(home: Path) -> None:
    with terminal(home, [SCRIPT, *TALK, "--prompt", "", "--first_message", "hi"], PLAIN) as child:
        child.expect("You: ")
        child.sendline("please do not exit")
        child.expect("turn 1")
        child.expect("You: ")
        child.sendintr()
        child.expect("exit or quit leaves")
        child.sendline("%sel\tx\x15")
        child.expect("%select")
        child.sendline("?")
        child.expect("%export prefs PATH")
        child.sendline("%best_of 0")
        child.expect("needed 1 to 1,024")
        child.sendline("quit")
        child.expect(pexpect.EOF)
    assert child.exitstatus == 0
