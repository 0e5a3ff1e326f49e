"""The page's requests: sessions of the terminal over HTTP, what blind people may not learn, and who is refused."""

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

from chat_pages import Browser, rambling, serve_page, taste
from patience import PATIENCE

from lmgym.apps.chat.exchanges import Candidate, Exchange
from lmgym.apps.chat.records import load
from lmgym.apps.serve import page_sessions
from lmgym.apps.serve.page_arena import results, vote_of
from lmgym.generation.protocol import ScriptedGenerator
from lmgym.scoring.ratings import Game, rate
from lmgym.text import Conversation, Turn

POLICIES = {"small": rambling("small"), "big": rambling("big")}


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> Iterator[tuple[str, Path]]:
    folder = tmp_path_factory.mktemp("page") / "sessions"
    with serve_page(POLICIES, taste(), folder) as url:
        yield url, folder


@pytest.fixture
def browser(address) -> Browser:
    browser = Browser(address[0])
    browser.begin()
    return browser


def file_of(browser: Browser, folder: Path, mode: str = "chat") -> Path:
    [name] = [one["name"] for one in browser.do("sessions") if one["current"] and one["mode"] == mode]
    return folder / f"{name}.jsonl"


def test_a_conversation_is_a_session_of_the_terminal(browser: Browser, address) -> None:
    view = browser.do("chat/say", text=" hello there ")
    exchange = view["exchange"]
    assert [turn["user"] for turn in view["history"]] == ["hello there"]
    assert len(exchange["candidates"]) == 4
    lengths = [one["scores"]["length"]["score"] for one in exchange["candidates"]]
    assert lengths == [len(one["text"]) for one in exchange["candidates"]]
    best = exchange["candidates"][exchange["chosen"] - 1]
    assert (best["scores"]["length"]["rank"], exchange["selected_by"]) == (1, "length")
    other = 1 if exchange["chosen"] != 1 else 2
    picked = browser.do("chat/pick", number=other)
    assert picked["history"][0]["reply"] == exchange["candidates"][other - 1]["text"]
    assert (picked["exchange"]["decision"], picked["decided"]) == ("picked", 1)
    assert browser.do("chat/more", number=2)["exchange"]["candidates"][5]["scores"]["length"]["rank"] in range(1, 7)
    assert browser.do("chat/write", text="My own.")["history"][0]["reply"] == "My own."
    assert [turn["user"] for turn in browser.do("chat/say", text="two")["history"]] == ["hello there", "two"]
    assert browser.do("chat/edit", text="three", turn=2)["others"] == [{"turn": 2, "user": "two"}]
    assert browser.do("chat/retry")["exchange"]["turn"] == 4
    assert browser.do("chat/tie")["exchange"]["decision"] == "tie"
    assert browser.do("chat/undo")["history"][-1]["turn"] == 1
    assert browser.do("chat/back", number=4)["exchange"]["decision"] == "tie"
    assert browser.do("chat/reject")["exchange"]["decision"] == "rejected"
    assert browser.do("chat/back", number=0)["exchange"] is None
    session = load(file_of(browser, address[1]))
    assert sorted(session.exchanges) == [1, 2, 3, 4]
    assert session.exchanges[1].edited_text == "My own."
    assert (session.exchanges[4].human_pick, session.head) == ("rejected", None)


def test_the_controls_change_the_next_replies_and_no_others(browser: Browser) -> None:
    browser.do("settings", best_of=2, temperature=0.5, weights={"warmth": 2, "length": 1}, persona="A cook.")
    found = browser.do("settings", policy="big")
    assert (found["best_of"], found["temperature"], found["policy"], found["persona"]) == (2, 0.5, "big", "A cook.")
    exchange = browser.do("chat/say", text="hello")["exchange"]
    assert [one["text"].split()[-1] for one in exchange["candidates"]] == ["big", "big"]
    assert exchange["selected_by"] == "warmth=2 length=1"
    for wrong in ({"best_of": 17}, {"best_of": 0}, {"temperature": -1}, {"max_new_tokens": 0}, {"weights": {"no": 1}}):
        status, answer = browser.post("settings", wrong)
        assert (status, "needed" in answer["error"]["message"] or "there is no" in answer["error"]["message"]) == (
            400,
            True,
        )
    assert browser.post("settings", {"policy": "unknown"})[0] == 404
    assert browser.do("state")["settings"] == found


