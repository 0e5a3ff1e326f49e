"""`lmgym lab score`: the hidden utility that a policy's replies earn in a simulated world, on fixed prompts.

Design decisions:
- The utility is that of users of average taste, so that it depends on the prompt and the reply alone (the scorer
  `world:SEED`); replies are read as the app shows them, on one line.
- All policies answer the same prompts, and prompt i has the same random numbers under each: differences are paired.
- The unit of intervals is the prompt, of another user each. An interval is over prompts, not over training runs.
- Small models run in one thread: their steps are too short to split, and threads that wait for each other take several
  times the CPU seconds on a machine that is busy (141 in place of 16 for four policies).
- The record holds the utility by prompt, so that two records of a world and a version can be compared in pairs.
"""

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lmgym.apps.lab.record import VERSION
from lmgym.apps.lab.score_policies import are_small, resolve_policies
from lmgym.apps.lab.score_prompts import PROMPTS, REPLIES, score_prompts
from lmgym.apps.world import world as worlds
from lmgym.apps.world.policies import BOTS, load_policies
from lmgym.apps.world.world import World
from lmgym.config import SEED
from lmgym.console import CleanConsole, say
from lmgym.errors import MOST_SEED, InputError, shown, shown_path
from lmgym.generation.protocol import Completion, Generator, Sampling
from lmgym.report.status_line import StatusLine
from lmgym.runs.files import write_json
from lmgym.statistics import Estimate, mean, notes
from lmgym.text import Conversation

TOGETHER = 250  # prompts of a request, between two looks at the status line


@dataclass(frozen=True)
class Scoring:
    """Settings of sampling."""

    seed: int = 0
    temperature: float = 1.0
    max_new_tokens: int = 48

    def sampling(self, first: int, prompts: int) -> Sampling:
        """For so many prompts from the number `first` on. Raises InputError for numbers out of range."""
        SEED.check("seed", self.seed)
        seeds = np.random.default_rng([self.seed, PROMPTS]).integers(2**53, size=PROMPTS).tolist()
        return Sampling(self.max_new_tokens, self.temperature, seed=tuple(seeds[first : first + prompts]))


@dataclass(frozen=True)
class Scored:
    """A policy's replies, by prompt: utility[PROMPTS, REPLIES], words, and whether each is garbled or cut."""

    utility: np.ndarray
    words: np.ndarray
    garbled: np.ndarray
    """a sentence of it fits no template of the world, or it has none"""
    cut: np.ndarray
    """at max_new_tokens"""
    seconds: float


def run_score(names: Sequence[str], world: str, scoring: Scoring, output: str | None = None) -> None:
    """Scores policies, prints a table, and writes the record to `output` if it is given."""
    seed = read_seed(world)
    scoring.sampling(0, 0)  # before models load
    if output and Path(output).is_dir():
        raise InputError(f"--output {shown_path(output)} is a folder; needed: a file, such as {output}/score.json")
    record = score_policies(names, World(seed), scoring)
    print_scores(record)
    if output:
        path = Path(output)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, record)
        say(f"{output}: these figures at full precision, and the utility by prompt")


def read_seed(words: str) -> int:
    """The seed of a world. Raises InputError for anything else."""
    if not (words.isascii() and words.isdigit()) or len(words) > 10 or int(words) > MOST_SEED:
        hint = "; of a folder it is in world.json" if os.path.isdir(words) else ""
        raise InputError(f"--world {shown(words)} is no world; needed: a seed of `lmgym world`, {SEED}{hint}")
    return int(words)


def score_policies(names: Sequence[str], world: World, scoring: Scoring) -> dict[str, Any]:
    """The record of policies, each compared with the first; the world's bots are scored too.

    Leaves torch with one thread if the models are small. Raises InputError for policies that do not load, and for one
    that cannot say what the world reads.
    """
    import torch

    specs = resolve_policies(names, world)
    if are_small(specs):
        torch.set_num_threads(1)
    anchored = list(names) if BOTS in names else [*names, BOTS]
    with StatusLine("replying", len(anchored) * PROMPTS, "prompts", plain=True) as line:
        line.update(0, "loading")
        policies, prompts = load_policies([*specs, BOTS][: len(anchored)], world), score_prompts(world)
        line.begin(0)
        found = []
        for place, policy in enumerate(policies):
            line.update(doing="", figures=[f"policy {place + 1} of {len(policies)}"])
            found.append(score_policy(policy, prompts, world, scoring, line, place * PROMPTS))
    first = found[0].utility.mean(1)
    rows = [
        _row(name, one, first if place else None) for place, (name, one) in enumerate(zip(names, found, strict=False))
    ]
    anchor = next(one for name, one in zip(anchored, found, strict=True) if name == BOTS)
    return {
        "lab_version": VERSION,
        "world_version": worlds.VERSION,
        "world": world.seed,
        "prompts": PROMPTS,
        "replies": REPLIES,
        **asdict(scoring),
        "policies": rows,
        BOTS: _row(BOTS, anchor, None),
    }


