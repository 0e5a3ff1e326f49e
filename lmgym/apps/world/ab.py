"""`lmgym ab` and `lmgym deploy`: policies in the simulated app, their figures with intervals, and ab.json."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lmgym.apps.world.ab_testing import assign_users, figures
from lmgym.apps.world.app import refuse_days
from lmgym.apps.world.behaviour import Behaviour, refuse_unwritable
from lmgym.apps.world.making import RETENTION
from lmgym.apps.world.streams import Ints
from lmgym.apps.world.users import NOISE
from lmgym.apps.world.world import VERSION, World
from lmgym.config import SEED, Range
from lmgym.console import CleanConsole, say
from lmgym.errors import InputError
from lmgym.generation.protocol import Sampling
from lmgym.sample_sizes import units_needed
from lmgym.statistics import Estimate, Ratio, compare, notes

if TYPE_CHECKING:
    from lmgym.apps.world.arms import Arm

MOST_USERS, MOST_PROCESSES = 10**7, 1024
EFFECT = 0.05  # relative change for which the table has the number of users needed to detect it


@dataclass(frozen=True)
class Design:
    """The design of an experiment: users, days, seeds and sampling."""

    users: int = 1000
    days: int = 31
    seed: int = 0
    world_seed: int = 0
    paired: bool = False
    temperature: float = 1.0
    max_new_tokens: int = 48
    retention: float = NOISE.retention

    def groups(self, policies: int) -> list[Ints]:
        """The users of each policy, by number. Raises InputError for fewer than 2 users of any policy."""
        if not self.paired:
            return assign_users(self.users, policies, self.seed)
        if self.users < 2:
            raise InputError(f"{self.users} users who meet every policy; needed: 2 or more")
        return [np.arange(self.users)] * policies

    def check(self, processes: int) -> None:
        """Raises InputError for numbers out of range."""
        refuse_days(self.days)
        Range(0, MOST_USERS).check("users", self.users)
        SEED.check("seed", self.seed)
        SEED.check("world_seed", self.world_seed)
        RETENTION.check("retention", self.retention)
        Range(0, MOST_PROCESSES, hint="0: automatic").check("processes", processes)
        self.sampling(0)  # checks temperature and max_new_tokens

    @property
    def world(self) -> World:
        """The world of the users."""
        return World.with_retention(self.world_seed, self.retention)

    def sampling(self, place: int) -> Sampling:
        """The sampling of the policy at that place; a policy that is listed twice has two seeds."""
        return Sampling(max_new_tokens=self.max_new_tokens, temperature=self.temperature, seed=place)

    def arms(self, groups: Sequence[Ints]) -> list["Arm"]:
        """An arm per policy."""
        from lmgym.apps.world.arms import Arm

        return [Arm(i, users, self.days, self.seed, self.sampling(i)) for i, users in enumerate(groups)]


def run_ab(
    names: Sequence[str], design: Design, output: str, logs: bool, processes: int = 0, concurrency: int = 8
) -> None:
    """Deploys all policies, compares the first with the others, prints a table and writes OUTPUT/ab.json."""
    if len(names) < 2:
        raise InputError(f"found {len(names)}; needed: at least 2 policies, a baseline and others")
    design.check(processes)
    design.groups(len(names))
    folders = [Path(output) / "logs" / str(place + 1) for place in range(len(names))] if logs else []
    for folder in folders:
        refuse_unwritable(folder, design.days)
    record = experiment(names, design, folders, processes, concurrency)
    path = Path(output) / "ab.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
    print_table(record)
    say(f"{path}: these figures at full precision" + (f"; logs in {path.parent / 'logs'}" if logs else ""))


def run_deploy(name: str, design: Design, output: str, processes: int = 0, concurrency: int = 8) -> None:
    """Deploys one policy and writes its logs."""
    design.check(processes)
    refuse_unwritable(Path(output), design.days)
    from lmgym.apps.world.arms import deploy_all

    arms = design.arms([np.arange(design.users)])
    [(behaviour, _)] = deploy_all([name], design.world, arms, processes, concurrency)
    sizes = behaviour.write(output)
    for figure, ratio in figures(behaviour.activity).items():
        say(f"{figure:20} {ratio.value:.3f}")
    say(f"{output}: " + ", ".join(f"{table} {size:,}" for table, size in sizes.items()))


def experiment(
    names: Sequence[str], design: Design, logs: Sequence[Path] = (), processes: int = 0, concurrency: int = 8
) -> dict[str, Any]:
    """The figures of each policy, and comparisons of the first with the others, as the content of ab.json.

    Writes the logs of policy i to the folder `logs[i]`, if given; `processes` 0 is automatic. Raises InputError for
    fewer than 2 users per policy, and for policies that do not load.
    """
    from lmgym.apps.world.arms import deploy_all

    deployed = deploy_all(names, design.world, design.arms(design.groups(len(names))), processes, concurrency)
    arms, ratios = [], []
    for place, (name, (behaviour, seconds)) in enumerate(zip(names, deployed, strict=True)):
        if logs:
            behaviour.write(logs[place])
        ratios.append(figures(behaviour.activity))
        arms.append(_arm(name, behaviour, ratios[-1], seconds))
        users, replies = arms[-1]["users"], arms[-1]["replies"]
        say(f"{name}: {users:,} users, {replies:,} replies, {seconds:.1f} s", error=True)
    comparisons = [
        {"a": names[0], "b": name, "figures": _comparison(ratios[0], other, design.paired)}
        for name, other in zip(names[1:], ratios[1:], strict=True)
    ]
    return {"world_version": VERSION, "design": asdict(design), "policies": arms, "comparisons": comparisons}


def _arm(name: str, behaviour: Behaviour, ratios: dict[str, Ratio], seconds: float) -> dict[str, Any]:
    return {
        "policy": name,
        "users": len(behaviour),
        "conversations": int((behaviour.activity.messages > 0).sum()),
        "replies": len(behaviour.traces.reply),
        "figures": {name: asdict(ratio.estimate) for name, ratio in ratios.items()},
        # fsum is exact: the order of users does not matter
        "hidden_utility": math.fsum(np.concatenate(behaviour.traces.utility).tolist()) / len(behaviour.traces.reply),
        "seconds": seconds,
    }


def _comparison(a: dict[str, Ratio], b: dict[str, Ratio], paired: bool) -> dict[str, dict[str, float | int | None]]:
    rows: dict[str, dict[str, float | int | None]] = {}
    for figure, ratio in a.items():
        comparison = compare(ratio, b[figure], paired)
        effect = EFFECT * ratio.value
        known = 0 < comparison.spread < math.inf and 0 < abs(effect) < math.inf  # False for NaN
        rows[figure] = {
            **{name: _number(value) for name, value in asdict(comparison).items()},
            "relative": _number(comparison.difference / ratio.value if ratio.value else math.nan),
            "users_to_find_5_percent": units_needed(effect, comparison.spread) if known else None,
        }
    return rows


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def print_table(record: dict[str, Any]) -> None:
    """Prints each figure of each policy with its interval and its change from the first policy."""
    from rich.table import Table

    design, arms = record["design"], record["policies"]
    who = "the same users" if design["paired"] else "users assigned at random"
    title = f"{design['users']:,} users, {design['days']} days, world {design['world_seed']}, {who}"
    table = Table(title=title, title_justify="left")
    for name in ("", "policy", "value", "95% interval", "change", "p", "users for 5%"):
        left, folds = name in ("", "policy"), name == "policy"
        table.add_column(name, justify="left" if left else "right", overflow="fold", no_wrap=not folds)
    for figure in arms[0]["figures"]:
        for place, arm in enumerate(arms):
            comparison = record["comparisons"][place - 1]["figures"][figure] if place else None
            cells = _cells(Estimate(**arm["figures"][figure]), comparison)
            table.add_row("" if place else figure, arm["policy"], *cells, end_section=place == len(arms) - 1)
    CleanConsole(width=90 + min(70, max(len(arm["policy"]) for arm in arms))).print(table)
    for note in notes((Estimate(**found) for arm in arms for found in arm["figures"].values()), "user"):
        say(note)
    say(f"change: from {arms[0]['policy']}; p: two-sided, not corrected for the number of figures")
    say("users for 5%: number per policy to detect a change of 5% with power .9")


def _cells(found: Estimate, comparison: dict[str, float | int | None] | None) -> list[str]:
    cells = ["none" if found.value is None else f"{found.value:.3f}", found.interval(".3f")]
    if comparison is None:
        return [*cells, "", "", ""]
    relative, p_value, users = (comparison[name] for name in ("relative", "p_value", "users_to_find_5_percent"))
    return [
        *cells,
        "" if relative is None else f"{relative:+.1%}",
        "" if p_value is None else "<.0001" if p_value < 1e-4 else f"{p_value:.4f}",
        "" if users is None else f"{users:,}",
    ]