def test_why_shows_what_an_empty_reply_would_have_scored(browser: Browser) -> None:
    exchange = browser.do("chat/say", text="hello")["exchange"]
    [row, _] = browser.do("chat/why", number=2)["scorers"]
    assert (row["name"], row["empty"]) == ("length", 0)
    assert row["change"] == row["score"] == len(exchange["candidates"][1]["text"])


def test_blind_replies_come_without_anything_that_sways(browser: Browser) -> None:
    browser.do("chat/blind", on=True)
    exchange = browser.do("chat/say", text="hello")["exchange"]
    assert exchange["open"]
    assert all(one.keys() == {"number", "text"} for one in exchange["candidates"])
    assert (exchange["scorers"], exchange["chosen"], exchange["selected"], exchange["selected_by"]) == (
        [],
        None,
        None,
        "",
    )
    for action in ("say", "why"):
        assert browser.post(f"chat/{action}", {"text": "next", "number": 1})[0] in (400, 409), action
    decided = browser.do("chat/pick", number=1)["exchange"]
    assert decided["scorers"] == ["length", "warmth"]
    [row] = {json.loads(line)["scores_visible"] for line in browser.do("export")["jsonl"].splitlines()}
    assert row is False


def test_who_wrote_a_reply_of_the_arena_is_told_after_the_vote_alone(browser: Browser, address) -> None:
    firsts, votes = set(), []
    for i in range(12):
        view = browser.do("arena/say", text=f"message {i}")
        assert "policy" not in json.dumps(view)
        assert [one.keys() for one in view["exchange"]["candidates"]] == [{"number", "text"}] * 2
        assert "policy" not in file_of(browser, address[1], "arena").read_text().splitlines()[-1]
        firsts.add(view["exchange"]["candidates"][0]["text"].split()[-1])
        small = [one["text"].split()[-1] for one in view["exchange"]["candidates"]].index("small") + 1
        decision = ("arena/tie", {}) if i == 0 else ("arena/pick", {"number": small if i % 3 else 3 - small})
        voted = browser.do(decision[0], **decision[1])["exchange"]
        assert [one["policy"] for one in voted["candidates"]] == [
            one["text"].split()[-1] for one in voted["candidates"]
        ]
        votes.append(Game("small", "big", 0.5 if i == 0 else 1.0 if i % 3 else 0.0))
        status, answer = browser.post("arena/pick", {"number": 1})
        assert (status, "you have voted" in answer["error"]["message"]) == (409, True)
        assert browser.post("arena/retry")[0] == browser.post("arena/more", {"number": 1})[0] == 404
        browser.do("arena/back", number=0)
    assert firsts == {"small", "big"}, "sides are drawn anew: one chance in 2,048 to fail"
    exchanges = load(file_of(browser, address[1], "arena")).exchanges.values()
    found = [vote for exchange in exchanges if (vote := vote_of(exchange))]
    assert [vote.score if vote.first == "small" else 1 - vote.score for vote in found] == [v.score for v in votes]
    [first, second] = results(found)["policies"]
    assert (first["policy"], first["wins"], first["ties"], first["losses"]) == ("small", 8, 1, 3)
    assert first["share"]["value"] == pytest.approx(8.5 / 12)
    assert first["share"]["low"] < 8.5 / 12 < first["share"]["high"]
    expected = rate(votes)[0].elo
    assert (first["rating"]["value"], second["policy"]) == (pytest.approx(expected.value), "big")
    served = browser.do("results")
    assert served["votes"] >= 12


@pytest.mark.parametrize(
    ("change", "score"),
    [
        ({}, 1.0),
        ({"human_pick": 1}, 0.0),
        ({"human_pick": "tie"}, 0.5),
        ({"human_pick": "rejected"}, 0.5),
        ({"human_pick": "written"}, None),
        ({"human_pick": None}, None),
        ({"scores_visible": True}, None),
    ],
)
def test_votes_are_choices_between_two_policies_made_without_their_names(change: dict, score: float | None) -> None:
    candidates = [Candidate(name, 1, "eos", 0, policy=name) for name in ("a", "b")]
    prompt = Conversation((Turn("user", "hello"),))
    voted = Exchange(1, None, prompt, candidates, 0, {}, selected=0, human_pick=0, scores_visible=False)
    assert vote_of(replace(voted, **change)) == (None if score is None else Game("a", "b", score))
    assert vote_of(replace(voted, candidates=[replace(one, policy="") for one in candidates])) is None


