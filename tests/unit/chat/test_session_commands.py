"""The % commands: each does what its line of help says, and a wrong word is answered rather than raised."""

import json
import re
from pathlib import Path

import pytest

from lmgym.chat.commands import COMMANDS, Shown, Talk, complete, respond
from lmgym.chat.ipython_frontend import Cells, is_ours, transform
from lmgym.chat.session import ChatSession
from lmgym.generation.protocol import Sampling, ScriptedGenerator
from lmgym.scoring.scorers import FunctionScorer

ALL = (
    "best_of set select blend retry more undo edit back pick write reject tie blind why table agree persona save load "
    "export status help"
)


@pytest.fixture
def talk(tmp_path: Path) -> Talk:
    """A talk with two scorers that disagree."""
    generator = ScriptedGenerator(lambda conversation, rng: "x" * int(rng.integers(1, 1000)))
    long = FunctionScorer(lambda c, r: [len(x) for x in r])
    short = FunctionScorer(lambda c, r: [-len(x) for x in r])
    return Talk(ChatSession(generator, {"long": long, "short": short}, "long", 4, folder=tmp_path / "sessions"))


def does(talk: Talk, line: str) -> Shown:
    shown = respond(talk, line)
    assert shown.ok, shown.text
    return shown


def fails(talk: Talk, line: str) -> str:
    shown = respond(talk, line)
    assert not shown.ok
    assert "Traceback" not in shown.text
    return shown.text


def test_every_command_of_the_handbook_is_there_with_a_line_of_help(talk: Talk) -> None:
    assert set(COMMANDS) == set(ALL.split())
    listed = does(talk, "%help").text
    for name, command in COMMANDS.items():
        assert command.usage.startswith(f"%{name}")
        assert re.search(rf"^{re.escape(command.usage)} +{re.escape(command.help)}$", listed, re.MULTILINE)


def test_live_settings(talk: Talk) -> None:
    assert does(talk, "%best_of 8").text == "8 replies a turn"
    does(talk, "%set temperature=0.9 top_p=.7 top_k=5 max_new_tokens=12 stop='\\n,User:' ends_at_eos=false")
    wanted = Sampling(12, 0.9, 5, 0.7, 1.0, ("\n", "User:"), False)
    assert talk.session.sampling == wanted
    assert len(does(talk, "hello").exchange.candidates) == 8
    assert does(talk, "%select short").text.startswith("short selects")
    hello = does(talk, "%retry").exchange
    assert len(hello.reply) == min(len(c.text) for c in hello.candidates)
    does(talk, "%blend long=1 short=.5")
    assert talk.session.weights == {"long": 1.0, "short": 0.5}
    does(talk, "%persona A very old cat.")
    assert does(talk, "on").exchange.prompt.persona == "A very old cat."
    assert does(talk, '%persona ""').text == "persona: (none)"
    assert does(talk, "%retry").exchange.prompt.persona == ""


def test_stop_strings_may_be_of_any_script(talk: Talk) -> None:
    does(talk, r"%set stop='\n,é,。,👩,\\,\t'")
    assert talk.session.sampling.stop == ("\n", "é", "。", "👩", "\\", "\t")
    does(talk, "%set stop=")
    assert talk.session.sampling.stop == ()


@pytest.mark.parametrize(("line", "says"), [
    ("%best_of 0", "needed 1 to 1,024"),
    ("%best_of 1000000", "needed 1 to 1,024"),
    ("%best_of many", "needed a whole number: %best_of 8"),
    ("%set", "needed name=value"),
    ("%set temprature=1", "did you mean temperature?"),
    ("%set temperature=hot", "needed float"),
    ("%set temperature=-1", "needed: 0"),
    ("%set top_k=1.5", "needed int"),
    ("%set stop='", "needed name=value"),
    (r"%set stop='\x'", r"needed escapes such as \n"),
    ("%select rm_x", "there are long, short"),
    ("%blend long=nan", "needed a number"),
    ("%blend rm_x=1", "there are long, short"),
    ("%undo", "no turn yet"),
    ("%retry", "no turn yet"),
    ("%edit", "no turn yet"),
    ("%edit ² x", "no turn yet"),
    ("%back 7", "no turn 7"),
    ("%pick 1", "no turn yet"),
    ("%pick", "no turn yet"),
    ("%why 1", "no turn yet"),
    ("%blind maybe", "needed on or off"),
    ("%table colours", "needed scores, ranks, z"),
    ("%load", "%load PATH"),
    ("%load /nowhere/x.jsonl", "no session loads"),
    ("%save /proc/none/x.jsonl", "cannot be written"),
    ("%export", "%export prefs PATH"),
    ("%export prefs /tmp/never.jsonl", "nothing to export"),
    ("%pik 3", "did you mean %pick?"),
    ("%", "no command %"),
    ("", "empty line"),
])  # fmt: skip
def test_a_wrong_word_is_answered_with_what_is_needed(talk: Talk, line: str, says: str) -> None:
    assert says in fails(talk, line)
    assert does(talk, "hello").exchange.id == 1


