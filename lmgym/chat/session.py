"""A best-of-N chat: generate, score, rank, select, record. It knows no screen; front ends use it.

Design decisions:
- History is a tree of exchanges; `head` is where the conversation stands. Retries, edits and going back add branches
  and take nothing away.
- A turn is added once it is whole: an error or Ctrl-C on the way leaves the session as it was.
- A person who is blind has to decide before the conversation goes on: until then no one selects.
"""

import random
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from lmgym.chat.exchanges import Candidate, Exchange, to_record
from lmgym.chat.records import append, load, said_until, write_whole
from lmgym.errors import InputError, one_line, shown
from lmgym.generation.context_fitting import reply_within
from lmgym.generation.protocol import Generator, Progress, Sampling, seeds_of
from lmgym.runs.record import timestamp
from lmgym.scoring.protocol import Scorer
from lmgym.scoring.ranking import describe_weights, score_replies, select_best
from lmgym.text import Conversation, Turn, messages

MOST_REPLIES = 1024
SESSIONS = "outputs/sessions"  # beside what runs write


def checked_count(n: int, name: str = "best_of") -> int:
    """A number of replies. Raises InputError for one that is none or absurd."""
    if not 1 <= n <= MOST_REPLIES:
        raise InputError(f"{name}={shown(n)}: needed 1 to {MOST_REPLIES:,} replies")
    return n


