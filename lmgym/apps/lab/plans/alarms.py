"""Alarms on trial: 176 runs against 44 scorers, of which 24 have a planted fault; four hours on two cores.

Fixed before any of it was run, in worlds that no setting was chosen in. Each proxy is watched by a scorer of as many
other pairs (with the fault: half; without it: other, and base, which begins at another model), by one of users' traces
(logs), and by one of four heads on its own pairs. Each run is looked at eleven times on 1,024 held-out prompts, of
which alarms read 512.
"""

from lmgym.apps.lab.faults import FAULTS
from lmgym.apps.lab.plan import Plan, Proxy, Run

WORLDS = range(10, 16)
STRENGTHS = {"weak": 0.1, "strong": 0.3}
FEW = (125, 250, 500, 1000)
KL = {"ppo": (0.0, 0.1), "grpo": (0.0, 0.1)}


def with_watchers(name: str, pairs: int, fault: str = "", planted: float = 0.0) -> dict[str, Proxy]:
    """A proxy and those that watch it, by name."""
    return {
        name: Proxy(pairs, fault=fault, planted=planted),
        f"{name}-half": Proxy(pairs, first=pairs, fault=fault, planted=planted),
        f"{name}-other": Proxy(pairs, first=2 * pairs),
        f"{name}-base": Proxy(pairs, first=2 * pairs, base="policy"),
        f"{name}-heads": Proxy(pairs, heads=4, fault=fault, planted=planted),
    }


PLANTED = {f"{fault}-{strength}": (fault, share) for fault in FAULTS for strength, share in STRENGTHS.items()}
PROXIES = {
    name: proxy
    for planted, (fault, share) in PLANTED.items()
    for name, proxy in with_watchers(planted, 2000, fault, share).items()
} | {name: proxy for pairs in FEW for name, proxy in with_watchers(f"few{pairs}", pairs).items()}
PROXIES["logs"] = Proxy(pairs=0)

# each planted proxy in three worlds, each of few pairs in five; world by world
PLACES = [
    (name, world)
    for world in WORLDS
    for name in [
        *(name for place, name in enumerate(PLANTED) if world % 2 == place % 2),
        *(f"few{pairs}" for pairs in FEW if world in WORLDS[:5]),
    ]
]

PLAN = Plan(
    runs=[Run(name, method, kl, world) for name, world in PLACES for method, weights in KL.items() for kl in weights],
    proxies=PROXIES,
    prompts=1024,
    watchers={
        name: {"logs": "logs", "spread": f"{name}-heads"}
        | {role: f"{name}-{role}" for role in ("half", "other", "base")}
        for name, _ in PLACES
    },
    flags={
        "ppo": {"max_updates": 320, "eval_updates": 32},
        "grpo": {"max_updates": 160, "eval_updates": 16, "learning_rate": 3e-4},
    },
)
