"""Reward functions as people have them: one parameter says in whose form a function is, and it is called by name.

    completions              TRL        f(prompts, completions, completion_ids, **columns)
    solution_str             verl       f(data_source, solution_str, ground_truth, extra_info), one reply a call
    solution_strs            verl       f(data_sources, solution_strs, ground_truths, extra_infos)
    queries                  OpenRLHF   f(queries, prompts, labels)
    samples, outputs         trlx       f(samples, prompts, outputs, tokenizer, **columns)
    conversations            lmgym      f(conversations, replies, **columns)

A function may leave out all others. In every form a parameter may be called after a column of the rows, or `tokenizer`,
`completion_ids` or `output_ids`, where there is a policy that sampled the reply; of a function that has none of the
parameters above, `completion_ids` is TRL's and `output_ids` trlx's. A coroutine is awaited.
"""

import asyncio
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from lmgym.errors import InputError, listed, shown
from lmgym.text import Conversation, Reply, messages, to_transcript, words_of

NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
TOKENIZER, IDS = "tokenizer", ("completion_ids", "output_ids")


@dataclass(frozen=True)
class RewardInput:
    """A reply to judge, and what is known of it."""

    prompt: Conversation | str
    reply: Reply
    """a text as it was sampled, with the blanks around it"""
    prompt_text: str | None = None
    """as the policy read it; None: no policy did"""
    ids: Sequence[int] | None = None
    """that were sampled"""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """of the prompt's row"""

    @property
    def text(self) -> str:
        """The reply's words."""
        return words_of(self.reply)

    @property
    def before(self) -> str:
        """The text before the reply: what the policy read, or a flat transcript."""
        if self.prompt_text is not None:
            return self.prompt_text
        return self.prompt if isinstance(self.prompt, str) else to_transcript(self.prompt)

    @property
    def sample(self) -> str:
        """Prompt and reply as a text."""
        return f"{self.before}{self.text}" if self.prompt_text is not None else f"{self.before} {self.text}"

    @property
    def is_chat(self) -> bool:
        """True if the row has its prompt as messages."""
        return isinstance(self.prompt, Conversation) and not self.prompt.is_text


@dataclass(frozen=True)
class Given:
    """The inputs that a command has for its functions, beside prompts and replies."""

    columns: frozenset[str] = frozenset()
    of_policy: bool = False
    """token ids and a tokenizer"""


Value = Callable[[RewardInput, Any], Any]
"""of a reply, given the tokenizer or None"""


def _as_it_is(answer: Any) -> Any:
    return answer


@dataclass(frozen=True)
class Form:
    """The form in which a library calls reward functions."""

    library: str
    call: str
    deciding: tuple[str, ...]
    """parameters that no other form has"""
    values: Mapping[str, Value]
    from_columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """of `values`, those that one of these columns gives"""
    ids: str = ""
    """what it calls sampled ids: of its form is a function that has this and no deciding parameter"""
    gives_columns: bool = False
    """**columns get those of the rows that no parameter names"""
    one_by_one: bool = False
    may_abstain: bool = False
    """None in its answer: the function does not apply to this reply"""
    gives_tokenizer: bool = False
    """also in **columns, and as None where there is no policy"""
    read: Callable[[Any], Any] = _as_it_is
    """the rewards, or of `one_by_one` the reward, of what the function returned"""


def _trl_prompt(one: RewardInput, tokenizer: Any) -> Any:
    if one.is_chat:
        return messages(one.prompt)  # type: ignore[arg-type]
    if not isinstance(one.prompt, Conversation):
        return one.before
    turns = one.prompt.turns
    return turns[0].text if len(turns) == 1 and not one.prompt.persona else to_transcript(one.prompt)


def _trl_completion(one: RewardInput, tokenizer: Any) -> Any:
    return messages(Conversation(()), one.reply) if one.is_chat else one.text


def _ground_truth(one: RewardInput, tokenizer: Any) -> Any:
    """Of verl's column `reward_model`, an object, or of a column of this name."""
    if "reward_model" not in one.columns:
        return one.columns.get("ground_truth")
    found = one.columns["reward_model"]
    if not isinstance(found, Mapping) or "ground_truth" not in found:
        raise ValueError(f"the column reward_model is {shown(found)}; needed: an object with ground_truth")
    return found["ground_truth"]


