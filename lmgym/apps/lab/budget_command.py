"""`lmgym lab budget`: the KL at which to stop optimising a scorer, from its own pairs and a policy's replies."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from lmgym.apps.lab.budget import Budget, cross_fit
from lmgym.apps.lab.halves import read_run_pairs, read_scorer_run, split, train_half, write_half
from lmgym.console import say
from lmgym.errors import InputError
from lmgym.runs.files import read_json, write_json
from lmgym.text import Conversation

CAVEATS = (
    "each half has half of the pairs and is over-optimised earlier than a scorer of all: the budget is conservative",
    "it finds errors of variance, not a bias that all labels share",
)


@dataclass(frozen=True)
class Asking:
    """The pool of which the best of N are taken."""

    prompts: int = 64
    """that neither half has"""
    replies: int = 64
    """to each"""
    max_new_tokens: int = 64
    temperature: float = 1.0
    seed: int = 0


def run_budget(scorer: str, policy: str, asking: Asking, output: str) -> None:
    """Trains both halves, samples the pool, and prints the budget; what is made already is kept."""
    folder, record = Path(output), read_scorer_run(scorer)
    prompts, *halves = split(read_run_pairs(record), asking.prompts)
    say(f"halves of {len(halves[0]):,} and {len(halves[1]):,} pairs; {len(prompts)} prompts of neither")
    check_same(folder, {"scorer": record["id"], "policy": policy, **asdict(asking)})
    scorers = []
    for place, pairs in enumerate(halves):
        file = folder / f"half{place + 1}.jsonl"
        write_half(pairs, file)
        say(f"training on half {place + 1}")
        scorers.append(train_half(record, file, folder / f"half{place + 1}"))
    replies = _replies(policy, prompts, asking)
    scores = [_scores(scorer, prompts, replies) for scorer in scorers]
    budget = cross_fit(*scores)
    write_json(folder / "budget.json", asdict(budget))
    show(budget)


def check_same(folder: Path, settings: dict[str, object]) -> None:
    """Raises InputError if the folder is of other settings; notes these in a new one."""
    path = folder / "settings.json"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, settings)
    elif (found := read_json(path)) != settings:
        other = ", ".join(f"{name} {found.get(name)}" for name in settings if found.get(name) != settings[name])
        raise InputError(f"{folder} is of a budget with {other}; needed: another --output")


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


def _replies(policy: str, prompts: Sequence[Conversation], asking: Asking) -> list[list[str]]:
    from lmgym.generation.local_generation import LocalGenerator
    from lmgym.generation.protocol import Sampling
    from lmgym.models.forward.policies import load_policy
    from lmgym.models.loading import load_tokenizer

    say(f"sampling {asking.replies} replies to each prompt")
    tokenizer = load_tokenizer(policy)
    generator = LocalGenerator(load_policy(policy, tokenizer), tokenizer, asking.replies)
    sampling = Sampling(asking.max_new_tokens, asking.temperature, seed=asking.seed)
    found = generator.reply(prompts, asking.replies, sampling)
    return [[one.text.strip() for one in own] for own in found]


def _scores(scorer: Path, prompts: Sequence[Conversation], replies: list[list[str]]) -> np.ndarray:
    from lmgym.scoring.named_scorers import load_scorer

    owners = [prompt for prompt, own in zip(prompts, replies, strict=True) for _ in own]
    texts = [reply for own in replies for reply in own]
    return np.asarray(load_scorer(str(scorer)).score(owners, texts), dtype=np.float64).reshape(len(replies), -1)
