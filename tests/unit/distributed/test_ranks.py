"""Joining the ranks."""

import resource

import psutil
import pytest

from lmgym.distributed.ranks import start_distributed
from lmgym.errors import InputError


def test_a_rank_that_may_open_few_files_more_is_refused_before_torch_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    most = psutil.Process().num_fds() + 8
    monkeypatch.setattr(resource, "getrlimit", lambda _: (most, 4096))
    with pytest.raises(InputError, match=f"more files are open than the {most:,} that this process may have"):
        start_distributed(use_deepspeed=True)
