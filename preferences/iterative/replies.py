"""Replies of the policy and what the scorers say about them: sampled, scored, and written down before training goes on.

Design decisions:
- A reply is a function of (seed, round, its prompt's place in the round), whatever the number of ranks.
- Replies are appended to OUTPUT/rounds/NNNN/replies.jsonl a block at a time: after a kill the same command samples only
  those that are missing. A run resumes with the weights that it had, so replies of later rounds are still the policy's.
- Sampled ids are never tokenised again.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from lmgym.data.prompts import Task
from lmgym.distributed.ranks import all_gather_objects, raise_on_all_ranks, rank, world_size
from lmgym.errors import InputError
from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.prompt_fitting import fit_prompts
from lmgym.generation.protocol import Completion, Sampling
from lmgym.masking import mask_keys
from lmgym.runs.run import Run
from lmgym.scoring.protocol import Scorer, read_scores, text_for
from lmgym.text import Replies

REPLIES = "replies.jsonl"


@dataclass(frozen=True)
class Answers:
    """All replies to one prompt, with their scores."""

    place: int
    """in the round, or among the held-out prompts"""
    prompt: str
    """as the policy read it"""
    prompt_ids: list[int]
    ids: list[list[int]]
    texts: list[str]
    finish: list[str]
    scores: dict[str, list[float]]
    """by scorer"""
    totals: list[float]
    """weighted sums of the scorers that choose, less the penalty of replies that did not end"""

    def rows(self, chosen: Sequence[int]) -> Replies:
        """These replies behind their prompt, as they were sampled: one that did not end has no eos."""
        prefix, last = self.prompt_ids[:-1], self.prompt_ids[-1]
        ids = [self.ids[i] for i in chosen]
        return Replies(prefix, [[last, *one[:-1]] for one in ids], ends=tuple(one[-1] for one in ids))


@dataclass(frozen=True)
class Judge:
    """Scorers with their weights, and the one that only watches."""

    scorers: Mapping[str, Scorer]
    weights: Mapping[str, float]
    monitor: Mapping[str, Scorer]
    missing_eos_penalty: float

    def judge(
        self, tasks: Sequence[Task], replies: Sequence[Sequence[Completion]], with_monitor: bool
    ) -> list[tuple[dict[str, list[float]], list[float]]]:
        """(scores by scorer, totals) of the replies to each prompt. Raises InputError for a scorer that fails."""
        several = [len(own) for own in replies]
        flat = [one for own in replies for one in own]
        conversations = [task["prompt"] for task, n in zip(tasks, several, strict=True) for _ in range(n)]
        texts = [one.text for one in flat]
        asked = {**self.scorers, **(self.monitor if with_monitor else {})}
        scores = {name: _ask(name, scorer, conversations, texts) for name, scorer in asked.items()}
        penalties = [self.missing_eos_penalty * (one.finish_reason == "length") for one in flat]
        totals = [
            sum(self.weights.get(name, 1.0) * scores[name][i] for name in self.scorers) - penalty
            for i, penalty in enumerate(penalties)
        ]
        parts, first = [], 0
        for n in several:
            own = slice(first, first + n)
            parts.append(({name: values[own] for name, values in scores.items()}, totals[own]))
            first += n
        return parts


def _ask(name: str, scorer: Scorer, conversations: Sequence[Any], texts: Sequence[str]) -> list[float]:
    try:
        read = [text_for(scorer, text) for text in texts]
        return read_scores(scorer.score(conversations, read), len(texts))
    except ValueError as error:
        raise InputError(f"scorer {name}: {error}") from error


@dataclass(frozen=True)
class Answerer:
    """The policy's replies with their scores, on all ranks."""

    generator: LocalGenerator
    judge: Judge
    sampling: Sampling
    room: int
    """most tokens of a prompt"""
    heartbeat: Callable[[str], None] = lambda doing: None

    def answer(
        self,
        tasks: Sequence[Task],
        places: Sequence[int],
        n: int,
        seed: int,
        file: Path | None,
        run: Run,
        with_monitor: bool = False,
    ) -> list[Answers]:
        """n replies to each prompt, in order of `places`, on every rank; those in a `file` are not sampled again.

        `seed` is of the first place, one more for each that follows. Collective. Raises InputError, on all ranks, for
        a scorer that fails.
        """
        found = {answers.place: answers for answers in (read_answers(file) if file else [])}
        tasks_at = dict(zip(places, tasks, strict=True))
        missing = [place for place in places if place not in found]
        block = max(1, self.generator.generation_batch_size // n) * world_size()
        self.generator.renew()
        for first in range(0, len(missing), block):
            self.heartbeat(f"replies {first:,} of {len(missing):,}")
            own = missing[first : first + block][rank() :: world_size()]
            rows = raise_on_all_ranks(
                partial(self._answer, [tasks_at[place] for place in own], own, n, seed, with_monitor)
            )
            new = sorted((one for of_rank in all_gather_objects(rows) for one in of_rank), key=lambda one: one.place)
            if file:
                append_answers(file, new, run)
            found |= {one.place: one for one in new}
        return [found[place] for place in places]

    def _answer(
        self, tasks: Sequence[Task], places: Sequence[int], n: int, seed: int, with_monitor: bool
    ) -> list[Answers]:
        """This rank's part."""
        if not tasks:
            return []
        model = self.generator.model
        training = model.training
        prompts = fit_prompts(self.generator.tokenizer, [task["prompt"] for task in tasks], self.room)
        seeds = tuple((seed + place) % 2**63 for place in places)
        sampling = replace(self.sampling, seed=seeds)
        replies = self.generator.generate([prompt.ids for prompt in prompts], n, sampling)
        judged = self.judge.judge(tasks, replies, with_monitor)
        model.train(training)  # after the scorers, which may sample from the policy too
        return [
            Answers(
                place,
                prompt.text,
                prompt.ids,
                [list(one.ids) for one in own],
                [one.text for one in own],
                [one.finish_reason for one in own],
                scores,
                totals,
            )
            for place, prompt, own, (scores, totals) in zip(places, prompts, replies, judged, strict=True)
        ]


def read_answers(file: Path) -> list[Answers]:
    """The contents of the file, on every rank; a last line that a kill has cut is removed from it. Collective."""
    lines: list[str] = []
    if rank() == 0 and file.is_file():
        whole = file.read_text(encoding="utf-8")
        kept = whole[: whole.rfind("\n") + 1]
        if kept != whole:
            file.write_text(kept, encoding="utf-8")
        lines = kept.split("\n")[:-1]  # a text may hold other line breaks
    return [Answers(**json.loads(line)) for line in all_gather_objects(lines)[0]]


def append_answers(file: Path, answers: Sequence[Answers], run: Run) -> None:
    """Adds lines to the file, on the main rank."""
    if not run.is_main or run.write_error:
        return
    with run.writing(str(file.relative_to(run.folder))):
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8", errors="backslashreplace") as out:
            out.write(mask_keys("".join(json.dumps(asdict(one), ensure_ascii=False) + "\n" for one in answers)))
            out.flush()
