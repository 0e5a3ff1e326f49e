"""Counts in the prose of docs/over_optimisation.md, against the result file."""

import json
import re
from inspect import signature
from pathlib import Path

import numpy as np
import pytest

from lmgym.apps.lab.curves import Curve, load_curves
from lmgym.apps.lab.plan import read_plan
from lmgym.apps.lab.steps import folder_of
from lmgym.apps.lab.trial import Judged
from lmgym.apps.world.making import make_world_policy

ROOT = Path(__file__).resolve().parents[2]
FOUND = json.loads((ROOT / "benchmarks/results/over_optimisation.json").read_text())
PAGE = " ".join((ROOT / "docs/over_optimisation.md").read_text().split())
TRIAL = [Judged(**run) for run in json.loads((ROOT / "benchmarks/results/alarms_on_trial.json").read_text())["runs"]]
PPO = " ".join((ROOT / "docs/ppo.md").read_text().split())
NEGATIVE = (ROOT / "docs/negative_results.md").read_text()
REAL = json.loads((ROOT / "benchmarks/results/over_optimisation_real.json").read_text())
CURVES = load_curves(FOUND["curves"])
TRAINED = [curve for curve in CURVES if curve.method != "best_of_n"]


def fallen(curves: list[Curve]) -> tuple[int, int]:
    return sum(curve.fallen for curve in curves), len(curves)


def end_gain(curve: Curve) -> float:
    return curve.points[-1].gold - curve.points[0].gold


def test_the_setting_is_that_of_the_plan() -> None:
    plan = read_plan("figure")[1]
    prompts, replies = plan.pool
    updates = {method: flags["max_updates"] for method, flags in plan.flags.items()}
    assert f"from one pool of {replies} replies to {prompts} prompts" in PAGE
    assert f"PPO for {updates['ppo']} updates and GRPO for {updates['grpo']}," in PAGE
    assert f"on {plan.prompts} held-out prompts" in PAGE
    assert (len(plan.worlds), len({run.proxy for run in plan.runs})) == (6, 6)
    assert signature(make_world_policy).parameters["layers"].default == 2
    assert "a policy of two layers" in PAGE


def test_the_runs_that_are_over_optimised_are_counted_right_and_their_reward_ends_near_its_highest() -> None:
    trained = fallen([curve for curve in TRAINED if not curve.kl_weight])
    sampled = fallen([curve for curve in CURVES if curve.method == "best_of_n"])
    assert "over-optimise {} of {} runs, the best of N up to 512 only {} of {}.".format(*trained, *sampled) in PAGE
    for curve in CURVES:
        if curve.fallen:
            assert curve.points[-1].reward > max(point.reward for point in curve.points) - 0.1


def test_what_a_kl_penalty_does_is_counted_right() -> None:
    counts = {
        method: [
            fallen([c for c in TRAINED if (c.method, c.kl_weight) == (method, weight)]) for weight in (0.03, 0.1, 0.3)
        ]
        for method in ("ppo", "grpo")
    }
    (first, total), (second, _), (third, _) = counts["grpo"]
    words = {0: "none"}
    said = (
        f"{first} of {total} runs of GRPO with 0.03, {second} with 0.1 and {words.get(third, third)} with 0.3; of PPO "
    )
    assert said + "{}, {} and {}.".format(*(count for count, _ in counts["ppo"])) in PAGE
    penalised = [curve for curve in TRAINED if (curve.method, curve.kl_weight) == ("ppo", 0.1)]
    places = {(curve.proxy, curve.world) for curve in penalised}
    free = [c for c in TRAINED if (c.method, c.kl_weight) == ("ppo", 0) and (c.proxy, c.world) in places]
    peaks = np.mean([curve.peak.gold - curve.points[0].gold for curve in free])
    assert (np.mean([end_gain(curve) for curve in penalised]), peaks) == pytest.approx((0.40, 0.30), abs=0.005)
    assert "PPO ended at .40, above the .30" in PAGE


def test_runs_by_the_largest_kl_that_they_reached_are_counted_right() -> None:
    largest = np.array([max(point.kl or 0.0 for point in curve.points) for curve in TRAINED])
    down = np.array([curve.fallen for curve in TRAINED])
    near, far = largest < 5, largest >= 12
    assert f"Of {near.sum()} runs that stayed below 5 nats a reply none was over-optimised" in PAGE
    assert not down[near].any()
    between = ~near & ~far
    assert (between.sum(), down[between].sum()) == (17, 6)
    assert f"of 17 from 5 to 12 six, of {far.sum()} beyond that {down[far].sum()}." in PAGE


def test_halves_that_rise_to_the_largest_n_are_counted_right() -> None:
    last = sum(int(np.argmax(case["watched"])) == len(case["sizes"]) - 1 for case in FOUND["budgets"])
    assert f"in {last} of {len(FOUND['budgets'])} cases the watching half rises to the largest N" in PAGE


def test_curves_of_the_unseen_world_are_counted_right() -> None:
    inside = [row["inside"] for row in FOUND["prediction"]]
    whole = sum(share == 1 for share in inside)
    assert f"Of its {len(inside)} curves {whole} lie wholly in the 95% *prediction* intervals" in PAGE
    [rest] = [share for share in inside if share < 1]
    assert f"and the other at {rest:.0%} of its points" in PAGE
    assert re.search(r"world 31 was chosen", PAGE)


