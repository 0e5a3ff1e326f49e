"""The screen: no control characters, a column per scorer, and omitted columns on a narrow screen."""

import io
import re
import threading
from dataclasses import replace

import pytest
from attacks import ATTACKS, drives
from patience import wait_until
from rich.cells import cell_len

from lmgym.apps.chat import screen
from lmgym.apps.chat.actions import ChatView, Response
from lmgym.apps.chat.exchanges import Candidate, Exchange
from lmgym.apps.chat.pipe_frontend import as_object, json_line
from lmgym.apps.chat.screen import make_console, progress_on, show
from lmgym.console import CleanConsole, replace_unencodable
from lmgym.generation.protocol import Sampling
from lmgym.scoring.ranking import ranks
from lmgym.text import Conversation, Turn


def exchange_of(*texts: str, names=("rm_a", "rm_b"), selected: int | None = 0, **settings) -> Exchange:
    scores = [{name: float((i * 7 + j * 3) % 5) for j, name in enumerate(names)} for i in range(len(texts))]
    candidates = [Candidate(text, 3, "eos", 0, score) for text, score in zip(texts, scores, strict=True)]
    prompt = Conversation((Turn("user", "hello"),))
    return Exchange(1, None, prompt, candidates, 0, {}, selected, names[0], **settings)


class FakeSession:
    weights = {"rm_a": 1.0}  # noqa: RUF012
    sampling = Sampling(max_new_tokens=64)


def shown(
    exchange: Exchange,
    width: int = 100,
    view: str = "scores",
    colour: bool = False,
    session=FakeSession,
    first: int = 0,
) -> str:
    out = io.StringIO()
    console = make_console(out, width)
    if colour:
        console = CleanConsole(width, out, "standard", force_terminal=True)
    show(console, ChatView(session(), view), Response(exchange=exchange, first=first))
    return out.getvalue()


def legend(text: str) -> str:
    """The line after the table."""
    lines = text.splitlines()
    [end] = [i for i, line in enumerate(lines) if line.startswith("└")]
    return lines[end + 1].rstrip()


def row(text: str, number: int) -> list[str]:
    [line] = [line for line in text.splitlines() if re.match(rf"│ +>?{number} │", line)]
    return [cell.strip() for cell in line.strip("│").split("│")]


def test_the_table_has_a_column_per_scorer_and_marks_the_chosen_row() -> None:
    text = shown(exchange_of("first", "second", "third", selected=2))
    assert re.search(r"reply +┃ rm_a \* +┃ rm_b +┃ tokens ┃ end", text)
    assert row(text, 1) == ["1", "first", "0.000 ▏", "3.000 ████", "3", "eos"]
    assert row(text, 3) == [">3", "third", "4.000 ████", "2.000 ██▊", "3", "eos"]
    assert text.rstrip().endswith("bot> third")


def test_bars_tell_close_scores_apart_and_need_scores_that_differ() -> None:
    exchange = exchange_of("first", "second", "third", "fourth")
    for candidate, score in zip(exchange.candidates, (0.634, 0.631, 0.643, None), strict=True):
        candidate.scores.update(rm_a=score, rm_b=0.5)
    assert [row(shown(exchange), n)[2] for n in (1, 2, 3, 4)] == ["0.634 █▏", "0.631 ▏", "0.643 ████", "failed"]
    assert [row(shown(exchange), n)[3] for n in (1, 2, 3, 4)] == ["0.500"] * 4
    assert row(shown(exchange, width=160), 3)[2] == "0.643 ████████"


def test_bars_are_left_out_where_a_scorer_would_lose_its_column_and_without_unicode() -> None:
    exchange = exchange_of("first", "second", names=("rm_a", "rm_b", "rm_c", "rm_d"))
    assert "█" in shown(exchange, width=100)
    narrow = shown(exchange, width=72)
    assert "█" not in narrow
    assert "rm_d" in narrow
    assert "bar:" not in narrow
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    show(make_console(stream, 100), ChatView(FakeSession()), Response(exchange=exchange))
    stream.flush()
    assert b"0.000" in stream.buffer.getvalue()


def test_the_legend_explains_what_is_in_the_table_and_nothing_else() -> None:
    exchange = exchange_of("first", "second", "third")
    assert legend(shown(exchange)) == "> chosen  * selects  bar: worst to best"
    assert legend(shown(exchange, view="ranks")) == "> chosen  * selects  1: best"
    assert legend(shown(exchange, view="z")) == "> chosen  * selects  z: deviations from the mean  bar: worst to best"
    coloured = re.sub(r"\x1b\[[0-9;]*m", "", shown(exchange, colour=True))
    assert legend(coloured) == "> chosen  * selects  bar: worst to best  green: best  magenta: scorers disagree"
    assert max(len(line) for line in coloured.splitlines()) < 80
    exchange.edited_text = "mine"
    assert legend(shown(exchange)) == "* selects  bar: worst to best"


