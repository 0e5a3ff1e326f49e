"""The steps of a plan: commands that a user would type, in the lab's folder, each with the steps that it needs.

world_7/tables, untrained, policy, trunk    a world, its policy by SFT, a model for its scorers to begin at
world_7/proxies/NAME                        scorers, with their pairs in NAME.parquet
world_7/pool                                replies to choose among, with every proxy's scores
world_7/runs/NAME                           ordinary run folders
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmgym.apps.lab.labels import HELD_OUT, PROMPTS, file_of, write_pairs, write_prompts
from lmgym.apps.lab.plan import Plan, Proxy, Run
from lmgym.errors import COLLAPSED

FINISHED = ("finished", "collapsed")
"""outcomes of runs that have come to their end; a policy that collapses is a result here"""
SMALL = {"max_length": 128, "precision": "fp32", "tracking": "none", "save_updates": -1}
SFT = {
    "adam_beta2": 0.99, "eval_size": 200, "global_batch": 16, "micro_batch": 16, "learning_rate": "3e-3",
    "weight_decay": 0.1, "epochs": 3, "sample_prompts": 4, "split_by": "prompt",
}  # fmt: skip
LOGS = {
    "adam_beta2": 0.99, "eval_size": 3000, "global_batch": 64, "micro_batch": 32, "learning_rate": "3e-3",
    "weight_decay": 0.3, "epochs": 1, "audit": "none",
}  # fmt: skip
PAIRS = {"global_batch": 32, "micro_batch": 32, "learning_rate": "1e-3", "audit": "none"}
TRUNK_STEPS = 500
WATCHED = "watched.npz"
"""in a run's folder: what alarms read, of watching.py"""
MEMBER_SEEDS = 1000
"""distance of the members' seeds from the proxy's, so that members of two proxies differ"""


@dataclass(frozen=True)
class LabStep:
    """A command run in the lab's folder, what exists once it has succeeded, and the steps that it needs."""

    name: str
    words: tuple[str, ...]
    done: str
    needs: tuple[str, ...] = ()
    prepare: Callable[[Path], None] = lambda folder: None
    """what is done before it, given the lab's folder"""
    succeeds: tuple[int, ...] = (0,)
    """its exit codes that are a success"""


def plan_steps(plan: Plan) -> list[LabStep]:
    """All steps, each behind those that it needs."""
    return [step for world in plan.worlds for step in _world_steps(plan, world)]


def folder_of(world: int) -> str:
    """Of a world, in the lab's."""
    return f"world_{world}"


def scorer_path(plan: Plan, world: int, name: str) -> str:
    """A proxy as `--scorers` names it, from the lab's folder."""
    proxy = plan.proxies[name]
    if proxy.spec:
        return _from_anywhere(proxy.spec)
    return f"{folder_of(world)}/proxies/{name}" + ("/model" if proxy.members == 1 else "")


def _from_anywhere(spec: str) -> str:
    """A scorer's name that means the same in the lab's folder: a path of this folder becomes a whole one."""
    path, mark, rest = spec.partition(":") if ".py:" in spec else spec.partition("#")
    return f"{Path(path).absolute()}{mark}{rest}" if Path(path).exists() else spec


def _world_steps(plan: Plan, world: int) -> Iterator[LabStep]:
    here = folder_of(world)
    tables, policy = f"{here}/tables", f"{here}/policy/model"
    made = f"world {world}"
    yield _step(made, f"{tables}/world.json", (), "world", "--rows", plan.rows, "--seed", world, "--output", tables)
    untrained = f"{here}/untrained"
    yield _step(
        f"{made}: untrained policy", f"{untrained}/config.json", (made,),
        *("world-policy", "--world", tables, "--output", untrained, "--seed", world),
    )  # fmt: skip
    yield _step(
        f"{made}: policy", f"{here}/policy/run.json", (f"{made}: untrained policy",),
        *("train", "sft", "chat", "--model", untrained, "--dataset", f"{tables}/sft.parquet"),
        *_flags({**SMALL, **SFT, "seed": world, **plan.policy, "output": f"{here}/policy"}),
    )  # fmt: skip
    names = plan.proxies_of(world)
    if any(not plan.proxies[name].spec for name in names):
        yield _step(
            f"{made}: model for the scorers", f"{here}/trunk/config.json", (made,),
            *("world-model", "--world", tables, "--steps", TRUNK_STEPS, "--output", f"{here}/trunk"),
        )  # fmt: skip
    for name in names:
        yield from _proxy_steps(plan.proxies[name], name, world, policy)
    runs = [run for run in plan.runs if run.world == world]
    if any(run.samples for run in runs):
        yield from _pool_steps(plan, world, policy)
    for run in runs:
        if not run.samples:
            yield _run_step(plan, run, policy)
            if plan.watchers.get(run.proxy):
                yield _watch_step(plan, run)


