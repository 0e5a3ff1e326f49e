"""The page's sessions: those of the terminal, one of each mode for a browser, with the settings of its controls."""

import json
import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lmgym.apps.chat.exchanges import Exchange, preferences, readable
from lmgym.apps.chat.records import LoadedSession, load
from lmgym.apps.chat.session import ChatSession
from lmgym.apps.serve.chat_models import ChatModels
from lmgym.apps.serve.guard import Refusal
from lmgym.apps.serve.page_arena import EXPERIMENT, SIDES, draw, vote_of
from lmgym.errors import MOST_TOGETHER, InputError
from lmgym.generation.protocol import Progress, Sampling
from lmgym.scoring.ratings import Game

MOST_SESSIONS = 256
"""browsers at a time; the file of the one that was idle longest stays"""
MOST_LISTED = 100
"""earlier sessions that the page lists: the latest"""
CHAT, ARENA = "chat", "arena"


class PageSession:
    """A browser's chat and arena, and the settings of both. `lock` is held while they are used."""

    def __init__(self, models: ChatModels, folder: Path) -> None:
        self.models, self.folder = models, folder
        self.csrf, self.lock, self.busy = secrets.token_urlsafe(24), threading.Lock(), False
        self.progress: tuple[int, int] | None = None
        """tokens of the longest reply so far, and their maximum, while replies are generated"""
        self.policy, self.best_of = next(iter(models.policies)), models.defaults.best_of
        self.persona, self.first_message = models.defaults.persona, models.defaults.first_message
        self.changed: dict[str, Any] = {}
        """settings of sampling that differ from those of a policy's folder"""
        self.chat = self._new(CHAT)
        self.arena = self._new(ARENA)

    def sampling(self, policy: str) -> Sampling:
        """The policy's own sampling, with what this browser changed."""
        return replace(self.models.defaults.sampling[policy], **self.changed)

    def session(self, mode: str) -> ChatSession:
        """The session of a mode. Raises Refusal for an arena of one policy."""
        if mode == ARENA and len(self.models.policies) < SIDES:
            raise Refusal(409, "the arena compares two policies, and one is served; start the server with two or more")
        return self.arena if mode == ARENA else self.chat

    def noting(self, progress: Progress) -> Progress:
        """The progress of a generator, kept for the page."""

        def note(done: int, total: int) -> None:
            self.progress = (done, total)
            progress(done, total)

        return note

    def draw(self) -> None:
        """Two policies for the next message of the arena."""
        names = self.models.policies
        self.arena.generator = draw(names, {name: self.sampling(name) for name in names})

    def change(self, settings: Mapping[str, Any]) -> None:
        """Applies the controls, from the next replies on. Raises InputError for a value out of bounds."""
        given = {name: value for name, value in settings.items() if value is not None}
        policy = self.models.find(given.get("policy", self.policy))
        best_of = self.check_count(given.get("best_of", self.best_of))
        changed = self.changed | {name: given[name] for name in ("temperature", "max_new_tokens") if name in given}
        sampling = replace(self.models.defaults.sampling[policy], **changed)
        context = getattr(self.models.policies[policy], "max_length", MOST_TOGETHER)
        if sampling.max_new_tokens >= context:
            raise InputError(
                f"replies of {sampling.max_new_tokens:,} tokens; needed: fewer than {policy} reads, {context:,}"
            )
        if weights := given.get("weights"):
            self.chat.blend(weights)
            self.arena.blend(weights)
        self.policy, self.best_of, self.changed = policy, best_of, changed
        self.chat.generator, self.chat.best_of, self.chat.sampling = self.models.policies[policy], best_of, sampling
        if self.chat.about["models"] != self.models.revisions(policy):
            self.chat.use_scorers(self.chat.judges, self.models.revisions(policy))
        for session in (self.chat, self.arena):
            if (persona := given.get("persona")) is not None:
                self.persona = session.persona = readable(persona)
            if (first := given.get("first_message")) is not None and first != self.first_message:
                session.begin_with(first)
        self.first_message = given.get("first_message", self.first_message)

    def check_count(self, replies: int) -> int:
        """The number. Raises InputError unless the server generates so many at once."""
        most = self.models.defaults.max_best_of
        if not 1 <= replies <= most:
            raise InputError(f"{replies:,} replies; needed: 1 to {most:,}, the most that this server writes at once")
        return replies

    def settings(self) -> dict[str, Any]:
        """The values that the controls show."""
        sampling = self.sampling(self.policy)
        return {
            "policy": self.policy,
            "best_of": self.best_of,
            "temperature": sampling.temperature,
            "max_new_tokens": sampling.max_new_tokens,
            "weights": self.chat.weights,
            "persona": self.chat.persona,
            "first_message": self.first_message,
        }

    def resume(self, saved: "Saved") -> list[str]:
        """Goes on with an earlier session, in a new file. Returns what could not be read."""
        mode = ARENA if saved.is_arena else CHAT
        self.session(mode)
        session = self._new(mode)
        session.blind = mode == ARENA or self.chat.blind
        session.weights = dict(self.chat.weights)
        problems = session.restore(saved.path)
        if mode == ARENA:
            if session.head is not None and session.last.is_open:
                session.undo()  # the file does not say whose replies they are
            self.arena = session
        else:
            self.chat = session
        self.persona = session.persona
        return problems

    def _new(self, mode: str) -> ChatSession:
        models, is_arena = self.models, mode == ARENA
        about = {"experiment": EXPERIMENT if is_arena else "page", "models": models.revisions(self.policy)}
        sampling = self.sampling(self.policy)
        if is_arena:  # who votes on the same message sees other replies
            sampling = replace(sampling, seed=secrets.randbelow(2**31))
            about["models"] = models.info.get("policies", {})
        session = ChatSession(
            models.policies[self.policy],
            models.judges,
            best_of=SIDES if is_arena else self.best_of,
            sampling=sampling,
            persona=self.persona,
            first_message=self.first_message,
            folder=self.folder,
            about=about,
        )
        if models.defaults.weights:
            session.blend(models.defaults.weights)
        session.blind = is_arena
        return session


