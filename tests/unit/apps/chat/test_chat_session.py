"""The session without a screen: turns, branches, decisions and failures."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from lmgym.apps.chat.records import load
from lmgym.apps.chat.session import ChatSession
from lmgym.errors import InputError
from lmgym.generation.context_fitting import PersonaGenerator, fit
from lmgym.generation.protocol import Completion, Sampling, ScriptedGenerator
from lmgym.scoring.random_scorer import RandomScorer
from lmgym.scoring.scorers import FunctionScorer
from lmgym.text import Conversation, Turn

LENGTH = FunctionScorer(lambda conversations, replies: [len(r) for r in replies])
SHORT = FunctionScorer(lambda conversations, replies: [-len(r) for r in replies])


class InTurn:
    """Replies from a list, one after the other, and records requests."""

    def __init__(self, *texts: str) -> None:
        self.texts, self.asked = texts, []
        self.capabilities = None

    def reply(self, conversations, n, sampling, progress=None):
        self.asked.append((conversations[0], n, sampling))
        return [[Completion(self.texts[i % len(self.texts)], "eos", tokens=1) for i in range(n)]]


@pytest.fixture
def make(tmp_path: Path):
    """Sessions with a scorer that prefers long replies and one that prefers short ones, in the test's folder."""

    def session(generator=None, judges=None, select="long", best_of=3, **settings) -> ChatSession:
        judges = {"long": LENGTH, "short": SHORT} if judges is None else judges
        generator = generator or InTurn("a", "ccc", "bb")
        return ChatSession(generator, judges, select, best_of, folder=tmp_path / "sessions", **settings)

    return session


# --- turns


def test_a_turn_is_generated_scored_selected_and_added_to_the_history(make) -> None:
    generator = InTurn("a", "ccc", "bb")
    session = make(generator, persona="A cat.", first_message="meow")
    exchange = session.say("hello")
    assert exchange.reply == "ccc"
    assert (exchange.selected, exchange.selected_by) == (1, "long")
    assert exchange.columns == {"long": [1.0, 3.0, 2.0], "short": [-1.0, -3.0, -2.0]}
    assert session.history == [exchange]
    session.say("more")
    conversation, n, _ = generator.asked[1]
    expected = [("bot", "meow"), ("user", "hello"), ("bot", "ccc"), ("user", "more")]
    assert [(t.speaker, t.text) for t in conversation.turns] == expected
    assert (conversation.persona, n) == ("A cat.", 3)


def test_the_dataframe_of_a_turn_has_a_row_per_candidate_also_for_identical_ones(make) -> None:
    exchange = make(InTurn("same", "same", "x")).say("hello")
    df = exchange.df
    assert list(df.index) == [1, 2, 3]
    assert df.text.tolist() == ["same", "same", "x"]
    assert df.long.tolist() == [4.0, 4.0, 1.0]
    assert df.rank_long.tolist() == [1, 1, 3]
    assert df.chosen.tolist() == [True, False, False]


def test_the_dataframe_replaces_control_characters_and_the_candidates_keep_them(make) -> None:
    exchange = make(InTurn("a\x1b[31mb")).say("hello")
    assert exchange.df.text[1] == "a␛[31mb"
    assert exchange.candidates[0].text == "a\x1b[31mb"
    assert "\x1b" not in repr(exchange)


def test_each_request_has_its_own_seed_and_a_repeated_session_gives_the_same_replies(make) -> None:
    script = ScriptedGenerator(lambda conversation, rng: f"{rng.integers(10**9)}")

    def texts() -> list[str]:
        session = make(script)
        turns = [session.say("a"), session.retry(), session.more(2), session.say("b")]
        return [c.text for turn in turns for c in turn.candidates]

    first = texts()
    assert first == texts()
    assert len(set(first)) == 3 + 3 + 2 + 3  # `more` keeps the three that there were


# --- branches


def test_more_adds_candidates_and_selects_again_unless_the_user_has_decided(make) -> None:
    generator = InTurn("a", "ccc", "bb")
    session = make(generator)
    session.say("hello")
    generator.texts = ("dddd",)
    assert session.more(2).reply == "dddd"
    assert len(session.last.candidates) == 5
    session.pick(1)
    generator.texts = ("eeeeee",)
    assert session.more(1).reply == "a"


# --- the person decides


def test_a_pick_and_a_written_reply_replace_the_scorers_choice(make) -> None:
    session = make()
    session.say("hello")
    assert session.pick(3).reply == "bb"
    assert session.write(" my own ").reply == "my own"
    assert session.last.human_pick == "written"
    session.say("and")
    assert session.last.prompt.turns[1].text == "my own"
    assert session.tie(1, 3).tied == [0, 2]
    assert session.last.reply == "ccc"
    assert session.reject().human_pick == "rejected"
    assert session.last.tied == []


