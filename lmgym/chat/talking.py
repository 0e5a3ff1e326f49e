"""From the words of the command line to a session on one of its front ends."""

import sys
from collections.abc import Sequence

from lmgym.chat.actions import Talk
from lmgym.chat.loading import (
    load_experiment,
    model_revisions,
    refuse_unknown_scorer,
    sampling_of,
    template_note,
)
from lmgym.chat.session import SESSIONS, ChatSession, checked_count
from lmgym.console import printed_line, replace_unencodable, say
from lmgym.errors import InputError


def begin(
    experiment_name: str | None,
    select_model: str | None,
    best_of: int = 6,
    ranked: bool = False,
    prompt: str | None = None,
    first_message: str | None = None,
    sessions: str = SESSIONS,
    flags: Sequence[str] = (),
    known: Sequence[str] = (),
    asks: bool = False,
) -> Talk:
    """A session of the experiment. With `asks` the person at the terminal is asked for persona and first message.

    Raises InputError for whatever is missing or wrong, before anything heavy is loaded where that can be told.
    """
    checked_count(best_of)
    experiment = load_experiment(experiment_name, flags, known)
    judges = experiment.judges()
    select = refuse_unknown_scorer(select_model, judges)
    generator = experiment.generator()
    persona = _answer("Model prompt (who the bot is)", prompt, experiment.get("PERSONA", ""), asks)
    opening = _answer("Bot's first message", first_message, experiment.get("FIRST_MESSAGE", ""), asks)
    about = {"experiment": experiment.name, "models": model_revisions(generator, judges)}
    sampling, samples = sampling_of(experiment, generator)
    session = ChatSession(generator, judges, select, best_of, sampling, persona, opening, sessions, about)
    return Talk(session, "ranks" if ranked else "scores", samples, template_note(generator))


def _answer(question: str, given: str | None, default: str, asks: bool) -> str:
    if given is not None or not asks:
        return default if given is None else given
    try:
        return input(f"{question}{f' [{printed_line(default)}]' if default else ''}: ").strip() or default
    except (EOFError, KeyboardInterrupt):
        say()
        raise InputError("left before the session began") from None


def run(as_json: bool, **settings) -> None:
    """A session in IPython where that runs us, else in the terminal, else from a pipe.

    In IPython this returns once the session stands; elsewhere when it is over.
    """
    replace_unencodable(sys.stdin, sys.stdout, sys.stderr)
    shell = running_ipython()
    at_terminal = sys.stdin.isatty() and sys.stdout.isatty() and not as_json
    talk = begin(asks=at_terminal, **settings)
    if shell is not None and not as_json:
        from lmgym.chat.ipython_frontend import take_over

        take_over(shell, talk)
    elif at_terminal:
        from lmgym.chat.terminal_frontend import converse

        converse(talk)
    else:
        from lmgym.chat.pipe_frontend import answer_lines
        from lmgym.chat.terminal_frontend import facts

        for line in facts(talk):
            say(line, error=True)
        answer_lines(talk, sys.stdin, sys.stdout, as_json)


def running_ipython():
    """The IPython that runs this script, or None."""
    if "IPython" not in sys.modules:
        return None
    from IPython import get_ipython

    return get_ipython()
