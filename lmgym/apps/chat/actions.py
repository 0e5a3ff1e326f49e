"""The commands of a session: functions of the chat and of the command's arguments as text.

Those that read and write files are in commands.py.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path

from lmgym.apps.chat.arguments import parse_assignments, parse_float, parse_int, parse_sampling
from lmgym.apps.chat.exchanges import Exchange, check_count, explain, readable
from lmgym.apps.chat.loading import check_scorer_names, describe_revision, model_revisions
from lmgym.apps.chat.session import ChatSession
from lmgym.errors import InputError, one_line
from lmgym.generation.protocol import Progress
from lmgym.scoring.named_scorers import load_scorer, read_names
from lmgym.scoring.ranking import agreement, describe_weights, ranks
from lmgym.text import Turn

VIEWS = ("scores", "ranks", "z")
NONE = ('""', "''")  # an empty text, as a command's argument
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
    first: int = 0
    """index of the first candidate to show; those before it are on the screen already, unchanged"""
    commands: tuple[str, ...] = ()
    """for the shell, shown below the text, each in one line whatever the width of the terminal"""


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
    return Response(_who_scores(chat.session))


def scorers(chat: ChatView, text: str) -> Response:
    session = chat.session
    if text in NONE:
        session.use_scorers({}, model_revisions(session.generator, {}))
    elif text:
        named = read_names(text, "%scorers")
        check_scorer_names(named, "%scorers")
        judges = session.judges | {name: load_scorer(path) for name, path in named.items()}
        session.use_scorers(judges, model_revisions(session.generator, judges))
    return Response(_who_scores(session))


def _who_scores(session: ChatSession) -> str:
    if not session.judges:
        return "no scorers: the first reply is taken, or the one that you %pick; %scorers PATH adds one"
    return f"{session.selects} selects from the next turn on; scorers: {', '.join(session.judges)}"


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
    before, view = chat.session.last, chat.view
    names = before.names
    n = parse_int(text, "%more 4") if text else chat.session.best_of
    exchange = chat.session.more(n, chat.progress)
    # ranks and z of the earlier replies change, and all scores with new scorers; an open turn is shuffled; a new branch
    # may be off the screen
    is_on_screen = view == "scores" and not exchange.is_open and exchange.id == before.id and exchange.names == names
    return Response(exchange=exchange, is_turn=True, first=len(before.candidates) if is_on_screen else 0)


def undo(chat: ChatView, text: str) -> Response:
    chat.session.undo()
    return Response(f"one turn back: {position(chat.session)}")


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
    return Response(position(chat.session))


def position(session: ChatSession) -> str:
    """The current turn, the turns before it, and the last messages."""
    if session.head is None:
        return "\n".join(["at the beginning, before any turn", *map(_said, session.opening)])
    last, path = session.last, " > ".join(str(exchange.id) for exchange in session.history)
    place = f"at turn {last.id}" + (f" (turns {path})" if last.parent else "")
    return "\n".join([place, _said(last.prompt.turns[-1]), _replied(last)])


def _said(turn: Turn) -> str:
    return f"{'you' if turn.speaker == 'user' else 'bot'}> {one_line(turn.text, ECHOED)}"


def _replied(exchange: Exchange) -> str:
    return "bot> (not decided)" if exchange.is_open else f"bot> {one_line(exchange.reply or '', ECHOED)}"


def history(chat: ChatView, text: str) -> Response:
    session = chat.session
    opening = session.opening if session.head is None else session.history[0].prompt.turns[:-1]
    rows = [("", _said(turn)) for turn in opening]
    for exchange in session.history:
        rows += [(f"turn {exchange.id}", _said(exchange.prompt.turns[-1])), ("", _replied(exchange))]
    others = session.exchanges.keys() - {exchange.id for exchange in session.history}
    lines = [aligned(rows)] if rows else ["nothing was said yet"]
    if others:
        numbers = one_line(", ".join(map(str, sorted(others))), ECHOED)
        lines.append(f"turns on other branches: {numbers}; %back N goes to turn N")
    return Response("\n".join(lines))


def aligned(rows: Iterable[tuple[str, str]]) -> str:
    """Lines of a label and a value, the values one below the other."""
    rows = list(rows)
    width = max(len(label) for label, _ in rows)
    return "\n".join(f"{label:{width}}  {value}" for label, value in rows)


def _decided(chat: ChatView, decide: Callable[[], Exchange], decision: str) -> Response:
    """A decision: one line, or for a blind turn, whose scores it reveals, the table."""
    was_open = chat.session.last.is_open
    exchange = decide()
    text = f"turn {exchange.id}: {decision}"
    if was_open:
        return Response(text, exchange, is_turn=True)
    return Response(f"{text}; {_replied(exchange)}", exchange, first=len(exchange.candidates))


def pick(chat: ChatView, text: str) -> Response:
    example = "%pick 3, a reply's number"
    return _decided(chat, lambda: chat.session.pick(parse_int(text, example)), f"picked reply {text}")


def write(chat: ChatView, text: str) -> Response:
    return _decided(chat, lambda: chat.session.write(text), "written by you")


def reject(chat: ChatView, text: str) -> Response:
    hint = "all replies rejected; %retry generates others, %write TEXT gives your own"
    return _decided(chat, chat.session.reject, hint)


def tie(chat: ChatView, text: str) -> Response:
    numbers = [parse_int(word, "%tie 1 3, or %tie for all") for word in text.split()]
    tied = f"replies {', '.join(map(str, sorted(set(numbers))))}" if numbers else "all replies"
    return _decided(chat, lambda: chat.session.tie(*numbers), f"{tied} tied")


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
        scores = f"{row.score:.4f}; of an empty reply {row.empty:.4f}; difference {row.change:+.4f}"
        lines.append(f"{row.name}: {scores}")
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
        chat.session.persona = "" if text in NONE else readable(text)
    return Response(f"persona: {one_line(chat.session.persona, ECHOED) or '(none)'}")


def first_message(chat: ChatView, text: str) -> Response:
    session = chat.session
    if text:
        session.begin_with("" if text in NONE else text)
    said = "".join(one_line(turn.text, ECHOED) for turn in session.opening)
    later = "" if session.head is None else "; it begins the next conversation: %back 0"
    return Response(f"first message: {said or '(none)'}{later if text else ''}")


def shown_file(path: Path) -> str:
    """The path, relative to the working folder if it is inside."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def status(chat: ChatView, text: str) -> Response:
    session = chat.session
    decided = sum(exchange.human_pick is not None for exchange in session.exchanges.values())
    rows = [
        ("turns", f"{len(session.exchanges)} ({decided} decided by you); now {position(session).splitlines()[0]}"),
        ("selects", f"{session.selects}, the {'best' if session.judges else 'first'} of {session.best_of}"),
        ("scorers", ", ".join(session.judges) or "(none)"),
        ("table", f"{chat.view}; blind {'on' if session.blind else 'off'}"),
        ("persona", one_line(session.persona, ECHOED) or "(none)"),
        ("opening", "".join(one_line(turn.text, ECHOED) for turn in session.opening) or "(none)"),
        ("sampling", _sampling_settings(session)),
        ("file", shown_file(session.path)),
    ]
    rows += [(name, describe_revision(revision)) for name, revision in session.about.get("models", {}).items()]
    return Response(aligned(rows))