def test_replies_of_the_arena_that_nobody_voted_on_are_not_voted_on_later(browser: Browser, address) -> None:
    browser.do("arena/say", text="left open")
    later = Browser(browser.url)
    later.begin()
    state = later.do("resume", name=file_of(browser, address[1], "arena").stem)
    assert state["arena"]["exchange"] is None, "the file does not say whose they are"


def test_votes_on_sessions_that_were_continued_count_once(browser: Browser) -> None:
    browser.do("arena/say", text="once")
    browser.do("arena/pick", number=1)
    before = browser.do("results")["votes"]
    others = [Browser(browser.url), Browser(browser.url)]
    for other in others:
        other.begin()
        name = next(one["name"] for one in other.do("sessions") if one["begins"] == "once")
        other.do("resume", name=name)
    for i, other in enumerate(others):  # neither file has all of the other, and both have the first vote
        other.do("arena/say", text=f"then {i}")
        other.do("arena/tie")
    assert [one["begins"] for one in browser.do("sessions")].count("once") == 2
    assert browser.do("results")["votes"] == before + 2


def test_an_earlier_session_goes_on_in_a_new_file(browser: Browser, address) -> None:
    browser.do("chat/say", text="the beginning")
    browser.do("chat/pick", number=2)
    earlier = file_of(browser, address[1])
    content = earlier.read_bytes()
    later = Browser(browser.url)
    later.begin()
    state = later.do("resume", name=earlier.stem)
    assert (state["chat"]["history"][0]["user"], state["problems"]) == ("the beginning", [])
    later.do("chat/say", text="and on")
    assert earlier.read_bytes() == content
    listed = [one for one in later.do("sessions") if one["begins"] == "the beginning"]
    assert [(one["turns"], one["current"]) for one in listed] == [(2, True)], (
        "the later file has all of the earlier one"
    )


def test_names_of_files_are_those_that_the_server_listed(browser: Browser, address) -> None:
    outside = address[1].parent / "outside.jsonl"
    browser.do("chat/say", text="hello")
    outside.write_bytes(file_of(browser, address[1]).read_bytes())
    (address[1] / "link.jsonl").symlink_to(outside)
    for name in ("../outside", "outside", str(outside), "..", "", "link", "a\0b", "%2e%2e/outside"):
        assert browser.post("resume", {"name": name})[0] == 404, name
    for path in ("/page/../page.py", "/page/page.py", "/page/%2e%2e%2fpage.py", "/page/", "/page/page.html"):
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(browser.url + path, timeout=PATIENCE)


def test_requests_that_the_page_did_not_make_are_refused(browser: Browser) -> None:
    browser.do("chat/say", text="hello")
    for headers in (
        {"X_CSRF_Token": ""},
        {"X_CSRF_Token": "guess"},
        {"X_CSRF_Token": "ü"},
        {"Origin": "http://evil.example"},
        {"Host": "evil.example"},
        {"Cookie": "", "X_CSRF_Token": browser.csrf},
    ):
        asker = browser if "Cookie" not in headers else Browser(browser.url)
        assert asker.post("chat/retry", **headers)[0] == 403, headers
    assert len(browser.do("state")["chat"]["others"]) == 0


def test_the_page_forbids_what_it_does_not_need(address) -> None:
    with urllib.request.urlopen(address[0], timeout=PATIENCE) as answer:
        policy, page = answer.headers["Content-Security-Policy"], answer.read().decode()
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert not any(word in page for word in ("http://", "https://", "<style", "onclick", ' style="'))
    request = urllib.request.Request(f"{address[0]}/page/state", b"{}", method="POST")
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie


def test_wrong_requests_are_answered_in_words(browser: Browser) -> None:
    for path, body in (
        ("chat/say", {"text": ""}),
        ("chat/say", {"text": " \n "}),
        ("chat/say", {"text": "x" * 40_001}),
        ("chat/say", {"text": 5}),
        ("chat/say", {"text": "hello", "path": "/etc/passwd"}),
        ("chat/pick", {"number": 1}),
        ("chat/retry", {}),
        ("chat/unknown", {}),
        ("chat/__init__", {}),
        ("other/say", {"text": "hello"}),
        ("chat/back", {"number": 99}),
        ("chat/edit", {"text": "x", "turn": 7}),
        ("export", {"scope": "everything"}),
        ("export", {}),
        ("chat/say", b"["),
        ("chat/say", b"\xff"),
        ("chat/say", b"[" * 100_000),
        ("chat/say", {"text": "\ud800"}),
        ("settings", {"temperature": "hot"}),
        ("settings", b'{"temperature": NaN}'),
    ):
        status, answer = browser.post(path, body)
        assert 400 <= status < 500, (path, body, answer)
        assert "%" not in answer["error"]["message"], "the terminal's commands are not those of the page"
    browser.do("chat/say", text="hello")
    for path, body in (
        ("chat/pick", {"number": 5}),
        ("chat/pick", {"number": 0}),
        ("chat/tie", {"numbers": [1]}),
        ("chat/more", {"number": 0}),
        ("chat/more", {"number": 17}),  # above the server's 16
        ("chat/why", {"number": 9}),
    ):
        assert browser.post(path, body)[0] == 400, (path, body)


