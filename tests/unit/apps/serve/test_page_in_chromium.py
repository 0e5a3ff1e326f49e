"""The chat server's page in Chromium: by keyboard alone, in the arena, with hostile texts, in every size and colour."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

from browser import needs_chromium, one_browser, open_page
from chat_pages import rambling, serve_page, taste
from page_checks import CONTRASTS, HOSTILE, UNNAMED, is_quiet, tab_to
from patience import PATIENCE
from playwright.sync_api import Browser, Page, expect

from lmgym.apps.chat.records import load
from lmgym.generation.protocol import ScriptedGenerator
from lmgym.scoring.scorers import FunctionScorer

pytestmark = needs_chromium
POLICIES = {"small": rambling("small"), "big": rambling("big")}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with one_browser() as running:
        yield running


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> Iterator[tuple[str, Path]]:
    folder = tmp_path_factory.mktemp("page") / "sessions"
    with serve_page(POLICIES, taste(), folder) as url:
        yield url, folder


def say(page: Page, text: str) -> None:
    page.get_by_test_id("message").focus()
    page.keyboard.insert_text(text)
    page.keyboard.press("Enter")


def paste(page: Page, text: str) -> None:
    """Says it at once: typed into the box, a thousand lines take Chromium seconds."""
    page.get_by_test_id("message").evaluate("(box, text) => { box.value = text; box.focus(); }", text)
    page.keyboard.press("Enter")


def replies(page: Page, count: int) -> None:
    expect(page.locator(".card")).to_have_count(count, timeout=1000 * PATIENCE)


def test_a_whole_session_by_keyboard_alone(browser: Browser, address, tmp_path: Path) -> None:
    url, folder = address
    with open_page(url, browser=browser) as opened:
        page, press = opened.page, opened.page.keyboard.press
        page.keyboard.type("How do I care for a fern?")  # the message has the focus
        press("Enter")
        replies(page, 4)
        expect(page.get_by_test_id("status")).to_contain_text("of 4: ")
        press("Escape")
        press("ArrowRight")
        expect(page.get_by_test_id("card-1")).to_be_focused()
        press("2")
        expect(page.get_by_test_id("card-2")).to_contain_text("your choice")
        expect(page.get_by_test_id("message")).to_be_focused()
        chosen = page.get_by_test_id("text-2").inner_text()
        expect(page.get_by_test_id("conversation")).to_contain_text(chosen)
        press("Escape")
        tab_to(page, "ask-why-1")
        press("Enter")
        expect(page.get_by_test_id("why-1")).to_contain_text("an empty reply")
        tab_to(page, "blind")
        press("Space")
        expect(page.get_by_test_id("blind")).to_be_checked()
        press("Escape")
        tab_to(page, "best-of")
        page.keyboard.type("3")
        press("Escape")
        page.keyboard.type("And in winter?")
        press("Enter")
        replies(page, 3)
        expect(page.get_by_test_id("replies")).to_be_focused()
        assert page.locator(".bars").count() == 0
        press("1")
        expect(page.locator(".bars")).to_have_count(3)
        press("Escape")
        press("w")
        expect(page.get_by_test_id("own-reply")).to_be_focused()
        page.keyboard.type("Keep it cool.")
        tab_to(page, "use-own")
        press("Enter")
        expect(page.get_by_test_id("conversation")).to_contain_text("Keep it cool.")
        tab_to(page, "retry", backwards=True)
        press("Enter")
        expect(page.get_by_test_id("replies")).to_be_focused()
        press("t")
        expect(page.get_by_test_id("replies")).to_contain_text("equally good")
        tab_to(page, "open-export", backwards=True)
        press("Enter")
        expect(page.get_by_test_id("export-dialog")).to_be_visible()
        tab_to(page, "export")
        with page.expect_download() as download:
            press("Enter")
        download.value.save_as(tmp_path / "pairs.jsonl")
        press("Escape")
        expect(page.get_by_test_id("export-dialog")).to_be_hidden()
        assert is_quiet(opened, url)
    rows = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    assert [row["chosen"][0]["content"] for row in rows] == [chosen] * 3 + ["Keep it cool."] * 3
    sessions = [load(path) for path in folder.glob("*.jsonl")]
    assert any([e.human_pick for e in one.exchanges.values()] == [1, "written", "tie"] for one in sessions)


def test_twenty_votes_of_the_arena(browser: Browser, address) -> None:
    url, _ = address
    with open_page(url, browser=browser) as opened:
        page = opened.page
        page.get_by_test_id("mode-arena").click()
        sides = set()
        for i in range(20):
            say(page, f"question {i}")
            expect(page.get_by_test_id("replies")).to_contain_text("Which reply is better?")
            expect(page.get_by_test_id("replies")).to_be_focused()
            first, second = (page.get_by_test_id(f"text-{side}").inner_text() for side in "AB")
            assert page.locator(".policy, .bars").count() == 0
            assert sorted((first.split()[-1], second.split()[-1])) == ["big", "small"]
            sides.add(first.split()[-1])
            winner = 1 if first.endswith("small") == (i % 4 > 0) else 2
            page.keyboard.press("t" if i == 19 else str(winner))
            expect(page.get_by_test_id("policy-A")).to_have_text(first.split()[-1])
            expect(page.get_by_test_id("message")).to_be_focused()
        assert sides == {"small", "big"}
        result = page.get_by_test_id("result-small")
        expect(result).to_contain_text("20")
        expect(result).to_contain_text("14, 1, 5")  # questions 0, 4, 8, 12 and 16 went to the other
        assert re.search(r"73% \(\d+% to \d+%\)", result.inner_text())
        assert re.search(r"\+\d+ \([+-]?\d+ to \+\d+\)", result.inner_text())
        assert is_quiet(opened, url)


@pytest.mark.slow
def test_what_the_page_exports_trains_a_scorer_and_a_policy(
    browser: Browser, small_models, scorer_folders, tmp_path: Path
) -> None:
    from lmgym.generation.local_generation import LocalGenerator
    from lmgym.models.forward.policies import load_policy
    from lmgym.models.loading import load_tokenizer
    from lmgym.scoring.scorers import HFScorer

    policies = {}
    for name, family in (("first", "llama"), ("second", "qwen3")):
        tokenizer = load_tokenizer(str(small_models[family]))
        policies[name] = LocalGenerator(load_policy(str(small_models[family]), tokenizer), tokenizer)
    judges = {"scorer": HFScorer.load(str(scorer_folders["llama"]))}
    with serve_page(policies, judges, tmp_path / "sessions") as url, open_page(url, browser=browser) as opened:
        page = opened.page
        for i in range(4):
            say(page, f"message {i}")
            expect(page.get_by_test_id("conversation")).to_contain_text(f"message {i}", timeout=1000 * PATIENCE)
            page.get_by_test_id(f"prefer-{1 + i % 2}").click()
            expect(page.get_by_test_id(f"card-{1 + i % 2}")).to_contain_text("your choice")
            page.get_by_test_id("new-conversation").click()
            replies(page, 0)
        page.get_by_test_id("mode-arena").click()
        say(page, "and in the arena")
        page.get_by_test_id("vote-B").click()
        expect(page.locator(".policy")).to_have_count(2)
        page.get_by_test_id("open-export").click()
        page.get_by_label("all sessions").check()
        with page.expect_download() as download:
            page.get_by_test_id("export").click()
        file = tmp_path / download.value.suggested_filename
        download.value.save_as(file)
        commands = page.locator("pre.command").all_inner_texts()
        assert is_quiet(opened, url)
    assert len({json.loads(line)["group"] for line in file.read_text().splitlines()}) == 2
    forms = [shlex.split(command) for command in commands]
    assert [words[:3] for words in forms] == [["lmgym", "train", "reward"], ["lmgym", "train", "dpo"]]
    by_file = ["lmgym", "train", "reward", file.name, "--model", str(scorer_folders["llama"]), "--dry_run"]
    for words in (*forms, by_file):
        trained = [sys.executable, "-m", *words, "--tracking", "none"]
        run = subprocess.run(trained, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert run.returncode == 0, (words, run.stdout[-2000:], run.stderr[-2000:])
    for words in forms:
        outcome = json.loads((tmp_path / words[words.index("--output") + 1] / "run.json").read_text())["outcome"]
        assert outcome == "finished", words


def test_hostile_texts_stay_text_and_within_the_page(browser: Browser, tmp_path: Path) -> None:
    text = ""
    policies = {
        "bad": ScriptedGenerator(lambda _, rng: f"{rng.integers(10**6)} {text}"),
        "<b>worse": ScriptedGenerator(lambda _, rng: f"{text} {rng.integers(10**6)}"),
    }
    judges = {"x" * 120: FunctionScorer(lambda c, r: [float(len(reply)) for reply in r])}
    with serve_page(policies, judges, tmp_path) as url, open_page(url, 390, browser=browser) as opened:
        page = opened.page
        for text in HOSTILE.values():
            paste(page, text)
            replies(page, 4)
            page.get_by_test_id("ask-why-1").click()
            expect(page.get_by_test_id("why-1")).to_be_visible()
            page.get_by_test_id("mode-arena").click()
            paste(page, text)
            replies(page, 2)
            page.get_by_test_id("vote-A").click()
            expect(page.locator(".policy")).to_have_count(2)
            page.get_by_test_id("mode-chat").click()
            page.get_by_test_id("open-sessions").click()
            expect(page.get_by_test_id("sessions-dialog")).to_be_visible()
            assert page.title() == "lmgym chat"
            assert page.locator("bdi script, bdi img, .card script, .card img").count() == 0
            assert not opened.overflows
            page.keyboard.press("Escape")
            page.get_by_test_id("new-conversation").click()
            replies(page, 0)
        assert is_quiet(opened, url)


def test_it_fits_and_can_be_read_in_every_size_and_colour(browser: Browser, address) -> None:
    url, _ = address
    with open_page(url, 390, browser=browser) as opened:
        page = opened.page
        say(page, "hello")
        replies(page, 4)
        page.get_by_test_id("prefer-1").click()
        expect(page.get_by_test_id("card-1")).to_contain_text("your choice")
        page.get_by_test_id("open-settings").click()
        for width, dark in ((390, False), (390, True), (1280, False), (1280, True)):
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme="dark" if dark else "light")
            page.get_by_test_id("ask-why-2").click()
            expect(page.get_by_test_id("why-2")).to_be_visible()
            expect(page.get_by_test_id("best-of")).to_be_visible()
            for text in page.evaluate(CONTRASTS):
                assert text["ratio"] >= 4.5, (width, dark, text)
            assert page.evaluate(UNNAMED) == []
            assert not opened.overflows
            page.get_by_test_id("mode-arena").click()
            assert not opened.overflows
            page.get_by_test_id("mode-chat").click()
        assert is_quiet(opened, url)


def test_an_earlier_session_is_continued_from_the_list(browser: Browser, address) -> None:
    url, _ = address
    with open_page(url, browser=browser) as opened:
        say(opened.page, "remember the ferns")
        replies(opened.page, 4)
    with open_page(url, browser=browser) as opened:
        page = opened.page
        assert page.locator(".card").count() == 0, "another browser has another session"
        page.get_by_test_id("open-sessions").click()
        page.get_by_role("button", name="Continue: remember the ferns").click()
        replies(page, 4)
        expect(page.get_by_test_id("conversation")).to_contain_text("remember the ferns")
        page.reload()
        replies(page, 4)
        page.get_by_test_id("change-1").click()
        page.keyboard.press("End")
        page.keyboard.type("!")
        page.keyboard.press("Enter")
        expect(page.get_by_test_id("conversation")).to_contain_text("remember the ferns!")
        page.get_by_test_id("go-other").click()
        expect(page.get_by_test_id("conversation")).not_to_contain_text("ferns!")
        page.get_by_test_id("new-conversation").click()
        replies(page, 0)


def test_the_page_asks_for_the_token_once_and_says_when_it_is_wrong(browser: Browser, tmp_path: Path) -> None:
    with (
        serve_page(POLICIES, {}, tmp_path, token="open sesame".replace(" ", "-")) as url,
        open_page(url, browser=browser) as opened,
    ):
        page = opened.page
        for token, says_wrong in (("wrong", False), ("open-sesame", True)):
            expect(page.get_by_test_id("token-dialog")).to_be_visible()
            expect(page.locator("#token .error")).to_be_visible(visible=says_wrong)
            page.get_by_test_id("token").fill(token)
            page.keyboard.press("Enter")
        expect(page.get_by_test_id("message")).to_be_focused()
        say(page, "hello")
        replies(page, 4)
        page.reload()
        replies(page, 4)
        assert page.get_by_test_id("token-dialog").is_hidden()
        page.get_by_test_id("forget-token").click()
        expect(page.get_by_test_id("token-dialog")).to_be_visible()
        page.goto(f"{url}/#token=open-sesame")
        page.reload()
        expect(page.get_by_test_id("message")).to_be_focused()
        assert page.url == f"{url}/"


def test_it_says_in_words_what_went_wrong_and_keeps_the_message(browser: Browser, tmp_path: Path) -> None:
    def breaks(_, rng) -> str:
        raise RuntimeError("out of memory")

    with (
        serve_page({"broken": ScriptedGenerator(breaks)}, {}, tmp_path) as url,
        open_page(url, browser=browser) as opened,
    ):
        page = opened.page
        assert page.get_by_test_id("mode-arena").is_hidden()
        say(page, "hello")
        expect(page.get_by_test_id("error")).to_contain_text("out of memory")
        expect(page.get_by_test_id("message")).to_have_value("hello")
        page.get_by_test_id("best-of").fill("99")
        page.keyboard.press("Tab")
        expect(page.get_by_test_id("error")).to_contain_text("Replies to each message")
        expect(page.get_by_test_id("best-of")).to_have_value("4")
        page.context.set_offline(True)
        say(page, "")
        expect(page.get_by_test_id("error")).to_contain_text("does not answer")
