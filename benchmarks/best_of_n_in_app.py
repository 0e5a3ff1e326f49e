"""The best of N in the app, chosen by a scorer, by the hidden utility (ceiling) or at random (floor).

    for w in 0 1 2; do lmgym world --rows 50000 --seed $w --output outputs/best_of_n/$w/world; done
    # for each world a policy and a joint scorer, as `make demo` trains them (lmgym/apps/world/demos/toy.py), then
    .venv/bin/python benchmarks/best_of_n_in_app.py --worlds 0 1 2 --users 60 \\
        --policy outputs/best_of_n/{world}/policy/model --scorer outputs/best_of_n/{world}/scorer/model

For each world all users meet every policy (paired): N = 1, and N = 2 to 16 by each scorer. Beside what they do stands
the estimate that needs no app: the value of the best of n out of one pool of samples a prompt, without bias
(`lmgym/scoring/best_of_n.py`), for prompts of users of the policy itself; and the bound on its distance from the
policy. Each world that is done is written down; the same command goes on with the others.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import tables
from shared import ROOT, describe_machine, write_result

from lmgym.apps.world.ab import Design, experiment
from lmgym.apps.world.app import OneLine, deploy
from lmgym.apps.world.policies import GOLD, RANDOM, load_base, load_scorer
from lmgym.apps.world.world import World
from lmgym.scoring.best_of_n_estimates import best_of_n_values
from lmgym.statistics import mean as mean_of

SIZES = (2, 4, 8, 16)
POOL, PROMPTS = 64, 400


def scorers_of(scorer: str) -> dict[str, str]:
    """The scorers' settings by their names in the table."""
    return {"scorer": scorer, "gold": GOLD, "random": RANDOM}


def run_world(seed: int, policy: str, scorer: str, design: Design) -> dict:
    """The app's figures of every policy, and the estimates out of one pool."""
    world, began = World(seed), time.perf_counter()
    names = {("none", 1): policy}
    names |= {(kind, n): f"{policy}@{words}:{n}" for kind, words in scorers_of(scorer).items() for n in SIZES}
    arms = experiment(list(names.values()), design)
    changes = [{}, *(pair["figures"] for pair in arms["comparisons"])]
    rows = [
        {"by": kind, "n": n, **arm, "change": change}
        for (kind, n), arm, change in zip(names, arms["policies"], changes, strict=True)
    ]
    return {
        "world": seed,
        "policy": policy,
        "scorer": scorer,
        "rows": rows,
        "pool": estimate(world, policy, scorer, design),
        "minutes": (time.perf_counter() - began) / 60,
    }


def estimate(world: World, policy: str, scorer: str, design: Design) -> dict:
    """Hidden utility (of average tastes) of the best of n by each scorer, with its 95% interval over prompts."""
    base = OneLine(load_base(policy, world))
    users = max(20, min(200, design.users))
    seen = deploy(base, users, min(4, design.days), design.seed + 1, world, design.sampling(0)).traces.conversation
    chosen = np.random.default_rng(design.seed).permutation(len(seen))[:PROMPTS].tolist()
    prompts = [seen[i] for i in chosen]
    texts = [one.text for replies in base.reply(prompts, POOL, design.sampling(1)) for one in replies]
    owners = [prompt for prompt in prompts for _ in range(POOL)]
    gold = world.utility(owners, texts).reshape(-1, POOL)
    values = {}
    for kind, words in scorers_of(scorer).items():
        proxy = np.asarray(load_scorer(words, world).score(owners, texts)).reshape(-1, POOL)
        for n in (1, *SIZES):
            each = best_of_n_values(proxy, gold, n)
            found = mean_of(each)
            values.setdefault(kind, {})[n] = {"value": found.value, "low": found.low, "high": found.high}
    return {"prompts": len(prompts), "samples": POOL, "values": values}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", type=int, nargs="+", default=[0, 1, 2], help="their seeds")
    parser.add_argument("--policy", required=True, help="a folder, in which {world} stands for the seed; or bots")
    parser.add_argument("--scorer", required=True, help="a scorer's folder, likewise")
    parser.add_argument("--users", type=int, default=300, help="who meet every policy")
    parser.add_argument("--days", type=int, default=31)
    parser.add_argument("--seed", type=int, default=0, help="of the users")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/best_of_n_in_app.json")
    arguments = parser.parse_args()
    settings = {name: getattr(arguments, name) for name in ("policy", "scorer", "users", "days", "seed")}
    done = {"settings": settings, "worlds": []}
    if arguments.output.exists():
        done = json.loads(arguments.output.read_text())
    if done["settings"] != settings:
        raise SystemExit(f"{arguments.output} was made with {done['settings']}; give another --output")
    results = {world["world"]: world for world in done["worlds"]}
    for seed in arguments.worlds:
        if seed not in results:
            policy, scorer = (name.replace("{world}", str(seed)) for name in (arguments.policy, arguments.scorer))
            design = Design(arguments.users, arguments.days, arguments.seed, seed, paired=True)
            results[seed] = json.loads(json.dumps(run_world(seed, policy, scorer, design)))
        worlds = [results[one] for one in arguments.worlds if one in results]
        record = {"settings": settings, "machine": describe_machine(), "worlds": worlds}
        write_result(arguments.output, record, "world", "rows", "method", "sampler", "intervals")
        for one in worlds:
            print("\n".join(tables.best_of_n_in_app({"worlds": [one]})), flush=True)


if __name__ == "__main__":
    main()
