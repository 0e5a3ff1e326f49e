"""A weak scorer and a better one, each optimised by PPO and by GRPO: four runs, ten minutes on two cores."""

from lmgym.apps.lab.plan import Plan, Proxy, Run

PLAN = Plan(
    runs=[Run(proxy, method) for proxy in ("weak", "better") for method in ("ppo", "grpo")],
    proxies={"weak": Proxy(pairs=250), "better": Proxy(pairs=4000)},
    rows=50_000,
    flags={
        "ppo": {"max_updates": 320, "eval_updates": 16},
        "grpo": {"max_updates": 160, "eval_updates": 8, "learning_rate": 3e-4},
    },
)
