"""Pages in a headless Chromium: what they show, say on the console, and request."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(not CHROMIUM, reason="no chromium: apt-get install chromium")

expect.set_options(timeout=60_000)  # ms: the limit of a page that never comes, on a busy machine


@dataclass
class Opened:
    """A page, with everything that its console said and that it requested."""

    page: Page
    said: list[str] = field(default_factory=list)
    requested: list[str] = field(default_factory=list)

    @property
    def overflows(self) -> bool:
        """True if the page is wider than the window."""
        return self.page.evaluate("document.documentElement.scrollWidth > innerWidth")


@contextmanager
def one_browser() -> Iterator[Browser]:
    """A browser that `open_page` may be given, so that each page does not start its own: a module's fixture."""
    with sync_playwright() as playwright:
        # charts and texts are drawn by the CPU either way
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def open_page(
    address: Path | str, width: int = 1280, dark: bool = False, browser: Browser | None = None
) -> Iterator[Opened]:
    """A page in a window of so many pixels, once all charts are drawn; its cookies are its own."""
    with nullcontext(browser) if browser else one_browser() as running:
        scheme = "dark" if dark else "light"
        opened = Opened(running.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme))
        opened.page.on("console", lambda message: opened.said.append(f"{message.type}: {message.text}"))
        opened.page.on("pageerror", lambda error: opened.said.append(f"error: {error}"))
        opened.page.on("request", lambda request: opened.requested.append(request.url))
        try:
            opened.page.goto(address.resolve().as_uri() if isinstance(address, Path) else address)
            opened.page.wait_for_selector("body[data-drawn]")
            yield opened
        finally:
            opened.page.close()
