"""The process after code of users has changed it, or tried to end it."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from lmgym.environments.engine import play
from lmgym.environments.function_reward import FunctionReward
from lmgym.environments.protocol import Action, Observation, Sample, ScoreRequest, StepResult, Task
from lmgym.errors import InputError
from lmgym.generation.protocol import Completion
from lmgym.runs.process_state import exits_raise, process_state_kept
from lmgym.runs.user_code import import_file, users_code
from lmgym.scoring.function_scorers import FileScorer
from lmgym.text import Conversation
from ppo.task_setups import TaskSetup


@pytest.mark.parametrize(("leave", "code"), [(lambda: sys.exit(0), 0), (lambda: os._exit(0), 0), (lambda: exit(3), 3)])
def test_code_that_ends_the_process_is_refused_with_its_place(leave, code: int) -> None:
    real = os._exit
    with pytest.raises(InputError, match=rf"^the reward calls exit\({code}\) in .*, line \d+; needed: code "):
        with users_code("the reward"):
            leave()
    assert os._exit is real


def test_other_errors_stay_as_they_are() -> None:
    with pytest.raises(ValueError, match=r"^why$"):
        with users_code("the reward"):
            raise ValueError("why")


def test_a_fork_within_it_ends_as_it_would() -> None:
    with process_state_kept():
        if (child := os.fork()) == 0:
            os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_fork_that_calls_such_code_itself_ends_as_it_would() -> None:
    with exits_raise():
        if (child := os.fork()) == 0:
            with process_state_kept():
                pass
            os._exit(7)  # as multiprocessing does, when its function has returned
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_threads_that_leave_in_the_order_in_which_they_came_leave_the_real_exit() -> None:
    real = os._exit
    first, second = exits_raise(), exits_raise()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    with pytest.raises(SystemExit):
        os._exit(0)
    second.__exit__(None, None, None)
    assert os._exit is real


def test_a_file_that_changes_the_process_as_it_is_imported_leaves_it_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "scorer.py"
    file.write_text(
        "import os, signal, torch\nos.chdir('/')\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "torch.set_grad_enabled(False)\ntorch.set_default_dtype(torch.float64)\n"
    )
    before = os.getcwd(), signal.getsignal(signal.SIGTERM)
    import_file(file, "")
    assert (os.getcwd(), signal.getsignal(signal.SIGTERM)) == before
    assert (torch.is_grad_enabled(), torch.get_default_dtype()) == (True, torch.float32)


def test_handlers_of_signals_and_timers_are_those_from_before() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGUSR1)}
    with process_state_kept():
        for number in before:
            signal.signal(number, lambda *_: sys.exit(0))
        signal.setitimer(signal.ITIMER_REAL, 0.02)
    assert {number: signal.getsignal(number) for number in before} == before
    time.sleep(0.05)  # in which the timer would have ended this process


def test_in_another_thread_signals_are_left_alone() -> None:
    failures = []

    def call() -> None:
        try:
            with process_state_kept():
                pass
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert failures == []


@pytest.mark.parametrize("kind", ["reward", "scorer", "player", "constructor", "reset", "step", "import"])
def test_every_call_of_users_code_leaves_the_working_folder_as_it_was(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    called: list[str] = []

    def moves(of: str) -> None:
        if of == kind:
            called.append(of)
            os.chdir("/")

    class Game:
        def __init__(self) -> None:
            moves("constructor")

        def reset(self, task: Task, seed: int) -> dict[str, Observation]:
            moves("reset")
            return {"player": Observation("hello")}

        def step(self, actions: dict[str, str]) -> StepResult:
            moves("step")
            return StepResult(terminated=True)

    class Player:
        def act(self, requests: list, n: int = 1) -> list[list[Action]]:
            moves("player")
            return [[Action("hi")] for _ in requests]

    if kind == "import":
        (tmp_path / "moves.py").write_text("import os\nos.chdir('/')\n")
        import_file("moves.py", "")
        called.append(kind)
    elif kind == "reward":
        sample = Sample(ScoreRequest("policy", "hello", "hi"), "hello", Completion("hi", "stop"))
        FunctionReward(lambda samples, **_: moves("reward") or [1.0], None, None).rewards([sample])
    elif kind == "scorer":
        FileScorer("f", lambda conversations, replies: moves("scorer") or [1.0]).score([Conversation(())], ["hi"])
    else:
        setup = TaskSetup([{}], [], Game, None, "")
        play([setup.new_environment()], [{}], [0], {"player": Player()})
    assert called
    assert os.getcwd() == str(tmp_path)
