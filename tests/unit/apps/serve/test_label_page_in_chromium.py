"""The page to label on in Chromium: by keyboard alone, at two widths, with hostile texts, in two tabs, with a token."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

from browser import needs_chromium, one_browser, open_page
from label_pages import serve_label_page, two_sided, write_rows
from page_checks import CONTRASTS, HOSTILE, UNNAMED, is_quiet, tab_to
from playwright.sync_api import Browser, Page, expect

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with one_browser() as running:
        yield running


def begin(page: Page, name: str) -> None:
    expect(page.get_by_test_id("name")).to_be_focused()
    page.keyboard.insert_text(name)
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("pair")).to_be_visible()


def judged(page: Page, count: int) -> None:
    expect(page.get_by_test_id("progress-words")).to_contain_text(f"{count} of ")


@pytest.mark.parametrize("width", [390, 1280])
def test_pairs_are_labelled_by_keyboard_alone(browser: Browser, tmp_path: Path, width: int) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", two_sided(5))
    with serve_label_page(rows, tmp_path / "labels") as server, open_page(server.url, width, browser=browser) as opened:
        page, press = opened.page, opened.page.keyboard.press
        begin(page, "Ann")
        expect(page.get_by_test_id("question")).to_have_text("Which is better?")
        expect(page.get_by_test_id("agreement")).to_have_text("")
        first = page.get_by_test_id("text-1").inner_text()
        for count, key in enumerate(("1", "2", "=", "?"), 1):
            press(key)
            judged(page, count)
            expect(page.get_by_test_id("pair")).to_be_focused()
        press("Backspace")
        judged(page, 3)
        expect(page.get_by_test_id("status")).to_contain_text("Undone.")
        press("u")
        judged(page, 2)
        expect(page.get_by_test_id("conversation")).to_contain_text("question 2")
        for count, testid in enumerate(("verdict-1", "verdict-2", "verdict-tie"), 3):
            tab_to(page, testid)
            press("Enter")
            judged(page, count)
        expect(page.get_by_test_id("done")).to_contain_text("every pair")
        press("1")  # there is no pair to judge
        tab_to(page, "open-overview", backwards=True)
        press("Enter")
        expect(page.get_by_test_id("rater-rater_1")).to_contain_text("Ann")
        press("Escape")
        tab_to(page, "download")
        with page.expect_download() as download:
            press("Enter")
        download.value.save_as(tmp_path / "downloaded.jsonl")
        page.reload()
        expect(page.get_by_test_id("change-name")).to_have_text("Rater: Ann")
        judged(page, 5)
        assert not opened.overflows
        assert is_quiet(opened, server.url)
    lines = (tmp_path / "downloaded.jsonl").read_text()
    found = [json.loads(line) for line in lines.splitlines()]
    assert found == [json.loads(line) for line in (tmp_path / "labels/labels.jsonl").read_text().splitlines()]
    assert found[0]["rater_1"] == ("response_a" if first == "good 0" else "response_b")
    assert [row["ties"] for row in found] == [0, 0, 0, 0, 1]


def test_hostile_texts_stay_text_within_the_page_and_long_ones_scroll(browser: Browser, tmp_path: Path) -> None:
    texts = [text.replace("\0", "") for text in HOSTILE.values()]
    rows = [{"prompt": text, "response_a": f"{text} # a **b**", "response_b": f"<b>{text}</b>"} for text in texts]
    source = write_rows(tmp_path / "rows.jsonl", rows)
    with serve_label_page(source, tmp_path / "labels", question="<i>Which?</i>") as server:
        for width in (390, 1280):
            with open_page(server.url, width, browser=browser) as opened:
                page = opened.page
                begin(page, f"<img src=x> {width}")
                for count, text in enumerate(texts):
                    judged(page, count)
                    shown = [page.get_by_test_id(f"text-{i}").text_content() for i in (1, 2)]
                    assert sorted(shown) == sorted([f"{text.strip()} # a **b**", f"<b>{text}</b>"])
                    assert page.title() == "lmgym labels"
                    assert page.locator("main script, main img, main i, main b").count() == 0
                    assert not opened.overflows
                    height = page.evaluate(
                        "Math.max(...[...document.querySelectorAll('.reply')].map(e => e.clientHeight))"
                    )
                    assert height < 450
                    if len(text) > 5000:
                        tab_to(page, "text-1")
                    expect(page.get_by_test_id("verdict-tie")).to_be_in_viewport()
                    page.keyboard.press("=")
                expect(page.get_by_test_id("done")).to_be_visible()
                assert is_quiet(opened, server.url)


def test_it_can_be_read_in_every_size_and_colour(browser: Browser, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", two_sided(40))
    with serve_label_page(rows, tmp_path / "labels") as server, open_page(server.url, browser=browser) as opened:
        page = opened.page
        server.judge("Lazy", *["first"] * 40)
        begin(page, "Ann")
        page.keyboard.press("1")
        judged(page, 1)
        expect(page.get_by_test_id("agreement")).to_contain_text("of 1 case")
        for width, dark in ((390, False), (390, True), (1280, False), (1280, True)):
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme="dark" if dark else "light")
            for text in page.evaluate(CONTRASTS):
                assert text["ratio"] >= 4.5, (width, dark, text)
            assert page.evaluate(UNNAMED) == []
            page.get_by_test_id("open-overview").click()
            expect(page.get_by_test_id("overview-dialog")).to_be_visible()
            expect(page.get_by_test_id("rater-rater_1")).to_contain_text("leans to the first")
            assert not opened.overflows
            page.keyboard.press("1")  # no verdict behind the dialog
            page.keyboard.press("Escape")
        judged(page, 1)
        assert is_quiet(opened, server.url)


def test_a_key_before_the_answer_and_one_that_is_held_down_judge_nothing(browser: Browser, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", two_sided(4))
    with serve_label_page(rows, tmp_path / "labels") as server, open_page(server.url, browser=browser) as opened:
        page = opened.page
        begin(page, "Ann")
        page.evaluate("['1', '2', 'u'].forEach((key) => document.dispatchEvent(new KeyboardEvent('keydown', { key })))")
        judged(page, 1)
        page.keyboard.down("1")
        judged(page, 2)
        page.keyboard.down("1")  # again without being let go of: a repetition
        page.keyboard.up("1")
        page.keyboard.press("=")
        judged(page, 3)
        assert page.get_by_test_id("error").is_hidden()
        assert is_quiet(opened, server.url)


def test_two_tabs_of_one_rater_and_two_raters_at_once(browser: Browser, tmp_path: Path) -> None:
    rows, context = write_rows(tmp_path / "rows.jsonl", two_sided(4)), browser.new_context()
    with serve_label_page(rows, tmp_path / "labels") as server:
        page, other = context.new_page(), context.new_page()
        page.goto(server.url)
        begin(page, "Ann")
        other.goto(server.url)
        judged(other, 0)
        page.keyboard.press("1")
        judged(page, 1)
        other.keyboard.press("2")
        expect(other.get_by_test_id("error")).to_contain_text("judged this pair already")
        judged(other, 1)
        expect(other.get_by_test_id("conversation")).to_contain_text("question 1")
        other.keyboard.press("=")
        judged(other, 2)
        assert other.get_by_test_id("error").is_hidden()
        with open_page(server.url, browser=browser) as second:
            begin(second.page, "Bo")
            judged(second.page, 0)
            second.page.keyboard.press("1")
            expect(second.page.get_by_test_id("agreement")).to_contain_text("of 1 case")
        context.close()
    found = [json.loads(line) for line in (tmp_path / "labels/labels.jsonl").read_text().splitlines()]
    assert len(found) == 2
    assert found[1]["rater_1"] == "tie"


def test_a_name_is_changed_and_one_that_cannot_be_is_refused_in_words(browser: Browser, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", two_sided(2))
    with serve_label_page(rows, tmp_path / "labels") as server, open_page(server.url, 390, browser=browser) as opened:
        page = opened.page
        begin(page, "../x 🦊")
        page.keyboard.press("1")
        judged(page, 1)
        page.get_by_test_id("change-name").click()
        for name, words in (("", "is empty"), ("x" * 200, "200 characters")):
            page.get_by_test_id("name").fill(name)
            page.keyboard.press("Enter")
            expect(page.get_by_test_id("error")).to_contain_text(words)
        page.get_by_test_id("name").fill("w" * 60)
        page.keyboard.press("Enter")
        judged(page, 0)
        assert not opened.overflows


def test_the_page_asks_for_the_token_and_says_when_the_server_is_gone(browser: Browser, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", two_sided(3))
    with serve_label_page(rows, tmp_path / "labels", token="open-sesame") as server:
        assert server.post("state", rater="Ann")[0] == 401
        with open_page(f"{server.url}/#token=open-sesame", browser=browser) as opened:
            page = opened.page
            begin(page, "Ann")
            page.context.set_offline(True)
            page.keyboard.press("1")
            expect(page.get_by_test_id("error")).to_contain_text("does not answer")
            judged(page, 0)
            page.context.set_offline(False)
            page.keyboard.press("1")
            judged(page, 1)
        with open_page(server.url, browser=browser) as opened:
            page = opened.page
            page.keyboard.insert_text("Bo")
            page.keyboard.press("Enter")
            expect(page.get_by_test_id("token-dialog")).to_be_visible()
            page.get_by_test_id("token").fill("open-sesame")
            page.keyboard.press("Enter")
            expect(page.get_by_test_id("pair")).to_be_visible()
