"""The % commands of a session: those for files, the table of all of them, running a line, and completion with Tab."""

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

from lmgym.apps.chat import actions
from lmgym.apps.chat.actions import VIEWS, ChatView, Response, position, shown_file
from lmgym.apps.chat.arguments import parse_path
from lmgym.apps.chat.records import export_preferences
from lmgym.apps.chat.records import load as read_session
from lmgym.apps.chat.session import ChatSession
from lmgym.errors import InputError, nearest, one_line, shown_path
from lmgym.generation.protocol import Progress, Sampling
from lmgym.scoring.named_scorers import name_of, unused_name

LEAVE = ("exit", "quit")
ENOUGH = 100  # decisions


@dataclass(frozen=True)
class ChatCommand:
    """A command: its function, an example of its use, and a line of help."""

    run: Callable[[ChatView, str], Response]
    usage: str
    help: str


def save(chat: ChatView, text: str) -> Response:
    path = Path(parse_path(text) or chat.session.path)
    if os.path.isfile(path) and not _holds(path, chat.session.conversation_id):
        raise InputError(
            f"{shown_path(path)} exists and is no file of this session, so nothing is overwritten; give another name"
        )
    try:
        chat.session.save(path)
    except OSError as error:
        raise InputError(f"{shown_path(path)} cannot be written: {error.strerror}") from None
    return Response(f"saved: {shown_file(path)}")


def _holds(path: Path, conversation_id: str) -> bool:
    """True if the file is a session of that conversation."""
    try:
        return read_session(path).conversation_id == conversation_id
    except InputError:
        return False


def load(chat: ChatView, text: str) -> Response:
    if not text:
        raise InputError("%load PATH, a file of outputs/sessions/")
    problems = chat.session.restore(parse_path(text))
    return Response("\n".join([f"{len(chat.session.exchanges)} turns loaded; {position(chat.session)}", *problems]))


def export(chat: ChatView, text: str) -> Response:
    kind, _, path = text.partition(" ")
    if kind != "prefs" or not path.strip():
        raise InputError("%export prefs PATH")
    session, path = chat.session, parse_path(path)
    counts = export_preferences(list(session.exchanges.values()), session.conversation_id, Path(path))
    said = f"{path}: {counts.pairs} preferences from {_count(counts.decisions, 'decision')}"
    if empty := counts.ties + counts.rejections:
        said += f", of which {empty} (ties and rejections) give none"
    if (found := counts.decisions - empty) < ENOUGH:
        said += (
            f"\n{_count(found, 'decision')}: too few to train on; collect about {ENOUGH} (a rule of thumb; for a "
            "scripted person with simple tastes 30 were enough, see docs/flywheel.md)"
        )
    if counts.prompts < 2:
        return Response(f"{said}\nTo train, decide about a second message too: one is held out to evaluate on.")
    return Response(
        f"{said}\nTo train a scorer on them, and to chat with it:", commands=next_commands(session, path, counts.pairs)
    )


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'s' * (n != 1)}"


def next_commands(session: ChatSession, path: str, pairs: int) -> tuple[str, ...]:
    """The command that trains a scorer on exported pairs, and the chat with it, if the policy is in this process.

    Training starts from the scorer that selects, else from the policy. The learning rate is the default of QLoRA's code
    (Dettmers et al. 2023), which advises half of it above 13B.
    """
    models, known = session.about.get("models", {}), _scorer_folders(session)
    generator = models.get("generator", {})
    policy = generator.get("model") if "server" not in generator else None
    start = next((known[name] for name in session.weights if name in known), policy)
    output = Path("outputs", unused_name(Path(path).stem, os.listdir("outputs") if os.path.isdir("outputs") else []))
    train = [
        *("lmgym", "train", "reward", "hh_pairwise", *(("--model", start) if start else ()), "--dataset", path),
        *("--lora_rank", "16", "--learning_rate", "2e-4", "--epochs", "3"),
        *flags_for(pairs),
        *("--output", str(output)),
    ]
    if policy is None:
        return (shlex.join(train),)
    new = unused_name(name_of(str(output)), known)
    scorers = ",".join(f"{name}={folder}" for name, folder in [*known.items(), (new, str(output / "model"))])
    return shlex.join(train), shlex.join(["lmgym", "chat", policy, "--scorers", scorers, "--select_model", new])


def flags_for(pairs: int) -> tuple[str, ...]:
    """The flags of a training on so few pairs: ten updates an epoch or more, and one pair held out or more."""
    batch = next((size for size in (16, 8, 4) if pairs >= 10 * size), 2)
    # by default a tenth is held out, which of fewer pairs is none
    held_out = ("--eval_size", "1") if pairs < 10 else ()
    return ("--global_batch", str(batch), "--micro_batch", str(min(batch, 8)), *held_out)


def _scorer_folders(session: ChatSession) -> dict[str, str]:
    """Folders or hub ids of the scorers that training can start from: those with one output."""
    found = {}
    for name, judge in session.judges.items():
        revision = session.about.get("models", {}).get(name, {})
        if revision.get("kind") == "HFScorer" and judge.model.config.num_labels == 1:  # type: ignore[attr-defined]
            found[name] = revision["model"]
    return found