def _proxy_steps(proxy: Proxy, name: str, world: int, policy: str) -> Iterator[LabStep]:
    if proxy.spec:
        return
    here, made = folder_of(world), f"world {world}"
    output, pairs = f"{here}/proxies/{name}", f"{here}/pairs"
    if not proxy.pairs:
        yield _step(
            f"{made}: proxy {name}", f"{output}/run.json", (f"{made}: model for the scorers",),
            *("train", "reward", "convo_joint", "--model", f"{here}/trunk", "--dataset", f"{here}/tables/logs.parquet"),
            *_flags({**SMALL, **LOGS, "seed": proxy.seed, "name": name, "output": output}), "--freeze_embeddings",
        )  # fmt: skip
        return

    def prepare(folder: Path) -> None:
        write_pairs(world, folder / here / "tables", proxy, folder / pairs)

    several = proxy.members > 1
    trunk = proxy.base == "trunk"
    model, start = (f"{here}/trunk", f"{made}: model for the scorers") if trunk else (policy, f"{made}: policy")
    members = [f"{output}_{place + 1}" for place in range(proxy.members)] if several else [output]
    for place, member in enumerate(members):
        yield _step(
            f"{made}: proxy {name}" + (f", member {place + 1}" if several else ""),
            f"{member}/run.json", (start,),
            *("train", "reward", "hh_pairwise", "--model", model, "--dataset", f"{pairs}/{file_of(proxy)}"),
            *_flags({**SMALL, "eval_dataset": f"{pairs}/{HELD_OUT}", **PAIRS}),
            *_flags({"seed": proxy.seed + MEMBER_SEEDS * place, "name": name, "output": member}),
            *(("--heads", proxy.heads) if proxy.heads > 1 else ()),
            prepare=prepare,
        )  # fmt: skip
    if several:
        yield _step(
            f"{made}: proxy {name}", f"{output}/ensemble.json",
            tuple(f"{made}: proxy {name}, member {place + 1}" for place in range(proxy.members)),
            *("ensemble", *members, "--output", output),
        )  # fmt: skip


def _pool_steps(plan: Plan, world: int, policy: str) -> Iterator[LabStep]:
    here, made = folder_of(world), f"world {world}"
    pool = f"{here}/pool"
    prompts, replies = plan.pool
    module = (sys.executable, "-m", "lmgym.apps.lab.pool")
    asked = _words(*module, "sample", policy, pool, world, prompts, replies)
    yield LabStep(f"{made}: pool", asked, f"{pool}/replies.parquet", (f"{made}: policy",))
    for name in plan.scored(world):
        asked = _words(*module, "score", pool, name, scorer_path(plan, world, name))
        needs = (f"{made}: pool", *(() if plan.proxies[name].spec else (f"{made}: proxy {name}",)))
        yield LabStep(f"{made}: pool by {name}", asked, f"{pool}/{name}.npy", needs)


def _run_step(plan: Plan, run: Run, policy: str) -> LabStep:
    here, made = folder_of(run.world), f"world {run.world}"
    proxy = () if plan.proxies[run.proxy].spec else (f"{made}: proxy {run.proxy}",)
    own = {
        "init_kl_coef": run.kl, "max_kl": 0, "eval_size": plan.prompts, "seed": run.seed, "tracking": "none",
        "save_updates": -1,
    }  # fmt: skip

    def prepare(folder: Path) -> None:
        write_prompts(folder / here / "tables", folder / here / PROMPTS)

    return _step(
        f"{made}: {run.name}", f"{here}/runs/{run.name}/run.json", (f"{made}: policy", *proxy),
        *("train", run.method, "world_engagement", "--model", policy, "--prompts", f"{here}/{PROMPTS}"),
        *("--scorers", f"reward={scorer_path(plan, run.world, run.proxy)}", "--eval_scorer", f"world:{run.world}"),
        *_flags({**own, **plan.flags.get(run.method, {}), "output": f"{here}/runs/{run.name}"}),
        prepare=prepare, succeeds=(0, COLLAPSED),
    )  # fmt: skip


def _watch_step(plan: Plan, run: Run) -> LabStep:
    made, folder = f"world {run.world}", f"{folder_of(run.world)}/runs/{run.name}"
    watchers = plan.watchers[run.proxy]
    scorers = [f"{role}={scorer_path(plan, run.world, name)}" for role, name in watchers.items()]
    needs = [f"{made}: proxy {name}" for name in watchers.values() if not plan.proxies[name].spec]
    words = _words(sys.executable, "-m", "lmgym.apps.lab.watching", folder, *scorers)
    return LabStep(f"{made}: watch {run.name}", words, f"{folder}/{WATCHED}", (f"{made}: {run.name}", *needs))


def _step(
    name: str,
    done: str,
    needs: tuple[str, ...],
    *words: object,
    prepare: Callable[[Path], None] = lambda folder: None,
    succeeds: tuple[int, ...] = (0,),
) -> LabStep:
    return LabStep(name, _words(Path(sys.executable).with_name("lmgym"), *words), done, needs, prepare, succeeds)


def _words(*words: object) -> tuple[str, ...]:
    return tuple(map(str, words))


def _flags(settings: Mapping[str, Any]) -> list[object]:
    return [word for name, value in settings.items() for word in (f"--{name}", value)]
