"""The commands that read and write files: %save, %load and %export."""

import os
import shlex
from pathlib import Path

from lmgym.chat.actions import ChatView, Response, position, shown_file
from lmgym.chat.arguments import parse_path
from lmgym.chat.records import export_preferences
from lmgym.chat.records import load as read_session
from lmgym.chat.session import ChatSession
from lmgym.errors import InputError, shown_path


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
    found = f"{path}: {counts.pairs} preferences from {counts.decisions} decisions"
    if empty := counts.ties + counts.rejections:
        found += f", of which {empty} (ties and rejections) give none"
    if counts.prompts < 2:
        return Response(f"{found}; to train on them, decide about a second message too: one is held out to evaluate on")
    command = shlex.join(training_command(session, path, counts.pairs))
    return Response(f"{found}; to train a scorer on them:", command=command)


def training_command(session: ChatSession, path: str, pairs: int) -> list[str]:
    """The command that trains a scorer on exported pairs, from the session's own model if it is in this process."""
    generator = session.about.get("models", {}).get("generator", {})
    model = ["--model", generator["model"]] if "model" in generator and "server" not in generator else []
    # by default a tenth is held out, which of fewer pairs is none
    held_out = ["--eval_size", "1"] if pairs < 10 else []
    return ["lmgym", "train", "reward", "hh_pairwise", *model, "--dataset", path, *held_out]