def test_rows_that_are_on_the_screen_are_not_drawn_again() -> None:
    exchange = exchange_of("first", "second", "third", "fourth", selected=3)
    exchange.notes.append("NOT RECORDED")
    text = shown(exchange, first=2)
    assert "turn 1, 2 more replies" in text
    assert re.findall(r"^│ +>?(\d) │", text, re.MULTILINE) == ["3", "4"]
    assert row(text, 4)[2] == row(shown(exchange), 4)[2], "bars are of all replies of the turn"
    assert text.endswith("bot> fourth\n")
    exchange.human_pick = 0
    assert legend(shown(exchange, first=2)) == "* selects  bar: worst to best", "the chosen reply is further up"
    assert shown(exchange, first=4) == "note: NOT RECORDED\n"


def test_ranks_and_standardised_scores() -> None:
    exchange = exchange_of("first", "second", "third")  # rm_a 0 2 4, rm_b 3 0 2
    assert row(shown(exchange, view="ranks"), 3)[2:4] == ["1", "2"]
    assert row(shown(exchange, view="z"), 1)[2:4] == ["-1.22 ▏", "+1.07 ████"]


def test_identical_replies_are_separate_rows() -> None:
    assert row(shown(exchange_of("same", "same")), 2)[1] == "same"


def test_an_open_turn_shows_no_score_no_mark_and_no_reply() -> None:
    text = shown(exchange_of("first", "second", selected=None))
    assert "rm_a" not in text
    assert ">" not in text
    assert "chosen" not in text
    assert "bot>" not in text
    assert "%pick N" in text


def test_a_scorer_that_failed_says_so_in_its_column() -> None:
    exchange = exchange_of("first", "second")
    for candidate in exchange.candidates:
        candidate.scores["rm_b"] = None
    exchange.notes.append("rm_b failed: RuntimeError: \x1b[31mboom")
    text = shown(exchange)
    assert row(text, 1)[3] == "failed"
    assert "rm_b failed: RuntimeError: ␛[31mboom" in text


def test_a_narrow_screen_omits_columns_names_their_scorers_and_keeps_the_selecting_one() -> None:
    names = tuple(f"rm_{letter}" for letter in "bcdefgha")
    text = shown(exchange_of("a reply of some length, which needs room", "b", names=names), width=60)
    assert max(map(len, text.splitlines())) <= 60
    assert "rm_a" in text.splitlines()[2]
    assert "rm_h" not in text.splitlines()[2]
    assert re.search(r"too narrow for .*rm_h", text, re.DOTALL)


class Blend:
    weights = {f"rm_{letter}": 1.0 for letter in "abcdefgh"}  # noqa: RUF012
    sampling = FakeSession.sampling


@pytest.mark.parametrize("width", [14, 20, 30, 40, 80, 200])
@pytest.mark.parametrize("deciding", [FakeSession, Blend])
def test_on_the_narrowest_screen_numbers_and_replies_remain_and_lines_fit(width: int, deciding) -> None:
    texts = (
        "a reply",
        "日本語のテスト" * 9,
        "👩‍👧 👨‍👩‍👧‍👦 🇩🇪" * 5,
        "e\u0301" * 70,
        "x" * 300,
        "שלום " * 20,
        "a\tb\x1b[31m" * 10,
    )
    exchange = exchange_of(*texts, names=tuple(f"rm_{letter}" for letter in "abcdefgh"))
    text = shown(exchange, width, session=deciding)
    assert max(cell_len(line) for line in text.splitlines()) <= width
    numbers = re.findall(r"^│ +>?(\d) │", text, re.MULTILINE)
    assert numbers == [str(i + 1) for i in range(len(texts))]
    assert re.search(r"│ +>1 │ a ", text)