@pytest.mark.parametrize("number", [0, 4, -1])
def test_a_candidate_that_does_not_exist_is_refused(make, number: int) -> None:
    session = make()
    session.say("hello")
    with pytest.raises(InputError, match="needed: 1 to 3"):
        session.pick(number)


def test_blind_mode_leaks_neither_scores_nor_order_until_the_user_decides(make) -> None:
    texts = [f"reply {i:02}" for i in range(30)]
    session = make(
        InTurn(*texts), {"secret": FunctionScorer(lambda c, r: [0.123456 + int(t[-2:]) for t in r])}, "secret"
    )
    session.best_of = 30
    session.set_blind(True)
    exchange = session.say("hello")
    shown = [c.text for c in exchange.candidates]
    assert sorted(shown) == texts
    assert shown != texts
    assert exchange.reply is None
    assert "123456" not in f"{session.history}{exchange.candidates}{exchange.df.to_string()}"
    assert set(exchange.df.columns) == {"text", "tokens", "finish_reason"}
    kept = json.loads(session.path.read_text().splitlines()[-1])
    assert kept["candidates"]["text"] == shown
    assert "123456" not in session.path.read_text(), "the file must not reveal scores"
    assert not {"selected", "selected_by", "reply", "human_pick"} & set(kept)
    with pytest.raises(InputError, match="not decided"):
        session.say("next")
    with pytest.raises(InputError, match="not decided"):
        _ = session.conversation
    picked = session.pick(shown.index("reply 07") + 1)
    assert (picked.reply, picked.scores_visible) == ("reply 07", False)
    assert picked.candidates[picked.selected].text == "reply 29"
    assert picked.column("secret")[picked.chosen] == pytest.approx(7.123456)
    assert session.pick(1).scores_visible, "the scores are visible at the second pick"


def test_an_open_blind_choice_from_a_file_is_scored_again(make, tmp_path: Path) -> None:
    session = make()
    session.set_blind(True)
    session.say("hello")
    session.save(tmp_path / "saved.jsonl")
    other = make()
    assert other.restore(tmp_path / "saved.jsonl") == []
    assert other.last.is_open
    texts = [c.text for c in other.last.candidates]
    assert sorted(texts) == ["a", "bb", "ccc"]
    picked = other.pick(texts.index("a") + 1)
    assert (picked.reply, picked.scores_visible) == ("a", False)
    assert picked.candidates[picked.selected].text == "ccc"
    assert other.path.read_text().count('"scores":{}') == 1, "the open turn, as it was loaded"


def test_blind_orders_do_not_repeat(make) -> None:
    def order() -> list[str]:
        session = make(InTurn(*map(str, range(20))), best_of=20)
        session.set_blind(True)
        return [c.text for c in session.say("hello").candidates]

    assert order() != order()


def test_more_candidates_are_visible_or_hidden_like_those_before(make) -> None:
    session = make()
    session.say("hello")
    session.set_blind(True)
    assert not session.more(2).is_open, "its scores were on the screen"
    assert session.pick(1).scores_visible
    session.say("next")
    assert session.more(2).is_open
    assert not session.pick(1).scores_visible


# --- what goes wrong


@pytest.mark.parametrize("line", ["", "   ", "\n", "\t"])
def test_an_empty_line_is_refused(make, line: str) -> None:
    session = make()
    with pytest.raises(InputError, match="empty line"):
        session.say(line)
    assert session.history == []


def test_a_message_of_100_000_characters_and_one_of_odd_bytes_are_turns(make) -> None:
    session = make()
    assert session.say("x" * 100_000).reply == "ccc"
    session.say("half \udc9b of a character\x00")
    assert session.last.user == "half ? of a character\x00"
    assert len(load(session.path).exchanges) == 2


def test_a_reply_with_a_lone_surrogate_is_scored_like_any_other(make) -> None:
    exchange = make(InTurn("half \udc9b of one "), {"random": RandomScorer()}, "random").say("hello")
    assert exchange.failed == {}
    assert exchange.reply == "half ? of one"


@pytest.mark.parametrize("n", [0, -1, 1_000_000])
def test_an_absurd_number_of_replies_is_refused(make, n: int) -> None:
    with pytest.raises(InputError, match=r"needed 1 to 1,024"):
        make(best_of=n)
    session = make()
    session.say("hello")
    with pytest.raises(InputError, match=r"needed 1 to 1,024"):
        session.more(n)


def failing(conversations, replies):
    raise RuntimeError("out of order")


