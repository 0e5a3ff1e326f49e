"""The journal gives a resumed run the rollouts that it has, exactly, and says why not where it has none."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lmgym.environments.episodes import Episode, Step
from lmgym.environments.groups import Share
from lmgym.generation.protocol import Candidates, Choice, Completion
from lmgym.runs.run import Run
from lmgym.text import Conversation, Turn
from ppo.journal import Journal
from ppo.rollouts import Played

SHARE = Share([{"prompt": "a"}, {"prompt": "b"}], [3, 4], [0, 1], [0, 0])


def episodes() -> list[Episode]:
    """Of a game with dense, failed and missing rewards, numbers of numpy, and a choice among actions."""
    said = Completion("hi", "eos", (5, 1), (-0.1, -1 / 3), 2)
    chosen = Choice(Candidates(("yes", "no"), ((3, 1), (4, 1)), (1.0, 2.0)), 1, 0.69)
    talk = Conversation((Turn("user", "Hello"),))
    steps = [
        Step([7, 8], "User: Hello", said, (0.25, float("nan")), {"a": np.float32(0.1)}, observed=talk),
        Step([7, 8, 5, 1, 9], "again", replace(said, choice=chosen, logprobs=(-0.7,)), None, error="no answer"),
    ]
    info: dict[str, Any] = {"score": np.int64(3), "won": True}
    first = Episode(
        0, "policy", steps, False, True, [1, 2], info, 2**61 + 1, ({"policy": np.str_("hi")},), "", ["judge"]
    )
    return [first, Episode(1, "", [], True, False, None, {}, error="the game failed")]


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(Run(tmp_path, {}, None, None), "a run", 4)


def write(journal: Journal, iteration: int, updates: int = 8, random_state: bool = True) -> None:
    played = Played(episodes(), Share([], [], [], []), updates=updates, texts={"scores/a/truncated": (1.0, 8.0)})
    journal.write(iteration, played, random_state)


def read(journal: Journal, iteration: int, restores: bool = False) -> tuple[Played | None, str]:
    return journal.read(iteration, SHARE, restores)


def test_what_was_sampled_comes_back_with_every_id_number_and_text(journal: Journal) -> None:
    write(journal, 3)
    found, why = read(journal, 3)
    assert not why
    assert found is not None
    assert repr(found.episodes) == repr(
        [replace(e, info={k: v if isinstance(v, bool) else int(v) for k, v in e.info.items()}) for e in plain()]
    )
    assert (found.updates, found.texts) == (8, {"scores/a/truncated": (1.0, 8.0)})
    assert len(found.share.tasks) == 2, "the iteration's own tasks"


def plain() -> list[Episode]:
    """The same episodes of Python's own types."""
    first, second = episodes()
    steps = [replace(first.steps[0], scores={"a": float(np.float32(0.1))}), first.steps[1]]
    return [replace(first, steps=steps, actions=({"policy": "hi"},)), second]


def test_a_run_that_reads_it_goes_on_with_the_random_numbers_from_after_the_rewards(journal: Journal) -> None:
    def draw() -> list[float]:
        return [random.random(), np.random.random(), torch.rand(()).item()]

    write(journal, 3)
    wanted = draw()
    assert draw() != wanted
    read(journal, 3, restores=False)
    assert draw() != wanted
    read(journal, 3, restores=True)
    assert draw() == wanted


def test_what_cannot_be_used_has_its_reason(journal: Journal, monkeypatch) -> None:
    assert read(journal, 3) == (None, "iteration-00000003-rank-00000.pt is missing")
    write(journal, 3)
    other = Journal(journal.run, "another run", 4)
    assert read(other, 3)[1].endswith("is of another run")
    monkeypatch.setitem(journal.header, "ranks", 2)
    assert "was written by 1 rank(s), this run has" in read(journal, 3)[1]
    monkeypatch.undo()
    path = journal.folder / "iteration-00000003-rank-00000.pt"
    whole = path.read_bytes()
    for damaged in (whole[:-200], b"", b"not a file of torch"):
        path.write_bytes(damaged)
        assert "cannot be read" in read(journal, 3)[1]


def test_a_file_that_would_execute_something_is_not_read(journal: Journal) -> None:
    class Evil:
        def __reduce__(self):
            return print, ("executed",)

    write(journal, 3)
    torch.save({**journal.header, "episodes": Evil()}, journal.folder / "iteration-00000003-rank-00000.pt")
    assert "cannot be read" in read(journal, 3)[1]


def test_files_from_before_the_oldest_checkpoint_are_deleted(journal: Journal) -> None:
    def kept() -> list[int]:
        return sorted(int(path.name[10:18]) for path in journal.folder.iterdir())

    write(journal, 0)
    write(journal, 1)
    assert kept() == [1], "without a checkpoint nothing resumes from the former one"
    for step in (8, 12):  # after two and three iterations of four updates
        (journal.run.folder / f"checkpoints/step-{step:08d}").mkdir(parents=True)
    for iteration in (2, 3, 4):
        write(journal, iteration)
    assert kept() == [2, 3, 4]
    (journal.run.folder / "checkpoints/step-00000008").rmdir()
    (journal.folder / "iteration-00000002-rank-00003.pt").touch()  # of a rank that there is no more
    write(journal, 5)
    assert kept() == [3, 4, 5]