def test_branches(talk: Talk) -> None:
    for line in ("one", "two", "three"):
        does(talk, line)
    assert len(does(talk, "%more 4").exchange.candidates) == 8
    assert does(talk, "%undo").text.splitlines()[:2] == ["one turn back; turns 1 > 2", "you: two"]
    assert does(talk, "%edit 1 eins").exchange.user == "eins"
    assert does(talk, "%edit zwei words").exchange.user == "zwei words"
    assert "turns 1 > 2 > 3" in does(talk, "%back 3").text
    assert "the beginning" in does(talk, "%back 0").text
    assert "%edit 2 NEW TEXT; turn 2 is: two" in fails(talk, "%edit 2")


def test_what_a_person_decides(talk: Talk, tmp_path: Path) -> None:
    does(talk, "one")
    assert does(talk, "%pick 3").exchange.chosen == 2
    does(talk, "two")
    assert does(talk, "%write is that so?").exchange.reply == "is that so?"
    does(talk, "three")
    assert does(talk, "%tie 1 2").exchange.tied == [0, 1]
    assert "%retry" in does(talk, "%reject").text
    assert "4 turns" not in does(talk, "%status").text
    said = does(talk, f"%export prefs {tmp_path / 'prefs.jsonl'}").text
    assert "7 preferences from 3 decisions (0 ties and 1 rejections give none)" in said
    assert len((tmp_path / "prefs.jsonl").read_text().splitlines()) == 7


def test_blind_hides_scores_from_every_command_until_the_person_has_decided(talk: Talk) -> None:
    does(talk, "%blind on")
    shown = does(talk, "hello")
    numbers = {str(abs(score)) for column in shown.exchange.columns.values() for score in column}
    said = [does(talk, line).text for line in ("%status", "%table ranks", "%help", "%persona", "%best_of", "%select")]
    assert not [n for n in numbers if re.search(rf"\b{re.escape(n)}\b", " ".join(said))]
    for line in ("%why 1", "%agree", "next"):
        assert "not decided" in fails(talk, line)
    assert does(talk, "%pick 2").is_turn, "its replies come to light now"
    assert not does(talk, "%pick 1").is_turn
    assert "change" in does(talk, "%why 1").text
    does(talk, "once more")
    revealed = does(talk, "%blind off")
    assert revealed.is_turn, "a program is told too"
    assert revealed.exchange.reply


def test_views_agreement_and_why(talk: Talk) -> None:
    does(talk, "hello")
    does(talk, "%table z")
    assert talk.view == "z"
    does(talk, "%pick 1")
    said = does(talk, "%agree").text
    assert "long and short: order 0% of" in said
    assert re.search(r"long and you: .* in [01] of 1 turns", said)
    length = len(talk.session.last.candidates[1].text)
    assert f"long: {length}.0000, an empty reply 0.0000, change +{length}.0000" in does(talk, "%why 2").text


def test_a_scorer_that_had_no_opinion_of_a_pick_is_not_counted_with_it(talk: Talk) -> None:
    def breaks(conversations, replies):
        raise RuntimeError("out of order")

    for works in (False, True, True):
        talk.session.judges["short"] = FunctionScorer((lambda c, r: [-len(x) for x in r]) if works else breaks)
        does(talk, "hello")
        does(talk, "%pick 1")
    said = does(talk, "%agree").text
    assert re.search(r"short and you: .* in \d of 2 turns", said)
    assert re.search(r"long and you: .* in \d of 3 turns", said)


def test_save_and_load_bring_a_session_back(talk: Talk, tmp_path: Path) -> None:
    does(talk, "one")
    does(talk, "two")
    does(talk, f"%save '{tmp_path}/kept one.jsonl'")
    does(talk, "%back 0")
    does(talk, "other")
    assert does(talk, f"%load {tmp_path}/kept one.jsonl").text.startswith("2 turns; turns 1 > 2")
    with (tmp_path / "kept one.jsonl").open("a") as file:
        file.write('{"kind": "turn", "turn": 3')
    assert "line(s) 5 could not be read" in does(talk, f"%load {tmp_path}/kept one.jsonl").text