def score_policy(
    policy: Generator, prompts: Sequence[Conversation], world: World, scoring: Scoring, line: StatusLine, before: int
) -> Scored:
    """A policy's replies to the prompts, with what the world reads in them."""
    began, replies = time.perf_counter(), list[list[Completion]]()
    for first in range(0, len(prompts), TOGETHER):
        some = prompts[first : first + TOGETHER]
        replies += policy.reply(some, REPLIES, scoring.sampling(first, len(some)))
        line.update(before + first + len(some))
    texts = [[reply.text for reply in own] for own in replies]
    owners = [prompt for prompt in prompts for _ in range(REPLIES)]
    utility = world.utility(owners, [text for own in texts for text in own]).reshape(-1, REPLIES)
    return Scored(
        utility,
        np.array([[len(text.split()) for text in own] for own in texts]),
        np.array([[is_garbled(world, text) for text in own] for own in texts]),
        np.array([[reply.finish_reason == "length" for reply in own] for own in replies]),
        time.perf_counter() - began,
    )


def is_garbled(world: World, reply: str) -> bool:
    """True if a sentence of the reply fits no template of the world, or it has no sentence."""
    sentences = world.grammar.parse(reply)
    return not sentences or any(sentence.kind == "garbled" for sentence in sentences)


def _row(name: str, scored: Scored, first: np.ndarray | None) -> dict[str, Any]:
    """A policy's figures: means over replies, and intervals over prompts."""
    by_prompt = scored.utility.mean(1)
    row = {"policy": name, **mean(by_prompt).named("utility")}
    if first is not None:
        row |= mean(by_prompt - first).named("change")
    shares = {key: float(getattr(scored, key).mean()) for key in ("words", "garbled", "cut")}
    return {**row, **shares, "seconds": scored.seconds, "by_prompt": by_prompt.round(6).tolist()}


def print_scores(record: dict[str, Any]) -> None:
    """Prints a row a policy, and how it was measured."""
    from rich.table import Table

    rows, named = record["policies"], [row["policy"] for row in record["policies"]]
    rows = rows if BOTS in named else [*rows, record[BOTS] | {"policy": "the world's bots"}]
    title = f"world {record['world']}: hidden utility of a reply, for users of average taste"
    table = Table(title=title, title_justify="left")
    columns = ("policy", "utility", "95% interval", *(("change", "95% interval") if len(named) > 1 else ()))
    for name in (*columns, "words", "garbled"):
        left = name == "policy"
        table.add_column(name, justify="left" if left else "right", overflow="fold", no_wrap=not left)
    for row in rows:
        found = _estimate(row, "utility")
        changes = [f"{row['change']:+.3f}", _estimate(row, "change").interval("+.3f")] if "change" in row else ["", ""]
        cells = [f"{found.value:.3f}", found.interval(".3f"), *(changes if len(named) > 1 else ())]
        table.add_row(row["policy"], *cells, f"{row['words']:.1f}", f"{row['garbled']:.1%}")
    CleanConsole(width=90 + min(70, max(map(len, named)))).print(table)
    for note in notes(
        (_estimate(row, name) for row in rows for name in ("utility", "change") if name in row), "prompt"
    ):
        say(note)
    for row in rows:
        if row["cut"] > 0.01:
            say(f"{row['cut']:.0%} of the replies of {row['policy']} are cut at {record['max_new_tokens']} tokens")
    say(
        f"{record['prompts']:,} prompts of users whom no table of this world has, {record['replies']} replies to each; "
        "intervals are over prompts; garbled: replies with a sentence that the world cannot read"
    )
    if len(named) > 1:
        say(f"change: from {named[0]}, on the same prompts with the same random numbers")
    version = f"lab {record['lab_version']}, world version {record['world_version']}"
    say(f"{version}, temperature {record['temperature']:g}, seed {record['seed']}")


def _estimate(row: dict[str, Any], name: str) -> Estimate:
    value, low, high = (row[name + end] for end in ("", "_low", "_high"))
    reason = "all values are equal: no interval" if low is None else ""
    return Estimate(value, low, high, PROMPTS, PROMPTS, reason)
