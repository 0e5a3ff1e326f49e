"""What the commands of a session do: a function each, of the talk, the words behind the command and a progress."""

import difflib
import json
import os
import shlex
from ast import literal_eval
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from lmgym.chat.exchanges import Exchange, explain
from lmgym.chat.records import export_preferences
from lmgym.chat.records import load as read_session
from lmgym.chat.session import ChatSession, checked_count, readable
from lmgym.errors import MOST_SCORE, InputError, one_line, shown, shown_path
from lmgym.generation.protocol import Progress
from lmgym.scoring.ranking import agreement, describe_weights, ranks

VIEWS = ("scores", "ranks", "z")
LONGEST_SETTINGS = 10_000  # characters behind %set and %blend
ECHOED = 500  # characters of a turn that a command repeats


@dataclass
class Talk:
    """A session and how it is looked at."""

    session: ChatSession
    view: str = "scores"
    samples: str = ""
    """how replies are drawn at first and where that is said, for people"""
    template: str = ""
    """how chats are written, where the model's folder does not say"""


@dataclass(frozen=True)
class Shown:
    """The answer to a line: an exchange with its table, words, or both; `ok` is false for what went wrong."""

    text: str = ""
    exchange: Exchange | None = None
    ok: bool = True
    is_turn: bool = False
    """whether replies were made, or come to light"""


def best_of(talk: Talk, words: str, progress: Progress | None) -> Shown:
    if words:
        talk.session.best_of = checked_count(whole(words, "%best_of 8"))
    return Shown(f"{talk.session.best_of} replies a turn")


def set_sampling(talk: Talk, words: str, progress: Progress | None) -> Shown:
    known = {field.name for field in fields(talk.session.sampling)}
    changed = {}
    for name, value in assignments(words, "%set temperature=0.9 top_p=.7"):
        if name not in known:
            raise InputError(f"there is no setting {one_line(name)}; did you mean {near(name[:80], known)}?")
        changed[name] = _as_setting(name, value, getattr(talk.session.sampling, name))
    talk.session.sampling = replace(talk.session.sampling, **changed)
    return Shown(_sampling_words(talk.session))


