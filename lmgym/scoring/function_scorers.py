"""A function of a user's file as a scorer: `FILE.py:FUNCTION`.

It is f(conversations, replies), or a reward function with trlx's signature, f(samples, prompts, outputs, **columns):
one whose parameters have one of these names is called by them. Its prompts are flat transcripts; it gets no tokenizer.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lmgym.errors import InputError, did_you_mean, listed, one_line, shown, shown_path
from lmgym.runs.user_code import call_user_code, import_file
from lmgym.scoring.protocol import FunctionFailed, read_scores
from lmgym.text import Conversation, Reply, to_transcript, words_of

TRLX = ("samples", "prompts", "outputs")
OTHER = "tokenizer"
NEEDED = "f(conversations, replies) or f(outputs, prompts, **columns), which returns a number a reply"


class FileScorer:
    """The function as a scorer; what it raises is a FunctionFailed with its place. Made by `load_function`."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name, self.function = name, function
        try:
            parameters = inspect.signature(function).parameters
        except (TypeError, ValueError):
            parameters = inspect.signature(lambda conversations, replies: None).parameters
        self.by_keyword = any(name in parameters for name in TRLX)
        takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        self.given = [n for n in (*TRLX, OTHER) if n in parameters or takes_all]
        missing = [n for n, p in parameters.items() if self.by_keyword and n not in self.given and _is_required(p)]
        if inspect.iscoroutinefunction(function) or missing:
            found = f"requires {listed(missing)}, which nothing gives it here" if missing else "is a coroutine"
            raise InputError(f"{name} {found}; needed: {NEEDED}")

    def score(self, conversations: Sequence[Conversation], replies: Sequence[Reply]) -> np.ndarray:
        """float32 [replies]. Raises FunctionFailed for what the function raises, and for what is no score of each."""
        try:
            found = call_user_code(self.name, lambda: self._call(conversations, replies))
            return np.array(read_scores(found, len(replies)), dtype=np.float32)
        except InputError as error:
            raise FunctionFailed(str(error)) from error
        except (TypeError, ValueError) as error:
            raise FunctionFailed(f"{self.name}: {one_line(str(error))}") from error

    def _call(self, conversations: Sequence[Conversation], replies: Sequence[Reply]) -> Any:
        if not self.by_keyword:
            return self.function(list(conversations), list(replies))
        prompts, outputs = [to_transcript(c) for c in conversations], [words_of(reply) for reply in replies]
        samples = [f"{prompt} {output}" for prompt, output in zip(prompts, outputs, strict=True)]
        values = {"samples": samples, "prompts": prompts, "outputs": outputs, OTHER: None}
        return self.function(**{name: values[name] for name in self.given})


def _is_required(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind in (
        parameter.POSITIONAL_OR_KEYWORD,
        parameter.KEYWORD_ONLY,
    )


def load_function(file: str, name: str) -> FileScorer:
    """The function of a file. Raises InputError for a file that fails, and for a name that is no function of it."""
    module = import_file(file, "needed: FILE.py:FUNCTION")
    functions = [n for n, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == module.__name__]
    if not name:
        raise InputError(
            f"{shown_path(file)} names no function; needed: {shown_path(file)}:FUNCTION, of {listed(functions)}"
        )
    function = getattr(module, name, None)
    if not callable(function) or inspect.isclass(function):
        raise InputError(
            f"{shown_path(file)} has no function {shown(name)}; {did_you_mean(name, functions)}needed: one of "
            f"{listed(functions)}"
        )
    return FileScorer(f"{shown_path(file)}:{name}", function)
