"""Screenshots of reports for docs/reports.md and docs/debate.md, in Debian's Chromium.

python docs/images/make_reports.py SCORER_RUN POLICY_RUN COMPARISON.html [TOURNAMENT]
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

FOLDER = Path(__file__).parent
SHOTS = {  # start, height, colours
    "report_scorer.png": ("#held_out", 900, "light"),
    "report_policy.png": ("#optimisation", 900, "dark"),
    "compare.png": ("#replies", 760, "light"),
    "report_debate.png": ("#rounds", 900, "light"),
}
WIDTH = 960


def main(scorer: str, policy: str, comparison: str, *tournament: str) -> None:
    """Writes a picture of each page."""
    runs = [Path(folder) / "report.html" for folder in (scorer, policy, *tournament)]
    pages = [*runs[:2], Path(comparison), *runs[2:]]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for (name, (start, height, scheme)), path in zip(SHOTS.items(), pages, strict=False):
            page = browser.new_page(viewport={"width": WIDTH, "height": height}, color_scheme=scheme)
            page.goto(path.resolve().as_uri() + start)
            page.wait_for_selector("body[data-drawn]")
            page.screenshot(path=FOLDER / name)
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
