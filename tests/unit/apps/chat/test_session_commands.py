"""The % commands: each does what its line of help says, and reports mistakes without raising."""

import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from lmgym.apps.chat.records import load
from lmgym.apps.chat.session import ChatSession
from lmgym.apps.chat.session_commands import COMMANDS, ChatView, Response, complete, next_commands, respond
from lmgym.generation.protocol import Sampling, ScriptedGenerator
from lmgym.scoring.scorers import FunctionScorer
from lmgym.text import Turn


@pytest.fixture
def chat(tmp_path: Path) -> ChatView:
    """A chat with two scorers that disagree."""
    generator = ScriptedGenerator(lambda conversation, rng: "x" * int(rng.integers(1, 1000)))
    long = FunctionScorer(lambda c, r: [len(x) for x in r])
    short = FunctionScorer(lambda c, r: [-len(x) for x in r])
    return ChatView(ChatSession(generator, {"long": long, "short": short}, "long", 4, folder=tmp_path / "sessions"))


def does(chat: ChatView, line: str) -> Response:
    shown = respond(chat, line)
    assert shown.ok, shown.text
    return shown


def fails(chat: ChatView, line: str) -> str:
    shown = respond(chat, line)
    assert not shown.ok
    assert "Traceback" not in shown.text
    return shown.text


def test_every_command_has_a_line_of_help(chat: ChatView) -> None:
    listed = does(chat, "%help").text
    assert max(map(len, listed.splitlines())) <= 80
    for name, command in COMMANDS.items():
        assert command.usage.startswith(f"%{name}")
        assert re.search(rf"^{re.escape(command.usage)} +{re.escape(command.help)}$", listed, re.MULTILINE)


def test_live_settings(chat: ChatView) -> None:
    assert does(chat, "%best_of 8").text == "8 replies per turn"
    does(chat, "%set temperature=0.9 top_p=.7 top_k=5 max_new_tokens=12 stop='\\n,User:' ends_at_eos=false")
    wanted = Sampling(12, 0.9, 5, 0.7, 1.0, ("\n", "User:"), False)
    assert chat.session.sampling == wanted
    assert len(does(chat, "hello").exchange.candidates) == 8
    assert does(chat, "%select short").text.startswith("short selects")
    hello = does(chat, "%retry").exchange
    assert len(hello.reply) == min(len(c.text) for c in hello.candidates)
    does(chat, "%blend long=1 short=.5")
    assert chat.session.weights == {"long": 1.0, "short": 0.5}
    does(chat, "%persona A very old cat.")
    assert does(chat, "on").exchange.prompt.persona == "A very old cat."
    assert does(chat, '%persona ""').text == "persona: (none)"
    assert does(chat, "%retry").exchange.prompt.persona == ""


def test_stop_strings_may_be_of_any_script(chat: ChatView) -> None:
    does(chat, r"%set stop='\n,é,。,👩,\\,\t'")
    assert chat.session.sampling.stop == ("\n", "é", "。", "👩", "\\", "\t")
    does(chat, "%set stop=")
    assert chat.session.sampling.stop == ()


@pytest.mark.parametrize(("line", "expected"), [
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
    ("%select rm_x", "available: long, short"),
    ("%blend long=nan", "needed a number"),
    ("%blend rm_x=1", "available: long, short"),
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
    ("%load /nowhere/x.jsonl", "cannot load a session"),
    ("%save /proc/none/x.jsonl", "cannot be written"),
    ("%export", "%export prefs PATH"),
    ("%export prefs /tmp/never.jsonl", "nothing to export"),
    ("%pik 3", "did you mean %pick?"),
    ("%", "unknown command %"),
    ("%scorers a=", "%scorers 'a=': needed [name=]PATH"),
    ("%scorers a b=./none", "scorer 'a b' of %scorers: needed a name of letters"),
    ("%scorers ./none", "scorer ./none does not exist"),
    ("%matplotlib inline", "a space before it makes it a message"),
])  # fmt: skip
def test_a_wrong_argument_is_answered_with_what_is_needed(chat: ChatView, line: str, expected: str) -> None:
    assert expected in fails(chat, line)
    assert does(chat, "hello").exchange.id == 1


