"""Starts a chat session from the options of the command line, in IPython, a terminal or a pipe."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from lmgym.apps.chat.actions import ChatView
from lmgym.apps.chat.exchanges import check_count
from lmgym.apps.chat.keyboard import keys_kept_for_the_prompt, make_prompt
from lmgym.apps.chat.loading import check_scorer, load_experiment, model_revisions, sampling_of, template_note
from lmgym.apps.chat.session import SESSIONS, ChatSession
from lmgym.console import printed_line, replace_unencodable, say
from lmgym.errors import InputError
from lmgym.generation.protocol import Sampling

BEST_OF = 6
SAMPLING = ("max_new_tokens", "temperature", "top_p", "seed")
"""settings of sampling that `lmgym chat` takes"""


@dataclass(frozen=True)
class ChatOptions:
    """The options of a session; None is missing."""

    experiment_name: str | None
    select_model: str | None = None
    best_of: int | None = None
    """None: BEST_OF replies, or one without scorers"""
    ranked: bool = False
    prompt: str | None = None
    first_message: str | None = None
    sessions: str = SESSIONS
    max_new_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None

    @property
    def sampling(self) -> dict[str, Any]:
        """The settings of sampling that are given. Raises InputError for one that is out of range."""
        given = {name: value for name in SAMPLING if (value := getattr(self, name)) is not None}
        Sampling(**given)  # checks them
        return given


def open_chat(options: ChatOptions, flags: Sequence[str] = (), asks: bool = False) -> ChatView:
    """A session of the experiment. If `asks`, asks for a persona and a first message that are missing.

    `flags` are the experiment's. Raises InputError for missing and wrong options, if possible before models are loaded.
    """
    if options.best_of is not None:
        check_count(options.best_of)
    given = options.sampling
    known = [*(field.name for field in fields(options) if field.name not in SAMPLING), "persona", "json"]
    with keys_kept_for_the_prompt():
        experiment = load_experiment(options.experiment_name, flags, known)
        judges = experiment.judges()
        select = check_scorer(options.select_model, judges, experiment.name)
        generator = experiment.generator()
        about = {"experiment": experiment.name, "models": model_revisions(generator, judges)}
        sampling, note = sampling_of(experiment, generator, given)
    persona = _ask("Model prompt (the bot's persona)", options.prompt, experiment.get("PERSONA", ""), asks)
    opening = _ask("Bot's first message", options.first_message, experiment.get("FIRST_MESSAGE", ""), asks)
    best_of = options.best_of or (BEST_OF if judges else 1)
    session = ChatSession(generator, judges, select, best_of, sampling, persona, opening, options.sessions, about)
    return ChatView(session, "ranks" if options.ranked else "scores", note, template_note(generator))


def _ask(question: str, given: str | None, default: str, asks: bool) -> str:
    if given is not None or not asks:
        return default if given is None else given
    try:
        usual = f'"{printed_line(default)}"' if default else "none"
        return make_prompt()(f"{question}, or Enter for {usual}: ").strip() or default
    except (EOFError, KeyboardInterrupt):
        say()
        raise InputError("stopped before the session began") from None


def run_chat(options: ChatOptions, flags: Sequence[str], as_json: bool, asks: bool = False) -> None:
    """Runs a session in IPython if this process is IPython, else in the terminal, else from a pipe.

    In a terminal, if `asks`, it first asks for a persona and a first message that are missing.

    Returns at the end of the session; in IPython, at its beginning.
    """
    replace_unencodable(sys.stdin, sys.stdout, sys.stderr)
    shell = _running_ipython()
    at_terminal = sys.stdin.isatty() and sys.stdout.isatty() and not as_json
    if shell is not None and at_terminal:
        from lmgym.apps.chat.ipython_frontend import hide_banner

        hide_banner(shell)
    chat = open_chat(options, flags, asks and at_terminal)
    if shell is not None and not as_json:
        from lmgym.apps.chat.ipython_frontend import attach

        attach(shell, chat)
    elif at_terminal:
        from lmgym.apps.chat.terminal_frontend import converse

        converse(chat)
    else:
        from lmgym.apps.chat.pipe_frontend import answer_lines
        from lmgym.apps.chat.terminal_frontend import start_notes

        for line in start_notes(chat):
            say(line, error=True)
        answer_lines(chat, sys.stdin, sys.stdout, as_json)


def _running_ipython():
    if "IPython" not in sys.modules:
        return None
    from IPython import get_ipython

    return get_ipython()
