"""A function of a user's file as a scorer: `FILE.py:FUNCTION`, or FILE.py with one, in a form of function_forms.py."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lmgym.errors import InputError, did_you_mean, listed, one_line, shown, shown_path
from lmgym.runs.user_code import call_user_code, import_file
from lmgym.scoring.function_forms import Given, RewardCall, RewardInput, fits_a_form
from lmgym.scoring.protocol import FunctionFailed, read_scores
from lmgym.text import Conversation, Reply

NOTHING = Given()


class FileScorer:
    """The function as a scorer; what it raises is a FunctionFailed with its place. Made by `load_function`."""

    reads_blanks = True
    """replies are scored with the blanks around them"""

    def __init__(self, name: str, function: Callable[..., Any], given: Given = NOTHING) -> None:
        self.name, self.function = name, function
        self.call = RewardCall(name, function)
        self.call.check(given)

    def score(self, conversations: Sequence[Conversation], replies: Sequence[Reply]) -> np.ndarray:
        """float32 [replies]. Raises FunctionFailed for what the function raises, and for what is no score of each."""
        return self.score_inputs([RewardInput(c, reply) for c, reply in zip(conversations, replies, strict=True)])

    def score_inputs(self, inputs: Sequence[RewardInput]) -> np.ndarray:
        """float32 [replies] with what is known of them, as the columns of their rows. Raises FunctionFailed."""
        try:
            found = call_user_code(self.name, lambda: self.call(inputs))
            return np.array(read_scores(found, len(inputs)), dtype=np.float32)
        except InputError as error:
            raise FunctionFailed(str(error)) from error
        except (TypeError, ValueError) as error:
            raise FunctionFailed(f"{self.name}: {one_line(str(error))}") from error


def load_function(file: str, name: str, given: Given = NOTHING) -> FileScorer:
    """The function of a file; without a name its only one, or the only one that has a form of function_forms.py.

    Raises InputError for a file that fails, for a name that is no function of it, and where no name tells which.
    """
    module = import_file(file, "needed: FILE.py:FUNCTION")
    functions = {n: v for n, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == module.__name__}
    if not name:
        fitting = [n for n, function in functions.items() if fits_a_form(function)]
        only = fitting if len(functions) > 1 else [*functions]
        if len(only) != 1:
            found = f"has the functions {listed(only or functions)}" if functions else "has no function"
            raise InputError(f"{shown_path(file)} {found}; needed: {shown_path(file)}:FUNCTION, with one of them")
        [name] = only
    function = getattr(module, name, None)
    if not callable(function) or inspect.isclass(function):
        raise InputError(
            f"{shown_path(file)} has no function {shown(name)}; {did_you_mean(name, functions)}needed: one of "
            f"{listed(functions)}"
        )
    return FileScorer(f"{shown_path(file)}:{name}", function, given)
