"""Screenshots of the chat server's page for docs/page.md, in Debian's Chromium.

lmgym serve chat small=PATH ... --scorers ... --port 8901, then: python docs/images/make_page.py http://127.0.0.1:8901

and of the page to label on for docs/judges.md, of a server that has no labels yet:

lmgym serve label examples/data/helpful_held_out.jsonl --question "Which reply is more helpful?" --port 8902, then:
python docs/images/make_page.py http://127.0.0.1:8902 label
"""

import shutil
import sys
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

FOLDER = Path(__file__).parent
VOTES = 3  # beside those of sessions that are in the folder
SLOW = 300_000  # milliseconds: a model on a CPU
QUESTIONS = ("How do I keep a fern alive in winter?", "Can you explain why leaves turn yellow?")


def say(page: Page, text: str) -> None:
    page.get_by_test_id("message").fill(text)
    page.get_by_test_id("send").click()
    page.wait_for_selector("body:not([data-busy]) .card", timeout=SLOW)


def shoot(page: Page, name: str, whole: bool = False) -> None:
    """Writes a picture in 128 colours, which are enough for a page and half its size."""
    page.wait_for_timeout(500)
    image = Image.open(BytesIO(page.screenshot(full_page=whole))).convert("RGB").quantize(128, dither=Image.Dither.NONE)
    image.save(FOLDER / name, optimize=True)


def main(url: str) -> None:
    """A chat, the arena after some votes, and a blind choice on a phone."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(url)
        say(page, QUESTIONS[0])
        page.get_by_test_id("prefer-2").click()
        page.get_by_test_id("ask-why-2").click()
        page.wait_for_selector(".why", timeout=SLOW)
        page.evaluate("scrollTo(0, 0)")
        shoot(page, "page_chat.png")
        phone = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme="dark")
        phone.goto(url)
        phone.get_by_test_id("open-settings").click()
        phone.get_by_test_id("blind").click()
        phone.get_by_test_id("open-settings").click()
        say(phone, QUESTIONS[1])
        phone.evaluate("scrollTo(0, 0)")
        shoot(phone, "page_blind.png")
        if page.get_by_test_id("mode-arena").is_visible():
            page.get_by_test_id("mode-arena").click()
            for i in range(VOTES):
                say(page, QUESTIONS[i % 2])
                page.get_by_test_id(("tie", "vote-A", "vote-B")[i % 3]).click()
                page.wait_for_selector(".policy")
                if i < VOTES - 1:
                    page.get_by_test_id("new-conversation").click()
                    page.wait_for_selector("#replies[hidden]", state="attached")
            shoot(page, "page_arena.png", whole=True)
        browser.close()


def label(url: str) -> None:
    """A pair, after another rater's verdicts."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, keys in (("Bo", "1221=1211212"), ("Ann", "1221=12")):
            page = browser.new_page(viewport={"width": 1280, "height": 560})
            page.goto(url)
            page.get_by_test_id("name").fill(name)
            page.get_by_test_id("begin").click()
            for count, key in enumerate(keys):
                page.get_by_text(f"{count} of ", exact=False).first.wait_for()
                page.keyboard.press(key)
            page.get_by_text(f"{len(keys)} of ", exact=False).first.wait_for()
        shoot(page, "page_label.png")
        browser.close()


if __name__ == "__main__":
    url, *which = sys.argv[1:]
    label(url) if which == ["label"] else main(url)