def test_branches(chat: ChatView) -> None:
    for line in ("one", "two", "three"):
        does(chat, line)
    assert len(does(chat, "%more 4").exchange.candidates) == 8
    assert does(chat, "%undo").text.splitlines()[:2] == ["one turn back: at turn 2 (turns 1 > 2)", "you> two"]
    assert [turn.text for turn in does(chat, "%edit 1 eins").exchange.prompt.turns] == ["eins"]
    assert does(chat, "%edit zwei words").exchange.user == "zwei words"
    assert "turns 1 > 2 > 3" in does(chat, "%back 3").text
    assert does(chat, "%back 0").text == "at the beginning, before any turn"
    assert "%edit 2 NEW TEXT; turn 2 is: two" in fails(chat, "%edit 2")


def test_decisions_are_recorded_and_exported(chat: ChatView, tmp_path: Path) -> None:
    does(chat, "one")
    assert does(chat, "%pick 3").exchange.chosen == 2
    does(chat, "two")
    assert does(chat, "%write is that so?").exchange.reply == "is that so?"
    does(chat, "three")
    assert does(chat, "%tie 1 2").exchange.tied == [0, 1]
    assert "%retry" in does(chat, "%reject").text
    assert re.search(r"^turns +3 \(3 decided by you\); now at turn 3 ", does(chat, "%status").text, re.MULTILINE)
    output = does(chat, f"%export prefs {tmp_path / 'prefs.jsonl'}").text
    assert "7 preferences from 3 decisions, of which 1 (ties and rejections) give none" in output
    assert len((tmp_path / "prefs.jsonl").read_text().splitlines()) == 7


def test_history_shows_the_turns_of_this_branch_with_the_numbers_of_back(chat: ChatView) -> None:
    assert does(chat, "%history").text == "nothing was said yet"
    chat.session.opening = (Turn("bot", "welcome"),)
    lines = ("one", "%write first", "two", "%write second\nreply", "%retry", "%write other", "three", "%write third")
    for line in lines:
        does(chat, line)
    assert does(chat, "%history").text.splitlines() == [
        "        bot> welcome", "turn 1  you> one", "        bot> first",
        "turn 3  you> two", "        bot> other", "turn 4  you> three", "        bot> third",
        "turns on other branches: 2; %back N goes to turn N",
    ]  # fmt: skip
    does(chat, "%back 2")
    assert does(chat, "%history").text.splitlines()[4] == "        bot> second reply"
    does(chat, "%blind on")
    does(chat, "four")
    assert "bot> (not decided)" in does(chat, "%history").text


def test_status_is_a_line_per_setting_and_model_in_words(chat: ChatView) -> None:
    revision = {"kind": "HFScorer", "model": "outputs/x/model", "commit": "abc", "weights": "123"}
    chat.session.about["models"] = {"generator": {"kind": "ScriptedGenerator"}, "long": revision}
    lines = does(chat, "%status").text.splitlines()
    assert "turns      0 (0 decided by you); now at the beginning, before any turn" in lines
    assert "generator  ScriptedGenerator" in lines
    assert "long       HFScorer outputs/x/model, commit abc, weights 123" in lines
    assert not re.search("[{}]", "".join(lines))


def test_only_new_rows_are_shown_again(chat: ChatView) -> None:
    new = does(chat, "hello")
    assert new.first == 0
    assert (added := does(chat, "%more 2")).first == 4
    for line in ("%pick 2", "%write mine", "%tie 1 2", "%reject"):
        shown = does(chat, line)
        assert (shown.first, len(shown.text.splitlines())) == (len(added.exchange.candidates), 1), line
    does(chat, "next")
    does(chat, "%back 1")
    assert does(chat, "%more 2").first == 0, "a new branch, maybe far from its rows on the screen"
    does(chat, "%table z")
    assert does(chat, "%more 2").first == 0, "standardised scores of all change"
    assert does(chat, "%table scores").first == 0
    does(chat, "%blind on")
    does(chat, "once more")
    assert does(chat, "%more 2").first == 0, "all are shuffled"
    assert does(chat, "%pick 2").first == 0, "scores are revealed"