def show_help(chat: ChatView, text: str) -> Response:
    """The table of commands."""
    lines = actions.aligned((command.usage, command.help) for command in COMMANDS.values())
    notes = "Tab completes them; exit or quit leaves.\nTo send a message that begins with %, put a space before it."
    return Response(f"{lines}\n{notes}")


COMMANDS = {
    "best_of": ChatCommand(actions.best_of, "%best_of 8", "number of replies per turn"),
    "set": ChatCommand(actions.set_sampling, "%set temperature=.9", "change the sampling settings"),
    "select": ChatCommand(actions.select, "%select NAME", "let this scorer select the reply"),
    "blend": ChatCommand(actions.blend, "%blend A=1 B=.5", "select by a weighted sum of standardised scores"),
    "retry": ChatCommand(actions.retry, "%retry", "generate other replies to the same message"),
    "more": ChatCommand(actions.more, "%more 4", "generate more replies in addition to these"),
    "undo": ChatCommand(actions.undo, "%undo", "go back one turn"),
    "edit": ChatCommand(actions.edit, "%edit [TURN] TEXT", "change your message, and generate new replies"),
    "back": ChatCommand(actions.back, "%back 3", "go to turn 3, on any branch; 0 is the beginning"),
    "history": ChatCommand(actions.history, "%history", "the conversation so far, with the numbers of its turns"),
    "pick": ChatCommand(actions.pick, "%pick 3", "continue with reply 3, and save it as the best"),
    "write": ChatCommand(actions.write, "%write TEXT", "continue with your own reply, and save it as the best"),
    "reject": ChatCommand(actions.reject, "%reject", "none of the replies is good"),
    "tie": ChatCommand(actions.tie, "%tie [1 3]", "these replies (default: all) are equally good"),
    "blind": ChatCommand(actions.blind, "%blind on|off", "hide scores and shuffle replies until you decide"),
    "why": ChatCommand(actions.why, "%why 2", "what the scorers read of reply 2, and how they scored it"),
    "table": ChatCommand(actions.table, "%table scores|ranks|z", "values in the table; z: standardised per turn"),
    "agree": ChatCommand(actions.agree, "%agree", "how often scorers agree with each other and with you"),
    "scorers": ChatCommand(actions.scorers, "%scorers [NAME=]PATH", 'add a scorer from the next turn on; "" is none'),
    "persona": ChatCommand(actions.persona, "%persona [TEXT]", 'the bot\'s persona from the next turn on; "" is none'),
    "first_message": ChatCommand(
        actions.first_message, "%first_message [TEXT]", 'the bot\'s first message after %back 0; "" is none'
    ),
    "save": ChatCommand(save, "%save [PATH]", "write the whole session to a file"),
    "load": ChatCommand(load, "%load PATH", "continue a session from a file"),
    "export": ChatCommand(export, "%export prefs PATH", "write your picks as pairs that `lmgym train reward` reads"),
    "status": ChatCommand(actions.status, "%status", "the current position and all settings"),
    "help": ChatCommand(show_help, "%help", "this list"),
}


def respond(chat: ChatView, line: str, progress: Progress | None = None) -> Response:
    """Runs a command, which begins with %, or the next turn. Errors become responses; none is raised."""
    chat.progress = progress
    if not line.strip():
        return Response()
    try:
        if not line.startswith("%"):
            return Response(exchange=chat.session.say(line, progress), is_turn=True)
        name, text = split_command(line)
        if name in COMMANDS:
            return COMMANDS[name].run(chat, text)
        suggestion = nearest(name, COMMANDS, 0)
        raise InputError(
            f"unknown command %{one_line(name, 80)}; did you mean %{suggestion}? %help lists all; a space before "
            "it makes it a message"
        )
    except KeyboardInterrupt:
        return Response("stopped; nothing was added to the session", ok=False)
    except InputError as error:
        return Response(f"error: {error}", ok=False)
    except Exception as error:  # a defect of ours or of an experiment must not end the session
        message = one_line(f"{type(error).__name__}: {error}", 1000)
        return Response(f"error: {message}; the session continues", ok=False)


def split_command(line: str) -> tuple[str, str]:
    """(name, arguments) of a command."""
    name, *rest = line[1:].split(None, 1) or [""]
    return name, rest[0].strip() if rest else ""


def complete(chat: ChatView, line: str) -> list[str]:
    """Completions of the last word of a command."""
    if not line.startswith("%"):
        return []
    name, blank, rest = line.partition(" ")
    if not blank:
        return [f"%{command}" for command in COMMANDS if f"%{command}".startswith(name)]
    word = rest.rpartition(" ")[2]
    return [option for option in _options(chat, name[1:], word) if option.startswith(word)]


def _options(chat: ChatView, name: str, word: str) -> list[str]:
    session = chat.session
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
