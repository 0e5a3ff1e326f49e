"""Commands as the first process of a container: in a process-id namespace of their own."""

import subprocess
from collections.abc import Sequence

import pytest

UNSHARE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]


def as_first_process(words: Sequence[object]) -> list[object]:
    """The command in a namespace, whose first process is the child of the one that is started; skips without any."""
    if subprocess.run([*UNSHARE, "true"], capture_output=True).returncode:
        pytest.skip("needs process-id namespaces: root, and unshare")
    return [*UNSHARE, *words]