def test_an_export_of_one_prompt_asks_for_a_second_and_says_how_many_decisions_it_takes(
    chat: ChatView, tmp_path: Path
) -> None:
    does(chat, "one")
    does(chat, "%pick 3")
    exported = does(chat, f"%export prefs {tmp_path / 'prefs.jsonl'}")
    assert "\n1 decision: too few to train on; collect about 100 (a rule of thumb" in exported.text
    assert "decide about a second message too: one is held out to evaluate on" in exported.text
    assert exported.commands == ()


def test_an_export_prints_a_command_that_trains_and_one_that_chats_with_the_result(
    chat: ChatView, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outputs/my prefs").mkdir(parents=True)
    for line in ("one", "%pick 3", "two", "%pick 1"):
        does(chat, line)
    chat.session.about["models"] = {"generator": {"kind": "LocalGenerator", "model": "outputs/my model"}}
    train, talk = map(shlex.split, does(chat, "%export prefs my prefs.jsonl").commands)
    lora = shlex.split("--lora_rank 16 --learning_rate 2e-4 --epochs 3 --global_batch 2 --micro_batch 2 --eval_size 1")
    files = ["--model", "outputs/my model", "--dataset", "my prefs.jsonl"]
    assert train == ["lmgym", "train", "reward", "hh_pairwise", *files, *lora, "--output", "outputs/my prefs_2"]
    new = ["--scorers", "my_prefs_2=outputs/my prefs_2/model", "--select_model", "my_prefs_2"]
    assert talk == ["lmgym", "chat", "outputs/my model", *new]


@pytest.mark.parametrize(("pairs", "batch"), [(9, 2), (39, 2), (40, 4), (100, 8), (159, 8), (500, 16)])
def test_the_batch_of_the_printed_command_fits_the_pairs(chat: ChatView, pairs: int, batch: int) -> None:
    [train] = next_commands(chat.session, "prefs.jsonl", pairs)
    assert f"--global_batch {batch} --micro_batch {min(8, batch)} " in train
    assert ("--eval_size 1" in train) == (pairs < 10)


def test_training_starts_from_the_scorer_that_selects_and_the_chat_compares_both(chat: ChatView) -> None:
    chat.session.judges["short"].model = SimpleNamespace(config=SimpleNamespace(num_labels=1))
    chat.session.judges["long"].model = SimpleNamespace(config=SimpleNamespace(num_labels=2))
    models = {name: {"kind": "HFScorer", "model": f"outputs/{name}"} for name in ("long", "short")}
    chat.session.about["models"] = {"generator": {"model": "policy"}, **models}
    assert "--model policy" in next_commands(chat.session, "p.jsonl", 50)[0], "a new head would replace two outputs"
    does(chat, "%select short")
    train, talk = next_commands(chat.session, "p.jsonl", 50)
    assert "--model outputs/short" in train
    assert talk == "lmgym chat policy --scorers short=outputs/short,p=outputs/p/model --select_model p"


def test_the_policy_of_a_server_is_no_model_to_train(chat: ChatView) -> None:
    chat.session.about["models"] = {"generator": {"model": "gpt", "server": "http://127.0.0.1:1"}}
    [train] = next_commands(chat.session, "p.jsonl", 50)
    assert "--model" not in train


def test_an_empty_line_is_ignored(chat: ChatView) -> None:
    for line in ("", "  ", "\n", " \t "):
        assert does(chat, line) == Response()
    assert chat.session.exchanges == {}


def test_a_first_message_begins_the_next_conversation_and_is_read_back(chat: ChatView) -> None:
    assert does(chat, "%first_message").text == "first message: (none)"
    assert does(chat, "%first_message Hello, I am Rex.").text == "first message: Hello, I am Rex."
    does(chat, "hi")
    assert "it begins the next conversation: %back 0" in does(chat, "%first_message What now?").text
    does(chat, "still the first")
    assert does(chat, "%history").text.splitlines()[0].strip() == "bot> Hello, I am Rex."
    does(chat, "%back 0")
    assert does(chat, "%history").text.splitlines()[0].strip() == "bot> What now?"
    does(chat, "second")
    does(chat, '%first_message ""')
    does(chat, "%back 0")
    does(chat, "third")
    firsts = [exchange.prompt.turns[0].text for exchange in chat.session.exchanges.values()]
    assert firsts == ["Hello, I am Rex.", "Hello, I am Rex.", "What now?", "third"]
    loaded = load(chat.session.path)
    assert loaded.exchanges == chat.session.exchanges
    assert (loaded.corrupt, loaded.orphans, loaded.opening.turns) == ([], [], ())


def test_scorers_are_added_replaced_and_removed_from_the_next_turn_on(
    chat: ChatView, scorer_folders: dict[str, Path]
) -> None:
    does(chat, "hello")
    assert does(chat, "%scorers").text == "long selects from the next turn on; scorers: long, short"
    assert "scorers: long, short, llama" in does(chat, f"%scorers {scorer_folders['llama']}").text
    assert does(chat, "%more 1").first == 0, "earlier replies have a score that is not on the screen"
    assert list(does(chat, "again").exchange.columns) == ["long", "short", "llama"]
    assert does(chat, f"%scorers short={scorer_folders['gpt2']}").text.endswith("long, short, llama")
    assert chat.session.about["models"]["short"]["kind"] == "HFScorer"
    assert does(chat, '%scorers ""').text.startswith("no scorers: the first reply is taken")
    alone = does(chat, "and now").exchange
    assert (alone.columns, alone.chosen, alone.selected_by) == ({}, 0, "nobody")
    assert does(chat, "%pick 2").exchange.chosen == 1
    assert "short selects" in does(chat, f"%scorers short={scorer_folders['gpt2']}").text
    assert does(chat, "more").exchange.selected_by == "short"
    assert load(chat.session.path).exchanges == chat.session.exchanges


def test_blind_mode_hides_scores_from_every_command_until_the_user_decides(chat: ChatView) -> None:
    does(chat, "%blind on")
    shown = does(chat, "hello")
    numbers = {str(abs(score)) for column in shown.exchange.columns.values() for score in column}
    output = [
        does(chat, line).text
        for line in ("%status", "%history", "%table ranks", "%help", "%persona", "%best_of", "%select")
    ]
    assert not [n for n in numbers if re.search(rf"\b{re.escape(n)}\b", " ".join(output))]
    for line in ("%why 1", "%agree", "next"):
        assert "not decided" in fails(chat, line)
    assert does(chat, "%pick 2").is_turn, "its scores are revealed now"
    assert not does(chat, "%pick 1").is_turn
    assert "difference" in does(chat, "%why 1").text
    does(chat, "once more")
    revealed = does(chat, "%blind off")
    assert revealed.is_turn, "a program receives it too"
    assert revealed.exchange.reply
    assert revealed.exchange.scores_visible


def test_views_agreement_and_why(chat: ChatView) -> None:
    does(chat, "hello")
    does(chat, "%table z")
    assert chat.view == "z"
    does(chat, "%pick 1")
    output = does(chat, "%agree").text
    assert "long and short: same order in 0% of" in output
    assert re.search(r"long and you: .* in [01] of 1 turns", output)
    length = len(chat.session.last.candidates[1].text)
    assert f"long: {length}.0000; of an empty reply 0.0000; difference +{length}.0000" in does(chat, "%why 2").text


def test_a_pick_without_a_score_does_not_count_for_that_scorer(chat: ChatView) -> None:
    def breaks(conversations, replies):
        raise RuntimeError("out of order")

    for works in (False, True, True):
        chat.session.judges["short"] = FunctionScorer((lambda c, r: [-len(x) for x in r]) if works else breaks)
        does(chat, "hello")
        does(chat, "%pick 1")
    output = does(chat, "%agree").text
    assert re.search(r"short and you: .* in \d of 2 turns", output)
    assert re.search(r"long and you: .* in \d of 3 turns", output)


def test_a_saved_session_loads(chat: ChatView, tmp_path: Path) -> None:
    does(chat, "one")
    does(chat, "two")
    does(chat, f"%save '{tmp_path}/kept one.jsonl'")
    does(chat, "%back 0")
    does(chat, "other")
    assert does(chat, f"%load {tmp_path}/kept one.jsonl").text.startswith("2 turns loaded; at turn 2 (turns 1 > 2)")
    with (tmp_path / "kept one.jsonl").open("a") as file:
        file.write('{"kind": "turn", "turn": 3')
    assert "line(s) 5 could not be read" in does(chat, f"%load {tmp_path}/kept one.jsonl").text


def test_save_overwrites_its_own_session_and_nothing_else(chat: ChatView, tmp_path: Path) -> None:
    does(chat, "one")
    does(chat, f"%save {tmp_path}/kept.jsonl")
    does(chat, "two")
    assert "saved" in does(chat, f"%save {tmp_path}/kept.jsonl").text
    mine = tmp_path / "thesis.tex"
    mine.write_text("ten years of work")
    assert "nothing is overwritten" in fails(chat, f"%save {mine}")
    assert mine.read_text() == "ten years of work"


def test_tab_completes_commands_scorers_settings_and_numbers(chat: ChatView, tmp_path: Path) -> None:
    does(chat, "hello")
    assert complete(chat, "%be") == ["%best_of"]
    assert complete(chat, "%select ") == ["long", "short"]
    assert complete(chat, "%select s") == ["short"]
    assert complete(chat, "%blend long=1 sh") == ["short="]
    assert complete(chat, "%set temp") == ["temperature="]
    assert complete(chat, "%pick ") == ["1", "2", "3", "4"]
    assert complete(chat, "%blind o") == ["on", "off"]
    assert complete(chat, "%export p") == ["prefs"]
    assert complete(chat, f"%load {chat.session.path.parent}") == [f"{chat.session.path.parent}/"]
    assert complete(chat, f"%load {chat.session.path.parent}/") == [str(chat.session.path)]
    assert complete(chat, "%table r") == ["ranks"]
    assert complete(chat, "hello") == []
    assert complete(chat, "%nothing ") == []


def test_ctrl_c_stops_the_reply_and_an_unexpected_error_is_reported(chat: ChatView, monkeypatch) -> None:
    def raises(error):
        def reply(*arguments):
            raise error

        return reply

    monkeypatch.setattr(ScriptedGenerator, "reply", raises(KeyboardInterrupt()))
    assert "stopped" in fails(chat, "hello")
    monkeypatch.setattr(ScriptedGenerator, "reply", raises(MemoryError("too much")))
    assert "MemoryError: too much" in fails(chat, "hello")
    monkeypatch.undo()
    monkeypatch.setattr(ChatSession, "say", raises(ZeroDivisionError("a defect")))
    assert "ZeroDivisionError: a defect; the session continues" in fails(chat, "hello")
    monkeypatch.undo()
    assert does(chat, "hello").exchange.id == 1


def test_records_are_plain_json_whatever_was_typed(chat: ChatView) -> None:
    does(chat, "\x1b]0;title\x07 \u202e ok \udc80")
    lines = chat.session.path.read_bytes().splitlines()
    assert any("ok" in json.dumps(json.loads(line)) for line in lines)
    assert not [byte for line in lines for byte in line if byte < 0x20 or byte > 0x7E]