class ChatSession:
    """One person, one generator, any number of scorers. Numbers of candidates in arguments count from 1."""

    def __init__(
        self,
        generator: Generator,
        judges: Mapping[str, Scorer],
        select: str,
        best_of: int = 6,
        sampling: Sampling | None = None,
        persona: str = "",
        first_message: str = "",
        folder: str | Path = SESSIONS,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        self.generator, self.judges = generator, dict(judges)
        self.best_of, self.sampling = checked_count(best_of), sampling or Sampling()
        self.persona = readable(persona)
        opening = [Turn("bot", readable(first_message))] if first_message.strip() else []
        self.opening: tuple[Turn, ...] = tuple(opening)
        self.weights: dict[str, float] = {}
        self.select(select)
        self.blind = False
        self.exchanges: dict[int, Exchange] = {}
        self.head: int | None = None
        self.requests = 0
        self.conversation_id = uuid.uuid4().hex[:12]
        self.about = dict(about or {})
        name = f"{datetime.now():%Y-%m-%d_%H%M%S}_{self.about.get('experiment', 'session')}_{self.conversation_id}"
        self.path = Path(folder).absolute() / f"{name}.jsonl"  # a person may change the folder in IPython
        self._unwritten: list[dict[str, Any]] = []

    # --- what there is

    @property
    def history(self) -> list[Exchange]:
        """The exchanges from the beginning to where the conversation stands."""
        path, place = [], self.head
        while place is not None:
            path.append(self.exchanges[place])
            place = path[-1].parent
        return path[::-1]

    @property
    def last(self) -> Exchange:
        """The exchange at hand. Raises InputError before the first."""
        if self.head is None:
            raise InputError("there is no turn yet; write something first")
        return self.exchanges[self.head]

    @property
    def conversation(self) -> Conversation:
        """All that was said on this branch. Raises InputError while a blind choice is open."""
        if self.head is None:
            return Conversation(self.opening, self.persona)
        self.refuse_open()
        return replace(self.last.conversation, persona=self.persona)

    def refuse_open(self) -> None:
        """Raises InputError while a blind choice is open."""
        if self.head is not None and self.last.is_open:
            raise InputError("you are blind and have not decided: %pick N, %write TEXT, %tie or %reject first")

    # --- turns

    def say(self, text: str, progress: Progress | None = None) -> Exchange:
        """The next turn. Raises InputError for an empty line, and where no reply can be had."""
        text = readable(text)
        if not text:
            raise InputError("an empty line is no turn; write something, or %retry for other replies")
        conversation = self.conversation
        prompt = replace(conversation, turns=(*conversation.turns, Turn("user", text)))
        return self._answer(prompt, self.head, progress)

    def retry(self, progress: Progress | None = None) -> Exchange:
        """Other replies to the same line, on a branch beside."""
        return self._answer(replace(self.last.prompt, persona=self.persona), self.last.parent, progress)

    def edit(self, text: str, turn: int | None = None, progress: Progress | None = None) -> Exchange:
        """Another line in place of that of a turn (default: the last), on a branch beside."""
        text = readable(text)
        if not text:
            raise InputError("an empty line is no turn; %edit TEXT, or %edit N TEXT")
        exchange = self.last if turn is None else self.turn(turn)
        turns = (*exchange.prompt.turns[:-1], Turn("user", text))
        return self._answer(Conversation(turns, self.persona), exchange.parent, progress)

    def more(self, n: int, progress: Progress | None = None) -> Exchange:
        """More candidates to the same line; all are judged together."""
        exchange, was_open = self._own(self.last), self.last.is_open
        checked_count(len(exchange.candidates) + n if n > 0 else n, "replies")
        seed = self._next_seed()
        found, _, notes = self._generate(exchange.prompt, n, seed, progress)
        exchange.candidates = [*exchange.candidates, *found]
        exchange.notes = notes
        self._judge(exchange, hides=was_open)  # what was seen cannot be hidden again
        return self._keep(exchange)

    def undo(self) -> None:
        """One turn back; the turn stays in the file."""
        self._go(self.last.parent)

    def back(self, turn: int) -> None:
        """To a turn, on whichever branch; 0 is the beginning."""
        self._go(self.turn(turn).id if turn else None)

    def turn(self, number: int) -> Exchange:
        """The exchange of that number. Raises InputError where there is none."""
        if number not in self.exchanges:
            turns = one_line(", ".join(map(str, self.exchanges))) or "none yet"
            raise InputError(f"there is no turn {shown(number)}; turns: {turns}")
        return self.exchanges[number]

    # --- what the person decides

    def pick(self, number: int) -> Exchange:
        """That candidate is what the bot says."""
        return self._decide(self.place(number))

    def write(self, text: str) -> Exchange:
        """The person's own words are what the bot says."""
        text = readable(text)
        if not text:
            raise InputError("%write TEXT: an empty reply is no example")
        return self._decide("written", edited_text=text)

    def tie(self, *numbers: int) -> Exchange:
        """These candidates (default: all) are equally good; the scorers' choice is said."""
        tied = sorted({self.place(n) for n in numbers}) or list(range(len(self.last.candidates)))
        if len(tied) < 2:
            raise InputError("a tie is between two candidates or more: %tie 1 3, or %tie for all")
        return self._decide("tie", tied=tied)

    def reject(self) -> Exchange:
        """None of the candidates is good; the scorers' choice stands until %retry or %write."""
        return self._decide("rejected")

    def place(self, number: int) -> int:
        """The index of a candidate of the turn at hand. Raises InputError where there is none."""
        if not 1 <= number <= len(self.last.candidates):
            raise InputError(f"there is no reply {shown(number)}; needed: 1 to {len(self.last.candidates)}")
        return number - 1

    def _decide(self, pick: int | str, edited_text: str | None = None, tied: Sequence[int] = ()) -> Exchange:
        exchange = self._own(self.last)
        exchange.scores_visible = not exchange.is_open  # who picks anew has seen them by now
        exchange.human_pick, exchange.edited_text, exchange.tied = pick, edited_text, list(tied)
        self._choose(exchange)
        return self._keep(exchange)

    # --- settings

    def select(self, name: str) -> None:
        """That scorer decides from now on."""
        self.blend({name: 1.0})

    def blend(self, weights: Mapping[str, float]) -> None:
        """The weighted sum of standardised scores decides from now on."""
        unknown = [name for name in weights if name not in self.judges]
        if unknown or not weights:
            named = ", ".join(unknown) or "(none named)"
            raise InputError(f"there is no scorer {one_line(named)}; there are {', '.join(self.judges) or 'none'}")
        self.weights = {name: float(weight) for name, weight in weights.items()}

    def set_blind(self, on: bool) -> None:
        """Hides scores, order and choice until the person has decided; off reveals what is open."""
        self.blind = on
        if not on and self.head is not None and self.last.is_open:
            self.last.scores_visible = True
            self._choose(self.last)
            self._keep(self.last)

    @property
    def selects(self) -> str:
        """Who decides."""
        return describe_weights(self.weights)

    # --- files

    def save(self, path: str | Path) -> None:
        """The whole session into a file of its own."""
        write_whole(Path(path), self._whole())

    def restore(self, path: str | Path) -> list[str]:
        """A session out of a file in place of this one; what could not be read or written. The file stays as it is."""
        loaded = load(Path(path))
        self.exchanges, self.head = loaded.exchanges, loaded.head
        self.conversation_id = loaded.conversation or self.conversation_id
        self.opening, self.persona = loaded.opening.turns, loaded.opening.persona
        used = [candidate.seed for exchange in self.exchanges.values() for candidate in exchange.candidates]
        self.requests = max(0, max(used, default=-1) + 1 - self._first_seed)  # no seed twice
        self.path, self._unwritten = self.path.with_name(f"{self.path.stem}_{uuid.uuid4().hex[:4]}.jsonl"), []
        for exchange in self.exchanges.values():
            if exchange.is_open and not exchange.names:  # the file has no scores of a choice that was open
                self._judge(exchange, hides=True)
        problem = self._go(self.head)
        lines, orphans = (", ".join(map(str, numbers)) for numbers in (loaded.broken, loaded.orphans))
        broken = f"line(s) {lines} could not be read" if lines else ""
        turns = f"turn(s) {orphans}: what was said before is not known" if orphans else ""
        return [note for note in (broken, turns, problem) if note]

    # --- within

    def _answer(self, prompt: Conversation, parent: int | None, progress: Progress | None) -> Exchange:
        seed = self._next_seed()
        candidates, dropped, notes = self._generate(prompt, self.best_of, seed, progress)
        number = max(self.exchanges, default=0) + 1
        sampling = {**asdict(self.sampling), "stop": list(self.sampling.stop)}  # as JSON gives it back
        exchange = Exchange(number, parent, prompt, candidates, seed, sampling, dropped_turns=dropped)
        exchange.notes = notes
        self._judge(exchange, hides=self.blind)
        return self._keep(exchange)

    def _generate(
        self, prompt: Conversation, n: int, seed: int, progress: Progress | None
    ) -> tuple[list[Candidate], int, list[str]]:
        notes = []
        try:
            found, dropped, shortened = reply_within(
                self.generator, prompt, n, replace(self.sampling, seed=seed), progress
            )
            if len(found) != n:
                raise ValueError(f"{len(found)} replies came; asked for {n}")
        except Exception as error:  # a server that died, memory that ran out: the session outlives them
            self._append(self._row("failure", user=prompt.turns[-1].text, error=f"{type(error).__name__}: {error}"))
            if isinstance(error, InputError):
                raise
            why = one_line(f"{type(error).__name__}: {error}", 1000)
            raise InputError(f"no reply: {why}; nothing was added, try again") from error
        if dropped:
            notes.append(f"the {dropped} oldest turns were left out: the conversation is too long for the model")
        if shortened:
            notes.append(f"the first {shortened} tokens of your line were left out: it is too long for the model")
        return [Candidate(readable(c.text), c.tokens, c.finish_reason, seed) for c in found], dropped, notes

    def _judge(self, exchange: Exchange, hides: bool) -> None:
        """Asks every scorer about every candidate, and selects, or hides all that and shuffles."""
        texts = [candidate.text for candidate in exchange.candidates]
        opinions = score_replies(self.judges, exchange.prompt, texts)
        scores = [{name: column[i] for name, column in opinions.scores.items()} for i in range(len(texts))]
        judged = [replace(c, scores=s) for c, s in zip(exchange.candidates, scores, strict=True)]
        exchange.failed = opinions.failed
        exchange.notes += [f"{name} failed: {why}" for name, why in opinions.failed.items()]
        if hides:
            random.SystemRandom().shuffle(judged)  # by no seed that anybody could retrace
            exchange.candidates, exchange.selected, exchange.scores_visible = judged, None, False
            return
        exchange.candidates = judged
        self._choose(exchange)

    def _choose(self, exchange: Exchange) -> None:
        exchange.selected, exchange.selected_by = select_best(exchange.columns, self.weights)
        if exchange.selected_by != self.selects and exchange.failed:
            exchange.notes.append(f"{self.selects} did not decide, since a scorer failed: {exchange.selected_by} did")

    def _own(self, exchange: Exchange) -> Exchange:
        """A copy to change. What turns follow refers to it as it was, so then it is a branch beside."""
        followed = any(other.parent == exchange.id for other in self.exchanges.values())
        number = max(self.exchanges) + 1 if followed else exchange.id
        return replace(exchange, id=number, notes=[])

    def _keep(self, exchange: Exchange) -> Exchange:
        """Writes the exchange to the disk, then takes it over: an interrupt between the two loses nothing."""
        if problem := self._append(self._turn_row(exchange)):
            exchange.notes.append(problem)
        self.exchanges[exchange.id] = exchange
        self.head = exchange.id
        return exchange

    def _go(self, place: int | None) -> str:
        problem = self._append(self._row("head", turn=place))
        self.head = place
        if place is not None:
            self.persona = self.last.prompt.persona
        return problem

    def _append(self, row: dict[str, Any]) -> str:
        """Why the row could not be written, or nothing. One that could not waits for the next."""
        self._unwritten.append(row)
        try:
            if not self.path.exists():
                self._unwritten = [*self._whole(), row]
            append(self.path, *self._unwritten)
        except OSError as error:
            return f"NOT RECORDED: {self.path} cannot be written ({error.strerror}); %save PATH elsewhere"
        self._unwritten = []
        return ""

    def _whole(self) -> list[dict[str, Any]]:
        opening = messages(Conversation(self.opening, self.persona))
        header = {"kind": "session", "conversation": self.conversation_id, "opening": opening, **self.about}
        turns = [self._turn_row(exchange) for exchange in self.exchanges.values()]
        return [header, *turns, *([self._row("head", turn=self.head)] if turns else [])]

    def _turn_row(self, exchange: Exchange) -> dict[str, Any]:
        parent = None if exchange.parent is None else self.exchanges[exchange.parent]
        before = Conversation(self.opening) if parent is None else said_until(parent)
        return self._row("turn", **to_record(exchange, before))

    def _row(self, kind: str, **fields: Any) -> dict[str, Any]:
        models = {"models": self.about["models"]} if kind == "turn" and "models" in self.about else {}
        return {"kind": kind, "time": timestamp(), **fields, **models}

    @property
    def _first_seed(self) -> int:
        return seeds_of(self.sampling, 1)[0]

    def _next_seed(self) -> int:
        self.requests += 1
        return self._first_seed + self.requests - 1


def readable(text: str) -> str:
    """Without halves of characters, which no tokenizer and no file takes, and without white space around."""
    return text.encode("utf-8", "replace").decode("utf-8").strip()
