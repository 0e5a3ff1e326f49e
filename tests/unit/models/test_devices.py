"""Devices by name: those of this machine, and one line for the others."""

import pytest
import torch

from lmgym.errors import InputError
from lmgym.models.devices import present_device


def test_a_device_is_torchs_own() -> None:
    assert present_device("cpu") == present_device(torch.device("cpu")) == torch.device("cpu")


@pytest.mark.parametrize("name", ["mps", "cuda:99", "tpu", "", None])
def test_a_device_that_is_not_there_is_one_line_with_those_that_are(name) -> None:
    if name == "mps" and torch.backends.mps.is_available():
        pytest.skip("a Mac")
    with pytest.raises(InputError, match=r"^device '.*': .+; needed: cpu") as refused:
        present_device(name)
    assert str(refused.value).isprintable()


def test_a_device_that_torch_has_is_taken_without_a_list_of_names(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[torch.device] = []
    monkeypatch.setattr(torch, "zeros", lambda size, device: made.append(device))
    assert present_device("mps") == torch.device("mps")
    assert made == [torch.device("mps")]