def test_save_overwrites_its_own_session_and_nothing_else(talk: Talk, tmp_path: Path) -> None:
    does(talk, "one")
    does(talk, f"%save {tmp_path}/kept.jsonl")
    does(talk, "two")
    assert "saved" in does(talk, f"%save {tmp_path}/kept.jsonl").text
    mine = tmp_path / "thesis.tex"
    mine.write_text("ten years of work")
    assert "nothing is overwritten" in fails(talk, f"%save {mine}")
    assert mine.read_text() == "ten years of work"


def test_tab_completes_commands_scorers_settings_and_numbers(talk: Talk, tmp_path: Path) -> None:
    does(talk, "hello")
    assert complete(talk, "%be") == ["%best_of"]
    assert complete(talk, "%select ") == ["long", "short"]
    assert complete(talk, "%select s") == ["short"]
    assert complete(talk, "%blend long=1 sh") == ["short="]
    assert complete(talk, "%set temp") == ["temperature="]
    assert complete(talk, "%pick ") == ["1", "2", "3", "4"]
    assert complete(talk, "%blind o") == ["on", "off"]
    assert complete(talk, "%export p") == ["prefs"]
    assert complete(talk, f"%load {talk.session.path.parent}") == [f"{talk.session.path.parent}/"]
    assert complete(talk, f"%load {talk.session.path.parent}/") == [str(talk.session.path)]
    assert complete(talk, "%table r") == ["ranks"]
    assert complete(talk, "hello") == []
    assert complete(talk, "%nothing ") == []


def test_ctrl_c_stops_the_reply_and_an_unforeseen_error_is_answered(talk: Talk, monkeypatch) -> None:
    def raises(error):
        def reply(*arguments):
            raise error

        return reply

    monkeypatch.setattr(ScriptedGenerator, "reply", raises(KeyboardInterrupt()))
    assert "stopped" in fails(talk, "hello")
    monkeypatch.setattr(ScriptedGenerator, "reply", raises(MemoryError("too much")))
    assert "MemoryError: too much" in fails(talk, "hello")
    monkeypatch.undo()
    monkeypatch.setattr(ChatSession, "say", raises(ZeroDivisionError("a defect")))
    assert "ZeroDivisionError: a defect; the session goes on" in fails(talk, "hello")
    monkeypatch.undo()
    assert does(talk, "hello").exchange.id == 1


# --- IPython's cells


@pytest.mark.parametrize("line", [
    "hello", "how are you?", 'an "open quote', "it's (", "back\\", "exit()", "quit now", "import os", " %not a command",
    "%write is it?", "%pick 3", "x = 1", "# hash", "@you", ";", "'''", "def f():",
])  # fmt: skip
def test_a_typed_line_is_a_turn_or_a_command_word_for_word(line: str) -> None:
    [code] = transform([line + "\n"])
    said = []
    exec(code, {"_lmgym_say": said.append})
    assert said == [line]


@pytest.mark.parametrize("line", ["%timeit 1", "!ls", "?print", "%%time", "exit", "quit", " exit ", ""])
def test_magics_the_shell_help_and_leaving_stay_ipythons(line: str) -> None:
    assert not is_ours(line)
    assert "".join(transform([line + "\n"])).strip() == line.strip()


def test_a_line_behind_the_mark_is_python() -> None:
    assert transform(["> session.history[-1].df\n"]) == ["session.history[-1].df\n"]
    assert transform([">for x in y:\n", ">     print(x)\n"]) == ["for x in y:\n", "    print(x)\n"]
    assert transform([">>> 1 + 1\n"]) == [">>> 1 + 1\n"], "IPython knows what to do with pasted examples"


def test_what_a_running_cell_runs_is_no_turn() -> None:
    cells = Cells()
    said = cells.transform(["hello\n"])
    cells.begin(None)
    assert cells.transform(["1 + 1\n"]) == ["1 + 1\n"]
    cells.end(None)
    assert cells.transform(["hello\n"]) == said != ["hello\n"]


def test_records_are_plain_json_whatever_was_typed(talk: Talk) -> None:
    does(talk, "\x1b]0;title\x07 \u202e ok \udc80")
    lines = talk.session.path.read_bytes().splitlines()
    assert any("ok" in json.dumps(json.loads(line)) for line in lines)
    assert not [byte for line in lines for byte in line if byte < 0x20 or byte > 0x7E]