def _as_setting(name: str, word: str, now: Any) -> Any:
    """The word as the type that the setting has."""
    if isinstance(now, tuple):
        return tuple(_unescaped(part, f"{name}={word}") for part in word.split(",") if part)
    try:
        value = literal_eval(word.capitalize() if isinstance(now, bool) else word)
    except (ValueError, SyntaxError):
        value = None
    if isinstance(now, bool) and value in (0, 1):
        return bool(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**64:
        return type(now)(value)
    if isinstance(value, float) and isinstance(now, float):
        return value
    raise InputError(f"{name}={one_line(word)}: needed {type(now).__name__}")


def _unescaped(text: str, found: str) -> str:
    """With `\\n` and the like as what they stand for; other letters of any script as they are."""
    try:
        return text.encode("latin-1", "backslashreplace").decode("unicode_escape")
    except UnicodeDecodeError:
        raise InputError(f"{one_line(found)}: needed escapes such as \\n, or \\\\ for a backslash") from None


def _sampling_words(session: ChatSession) -> str:
    return " ".join(f"{field.name}={getattr(session.sampling, field.name)!r}" for field in fields(session.sampling))


def select(talk: Talk, words: str, progress: Progress | None) -> Shown:
    if words:
        talk.session.select(words.strip())
    others = ", ".join(talk.session.judges)
    return Shown(f"{talk.session.selects} selects from the next turn on; there are {others}")


def blend(talk: Talk, words: str, progress: Progress | None) -> Shown:
    weights = {name: number(value, f"{name}=1") for name, value in assignments(words, "%blend rm_a=1 rm_b=.5")}
    talk.session.blend(weights)
    return Shown(f"{describe_weights(weights)}, of scores standardised within a turn, selects from the next turn on")


def retry(talk: Talk, words: str, progress: Progress | None) -> Shown:
    return Shown(exchange=talk.session.retry(progress), is_turn=True)


def more(talk: Talk, words: str, progress: Progress | None) -> Shown:
    n = whole(words, "%more 4") if words else talk.session.best_of
    return Shown(exchange=talk.session.more(n, progress), is_turn=True)


def undo(talk: Talk, words: str, progress: Progress | None) -> Shown:
    talk.session.undo()
    return Shown(f"one turn back; {where(talk.session)}")


def edit(talk: Talk, words: str, progress: Progress | None) -> Shown:
    first, _, rest = words.partition(" ")
    turn = int(first) if first.isdecimal() and (rest or int(first) in talk.session.exchanges) else None
    text = rest if turn is not None else words
    if not text:
        old = talk.session.last if turn is None else talk.session.turn(turn)
        raise InputError(f"%edit {old.id} NEW TEXT; turn {old.id} is: {one_line(old.user, ECHOED)}")
    return Shown(exchange=talk.session.edit(text, turn, progress), is_turn=True)


def back(talk: Talk, words: str, progress: Progress | None) -> Shown:
    talk.session.back(whole(words, "%back 3, a turn's number, or 0 for the beginning"))
    return Shown(where(talk.session))


def where(session: ChatSession) -> str:
    """The path of turns, and what was said last."""
    path = " > ".join(str(exchange.id) for exchange in session.history) or "the beginning"
    if session.head is None:
        said = [f"{turn.speaker}: {one_line(turn.text, ECHOED)}" for turn in session.opening]
    else:
        reply = "(not decided)" if session.last.is_open else one_line(session.last.reply or "", ECHOED)
        said = [f"you: {one_line(session.last.user, ECHOED)}", f"bot: {reply}"]
    return "\n".join([f"turns {path}", *said])


def pick(talk: Talk, words: str, progress: Progress | None) -> Shown:
    return _decided(talk, "picked", lambda: talk.session.pick(whole(words, "%pick 3, a reply's number")))


def _decided(talk: Talk, words: str, decide: Callable[[], Exchange]) -> Shown:
    """A decision; where the turn was open, its replies come to light only now."""
    reveals = talk.session.last.is_open
    return Shown(words, decide(), is_turn=reveals)


def write(talk: Talk, words: str, progress: Progress | None) -> Shown:
    return _decided(talk, "written", lambda: talk.session.write(words))


def reject(talk: Talk, words: str, progress: Progress | None) -> Shown:
    return _decided(talk, "all rejected; %retry for others, %write TEXT for your own", talk.session.reject)


def tie(talk: Talk, words: str, progress: Progress | None) -> Shown:
    numbers = [whole(word, "%tie 1 3, or %tie for all") for word in words.split()]
    return _decided(talk, "tied", lambda: talk.session.tie(*numbers))


def blind(talk: Talk, words: str, progress: Progress | None) -> Shown:
    if words not in ("on", "off", ""):
        raise InputError(f"%blind {one_line(words)}: needed on or off")
    was_open = talk.session.head is not None and talk.session.last.is_open
    if words:
        talk.session.set_blind(words == "on")
    state = "scores are hidden and replies shuffled until you decide" if talk.session.blind else "scores are shown"
    revealed = talk.session.last if was_open and words == "off" else None
    return Shown(f"blind {'on' if talk.session.blind else 'off'}: {state}", revealed, is_turn=revealed is not None)


def why(talk: Talk, words: str, progress: Progress | None) -> Shown:
    talk.session.refuse_open()
    exchange = talk.session.last
    if not words and exchange.chosen is None:
        raise InputError("%why N: which reply?")
    place = talk.session.place(whole(words, "%why 2, a reply's number")) if words else exchange.chosen
    assert place is not None
    candidate = exchange.candidates[place]
    lines = [f"reply {place + 1}: {candidate.tokens} tokens, ended by {candidate.finish_reason}"]
    for row in explain(talk.session.judges, exchange, place):
        if row.change is None:
            lines.append(f"{row.name}: failed: {row.failed}")
            continue
        lines.append(f"{row.name}: {row.score:.4f}, an empty reply {row.empty:.4f}, change {row.change:+.4f}")
        if row.seen is None:
            lines.append("  does not tell what it saw")
        else:
            cut = f"{row.seen.cut} left out" if row.seen.cut else "nothing left out"
            lines += [f"  saw {row.seen.tokens} tokens, {cut}:", *(f"  | {x}" for x in row.seen.text.splitlines())]
    return Shown("\n".join(lines))


def table(talk: Talk, words: str, progress: Progress | None) -> Shown:
    if words and words not in VIEWS:
        raise InputError(f"%table {one_line(words)}: needed {', '.join(VIEWS)}")
    talk.view = words or talk.view
    return Shown(exchange=talk.session.last if talk.session.head is not None else None, text=f"view: {talk.view}")


def agree(talk: Talk, words: str, progress: Progress | None) -> Shown:
    talk.session.refuse_open()
    turns = [exchange.columns for exchange in talk.session.history if not exchange.is_open]
    found = agreement(turns)
    lines = [f"{a} and {b}: order {share:.0%} of {n} pairs of replies alike" for (a, b), (share, n) in found.items()]
    people = [(e, e.human_pick) for e in talk.session.exchanges.values() if isinstance(e.human_pick, int)]
    for name in talk.session.judges:
        places = [place for e, pick in people if (place := ranks(e.column(name))[pick]) is not None]
        if places:
            best = places.count(1)
            lines.append(f"{name} and you: the reply that you picked was its best in {best} of {len(places)} turns")
    return Shown("\n".join(lines) or "nothing to compare yet: it takes two scorers that answered, and a turn")


def persona(talk: Talk, words: str, progress: Progress | None) -> Shown:
    if words:
        talk.session.persona = "" if words in ('""', "''") else readable(words)
    return Shown(f"persona: {one_line(talk.session.persona, ECHOED) or '(none)'}")


def save(talk: Talk, words: str, progress: Progress | None) -> Shown:
    path = Path(one_path(words) or talk.session.path)
    if os.path.isfile(path) and not _holds(path, talk.session.conversation_id):
        raise InputError(
            f"{shown_path(path)} is there and holds something else: nothing is overwritten; give another name"
        )
    try:
        talk.session.save(path)
    except OSError as error:
        raise InputError(f"{shown_path(path)} cannot be written: {error.strerror}") from None
    return Shown(f"saved: {path}")


def _holds(path: Path, conversation: str) -> bool:
    """Whether a file is of this conversation."""
    try:
        return read_session(path).conversation == conversation
    except InputError:
        return False


def load(talk: Talk, words: str, progress: Progress | None) -> Shown:
    if not words:
        raise InputError("%load PATH, a file of outputs/sessions/")
    lost = talk.session.restore(one_path(words))
    return Shown("\n".join([f"{len(talk.session.exchanges)} turns; {where(talk.session)}", *lost]))


def export(talk: Talk, words: str, progress: Progress | None) -> Shown:
    kind, _, path = words.partition(" ")
    if kind != "prefs" or not path.strip():
        raise InputError("%export prefs PATH")
    session, path = talk.session, one_path(path)
    counts = export_preferences(list(session.exchanges.values()), session.conversation_id, Path(path))
    return Shown(
        f"{path}: {counts.pairs} preferences from {counts.decisions} decisions ({counts.ties} ties and "
        f"{counts.rejections} rejections give none); --dataset {path} of hh_pairwise trains on them"
    )


def status(talk: Talk, words: str, progress: Progress | None) -> Shown:
    session = talk.session
    decided = sum(exchange.human_pick is not None for exchange in session.exchanges.values())
    lines = [
        where(session),
        f"{len(session.exchanges)} turns in all, {decided} decided by you; kept in {session.path}",
        f"{session.selects} selects the best of {session.best_of}; scorers: {', '.join(session.judges)}",
        f"blind {'on' if session.blind else 'off'}; view {talk.view}",
        f"persona: {one_line(session.persona, ECHOED) or '(none)'}",
        _sampling_words(session),
    ]
    lines += [f"{name}: {json.dumps(value)}" for name, value in session.about.get("models", {}).items()]
    return Shown("\n".join(lines))


def whole(word: str, example: str) -> int:
    """A whole number. Raises InputError with the example for anything else."""
    try:
        return int(word)
    except ValueError:
        raise InputError(f"found {shown(word)}; needed a whole number: {example}") from None


def number(word: str, example: str) -> float:
    """A finite number of a size that makes sense. Raises InputError with the example for anything else."""
    try:
        value = float(word)
    except ValueError:
        value = float("nan")
    if not abs(value) <= MOST_SCORE:
        raise InputError(f"found {shown(word)}; needed a number, at most {MOST_SCORE:,.0f} in size: {example}")
    return value


def assignments(words: str, example: str) -> list[tuple[str, str]]:
    """name=value pairs. Raises InputError with the example for anything else."""
    try:  # shlex takes a minute for a megabyte
        pairs = [word.partition("=") for word in shlex.split(words)] if len(words) < LONGEST_SETTINGS else []
    except ValueError:
        pairs = []
    if not pairs or not all(name and equals for name, equals, _ in pairs):
        raise InputError(f"found {shown(words)}; needed name=value: {example}")
    return [(name, value) for name, _, value in pairs]


def near(name: str, known: Sequence[str] | set[str]) -> str:
    """The name that was most likely meant."""
    return max(sorted(known), key=lambda other: difflib.SequenceMatcher(None, name, other).ratio())


def one_path(words: str) -> str:
    """A path, with quotes or without."""
    return str(Path(words.strip().strip("'\"")).expanduser()) if words.strip() else ""
