"""The commands of a session: functions of the chat and of the command's arguments as text."""

import json
import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

from lmgym.chat.arguments import parse_assignments, parse_float, parse_int, parse_path, parse_sampling
from lmgym.chat.exchanges import Exchange, check_count, explain, readable
from lmgym.chat.records import export_preferences
from lmgym.chat.records import load as read_session
from lmgym.chat.session import ChatSession
from lmgym.errors import InputError, one_line, shown_path
from lmgym.generation.protocol import Progress
from lmgym.scoring.ranking import agreement, describe_weights, ranks

VIEWS = ("scores", "ranks", "z")
ECHOED = 500  # characters of a message that a command repeats


@dataclass
class ChatView:
    """A session and how a front end shows it."""

    session: ChatSession
    view: str = "scores"
    sampling_note: str = ""
    """the initial sampling and its source; empty where no model generates"""
    template_note: str = ""
    """the format of chats, where the model's folder has no chat template"""
    progress: Progress | None = None
    """called while replies are generated"""


@dataclass(frozen=True)
class Response:
    """The answer to a line: an exchange to show, text, or both; `ok` is false for an error."""

    text: str = ""
    exchange: Exchange | None = None
    ok: bool = True
    is_turn: bool = False
    """True if the exchange has new candidates, or reveals those of a blind turn"""
    command: str = ""
    """a command for the shell, shown below the text in one line whatever the width of the terminal"""


def best_of(chat: ChatView, text: str) -> Response:
    if text:
        chat.session.best_of = check_count(parse_int(text, "%best_of 8"))
    return Response(f"{chat.session.best_of} replies per turn")


def set_sampling(chat: ChatView, text: str) -> Response:
    chat.session.sampling = parse_sampling(text, chat.session.sampling)
    return Response(_sampling_settings(chat.session))


def _sampling_settings(session: ChatSession) -> str:
    return " ".join(f"{field.name}={getattr(session.sampling, field.name)!r}" for field in fields(session.sampling))


def select(chat: ChatView, text: str) -> Response:
    if text:
        chat.session.select(text)
    return Response(f"{chat.session.selects} selects from the next turn on; scorers: {', '.join(chat.session.judges)}")


def blend(chat: ChatView, text: str) -> Response:
    assignments = parse_assignments(text, "%blend rm_a=1 rm_b=.5")
    weights = {name: parse_float(value, f"{name}=1") for name, value in assignments}
    chat.session.blend(weights)
    return Response(
        f"{describe_weights(weights)} selects from the next turn on: the weighted sum of standardised scores"
    )


def retry(chat: ChatView, text: str) -> Response:
    return Response(exchange=chat.session.retry(chat.progress), is_turn=True)


def more(chat: ChatView, text: str) -> Response:
    n = parse_int(text, "%more 4") if text else chat.session.best_of
    return Response(exchange=chat.session.more(n, chat.progress), is_turn=True)


def undo(chat: ChatView, text: str) -> Response:
    chat.session.undo()
    return Response(f"one turn back; {_position(chat.session)}")


def edit(chat: ChatView, text: str) -> Response:
    session = chat.session
    first, _, rest = text.partition(" ")
    turn = int(first) if first.isdecimal() and (rest or int(first) in session.exchanges) else None
    message = text if turn is None else rest
    if not message:
        old = session.last if turn is None else session.turn(turn)
        raise InputError(f"%edit {old.id} NEW TEXT; turn {old.id} is: {one_line(old.user, ECHOED)}")
    return Response(exchange=session.edit(message, turn, chat.progress), is_turn=True)


def back(chat: ChatView, text: str) -> Response:
    chat.session.back(parse_int(text, "%back 3, a turn's number, or 0 for the beginning"))
    return Response(_position(chat.session))


def _position(session: ChatSession) -> str:
    """The path of turns and the last messages."""
    path = " > ".join(str(exchange.id) for exchange in session.history) or "the beginning"
    if session.head is None:
        messages = [f"{turn.speaker}: {one_line(turn.text, ECHOED)}" for turn in session.opening]
    else:
        reply = "(not decided)" if session.last.is_open else one_line(session.last.reply or "", ECHOED)
        messages = [f"you: {one_line(session.last.user, ECHOED)}", f"bot: {reply}"]
    return "\n".join([f"turns {path}", *messages])


def _decided(chat: ChatView, text: str, decide: Callable[[], Exchange]) -> Response:
    """A decision, which reveals the scores of an open turn."""
    was_open = chat.session.last.is_open
    return Response(text, decide(), is_turn=was_open)


def pick(chat: ChatView, text: str) -> Response:
    return _decided(chat, "picked", lambda: chat.session.pick(parse_int(text, "%pick 3, a reply's number")))


def write(chat: ChatView, text: str) -> Response:
    return _decided(chat, "written", lambda: chat.session.write(text))


