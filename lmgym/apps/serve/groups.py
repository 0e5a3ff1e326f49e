"""Replies to one prompt that a judge compares, gathered from the requests of a run until their group is whole.

A trainer's ranks may each send a part of a group, and verl sends single replies. What is alike is the run and the
conversation; of two groups of one prompt at a time the first that came is filled first.
"""

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from lmgym.apps.serve.batcher import Busy, Job, Scored
from lmgym.apps.serve.served_scorers import Opinion, Sample, ServedScorer
from lmgym.errors import shown
from lmgym.text import Conversation

Key = tuple[str, Conversation, int]
"""(run, conversation, replies of a whole group)"""


@dataclass(eq=False)
class Seats:
    """A request's replies, of which some wait for the others of their groups."""

    samples: Sequence[Sample]
    job: Job
    found: dict[int, Opinion] = field(default_factory=dict)
    """by number of the sample"""
    scorer: ServedScorer | None = None


class GroupRoom:
    """The replies for one scorer that wait for their groups. All calls come from the thread of the server's loop."""

    def __init__(self, submit: Callable[[Job], None]) -> None:
        self.submit = submit
        """puts a job of whole groups into the scorer's queue"""
        self.waiting: dict[Key, list[tuple[Seats, int]]] = {}
        self._numbers = itertools.count(1)

    def enter(self, run: str, samples: Sequence[Sample], size: int) -> Job:
        """A job that is answered once all of its groups are whole and scored; groups that are whole now are scored
        together.
        """
        seats = Seats(samples, Job(samples))
        whole: list[tuple[Seats, int, Sample]] = []
        for number, sample in enumerate(samples):
            key = run, sample.conversation, size
            room = self.waiting.setdefault(key, [])
            room.append((seats, number))
            if len(room) == size:
                name = str(next(self._numbers))
                whole += [(one, place, replace(one.samples[place], group=name)) for one, place in room]
                del self.waiting[key]
        seats.job.answer.add_done_callback(lambda answer: self._leave(seats) if answer.cancelled() else None)
        if whole:
            self._score(whole)
        return seats.job

    def missing(self, samples: Sequence[Sample]) -> str:
        """The first group that a request's replies still wait for, in words; empty if there is none."""
        for (_, conversation, size), room in self.waiting.items():
            if any(seats.samples is samples for seats, _ in room):
                asked = shown(conversation.turns[-1].text if conversation.turns else "", 60)
                return f"{len(room)} of {size} replies to {asked} came"
        return ""

    def _score(self, whole: Sequence[tuple[Seats, int, Sample]]) -> None:
        job = Job([sample for _, _, sample in whole])
        job.answer.add_done_callback(lambda answer: self._answer(whole, answer))
        try:
            self.submit(job)
        except Busy as error:  # to each request that has a part in it
            job.answer.set_exception(error)

    def _answer(self, whole: Sequence[tuple[Seats, int, Sample]], answer: "Future[Scored]") -> None:
        """Hands out opinions; a request is answered with its last one. Called in the scorer's thread."""
        for place, (seats, number, _) in enumerate(whole):
            own = seats.job.answer
            if own.done():
                continue
            if error := answer.exception():
                own.set_exception(error)
                continue
            scored = answer.result()
            seats.found[number], seats.scorer = scored.opinions[place], scored.scorer
            if len(seats.found) == len(seats.samples):
                own.set_result(Scored([seats.found[i] for i in range(len(seats.samples))], scored.scorer))

    def _leave(self, seats: Seats) -> None:
        for key, room in list(self.waiting.items()):
            left = [one for one in room if one[0] is not seats]
            if left:
                self.waiting[key] = left
            else:
                del self.waiting[key]
