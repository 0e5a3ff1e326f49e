"""The one place that renders chat templates. They come with models, so they are bounded and their faults are refused.

transformers runs them in jinja's sandbox, where no file or attribute is in reach and a range has at most 100,000 items.
"""

import contextlib
import resource
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

from jinja2 import TemplateError

from lmgym.errors import InputError, one_line

FLAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message.role == 'system' -%}{{ message.content }}{{ '\\n' }}"
    "{%- elif message.role == 'user' -%}{{ 'User: ' + message.content + '\\n' }}"
    "{%- elif message.role == 'assistant' -%}{{ 'Bot: ' + message.content }}"
    "{%- if not loop.last -%}{{ '\\n' }}{%- elif eos_token -%}{{ eos_token }}{%- endif -%}"
    "{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ 'Bot:' }}{%- endif -%}"
)
BOS_TEMPLATE = "{{ bos_token }}" + FLAT_TEMPLATE

SECONDS = 5.0  # a template takes milliseconds
SECONDS_A_CHAT = 0.05  # of many in one call
PROBE = ("probed question", "probed answer")
FIX = "needed: another template (chat_template.jinja beside the tokenizer)"

T = TypeVar("T")
Messages = Sequence[dict[str, Any]]


def apply_template(tokenizer, rows: Messages, tools: list[Any] | None = None, prompt: bool = False) -> str:
    """The text of a chat; with `prompt` it ends where the bot's reply begins.

    Raises jinja's TemplateError if the template refuses the chat, and other exceptions if it fails: TimeoutError after
    5 seconds, on the main thread.
    """
    with _time_limit(SECONDS):
        return tokenizer.apply_chat_template(rows, tools=tools, tokenize=False, add_generation_prompt=prompt)


def apply_template_to_all(tokenizer, chats: Sequence[Messages], prompt: bool = False) -> list[str]:
    """`apply_template` to several chats, which is faster. Raises what the first fault raises."""
    if not chats:
        return []
    with _time_limit(max(SECONDS, SECONDS_A_CHAT * len(chats))):
        return tokenizer.apply_chat_template(chats, tokenize=False, add_generation_prompt=prompt)


def once_a_template(derive: Callable[[Any], T]) -> Callable[[Any], T]:
    """The function of a tokenizer with its results kept while the tokenizer has the same template and eos."""
    known: weakref.WeakKeyDictionary[Any, tuple[Any, T]] = weakref.WeakKeyDictionary()

    @wraps(derive)
    def derived(tokenizer) -> T:
        written = getattr(tokenizer, "chat_template", None), tokenizer.eos_token_id
        found = known.get(tokenizer)
        if found is None or found[0] != written:
            found = known[tokenizer] = written, derive(tokenizer)
        return found[1]

    return derived


def check_template(tokenizer, name: str) -> None:
    """Raises InputError for a template that fails on a plain chat, or writes nothing of it.

    `name` is the model's. A template may refuse the chat: others may be in the data.
    """
    question, answer = PROBE
    rows = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    texts = []
    for chat, prompt in ((rows[:1], True), (rows, False)):
        try:
            with _memory_limit():
                texts.append(apply_template(tokenizer, chat, prompt=prompt))
        except Exception as error:
            if type(error) is TemplateError:  # raised by `raise_exception`
                return
            raise InputError(f"the chat template of {name} fails: {why_failed(error)}; {FIX}") from error
    if question not in texts[0] and answer not in texts[1]:
        raise InputError(f"the chat template of {name} writes no message of a chat; {FIX}")


def why_failed(error: Exception) -> str:
    """The reason of a template's failure, as one line."""
    if isinstance(error, TimeoutError):
        return str(error)
    if isinstance(error, RecursionError):
        return "it calls itself without end"
    if isinstance(error, MemoryError):
        return "its text takes over 1 GiB"
    words = one_line(str(error), 120) or "no reason"
    return words if isinstance(error, TemplateError) else f"{words} ({type(error).__name__})"


@contextlib.contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raises TimeoutError after so many seconds within a `with`: on the main thread only, where signals arrive."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def stop(*_: object) -> None:
        raise TimeoutError(f"it did not end within {seconds:g} seconds")

    former = signal.signal(signal.SIGALRM, stop)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    began = time.monotonic()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
        if left:  # another timer of the process goes on
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - began), 1e-3), interval)


@contextlib.contextmanager
def _memory_limit() -> Iterator[None]:
    """Raises MemoryError once this process takes 1 GiB more than now: a template can ask for any amount in one step."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except OSError:  # only Linux has it
        yield
        return
    limit = pages * resource.getpagesize() + (1 << 30)
    resource.setrlimit(resource.RLIMIT_AS, (limit if soft == resource.RLIM_INFINITY else min(limit, soft), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
