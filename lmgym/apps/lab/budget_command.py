"""`lmgym lab budget`: the KL at which to stop optimising a scorer, from its own pairs and a policy's replies."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from lmgym.apps.lab.budget import Budget, cross_fit
from lmgym.apps.lab.halves import read_run_pairs, read_scorer_run, split, train_half, write_half
from lmgym.apps.lab.pool import sample_replies, score_replies
from lmgym.console import say
from lmgym.errors import InputError
from lmgym.generation.protocol import Sampling
from lmgym.runs.files import read_json, write_json

CAVEATS = (
    "each half has half of the pairs and is over-optimised earlier than a scorer of all: the budget is conservative",
    "it finds errors of variance, not a bias that all labels share",
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
    say("     N      KL   optimised   watching   (gains in standard deviations of each half's scores)")
    for n, kl, optimised, watched in zip(budget.sizes, budget.kl, budget.optimised, budget.watched, strict=True):
        say(f"{n:6} {kl:7.2f} {optimised:11.2f} {watched:10.2f}")
    at = budget.place
    if at == len(budget.sizes) - 1:
        say(f"the watching half rises up to N = {budget.sizes[at]}, the largest here: no KL at which to stop was found")
    else:
        say(f"stop at a KL of {budget.kl[at]:.2f} nats a reply: the watching half is highest at N = {budget.sizes[at]}")
    for caveat in CAVEATS:
        say(caveat)
