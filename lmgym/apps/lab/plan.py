"""A plan: scorers to optimise (proxies), and the runs that optimise them in simulated worlds.

A plan is a Python file with a `PLAN`. Everything of a run follows from its entry, so that its name names its folder.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from lmgym.apps.lab.faults import FAULTS
from lmgym.config import SEED, Range
from lmgym.errors import InputError, did_you_mean, listed, shown, shown_path
from lmgym.runs.user_code import import_file

BEST_OF_N = "best_of_n"
"""the method that trains nothing: exact values from one pool of replies"""
HELD_OUT_PAIRS = 500
Base = Literal["trunk", "policy"]
PLANS = Path(__file__).with_name("plans")


@dataclass(frozen=True)
class Proxy:
    """A scorer that stands for the hidden utility: trained on a world's pairs or logs, or any other by its spec."""

    pairs: int = 2000
    """to train on; 0: the traces that users leave in the world's logs instead, all of them"""
    first: int = 0
    """place of the first of these pairs in the world's table; ranges that do not overlap share no pair"""
    members: int = 1
    """scorers, each with first weights and an order of its own, whose mean counts"""
    heads: int = 1
    """of one scorer, each with a bootstrap of the pairs of its own"""
    flipped: float = 0.0
    """share of the pairs whose labels are exchanged"""
    fault: str = ""
    """what the annotators of some of the pairs like, see faults.py"""
    planted: float = 0.0
    """share of the pairs in which they do"""
    base: Base = "trunk"
    """the model that it begins at: one that was pretrained to match replies to chats, or the policy"""
    seed: int = 1
    spec: str = ""
    """a scorer as `--scorers` names it (a folder, FILE.py:FUNCTION, http://HOST:PORT#NAME) instead of a trained one"""

    def check(self, name: str, rows: int) -> None:
        """Raises InputError for values that no scorer can be trained with."""
        if self.spec:
            return
        if not self.pairs and self != Proxy(pairs=0, seed=self.seed):
            raise InputError(f"proxy {shown(name)} is trained on logs; needed: no setting of pairs, members and heads")
        Range(1, 64).check(f"proxy {name}: members", self.members)
        Range(1, 64).check(f"proxy {name}: heads", self.heads)
        SEED.check(f"proxy {name}: seed", self.seed)
        if self.base not in get_args(Base):
            raise InputError(
                f"proxy {shown(name)} begins at {shown(self.base)}; needed: one of {listed(get_args(Base))}"
            )
        for what, share in (("flipped", self.flipped), ("planted", self.planted)):
            Range(0, 1).check(f"proxy {name}: {what}", share)
        Range(0, 1).check(f"proxy {name}: flipped and planted together", self.flipped + self.planted)
        if self.fault not in ("", *FAULTS) or bool(self.fault) != (self.planted > 0):
            raise InputError(
                f"proxy {shown(name)} has the fault {shown(self.fault)} in {self.planted:g} of its pairs; needed: one "
                f"of {listed(FAULTS)}{did_you_mean(self.fault, FAULTS)}, and a share above 0"
            )
        most = rows // 10 - HELD_OUT_PAIRS
        if self.pairs == 1 or self.pairs < 0 or self.first < 0 or self.first + self.pairs > most:
            raise InputError(
                f"proxy {shown(name)} is to be trained on pairs {self.first:,} to {self.first + self.pairs:,}; a world "
                f"of {rows:,} rows has {most:,} beside the {HELD_OUT_PAIRS} held out; needed: 2 or more of these; or "
                "raise the plan's rows"
            )


@dataclass(frozen=True)
class Run:
    """One optimisation of a policy against a proxy."""

    proxy: str
    method: str = "ppo"
    """best_of_n, or what `lmgym train` calls it: ppo, grpo, rloo"""
    kl: float = 0.0
    """weight of the KL penalty"""
    world: int = 0
    """the world's seed"""
    seed: int = 1

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.proxy}_{self.method}_kl{self.kl:g}_seed{self.seed}"

    @property
    def samples(self) -> bool:
        """True if it trains nothing."""
        return self.method == BEST_OF_N


