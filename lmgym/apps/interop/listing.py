"""`lmgym env list`: the schemes of environments, and the names of one."""

from itertools import islice

from rich import box
from rich.table import Table

from lmgym.console import CONSOLE, say
from lmgym.environments.named import Scheme, schemes
from lmgym.errors import InputError, did_you_mean, listed
from lmgym.runs.user_code import call_user_code

FEW = 3
"""names in the table of all schemes"""


def show_environments() -> None:
    """Prints each scheme: the form of its names, what it is, and some that are there, or what installs it."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("environment", "what it is", "there, or what installs it"):
        table.add_column(column, overflow="fold")
    for name, scheme in schemes().items():
        table.add_row(scheme.form, scheme.about, _state(name, scheme))
    table.add_row("FILE.py:CLASS", "a class of yours, or one of Gymnasium or PettingZoo", "")
    CONSOLE.print(table)
    say("lmgym env list SCHEME shows all names of one; settings stand behind a ?: arithmetic:+-?digits=2")
    say("next: lmgym train grpo ENVIRONMENT --model MODEL")


def show_names(name: str) -> None:
    """Prints all names of a scheme. Raises InputError for an unknown one, and for one that is not installed."""
    known = schemes()
    if name not in known:
        raise InputError(f"there is no scheme {name}; {did_you_mean(name, known)}needed: one of {listed(known)}")
    if needed := known[name].missing():
        raise InputError(f"{name} is not installed; needed: {needed}")
    found = _names(name, known[name])
    for one in found:
        say(f"{name}:{one}")
    if not found:
        say(f"{known[name].form}: {known[name].about}; nothing lists them")


def _state(name: str, scheme: Scheme) -> str:
    if needed := scheme.missing():
        return needed
    found = _names(name, scheme)
    more = f", and {len(found) - FEW:,} more" if len(found) > FEW else ""
    return ", ".join(islice(found, FEW)) + more


def _names(name: str, scheme: Scheme) -> list[str]:
    return call_user_code(f"the names of {name}", lambda: list(scheme.names()))
