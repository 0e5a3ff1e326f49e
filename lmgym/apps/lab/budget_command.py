"""`lmgym lab budget`: the KL at which to stop optimising a scorer, from its own pairs and a policy's replies."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from lmgym.apps.lab.budget import CONSTANT, CONSTANT_KL, LOST_BY, Budget, cross_fit
from lmgym.apps.lab.halves import read_run_pairs, read_scorer_run, split, train_half, write_half
from lmgym.apps.lab.pool import sample_replies, score_replies
from lmgym.console import say
from lmgym.errors import InputError
from lmgym.generation.protocol import Sampling
from lmgym.runs.files import read_json, write_json

ANSWER = (
    f"stop at a KL of {CONSTANT_KL:.1f} nats a reply, that of the best of {CONSTANT}, a constant: in six simulated "
    f"worlds it lost {LOST_BY['constant']:.2f} of hidden utility a reply, what two halves say {LOST_BY['budget']:.2f}, "
    f"no limit {LOST_BY['none']:.2f}"
)
CAVEATS = (
    "a half has half of the pairs, and is over-optimised earlier than a scorer of all: a KL that halves find is "
    "cautious",
    "halves see errors of variance, not what both share: a bias of all labels, and of the model at which both begin",
)


def run_budget(scorer: str, policy: str, prompts: int, replies: int, sampling: Sampling, output: str) -> None:
    """Samples the pool, trains both halves, and prints the budget; what is made already is kept."""
    folder, record = Path(output), read_scorer_run(scorer)
    asked, *halves = split(read_run_pairs(record), prompts)
    say(f"halves of {len(halves[0]):,} and {len(halves[1]):,} pairs; {len(asked)} prompts of neither")
    numbers = {"prompts": prompts, "replies": replies, "tokens": sampling.max_new_tokens, "seed": sampling.seed}
    settings = {"scorer": record["id"], "policy": policy, **numbers, "temperature": sampling.temperature}
    pool = kept_replies(
        folder / "replies.json", settings, lambda: sample_replies(policy, asked, replies, sampling, replies)
    )
    scores = []
    for place, pairs in enumerate(halves):
        file = folder / f"half{place + 1}.jsonl"
        write_half(pairs, file)
        say(f"training on half {place + 1}")
        half = train_half(record, file, folder / f"half{place + 1}")
        scores.append(score_replies(str(half), asked, pool))
    budget = cross_fit(*scores)
    write_json(folder / "budget.json", asdict(budget))
    show(budget)


def kept_replies(path: Path, settings: dict[str, object], sample: Callable[[], list[list[str]]]) -> list[list[str]]:
    """The replies of a file, sampled and written if it is not there. Raises InputError if it is of other settings."""
    if not path.is_file():
        say("sampling replies")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"settings": settings, "replies": sample()})
    found = read_json(path)
    if found["settings"] != settings:
        old = found["settings"]
        other = ", ".join(f"{name} {old.get(name)}" for name in settings if old.get(name) != settings[name])
        raise InputError(f"{path.parent} is of a budget with {other}; needed: another --output")
    replies: list[list[str]] = found["replies"]
    return replies


def show(budget: Budget) -> None:
    """Prints the best of each N, and where to stop."""
    say(ANSWER)
    say("two halves of this scorer's pairs beside it, gains in standard deviations of each half's scores:")
    say("     N      KL   optimised   watching")
    for n, kl, optimised, watched in zip(budget.sizes, budget.kl, budget.optimised, budget.watched, strict=True):
        say(f"{n:6} {kl:7.2f} {optimised:11.2f} {watched:10.2f}")
    n, kl = budget.sizes[budget.place], budget.kl[budget.place]
    if n == budget.sizes[-1]:
        say(f"the watching half rises up to N = {n}, the largest here: halves find no KL at which to stop")
    else:
        say(f"the watching half is highest at N = {n}, a KL of {kl:.2f} nats a reply")
    for caveat in CAVEATS:
        say(caveat)