def test_texts_come_back_as_they_went(browser: Browser) -> None:
    for text in (
        "<script>alert(1)</script>",
        "\u202eright to left",
        "x" * 10_000,
        "a\tb\nc",
        "\U0001f600",
        "null\0byte",
    ):
        view = browser.do("chat/say", text=text)
        assert view["history"][-1]["user"] == text


def test_without_a_token_the_page_opens_and_nothing_else_does(tmp_path: Path) -> None:
    with serve_page(POLICIES, {}, tmp_path, token="secret") as url:
        for path in ("/", "/page/page.js", "/page/page.css", "/page/page_replies.js", "/page/page_lists.js"):
            with urllib.request.urlopen(url + path, timeout=PATIENCE) as answer:
                assert answer.status == 200
        stranger = Browser(url)
        assert [stranger.post(path)[0] for path in ("state", "sessions", "chat/say")] == [401] * 3
        known = Browser(url, {"Authorization": "Bearer secret"})
        known.begin()
        assert known.do("chat/say", text="hello")["exchange"]["scorers"] == []


def test_one_request_of_a_browser_runs_at_a_time(tmp_path: Path) -> None:
    began, goes_on = threading.Event(), threading.Event()

    def slow(_, rng) -> str:
        began.set()
        goes_on.wait(PATIENCE)
        return f"reply {rng.integers(10**6)}"

    with serve_page({"slow": ScriptedGenerator(slow)}, {}, tmp_path) as url:
        browser = Browser(url)
        assert browser.begin()["arena"] is None
        answers: list = []
        thread = threading.Thread(target=lambda: answers.append(browser.post("chat/say", {"text": "hello"})))
        thread.start()
        assert began.wait(PATIENCE)
        assert browser.post("chat/say", {"text": "again"})[0] == 409
        assert browser.do("progress")["busy"]
        assert browser.do("state")["busy"]
        goes_on.set()
        thread.join(PATIENCE)
        assert answers[0][0] == 200
        assert browser.post("arena/say", {"text": "x"})[0] == 409


def test_a_failing_scorer_and_a_failing_policy_leave_the_page_alive(tmp_path: Path) -> None:
    from lmgym.scoring.scorers import FunctionScorer

    def breaks(conversations, replies):
        raise RuntimeError("<b>no</b>")

    def sometimes(conversation, rng) -> str:
        if "fail" in conversation.turns[-1].text:
            raise RuntimeError("out of memory")
        return f"reply {rng.integers(10**6)}"

    judges = {**taste(), "broken": FunctionScorer(breaks)}
    with serve_page({"a": ScriptedGenerator(sometimes)}, judges, tmp_path) as url:
        browser = Browser(url)
        browser.begin()
        exchange = browser.do("chat/say", text="hello")["exchange"]
        assert exchange["candidates"][0]["scores"]["broken"] == {"score": None, "rank": None, "z": None}
        assert "broken failed: RuntimeError" in exchange["notes"][0]
        status, answer = browser.post("chat/say", {"text": "fail"})
        assert (status, "out of memory" in answer["error"]["message"]) == (400, True)
        assert len(browser.do("chat/say", text="and on")["history"]) == 2


def test_the_browser_that_was_idle_longest_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_sessions, "MOST_SESSIONS", 3)
    with serve_page(POLICIES, {}, tmp_path) as url:
        browsers = [Browser(url) for _ in range(4)]
        browsers[0].begin()
        browsers[1].begin()
        browsers[0].do("chat/say", text="hello")
        browsers[2].begin()
        browsers[3].begin()
        assert browsers[1].post("chat/say", {"text": "x"})[0] == 403
        assert browsers[0].do("state")["chat"]["history"][0]["user"] == "hello"
        assert browsers[1].begin()["chat"]["history"] == []