class PageSessions:
    """The sessions of all browsers by their cookies."""

    def __init__(self, models: ChatModels, folder: Path) -> None:
        self.models, self.folder = models, folder
        self._known: OrderedDict[str, PageSession] = OrderedDict()

    def find(self, cookie: str) -> PageSession | None:
        """The session of a cookie."""
        if cookie in self._known:
            self._known.move_to_end(cookie)
        return self._known.get(cookie)

    def begin(self) -> tuple[str, PageSession]:
        """(a new cookie, its session)."""
        cookie = secrets.token_urlsafe(24)
        self._known[cookie] = PageSession(self.models, self.folder)
        if len(self._known) > MOST_SESSIONS:
            self._known.popitem(last=False)
        return cookie, self._known[cookie]


@dataclass(frozen=True)
class Saved:
    """An earlier session's file and content."""

    path: Path
    changed: float
    """time of the last change, in seconds"""
    content: LoadedSession

    @property
    def is_arena(self) -> bool:
        """True if policies were compared. The file of one whose only vote is open has no policies, but its name."""
        return f"_{EXPERIMENT}_" in self.path.stem or any(
            candidate.policy for e in self.content.exchanges.values() for candidate in e.candidates
        )

    def view(self) -> dict[str, Any]:
        """A row of the page's list; the file's name without its ending stands for it."""
        exchanges = list(self.content.exchanges.values())
        return {
            "name": self.path.stem,
            "mode": ARENA if self.is_arena else CHAT,
            "changed": self.changed,
            "begins": exchanges[0].user[:120],
            "turns": len(exchanges),
            "decisions": sum(exchange.human_pick is not None for exchange in exchanges),
        }


class SavedSessions:
    """The files of a folder, read again where they changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[Path, tuple[tuple[int, int], LoadedSession | None]] = {}
        self._lock = threading.Lock()

    def all(self) -> list[Saved]:
        """The sessions with a turn, the latest first; those that a later file goes on with are left out."""
        with self._lock:
            stats = {}
            for path in self.folder.glob("*.jsonl"):
                with suppress(FileNotFoundError):  # removed by somebody meanwhile
                    if path.is_file() and not path.is_symlink():
                        stats[path] = path.stat()
            self._read = {path: read for path, read in self._read.items() if path in stats}
            found: list[Saved] = []
            for path, stat in sorted(stats.items(), key=lambda one: -one[1].st_mtime_ns):
                state = (stat.st_mtime_ns, stat.st_size)
                if path not in self._read or self._read[path][0] != state:
                    self._read[path] = (state, _load(path))
                content = self._read[path][1]
                if content and content.exchanges and not any(_goes_on(later.content, content) for later in found):
                    found.append(Saved(path, stat.st_mtime, content))
            return found

    def find(self, name: str) -> Saved:
        """The session of a name that `all` gave. Raises Refusal for another."""
        for saved in self.all():
            if saved.path.stem == name:
                return saved
        raise Refusal(404, "there is no session of that name; look at the list again")


def _load(path: Path) -> LoadedSession | None:
    try:
        return load(path)
    except InputError:
        return None


def _goes_on(later: LoadedSession, earlier: LoadedSession) -> bool:
    """True if the later file has every turn of the earlier one."""
    if later.conversation_id != earlier.conversation_id:
        return False
    return all(
        number in later.exchanges and _replies(later.exchanges[number]) == _replies(exchange)
        for number, exchange in earlier.exchanges.items()
    )


def _replies(exchange: Exchange) -> tuple[Any, ...]:
    return exchange.prompt, sorted(candidate.text for candidate in exchange.candidates)


def pairs_of(contents: Iterable[tuple[str, Mapping[int, Exchange]]]) -> list[dict[str, Any]]:
    """The preferences of sessions, given as their conversation ids and exchanges, each once."""
    rows = [row for group, exchanges in contents for row in preferences(list(exchanges.values()), group)]
    return list({json.dumps({**row, "turn": None}): row for row in rows}.values())


def votes_of(sessions: Iterable[Saved]) -> list[Game]:
    """Every vote of the arena, the latest session first; once where two sessions went on with the same one."""
    votes: dict[tuple[Any, ...], Game] = {}
    for saved in sessions:
        for exchange in saved.content.exchanges.values():
            texts = [exchange.prompt.turns[-1].text, *sorted(candidate.text for candidate in exchange.candidates)]
            if (vote := vote_of(exchange)) is not None:
                votes.setdefault((saved.content.conversation_id, exchange.id, *texts), vote)
    return list(votes.values())
