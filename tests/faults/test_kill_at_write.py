"""A real run killed with -9 at each write of one of its saves goes on by itself and ends as if nothing had been."""

import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from faulting import digest, measured, outcome, steps
from launching import run

Words = Callable[..., list]
SCRIPT = Path(__file__).with_name("kill_at_write.py")


def run_to_write(words: list, n: int, rank: int) -> CompletedProcess[str]:
    """The same command through the script that kills a rank at the nth write."""
    through = [SCRIPT if str(word).endswith("noisy_experiment.py") else word for word in words]
    return run(through, LMGYM_TEST_RANK=str(rank), LMGYM_TEST_NTH=str(n))


def writes_of_a_save(words: Words, engine: str, folder: Path, rank: int) -> int:
    done = run_to_write(words(engine, folder), 10**6, rank)
    assert done.returncode == 0, done.stderr[-3000:]
    return int(re.findall(r"writes of a save: (\d+)", done.stdout)[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "rank", "every"), [("plain", 0, 1), ("zero2", 0, 5), ("zero2", 1, 3), ("zero3", 1, 4)]
)
def test_a_kill_at_the_nth_write_of_a_save_is_survived(
    engine: str, rank: int, every: int, words: Words, uninterrupted, tmp_path: Path
) -> None:
    count = writes_of_a_save(words, engine, tmp_path / "count", rank)
    assert count >= (12 if rank == 0 else 3)
    whole, survived = uninterrupted(engine), 0
    for n in range(1, count + 1, every):
        folder = tmp_path / str(n)
        killed = run_to_write(words(engine, folder), n, rank)
        assert killed.returncode != 0
        assert set(steps(folder)) <= {2, 4, 6}
        assert steps(folder), "the second checkpoint was whole before the third began"
        again = run(words(engine, folder))
        assert again.returncode == 0, (n, again.stderr[-3000:])
        assert "was skipped" not in again.stdout, "what was being written is no checkpoint yet, or a whole one"
        assert digest(folder) == digest(whole), n
        assert measured(folder) == measured(whole), n
        assert outcome(folder) == ("finished", 0)
        survived += 1
    print(f"{engine}, rank {rank}: {survived} of {survived} kills survived, {count} writes a save")
