"""trlx's `reward_fn` and `metric_fn`, which may leave out arguments, as functions that take them all."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lmgym.environments.function_reward import ARGUMENTS, OUTPUT_IDS
from lmgym.errors import InputError
from lmgym.turn_ends import turn_ends

Function = Callable[..., Any]
NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def refuse_unfit(function: Any, what: str, columns: Iterable[str]) -> None:
    """Raises InputError for what is no plain function, or one with parameters that nothing fills."""
    needed = f"needed: a plain function, {what}(samples, prompts, outputs, tokenizer, **kwargs), or fewer of these"
    if not callable(function) or inspect.iscoroutinefunction(function):
        raise InputError(f"{what} is {function!r}; {needed}")
    given = [*ARGUMENTS, OUTPUT_IDS, *columns]
    parameters = _parameters(function) or {}
    unfilled = [
        name
        for name, one in parameters.items()
        if one.kind is one.POSITIONAL_ONLY or (one.kind in NAMED and one.default is one.empty and name not in given)
    ]
    if unfilled:
        raise InputError(
            f"{what} has the parameter(s) {', '.join(unfilled)}, and is called by name with {', '.join(given)}; "
            f"{needed}"
        )


def adapt_reward(function: Function) -> Function:
    """The function with all parameters.

    A list of one number a token may lack that of an eos, which the reply's text does not have; it is then 0.
    """

    def reward(
        samples: Sequence[str],
        prompts: Sequence[str],
        outputs: Sequence[str],
        tokenizer: Any,
        output_ids: Sequence[list[int]],
        **columns: Any,
    ) -> Any:
        given = {"samples": samples, "prompts": prompts, "outputs": outputs, "tokenizer": tokenizer}
        answer = _call(function, {**given, OUTPUT_IDS: output_ids, **columns})
        answer = answer.tolist() if hasattr(answer, "tolist") else answer
        if not isinstance(answer, Sequence) or len(answer) != len(output_ids):
            return answer  # the caller says what is wrong with it
        return [_with_eos(one, ids, tokenizer) for one, ids in zip(answer, output_ids, strict=True)]

    return reward


def adapt_metric(function: Function) -> Function:
    """The function with all parameters."""

    def metric(**given: Any) -> Mapping[str, Any]:
        return _call(function, given)

    return metric


def _with_eos(answer: Any, ids: Sequence[int], tokenizer: Any) -> Any:
    answer = answer.tolist() if hasattr(answer, "tolist") else answer
    lacks_eos = isinstance(answer, list | tuple) and len(answer) == len(ids) - 1 and ids[-1] in turn_ends(tokenizer).ids
    return [*answer, 0.0] if lacks_eos else answer


def _call(function: Function, given: Mapping[str, Any]) -> Any:
    """Calls a function with those of the arguments that it has parameters for."""
    parameters = _parameters(function)
    if parameters is None or any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        names = [*given] if OUTPUT_IDS in (parameters or {}) else [name for name in given if name != OUTPUT_IDS]
    else:
        names = [name for name in given if name in parameters]
    return function(**{name: given[name] for name in names})


def _parameters(function: Function) -> Mapping[str, inspect.Parameter] | None:
    """The function's parameters by name; None for a builtin that does not tell."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None