def test_what_scorers_of_a_real_model_reach_is_counted_right() -> None:
    first, *_, last = (point["at"] for point in REAL["curves"][0]["points"])
    gold = {
        (curve["proxy"], curve["seed"]): {point["at"]: point["gold"] for point in curve["points"]}
        for curve in REAL["curves"]
    }
    whole = gold["gold", 0][last] - gold["gold", 0][first]
    shares: dict[str, list[str]] = {}
    for (proxy, _), own in gold.items():
        shares.setdefault(proxy, []).append(f"{(own[last] - own[first]) / whole:.2f}".lstrip("0"))
    few, more, most = (" and ".join(shares[size]) for size in ("75", "300", "600"))
    reached = (
        f"scorers of 75 labels reach {few} of what gold itself would choose, those of 300 {more}, those of 600 {most}."
    )
    assert reached in PAGE
    assert "the best of 16 by scorers of 600 labels has more gold than the best of 64 by those of 75." in PAGE
    of = {size: [own for (proxy, _), own in gold.items() if proxy == size] for size in shares}
    assert min(own[16] for own in of["600"]) > max(own[64] for own in of["75"])


def test_what_a_real_model_loses_up_to_the_largest_n_is_said() -> None:
    lost = {}
    for curve in REAL["curves"]:
        golds, end = {point["at"]: point["gold"] for point in curve["points"]}, curve["points"][-1]
        assert max(golds.values()) - end["gold"] < end["gold_error"]
        if max(golds.values()) > end["gold"]:
            lost[curve["proxy"]] = (golds[32] - golds[64]) / REAL["gold_std"]
            assert max(golds.values()) == golds[32]
    [(size, fall)] = lost.items()
    said = f"one of {size} labels falls by {fall:.2f} from 32 to 64, the others are highest at 64.".replace("0.", ".")
    assert f"Up to N = {end['at']:g}, the largest that was tried, no scorer loses as much" in PAGE
    assert said in PAGE


def rung(runs: list[Judged], alarm: str) -> int:
    return sum(run.rings[alarm] is not None for run in runs)


def test_what_alarms_said_is_counted_right() -> None:
    planned = {f"{folder_of(run.world)}/{run.name}": run for run in read_plan("alarms")[1].runs}
    exploited, sound = ([run for run in TRIAL if run.outcome == kind] for kind in ("exploited", "sound"))
    risen = {role: sum(run.since_peak[role] > 0 for run in exploited) for role in ("other", "base", "logs")}
    grpo = [run for run in exploited if planned[run.name].method == "grpo"]
    watchers = ("ours", "halves", "other base", "logs")
    assert not any(rung(sound, name) for name in watchers)
    assert not rung(exploited, "halves")
    [against] = {run.scorer for run in exploited if run.rings["ours"] is not None}
    world, _, proxy = against.partition("/")
    assert (read_plan("alarms")[1].proxies[proxy].fault, world) == ("word", "15")
    same, other, logs = (rung(exploited, name) for name in ("ours", "other base", "logs"))
    for said in (
        f"all of the {same} exploited runs that ours noticed are against one scorer (a word, in world 15), and "
        f"{rung(grpo, 'other base')} of the {other} that one from another model noticed are of GRPO.",
        f"In {risen['other']} of the exploited runs the scorer of other pairs",
        f"in {risen['base']} also the one that began at another model, in {risen['logs']} the one of traces",
    ):
        assert said in PAGE
    assert f"in {risen['other']} of {len(exploited)} exploited runs of the" in PPO
    rest = max(rung(exploited, name) for name in ("variance", "spread", "duplicates"))
    assert f"noticed {same} of {len(exploited)} exploited runs, one from another model {other}," in NEGATIVE
    assert f"the others {max(rest, logs)} or fewer; a threshold of the KL {rung(exploited, 'KL')} |" in NEGATIVE


def test_exploited_runs_with_a_planted_fault_and_without_are_counted_right() -> None:
    proxies = read_plan("alarms")[1].proxies
    planted = [bool(proxies[run.scorer.partition("/")[2]].fault) for run in TRIAL]
    lost = [fault for fault, run in zip(planted, TRIAL, strict=True) if run.outcome == "exploited"]
    with_fault = f"Exploited are {sum(lost)} of {sum(planted)} runs against scorers with a planted fault"
    assert f"{with_fault}, and {len(lost) - sum(lost)} of {len(TRIAL) - sum(planted)} against those" in PAGE


def test_what_the_kl_said_is_counted_right() -> None:
    weights = {f"{folder_of(run.world)}/{run.name}": run.kl for run in read_plan("alarms")[1].runs}
    exploited, sound = ([run for run in TRIAL if run.outcome == kind] for kind in ("exploited", "sound"))
    free = [run for run in TRIAL if not weights[run.name]]
    lost, kept = ([run for run in runs if weights[run.name]] for runs in (exploited, sound))
    for said in (
        f"of which {len(exploited) - len(lost)} of {len(free)} are exploited",
        f"Among those with a penalty it noticed {rung(lost, 'KL')} of {len(lost)}, with {rung(kept, 'KL')} false",
    ):
        assert said in PAGE


def test_the_whole_plan_of_the_trial_has_run() -> None:
    plan = read_plan("alarms")[1]
    planned = {f"{folder_of(run.world)}/{run.name}": f"{run.world}/{run.proxy}" for run in plan.runs}
    assert {run.name: run.scorer for run in TRIAL} == planned
    assert f"is {len(planned)} runs against {len(set(planned.values()))} scorers," in PAGE
