"""A best-of-N chat session: generate, score, select, record. It has no user interface; front ends use it.

Design decisions:
- History is a tree of exchanges, and `head` is the current one. Retries, edits and going back only add branches.
- A turn is added once it is complete: an error or Ctrl-C before that leaves the session unchanged.
- In blind mode the user must decide before the conversation continues; until then nothing is selected.
"""

import random
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from lmgym.apps.chat.exchanges import Candidate, Exchange, as_json, check_count, generate_candidates, readable
from lmgym.apps.chat.records import SessionFile, conversation_before, load, to_decision, to_record, write_whole
from lmgym.errors import InputError, one_line, shown
from lmgym.generation.protocol import Generator, Progress, Sampling, seeds_of
from lmgym.runs.record import timestamp
from lmgym.scoring.protocol import Scorer
from lmgym.scoring.ranking import NOBODY, describe_weights, score_replies, select_best
from lmgym.text import Conversation, Turn, messages

SESSIONS = "outputs/sessions"  # beside the outputs of runs


def _opening(first_message: str) -> tuple[Turn, ...]:
    return (Turn("bot", readable(first_message)),) if first_message.strip() else ()


class ChatSession:
    """A chat of one user with one generator and any number of scorers. Arguments number candidates from 1.

    The first scorer selects, if no other is named; without any, the first reply is taken.
    """

    def __init__(
        self,
        generator: Generator,
        judges: Mapping[str, Scorer],
        select: str = "",
        best_of: int = 6,
        sampling: Sampling | None = None,
        persona: str = "",
        first_message: str = "",
        folder: str | Path = SESSIONS,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        self.generator, self.judges = generator, dict(judges)
        self.best_of, self.sampling = check_count(best_of), sampling or Sampling()
        self.persona = readable(persona)
        self.opening = _opening(first_message)
        self.weights: dict[str, float] = {}
        if judges:
            self.select(select or next(iter(judges)))
        self.blind, self.requests = False, 0
        self.exchanges: dict[int, Exchange] = {}
        self.head: int | None = None
        self.conversation_id = uuid.uuid4().hex[:12]
        self.about = {"sampling": as_json(self.sampling), **(about or {})}
        name = f"{datetime.now():%Y-%m-%d_%H%M%S}_{self.about.get('experiment', 'session')}_{self.conversation_id[:6]}"
        path = Path(folder).absolute() / f"{name}.jsonl"  # the user may change the working folder in IPython
        self._file = SessionFile(path, self._rows)

    @property
    def path(self) -> Path:
        """The session's file."""
        return self._file.path

    @property
    def history(self) -> list[Exchange]:
        """The exchanges from the beginning to the current one."""
        path, place = [], self.head
        while place is not None:
            path.append(self.exchanges[place])
            place = path[-1].parent
        return path[::-1]

    @property
    def last(self) -> Exchange:
        """The current exchange. Raises InputError before the first."""
        if self.head is None:
            raise InputError("no turn yet; type a message first")
        return self.exchanges[self.head]

    @property
    def conversation(self) -> Conversation:
        """The conversation on this branch. Raises InputError while a blind choice is open."""
        if self.head is None:
            return Conversation(self.opening, self.persona)
        self.refuse_open()
        return replace(self.last.conversation, persona=self.persona)

    def refuse_open(self) -> None:
        """Raises InputError while a blind choice is open."""
        if self.head is not None and self.last.is_open:
            raise InputError("you are in blind mode and have not decided: %pick N, %write TEXT, %tie or %reject first")

    def turn(self, number: int) -> Exchange:
        """The exchange of that number. Raises InputError if there is none."""
        if number not in self.exchanges:
            turns = one_line(", ".join(map(str, self.exchanges))) or "none"
            raise InputError(f"there is no turn {shown(number)}; turns: {turns}")
        return self.exchanges[number]

    def place(self, number: int) -> int:
        """The index of a candidate of the current exchange. Raises InputError if there is none."""
        if not 1 <= number <= len(self.last.candidates):
            raise InputError(f"there is no reply {shown(number)}; needed: 1 to {len(self.last.candidates)}")
        return number - 1

    def say(self, text: str, progress: Progress | None = None) -> Exchange:
        """Adds a turn. Raises InputError for an empty message, and if no reply can be generated."""
        text = readable(text)
        if not text:
            raise InputError("empty line; type a message, or %retry for other replies")
        conversation = self.conversation
        prompt = replace(conversation, turns=(*conversation.turns, Turn("user", text)))
        return self._answer(prompt, self.head, progress)

    def retry(self, progress: Progress | None = None) -> Exchange:
        """Generates other replies to the same message, on a new branch."""
        return self._answer(replace(self.last.prompt, persona=self.persona), self.last.parent, progress)

    def edit(self, text: str, turn: int | None = None, progress: Progress | None = None) -> Exchange:
        """Replaces the message of a turn (default: the last), on a new branch."""
        text = readable(text)
        if not text:
            raise InputError("empty message; %edit TEXT, or %edit N TEXT")
        exchange = self.last if turn is None else self.turn(turn)
        turns = (*exchange.prompt.turns[:-1], Turn("user", text))
        return self._answer(Conversation(turns, self.persona), exchange.parent, progress)

    def more(self, n: int, progress: Progress | None = None) -> Exchange:
        """Adds candidates to the current exchange, and scores all of them together."""
        exchange, was_open = self._changeable(self.last), self.last.is_open
        check_count(len(exchange.candidates) + n if n > 0 else n, "replies")
        candidates, _, notes = self._generate(exchange.prompt, n, self._next_seed(), progress)
        exchange.candidates, exchange.notes = [*exchange.candidates, *candidates], notes
        self._judge(exchange, hides=was_open)  # scores that were shown cannot be hidden again
        return self._add(exchange)

    def undo(self) -> None:
        """Goes back one turn, which stays in the file."""
        self._go(self.last.parent)

    def back(self, turn: int) -> None:
        """Goes to a turn, on any branch; 0 is the beginning."""
        self._go(self.turn(turn).id if turn else None)

    def pick(self, number: int) -> Exchange:
        """Makes that candidate the bot's reply."""
        return self._decide(self.place(number))

    def write(self, text: str) -> Exchange:
        """Makes the user's own text the bot's reply."""
        text = readable(text)
        if not text:
            raise InputError("%write TEXT: the reply is empty")
        return self._decide("written", edited_text=text)

    def tie(self, *numbers: int) -> Exchange:
        """Records that these candidates (default: all) are equally good; the scorers' choice is the reply."""
        tied = sorted({self.place(n) for n in numbers}) or list(range(len(self.last.candidates)))
        if len(tied) < 2:
            raise InputError("a tie needs two or more replies: %tie 1 3, or %tie for all")
        return self._decide("tie", tied=tied)

    def reject(self) -> Exchange:
        """Records that no candidate is good; the scorers' choice remains the reply until %retry or %write."""
        return self._decide("rejected")

    def _decide(self, pick: int | str, edited_text: str | None = None, tied: Sequence[int] = ()) -> Exchange:
        exchange, was_open = self._changeable(self.last), self.last.is_open
        exchange.scores_visible = not exchange.is_open  # a second decision is made with the scores in view
        exchange.human_pick, exchange.edited_text, exchange.tied = pick, edited_text, list(tied)
        self._choose(exchange)
        if was_open or exchange.id != self.head:  # the file has no row of it, or one without scores
            return self._add(exchange)
        return self._add(exchange, self._row("decision", **to_decision(exchange)))

    def select(self, name: str) -> None:
        """Makes that scorer select from now on."""
        self.blend({name: 1.0})

    def blend(self, weights: Mapping[str, float]) -> None:
        """Selects by the weighted sum of standardised scores from now on."""
        unknown = [name for name in weights if name not in self.judges]
        if unknown or not weights:
            names = one_line(", ".join(unknown)) or "(none named)"
            raise InputError(f"there is no scorer {names}; available: {', '.join(self.judges) or 'none'}")
        self.weights = {name: float(weight) for name, weight in weights.items()}

    @property
    def selects(self) -> str:
        """The scorer, or the weighted scorers, that select."""
        return describe_weights(self.weights) or NOBODY

    def use_scorers(self, judges: Mapping[str, Scorer], revisions: Mapping[str, Any]) -> None:
        """Scores by these from the next turn on; the first selects if those that did are not among them."""
        self.judges = dict(judges)
        if not self.weights or not self.weights.keys() <= judges.keys():
            self.weights = dict.fromkeys(list(judges)[:1], 1.0)
        self.about["models"] = dict(revisions)
        self._change_header()

    def begin_with(self, first_message: str) -> None:
        """Makes this the bot's first message of conversations that begin from now on; empty is none."""
        self.opening = _opening(first_message)
        self._change_header()

    def _change_header(self) -> None:
        """Writes the header again, for the rows that follow; the file of a session without a turn has none yet."""
        if self.exchanges:
            self._file.append(self._header())

    def set_blind(self, on: bool) -> None:
        """Hides scores, order and choice until the user decides; off reveals an open exchange."""
        self.blind = on
        if not on and self.head is not None and self.last.is_open:
            self.last.scores_visible = True
            self._choose(self.last)
            self._add(self.last)

    def save(self, path: str | Path) -> None:
        """Writes the whole session to another file."""
        write_whole(Path(path), self._rows())

    def restore(self, path: str | Path) -> list[str]:
        """Replaces this session by that of a file, which is not changed. Returns what could not be read or written."""
        loaded = load(Path(path))
        self.exchanges, self.head = loaded.exchanges, loaded.head
        self.conversation_id = loaded.conversation_id or self.conversation_id
        self.opening, self.persona = loaded.opening.turns, loaded.opening.persona
        used = [candidate.seed for exchange in self.exchanges.values() for candidate in exchange.candidates]
        self.requests = max(0, max(used, default=-1) + 1 - seeds_of(self.sampling, 1)[0])  # no seed is used twice
        self._file = SessionFile(self.path.with_name(f"{self.path.stem}_{uuid.uuid4().hex[:4]}.jsonl"), self._rows)
        for exchange in self.exchanges.values():
            if exchange.is_open and not exchange.names:  # the file has no scores of an open exchange
                self._judge(exchange, hides=True)
        problem = self._go(self.head)
        lines, orphans = (", ".join(map(str, numbers)) for numbers in (loaded.corrupt, loaded.orphans))
        notes = [f"line(s) {lines} could not be read"] if lines else []
        notes += [f"turn(s) {orphans}: the conversation before is unknown"] if orphans else []
        return [*notes, problem] if problem else notes

    def _answer(self, prompt: Conversation, parent: int | None, progress: Progress | None) -> Exchange:
        seed = self._next_seed()
        candidates, dropped, notes = self._generate(prompt, self.best_of, seed, progress)
        number, sampling = max(self.exchanges, default=0) + 1, as_json(self.sampling)
        exchange = Exchange(number, parent, prompt, candidates, seed, sampling, dropped_turns=dropped, notes=notes)
        self._judge(exchange, hides=self.blind)
        return self._add(exchange)

    def _generate(
        self, prompt: Conversation, n: int, seed: int, progress: Progress | None
    ) -> tuple[list[Candidate], int, list[str]]:
        """`generate_candidates`. Records a failure, and raises it as InputError."""
        try:
            return generate_candidates(self.generator, prompt, n, self.sampling, seed, progress)
        except Exception as error:  # the session survives a server that dies and memory that runs out
            why = f"{type(error).__name__}: {error}"
            self._file.append(self._row("failure", user=prompt.turns[-1].text, error=why))
            if isinstance(error, InputError):
                raise
            raise InputError(f"no reply: {one_line(why, 1000)}; nothing was added, try again") from error

    def _judge(self, exchange: Exchange, hides: bool) -> None:
        """Scores all candidates with every scorer; then selects one, or, to hide the choice, shuffles them."""
        opinions = score_replies(self.judges, exchange.prompt, [candidate.text for candidate in exchange.candidates])
        exchange.candidates = [
            replace(candidate, scores={name: column[i] for name, column in opinions.scores.items()})
            for i, candidate in enumerate(exchange.candidates)
        ]
        exchange.failed = opinions.failed
        exchange.notes += [f"{name} failed: {why}" for name, why in opinions.failed.items()]
        if hides:
            random.SystemRandom().shuffle(exchange.candidates)  # not seeded: the order cannot be reconstructed
            exchange.selected, exchange.scores_visible = None, False
        else:
            self._choose(exchange)

    def _choose(self, exchange: Exchange) -> None:
        exchange.selected, exchange.selected_by = select_best(exchange.columns, self.weights)
        if exchange.selected_by != self.selects and exchange.failed:
            exchange.notes.append(f"selected by {exchange.selected_by} instead of {self.selects}: a scorer failed")

    def _changeable(self, exchange: Exchange) -> Exchange:
        """A copy to change, on a new branch if other turns follow, since they depend on the original."""
        is_followed = any(other.parent == exchange.id for other in self.exchanges.values())
        return replace(exchange, id=max(self.exchanges) + 1 if is_followed else exchange.id, notes=[])

    def _add(self, exchange: Exchange, row: dict[str, Any] | None = None) -> Exchange:
        """Writes the exchange (by `row` if given), then adds it: an interrupt between the two loses nothing."""
        if problem := self._file.append(row or self._turn_row(exchange)):
            exchange.notes.append(problem)
        self.exchanges[exchange.id] = exchange
        self.head = exchange.id
        return exchange

    def _go(self, place: int | None) -> str:
        problem = self._file.append(self._row("head", turn=place))
        self.head = place
        if place is not None:
            self.persona = self.last.prompt.persona
        return problem

    def _rows(self) -> list[dict[str, Any]]:
        """All rows of the session's file."""
        turns = [self._turn_row(exchange) for exchange in self.exchanges.values()]
        return [self._header(), *turns, self._row("head", turn=self.head)] if turns else [self._header()]

    def _header(self) -> dict[str, Any]:
        opening = messages(Conversation(self.opening, self.persona))
        return {"kind": "session", "conversation": self.conversation_id, "opening": opening, **self.about}

    def _turn_row(self, exchange: Exchange) -> dict[str, Any]:
        before = conversation_before(exchange.parent, self.exchanges, self.opening)
        return self._row("turn", **to_record(exchange, before, self.about["sampling"]))

    def _row(self, kind: str, **fields: Any) -> dict[str, Any]:
        return {"kind": kind, "time": timestamp(), **fields}

    def _next_seed(self) -> int:
        self.requests += 1
        return seeds_of(self.sampling, 1)[0] + self.requests - 1
