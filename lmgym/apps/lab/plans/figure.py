"""The figure of docs/over_optimisation.md: six scorers in six worlds, against gold and KL; three hours on two cores.

Fixed before any of it was run; settings were chosen in world 100. The best of N is exact, from one pool a world. PPO
and GRPO are read along their paths, without a KL penalty; in two worlds also with three weights of it. Scorers of the
halves of their pairs judge the budget (budget.py).
"""

from dataclasses import replace

from lmgym.apps.lab.plan import Plan, Proxy, Run

WORLDS, PENALISED = range(6), (0, 1)
PROXIES = {
    "125": Proxy(pairs=125),
    "500": Proxy(pairs=500),
    "2000": Proxy(pairs=2000),
    "8000": Proxy(pairs=8000),
    "mean-of-four": Proxy(pairs=2000, members=4),
    "noisy": Proxy(pairs=2000, flipped=0.25),
}
WEIGHTS = (0.03, 0.1, 0.3)
HALVED = ("125", "500", "2000", "8000", "noisy")


def half_of(name: str, place: int) -> Proxy:
    """A proxy of the first or second half of another's pairs."""
    whole = PROXIES[name]
    pairs = whole.pairs // 2
    return replace(whole, pairs=pairs, first=place * pairs)


HALVES = {f"{name}-half{place + 1}": half_of(name, place) for name in HALVED for place in (0, 1)}

PLAN = Plan(
    runs=[
        *(
            Run(proxy, method, world=world)
            for world in WORLDS
            for method in ("best_of_n", "ppo", "grpo")
            for proxy in PROXIES
        ),
        *(
            Run(proxy, method, kl, world)
            for world in PENALISED
            for kl in WEIGHTS
            for method in ("ppo", "grpo")
            for proxy in ("500", "2000", "8000")
        ),
    ],
    proxies=PROXIES | HALVES,
    halves={name: (f"{name}-half1", f"{name}-half2") for name in HALVED},
    flags={
        "ppo": {"max_updates": 320, "eval_updates": 16},
        "grpo": {"max_updates": 160, "eval_updates": 8, "learning_rate": 3e-4},
    },
)
