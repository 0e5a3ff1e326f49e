"""docs/preferences.md: the table of losses has those of the code, with their constants."""

import re

from printed_blocks import ROOT

from preferences.config import CONSTANTS

ROW = re.compile(r"^\| `(\w+)` \| .* \| (?:summed|mean a token) \| (.+) \|$", re.MULTILINE)


def test_the_page_has_every_loss_with_its_constants() -> None:
    page = (ROOT / "docs/preferences.md").read_text(encoding="utf-8")
    found = {loss: tuple(re.findall(r"`(\w+)`", constants)) for loss, constants in ROW.findall(page)}
    assert found == CONSTANTS
