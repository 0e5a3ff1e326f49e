"""The % commands of a session: what there is, with a line of help each, and how a line finds its way."""

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

from lmgym.chat import actions
from lmgym.chat.actions import VIEWS, Shown, Talk, near
from lmgym.errors import InputError, one_line
from lmgym.generation.protocol import Progress, Sampling

LEAVE = ("exit", "quit")


@dataclass(frozen=True)
class Command:
    """One command: what it does, how it is written, and a line of help."""

    run: Callable[[Talk, str, Progress | None], Shown]
    usage: str
    help: str


def show_help(talk: Talk, words: str, progress: Progress | None) -> Shown:
    """The table of commands."""
    width = max(len(command.usage) for command in COMMANDS.values())
    lines = [f"{command.usage:{width}}  {command.help}" for command in COMMANDS.values()]
    return Shown("\n".join([*lines, "A line that begins with a blank is said as it is. exit or quit alone leaves."]))


COMMANDS = {
    "best_of": Command(actions.best_of, "%best_of 8", "how many replies a turn has"),
    "set": Command(actions.set_sampling, "%set temperature=.9 top_p=.7", "how replies are sampled"),
    "select": Command(actions.select, "%select rm_b", "which scorer chooses"),
    "blend": Command(actions.blend, "%blend rm_a=1 rm_b=.5", "several scorers choose together, by these weights"),
    "retry": Command(actions.retry, "%retry", "other replies to the same line"),
    "more": Command(actions.more, "%more 4", "more replies beside those that there are"),
    "undo": Command(actions.undo, "%undo", "one turn back"),
    "edit": Command(actions.edit, "%edit [TURN] TEXT", "another line in place of yours, and new replies"),
    "back": Command(actions.back, "%back 3", "to turn 3, on whichever branch; 0 is the beginning"),
    "pick": Command(actions.pick, "%pick 3", "reply 3 is the best: it is said, and kept as a preference"),
    "write": Command(actions.write, "%write TEXT", "your own reply is better than all: it is said, and kept"),
    "reject": Command(actions.reject, "%reject", "none of the replies is good"),
    "tie": Command(actions.tie, "%tie [1 3]", "these replies, or all, are equally good"),
    "blind": Command(actions.blind, "%blind on|off", "hide scores and shuffle replies until you have decided"),
    "why": Command(actions.why, "%why 2", "score against an empty reply, length, and the text that the scorer saw"),
    "table": Command(actions.table, "%table scores|ranks|z", "what the table shows; z: standardised in the turn"),
    "agree": Command(actions.agree, "%agree", "how alike the scorers, and you, order replies"),
    "persona": Command(actions.persona, "%persona [TEXT]", 'who the bot is, from the next turn on; "" for nobody'),
    "save": Command(actions.save, "%save [PATH]", "the whole session into a file"),
    "load": Command(actions.load, "%load PATH", "go on with a session out of a file"),
    "export": Command(actions.export, "%export prefs PATH", "your decisions as pairs that hh_pairwise trains on"),
    "status": Command(actions.status, "%status", "where you are, and all settings"),
    "help": Command(show_help, "%help", "this list"),
}


def respond(talk: Talk, line: str, progress: Progress | None = None) -> Shown:
    """What comes of a line: a command where it begins with %, else the next turn. Nothing that fails is raised."""
    try:
        if line.startswith("%"):
            return _run(talk, line, progress)
        return Shown(exchange=talk.session.say(line, progress), is_turn=True)
    except KeyboardInterrupt:
        return Shown("stopped; nothing was added, the session goes on", ok=False)
    except InputError as error:
        return Shown(f"error: {error}", ok=False)
    except Exception as error:  # a defect of ours or of an experiment: the session outlives it
        said = one_line(f"{type(error).__name__}: {error}", 1000)
        return Shown(f"error: {said}; the session goes on", ok=False)


def _run(talk: Talk, line: str, progress: Progress | None) -> Shown:
    name, words = split(line)
    if name not in COMMANDS:
        meant = near(name[:80], list(COMMANDS))
        raise InputError(f"there is no command %{one_line(name, 80)}; did you mean %{meant}? %help lists them")
    return COMMANDS[name].run(talk, words, progress)


def split(line: str) -> tuple[str, str]:
    """A command's name and the words behind it."""
    name, *rest = line[1:].split(None, 1) or [""]
    return name, rest[0].strip() if rest else ""


def complete(talk: Talk, line: str) -> list[str]:
    """What may stand in place of the last word of a line that begins with %."""
    if not line.startswith("%"):
        return []
    name, blank, rest = line.partition(" ")
    if not blank:
        return [f"%{command}" for command in COMMANDS if f"%{command}".startswith(name)]
    word = rest.rpartition(" ")[2]
    return [option for option in _options(talk, name[1:], word) if option.startswith(word)]


def _options(talk: Talk, name: str, word: str) -> list[str]:
    session = talk.session
    if name in ("pick", "why", "tie"):
        return [str(i + 1) for i in range(len(session.last.candidates))] if session.head is not None else []
    if name in ("back", "edit"):
        return [str(number) for number in session.exchanges]
    if name in ("load", "save") or (name == "export" and word != "prefs"[: len(word)]):
        folder = Path(os.path.split(word)[0]) if word else session.path.parent
        found = sorted(path for path in folder.glob("*") if path.is_dir() or path.suffix == ".jsonl")
        return [f"{path}/" if path.is_dir() else str(path) for path in found]
    return {
        "select": list(session.judges),
        "blend": [f"{judge}=" for judge in session.judges],
        "set": [f"{field.name}=" for field in fields(Sampling)],
        "blind": ["on", "off"],
        "table": list(VIEWS),
        "export": ["prefs"],
    }.get(name, [])