def test_a_turn_of_many_replies_is_ranked_once_and_not_per_row(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(screen, "ranks", lambda scores: asked.append(len(scores)) or ranks(scores))
    text = shown(exchange_of(*map(str, range(200))), 100)
    assert "│  200 │" in text
    assert len(asked) <= 2 * 2


def test_without_room_for_the_column_of_ends_a_note_lists_the_replies_that_were_cut_off() -> None:
    exchange = exchange_of("first", "second", "third")
    exchange.candidates[1:] = [replace(c, finish_reason="length") for c in exchange.candidates[1:]]
    narrow = " ".join(shown(exchange, width=50).split())
    assert "note: cut off at max_new_tokens: replies 2, 3; %set max_new_tokens=128 allows longer ones" in narrow
    assert "cut off" not in shown(exchange, width=100)
    assert row(shown(exchange, width=100), 2)[-1] == "length"


def test_token_counts_that_a_server_did_not_give_are_shown_as_unknown() -> None:
    exchange = exchange_of("first", "")
    exchange.candidates = [replace(c, tokens=0) for c in exchange.candidates]
    assert row(shown(exchange), 1)[4] == "?"
    assert row(shown(exchange), 2)[1:5:3] == ["(empty)", "0"]


def test_an_error_of_any_length_leaves_the_screen_readable() -> None:
    out = io.StringIO()
    show(make_console(out, 80), ChatView(FakeSession()), Response("error: " + "x\n" * 50_000, ok=False))
    assert len(out.getvalue()) < 5000
    assert "(100,006 characters)" in out.getvalue()


def test_a_stream_that_lacks_a_character_shows_a_question_mark() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    replace_unencodable(stream, io.StringIO())
    stream.write("caf\xe9 日本")
    stream.flush()
    assert stream.buffer.getvalue() == b"caf? ??"


def test_disagreement_is_coloured_and_agreement_is_not() -> None:
    disagree = exchange_of("first", "second", "third", "fourth")
    for i, candidate in enumerate(disagree.candidates):
        candidate.scores.update(rm_a=float(i), rm_b=float(-i))
    assert "\x1b[35m" in shown(disagree, colour=True) or ";35m" in shown(disagree, colour=True)
    for i, candidate in enumerate(disagree.candidates):
        candidate.scores.update(rm_b=float(i))
    assert "35m" not in shown(disagree, colour=True)


@pytest.mark.parametrize("name", ATTACKS)
def test_a_hostile_reply_stays_within_its_cell(name: str) -> None:
    exchange = exchange_of(ATTACKS[name], "[bold]markup[/bold] :smile:", ATTACKS[name] + "\nbot> fake\nyou> fake")
    exchange.selected = 2
    text = shown(exchange)
    assert drives(text) == []
    assert "[bold]markup[/bold] :smile:" in text
    assert not re.search(r"^you> fake", text, re.MULTILINE)
    assert len(re.findall(r"^bot> ", text, re.MULTILINE)) == 1


def test_a_very_long_reply_is_cut_on_the_screen_and_says_by_how_much() -> None:
    text = shown(exchange_of("x" * 100_000))
    assert len(text) < 20_000
    assert "and 98,000 more characters" in text


def test_every_further_line_of_the_reply_is_indented_also_where_it_wraps() -> None:
    text = shown(exchange_of("one " * 40 + "\n\nyou> two"), width=80)
    _, _, reply = text.partition("\nbot> ")
    first, *further = reply.splitlines()
    assert first.startswith("one one")
    assert further[-1] == "     you> two"
    assert all(line.startswith("     one") for line in further[:-2])
    assert max(map(len, reply.splitlines())) <= 80


def test_an_object_for_programs_has_these_fields_and_no_control_byte() -> None:
    exchange = exchange_of("".join(ATTACKS.values()), "b", selected=1)
    line = json_line(as_object(exchange))
    assert drives(line) == []
    assert line.isascii()
    found = as_object(exchange)
    assert set(found) == {"turn", "user", "reply", "selected", "candidates"}
    assert set(found["candidates"][0]) == {"text", "scores", "ranks", "tokens", "finish_reason"}
    assert found["candidates"][found["selected"]]["text"] == found["reply"]
    assert found["candidates"][1]["ranks"] == {"rm_a": 1, "rm_b": 2}
    exchange.selected = None
    hidden = as_object(exchange)
    assert (hidden["reply"], hidden["selected"]) == (None, None)
    assert [(c["scores"], c["ranks"]) for c in hidden["candidates"]] == [({}, {})] * 2


class TerminalFile(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_appears_after_a_delay_counts_seconds_and_is_erased(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "UPDATE_SECONDS", 0.01)
    out = TerminalFile()
    with progress_on(out) as update:
        update(5, 64)
    assert out.getvalue() == "", "half a second is not over"
    monkeypatch.setattr(screen, "DELAY_SECONDS", 0.0)
    with progress_on(out) as update:
        wait_until(lambda: "\r0 s; Ctrl-C stops it" in out.getvalue(), seconds=60)
        update(5, 64)
        wait_until(lambda: "5 of at most 64, 1 s" in out.getvalue(), seconds=60)
    assert re.search(r"\r +\r$", out.getvalue())
    assert not [t for t in threading.enumerate() if t.name == "progress"]
    with progress_on(io.StringIO()) as update:
        assert update is None


def test_the_thought_of_the_chosen_reply_stands_above_it_and_is_cropped() -> None:
    said = exchange_of("four", "five", selected=1)
    said.candidates[1] = replace(said.candidates[1], thought="2 and 2\nmake " + "x" * 600)
    lines = shown(said).splitlines()
    [first] = [i for i, line in enumerate(lines) if line.startswith("thought> 2 and 2")]
    assert lines[first + 1].startswith(" " * len("thought> ") + "make")
    assert any("… and 113 more characters" in line for line in lines[first:])
    assert lines[-1] == "bot> five"
    assert "thought>" not in shown(replace(said, selected=0)), "the other reply has none"