@pytest.mark.parametrize("bad", [
    failing,
    lambda conversations, replies: [math.nan] * len(replies),
    lambda conversations, replies: [1.0],
])  # fmt: skip
def test_a_scorer_that_fails_is_named_and_the_others_still_score(make, bad) -> None:
    class Bad:
        def score(self, conversations, replies):
            return bad(conversations, replies)

    session = make(judges={"bad": Bad(), "long": LENGTH}, select="bad")
    exchange = session.say("hello")
    assert exchange.column("bad") == [None] * 3
    assert exchange.column("long") == [1.0, 3.0, 2.0]
    assert "bad" in exchange.failed
    assert (exchange.reply, exchange.selected_by) == ("ccc", "long")
    assert any("bad failed" in note for note in exchange.notes)
    assert session.say("on").reply == "ccc"
    assert load(session.path).exchanges[1].failed == exchange.failed


def test_a_generator_that_raises_leaves_the_session_and_its_file_as_they_were(make) -> None:
    generator = InTurn("a")
    session = make(generator)
    session.say("one")

    def dies(*arguments):
        raise ConnectionError("the server is gone\x1b[2J")

    works, generator.reply = generator.reply, dies
    with pytest.raises(InputError, match=r"the server is gone\\x1b"):
        session.say("two")
    assert len(session.history) == 1
    generator.reply = works
    session.say("three")
    loaded = load(session.path)
    assert [e.user for e in loaded.exchanges.values()] == ["one", "three"]
    assert loaded.corrupt == []


def test_a_failed_write_is_reported_and_the_session_continues(make) -> None:
    session = make()
    session.path.parent.mkdir()
    session.path.mkdir()  # also stops root
    exchange = session.say("hello")
    assert exchange.reply == "ccc"
    assert any("NOT RECORDED" in note for note in exchange.notes)


# --- the model's context


@pytest.fixture(scope="module")
def local(small_models: dict[str, Path]):
    """A small Llama that reads 256 tokens."""
    from lmgym.generation.local_generation import load_causal

    return load_causal(str(small_models["llama"]))


def test_the_oldest_turns_of_a_conversation_that_is_too_long_are_left_out_with_a_note(make, local) -> None:
    session = make(local, best_of=2, sampling=Sampling(max_new_tokens=8, seed=1), persona="A bot.")
    for _ in range(12):
        session.say("and i also want to talk about the soup that my brother makes on sundays.")
    last = session.last
    assert last.dropped_turns > 0
    assert any("oldest turns were left out" in note for note in last.notes)
    assert len(last.prompt.turns) == 23, "the transcript stays whole"
    kept, dropped, shortened = fit(local, last.prompt, session.sampling)
    assert shortened == 0
    assert kept.persona == "A bot."
    assert kept.turns == last.prompt.turns[dropped:]
    assert kept.turns[0].speaker == "user"
    assert fit(local, kept, session.sampling) == (kept, 0, 0)
    one_more = replace(kept, turns=last.prompt.turns[dropped - 2 :])
    assert fit(local, one_more, session.sampling)[1] == 2, "no more than needed"


def test_a_message_that_is_too_long_for_the_model_keeps_its_end_with_a_note(make, local) -> None:
    session = make(local, sampling=Sampling(max_new_tokens=8))
    session.say("hello")
    session.say("soup " * 20_000 + "please")
    assert any(
        re.search(r"at least the first [\d,]+ tokens of your message were left out", note)
        for note in session.last.notes
    )
    kept, _, shortened = fit(local, session.last.prompt, session.sampling)
    assert shortened > local.max_length
    assert kept.turns[-1].text.endswith("soup please")


def test_a_persona_that_is_too_long_for_the_model_is_refused_with_figures(make, local) -> None:
    session = make(local, sampling=Sampling(max_new_tokens=8), persona="soup " * 400)
    with pytest.raises(InputError, match=r"system message is too long: at least [\d,]+ tokens.*beside a reply of 8"):
        session.say("hello")
    assert session.history == []


def test_a_persona_is_formatted_for_the_model_and_its_format_counts(local) -> None:
    shaped = PersonaGenerator(local, "{persona}\n<START>" + " soup" * 100)
    chat = Conversation((Turn("user", "hi"),), "A {persona} of soup.")
    assert shaped.with_form(chat).persona.startswith("A {persona} of soup.\n<START>")
    long = replace(chat, turns=(Turn("user", "soup " * 300),))
    kept, of_shaped = (fit(one, long, Sampling(max_new_tokens=8))[0].turns[0].text for one in (local, shaped))
    assert len(kept) - len(of_shaped) > 90 * len("soup "), "the form is counted"
    assert fit(shaped, long, Sampling(max_new_tokens=8))[0].persona == chat.persona, "and the generator adds it, not we"