def reject(chat: ChatView, text: str) -> Response:
    hint = "all rejected; %retry generates other replies, %write TEXT gives your own"
    return _decided(chat, hint, chat.session.reject)


def tie(chat: ChatView, text: str) -> Response:
    numbers = [parse_int(word, "%tie 1 3, or %tie for all") for word in text.split()]
    return _decided(chat, "tied", lambda: chat.session.tie(*numbers))


def blind(chat: ChatView, text: str) -> Response:
    session = chat.session
    if text not in ("on", "off", ""):
        raise InputError(f"%blind {one_line(text)}: needed on or off")
    reveals = text == "off" and session.head is not None and session.last.is_open
    if text:
        session.set_blind(text == "on")
    state = "on: scores are hidden and replies shuffled until you decide" if session.blind else "off: scores are shown"
    return Response(f"blind {state}", session.last if reveals else None, is_turn=reveals)


def why(chat: ChatView, text: str) -> Response:
    session = chat.session
    session.refuse_open()
    exchange = session.last
    place = session.place(parse_int(text, "%why 2, a reply's number")) if text else exchange.chosen
    if place is None:
        raise InputError("%why N: give the number of a reply, since yours has no scores")
    candidate = exchange.candidates[place]
    lines = [f"reply {place + 1}: {candidate.tokens} tokens, ended by {candidate.finish_reason}"]
    for row in explain(session.judges, exchange, place):
        if row.change is None:
            lines.append(f"{row.name}: failed: {row.failed}")
            continue
        lines.append(f"{row.name}: {row.score:.4f}, an empty reply {row.empty:.4f}, change {row.change:+.4f}")
        if row.seen is None:
            lines.append("  input text not available")
        else:
            cut = f"{row.seen.cut} truncated" if row.seen.cut else "not truncated"
            lines += [f"  input of {row.seen.tokens} tokens, {cut}:", *(f"  | {x}" for x in row.seen.text.splitlines())]
    return Response("\n".join(lines))


def table(chat: ChatView, text: str) -> Response:
    if text and text not in VIEWS:
        raise InputError(f"%table {one_line(text)}: needed {', '.join(VIEWS)}")
    chat.view = text or chat.view
    return Response(f"view: {chat.view}", chat.session.last if chat.session.head is not None else None)


def agree(chat: ChatView, text: str) -> Response:
    session = chat.session
    session.refuse_open()
    shares = agreement([exchange.columns for exchange in session.history if not exchange.is_open])
    lines = [f"{a} and {b}: same order in {share:.0%} of {n} pairs of replies" for (a, b), (share, n) in shares.items()]
    picks = [(e, e.human_pick) for e in session.exchanges.values() if isinstance(e.human_pick, int)]
    for name in session.judges:
        places = [place for e, pick in picks if (place := ranks(e.column(name))[pick]) is not None]
        if places:
            lines.append(f"{name} and you: your pick had its best score in {places.count(1)} of {len(places)} turns")
    return Response("\n".join(lines) or "nothing to compare yet: needed a turn with scores of two scorers")


def persona(chat: ChatView, text: str) -> Response:
    if text:
        chat.session.persona = "" if text in ('""', "''") else readable(text)
    return Response(f"persona: {one_line(chat.session.persona, ECHOED) or '(none)'}")


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
    return Response(f"saved: {path}")


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
    return Response("\n".join([f"{len(chat.session.exchanges)} turns; {_position(chat.session)}", *problems]))


def export(chat: ChatView, text: str) -> Response:
    kind, _, path = text.partition(" ")
    if kind != "prefs" or not path.strip():
        raise InputError("%export prefs PATH")
    session, path = chat.session, parse_path(path)
    counts = export_preferences(list(session.exchanges.values()), session.conversation_id, Path(path))
    found = (
        f"{path}: {counts.pairs} preferences from {counts.decisions} decisions ({counts.ties} ties and "
        f"{counts.rejections} rejections give none)"
    )
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
    return [sys.executable, "-m", "reward_models.experiments.hh_pairwise", *model, "--dataset", path, *held_out]


def status(chat: ChatView, text: str) -> Response:
    session = chat.session
    decided = sum(exchange.human_pick is not None for exchange in session.exchanges.values())
    lines = [
        _position(session),
        f"turns: {len(session.exchanges)}, decided by you: {decided}; session file: {session.path}",
        f"{session.selects} selects the best of {session.best_of}; scorers: {', '.join(session.judges)}",
        f"blind {'on' if session.blind else 'off'}; view {chat.view}",
        persona(chat, "").text,
        _sampling_settings(session),
    ]
    lines += [f"{name}: {json.dumps(value)}" for name, value in session.about.get("models", {}).items()]
    return Response("\n".join(lines))