@dataclass(frozen=True)
class Plan:
    """Runs, the proxies that they optimise, and settings that all of them share."""

    runs: Sequence[Run]
    proxies: Mapping[str, Proxy]
    rows: int = 90_000
    """of each world's logs; a tenth of it are pairs"""
    policy: Mapping[str, Any] = field(default_factory=dict)
    """flags of the policy's supervised training"""
    flags: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """flags of `lmgym train METHOD world_engagement` by method"""
    prompts: int = 512
    """held-out prompts at each look at a policy that is trained"""
    pool: tuple[int, int] = (128, 512)
    """prompts, and replies to each, of which the best of N are taken"""
    watchers: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """by proxy: scorers, proxies by role, that watch the runs against it, for alarms.py"""
    halves: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """by proxy: two proxies trained on disjoint halves of its pairs, which score its pools too, for budget.py"""

    @property
    def worlds(self) -> list[int]:
        """Seeds, in the order of the runs."""
        return list(dict.fromkeys(run.world for run in self.runs))

    def proxies_of(self, world: int) -> list[str]:
        """Names of those that a run in this world optimises, or that watch one."""
        optimised = list(dict.fromkeys(run.proxy for run in self.runs if run.world == world))
        watching = [watcher for proxy in optimised for watcher in self.watchers.get(proxy, {}).values()]
        return list(dict.fromkeys([*optimised, *watching, *self.scored(world)]))

    def scored(self, world: int) -> list[str]:
        """Names of those that score the world's pool: of runs that take the best of N, and their halves."""
        sampled = [run.proxy for run in self.runs if run.world == world and run.samples]
        return list(dict.fromkeys([*sampled, *(half for proxy in sampled for half in self.halves.get(proxy, ()))]))

    def check(self) -> None:
        """Raises InputError for two runs of one name, an unknown proxy, and values that nothing can be run with."""
        if not self.runs:
            raise InputError("the plan has no runs; needed: PLAN = Plan(runs=[Run(...), ...], proxies={...})")
        Range(10_000, 10**7).check("rows", self.rows)
        Range(2, 10**5).check("prompts", self.prompts)
        for number in self.pool:
            Range(2, 10**6).check("pool", number)
        counts = Counter((run.world, run.name) for run in self.runs)
        if twice := [f"{name} in world {world}" for (world, name), count in counts.items() if count > 1]:
            raise InputError(f"the plan has two runs of one name: {listed(twice)}; needed: one, or another seed")
        for run in self.runs:
            others = (*self.watchers.get(run.proxy, {}).values(), *self.halves.get(run.proxy, ()))
            for name in (run.proxy, *others):
                if name not in self.proxies:
                    raise InputError(
                        f"run {run.name} needs the proxy {shown(name)}, which the plan does not have; needed: one of "
                        f"{listed(self.proxies)}{did_you_mean(name, self.proxies)}"
                    )
            SEED.check(f"the world of run {run.name}", run.world)
            SEED.check(f"the seed of run {run.name}", run.seed)
            Range(0, 1000).check(f"the KL weight of run {run.name}", run.kl)
        for name, proxy in self.proxies.items():
            if not name.replace("-", "").isalnum():
                raise InputError(f"a proxy is called {shown(name)}; needed: letters, digits and dashes")
            proxy.check(name, self.rows)


def read_plan(name: str) -> tuple[Path, Plan]:
    """(file, plan) of a name of `lmgym lab list` or of a file. Raises InputError if it holds no valid plan."""
    known = {path.stem: path for path in plan_files()}
    path = known.get(name, Path(name))
    if path.suffix != ".py":
        raise InputError(
            f"there is no plan {shown(name)}{did_you_mean(name, known)}; needed: one of {listed(known)}, or a file .py"
        )
    module = import_file(path, "needed: a plan's file, such as those that `lmgym lab list` names")
    plan = getattr(module, "PLAN", None)
    if not isinstance(plan, Plan):
        raise InputError(f"{shown_path(path)} has no plan; needed: PLAN = Plan(...) of lmgym.apps.lab.plan")
    plan.check()
    return path, plan


def plan_files() -> list[Path]:
    """Those that come along."""
    return [path for path in sorted(PLANS.glob("*.py")) if path.stem != "__init__"]
