"""A stand-in for the hub."""

from collections.abc import Iterator

import pytest
from hub_stub import WRITER, Hub, serving
from huggingface_hub import constants

from lmgym.runs import hub as access


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub, and this process as alice's, with short waits before another try."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(access, "FIRST_WAIT", 0.01)
    monkeypatch.setenv("HF_TOKEN", WRITER)
    with serving() as found:
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, found.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", found.url)
        yield found