def _extra_info(one: RewardInput, tokenizer: Any) -> dict[str, Any]:
    """The column, with the keys that verl adds of an episode without tools."""
    return {**(one.columns.get("extra_info") or {}), "num_turns": None, "rollout_reward_scores": {}}


def _query(one: RewardInput, tokenizer: Any) -> str:
    """As OpenRLHF decodes it: with the special tokens that the policy said."""
    if one.ids is None or tokenizer is None:
        return one.sample
    return one.before + tokenizer.decode(list(one.ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)


def _column(*names: str) -> Value:
    return lambda one, tokenizer: next((one.columns[name] for name in names if name in one.columns), None)


def _verl_score(answer: Any) -> Any:
    return answer["score"] if isinstance(answer, Mapping) else answer


def _text(one: RewardInput, tokenizer: Any) -> str:
    return one.text


def _before(one: RewardInput, tokenizer: Any) -> str:
    return one.before


def _sampled(one: RewardInput, tokenizer: Any) -> list[int] | None:
    return None if one.ids is None else list(one.ids)


SINGLE: dict[str, Value] = {
    "data_source": _column("data_source"), "solution_str": _text, "ground_truth": _ground_truth,
    "extra_info": _extra_info,
}  # fmt: skip
OF_ROWS = {"data_source": ("data_source",), "ground_truth": ("reward_model", "ground_truth")}
FORMS = (
    Form(
        "TRL", "f(prompts, completions, completion_ids, **columns)", ("completions",),
        {"prompts": _trl_prompt, "completions": _trl_completion, "completion_ids": _sampled},
        ids="completion_ids", gives_columns=True, may_abstain=True,
    ),
    Form(
        "verl", "f(data_source, solution_str, ground_truth, extra_info)", ("solution_str",), SINGLE, OF_ROWS,
        one_by_one=True, read=_verl_score,
    ),
    Form(
        "verl", "f(data_sources, solution_strs, ground_truths, extra_infos)", ("solution_strs",),
        {f"{name}s": value for name, value in SINGLE.items()}, {f"{name}s": of for name, of in OF_ROWS.items()},
        read=lambda answer: [_verl_score(one) for one in answer],
    ),
    Form(
        "OpenRLHF", "f(queries, prompts, labels)", ("queries",),
        {"queries": _query, "prompts": _before, "labels": _column("labels", "label")}, {"labels": ("labels", "label")},
        read=lambda answer: answer["rewards"] if isinstance(answer, Mapping) else answer,
    ),
    Form(
        "trlx", "f(samples, prompts, outputs, tokenizer, **columns)", ("samples", "outputs"),
        {"samples": lambda one, tokenizer: one.sample, "prompts": _before, "outputs": _text},
        ids="output_ids", gives_columns=True, gives_tokenizer=True,
    ),
    Form(
        "lmgym", "f(conversations, replies, **columns)", ("conversations",),
        {"conversations": lambda one, tokenizer: one.prompt, "replies": lambda one, tokenizer: one.reply},
        gives_columns=True,
    ),
)  # fmt: skip
NEEDED = f"one of the forms {'; '.join(f'{form.call} of {form.library}' for form in FORMS)}"


class RewardCall:
    """A reward function, called in its form. Raises InputError for one that fits none, or more than one."""

    def __init__(self, name: str, function: Any) -> None:
        self.name, self.function = name, function
        self.parameters = _parameters(name, function)
        self.named = {n: p for n, p in self.parameters.items() if p.kind in NAMED}
        self.takes_any = any(p.kind is p.VAR_KEYWORD for p in self.parameters.values())
        fitting = forms_of(self.named)
        if len(fitting) != 1:
            words = [name for form in fitting for name in form.deciding if name in self.named]
            found = f"has {listed(words)}, of different forms" if fitting else "has no parameter that says its form"
            raise InputError(f"{name}({', '.join(self.parameters)}) {found}; needed: {NEEDED}")
        [self.form] = fitting

    def check(self, given: Given) -> None:
        """Raises InputError for a parameter without a default that the command has nothing for, and for a column that
        is called like one of the form's own arguments.
        """
        own = [n for n in self.form.values if self._is_given(n, given)]
        also = [TOKENIZER] if given.of_policy or self.form.gives_tokenizer else []
        also += [name for name in IDS if given.of_policy and name not in own]
        own_names = self.form.values.keys() - self.form.from_columns.keys() - {"extra_info"}
        taken = own_names | {name for name in also if name in self.named}
        if clash := sorted(taken & given.columns):
            raise InputError(
                f"the data has columns named {listed(clash)}, which {self.name} is given anyway, as functions of "
                f"{self.form.library} are; needed: other names for these columns"
            )
        has = {*own, *also, *given.columns}
        missing = [n for n, p in self.parameters.items() if _is_required(p) and (n not in has or p.kind not in NAMED)]
        if missing:
            columns = f"the columns {listed(sorted(given.columns))}" if given.columns else "no columns"
            raise InputError(
                f"{self.name} requires {listed(missing)}, which nothing gives it here; there are "
                f"{', '.join([*own, *also])} and {columns}; needed: one of these names, or a default"
            )

    def _is_given(self, name: str, given: Given) -> bool:
        if name in IDS:
            return given.of_policy
        return name not in self.form.from_columns or bool(given.columns & set(self.form.from_columns[name]))

    def __call__(self, inputs: Sequence[RewardInput], tokenizer: Any = None) -> Any:
        """The function's answer for the replies: a list, or whatever it gave in place of one."""
        lists = self._lists(inputs, tokenizer)
        wants_tokenizer = TOKENIZER in self.named or (self.takes_any and self.form.gives_tokenizer)
        same = {TOKENIZER: tokenizer} if wants_tokenizer else {}
        if not self.form.one_by_one:
            return self.form.read(awaited([self.function(**lists, **same)])[0])
        rows = [{name: values[i] for name, values in lists.items()} for i in range(len(inputs))]
        return list(map(self.form.read, awaited([self.function(**row, **same) for row in rows])))

    def _lists(self, inputs: Sequence[RewardInput], tokenizer: Any) -> dict[str, list]:
        """The arguments that are a value a reply, by name."""
        columns = dict.fromkeys(name for one in inputs for name in one.columns)
        given = Given(frozenset(columns), all(one.ids is not None for one in inputs))
        found: dict[str, Value] = {}
        if self.takes_any:
            poured = [*columns] if self.form.gives_columns else []
            found |= {name: _column(name) for name in poured}
            found |= {name: value for name, value in self.form.values.items() if self._is_given(name, given)}
        for name, parameter in self.named.items():
            if name in self.form.values and (self._is_given(name, given) or _is_required(parameter)):
                found[name] = self.form.values[name]
            elif name in IDS and given.of_policy and name not in columns:
                found[name] = _sampled
            elif name != TOKENIZER and (name in columns or _is_required(parameter)):
                found[name] = _column(name)
        return {name: [value(one, tokenizer) for one in inputs] for name, value in found.items()}


def fits_a_form(function: Any) -> bool:
    """True for a function with a parameter that decides its form."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
    return bool(forms_of(parameters))


def forms_of(parameters: Collection[str]) -> list[Form]:
    """The forms that have one of these parameters."""
    decided = [form for form in FORMS if set(form.deciding).intersection(parameters)]
    return decided or [form for form in FORMS if form.ids in parameters]


def awaited(answers: list[Any]) -> list[Any]:
    """The answers, of which coroutines are awaited, all at once. Raises the first exception of one.

    An event loop is used again by later calls: clients that a file opens once are bound to one.
    """
    if not any(map(inspect.isawaitable, answers)):
        return answers
    if _loop_runs():  # as in a notebook
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(awaited, answers).result()
    loop = _IDLE.pop() if _IDLE else asyncio.new_event_loop()
    ended = loop.run_until_complete(_ended_all(answers))
    _IDLE.append(loop)
    for _, error in ended:
        if error is not None:
            raise error
    return [answer for answer, _ in ended]


_IDLE: list[asyncio.AbstractEventLoop] = []
"""event loops that no call uses; one that a coroutine stalls or breaks is not used again"""


def _loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _ended_all(answers: list[Any]) -> list[tuple[Any, BaseException | None]]:
    return await asyncio.gather(*map(_ended, answers))


async def _ended(answer: Any) -> tuple[Any, BaseException | None]:
    """(the answer, or None; the exception that it raised)."""
    try:
        return (await answer if inspect.isawaitable(answer) else answer), None
    except (Exception, SystemExit) as error:
        return None, error


def _parameters(name: str, function: Any) -> Mapping[str, inspect.Parameter]:
    if not callable(function):
        raise InputError(f"{name} is {shown(function)}, no function; needed: {NEEDED}")
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} does not tell its parameters; needed: a function in {NEEDED}") from error


def _is_required(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind in (*NAMED, parameter.POSITIONAL_ONLY)
