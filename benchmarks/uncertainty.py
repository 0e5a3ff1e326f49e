"""Ensembles in the simulated world: does the members' spread warn of errors, and does a lower bound help PPO?

    lmgym demo --output outputs/demo          # world 0: its pairs, a small model, a policy
    .venv/bin/python benchmarks/uncertainty.py --demo outputs/demo

Writes benchmarks/results/uncertainty.json after each part; a part that is done is not repeated. Fixed before any run:

- Scorers of K = 4 members on the same 4,000 pairs of the world: `heads` (one trunk, --heads 4, seed 11), `adapters`
  (LoRA of rank 8 on one base, seeds 11 to 14) and `seeds` (whole models, seeds 11 to 14); all begin at the trunk of the
  demo's small model with new heads. One epoch, updates of 32 pairs, learning rate 1e-3 (adapters: 1e-2), no decay; the
  model is that of the best held-out loss. Rates were chosen on seed 1.
- Replies to 100 prompts of held-out users, gold = hidden utility for average tastes: `held out`: 8 of the demo's policy
  a prompt; `best of 64`: for each kind of scorer, the reply that its own mean likes best among 64 of the policy, and
  the next seven; `PPO`: 8 of the policy of the PPO arm `single`, seed 11, after its last update.
- Error of a reply: |gold - (a + b mean)|, a and b by least squares on the held-out replies. Reported: Spearman of
  spread and error with a 95% interval (jackknife over prompts), mean error and spread, the bias (a + b mean - gold,
  above 0: overestimated), correlation of members' errors, and the calibration of P(a beats b) at the saved temperature,
  against the annotators' own probability sigmoid(gold difference / .6), over all pairs of replies to a prompt; and the
  share of these pairs that mean and gold order alike (`agreement`).
- PPO (world_engagement, 320 updates, no KL penalty, evaluated at every 32): `single` (the seed-11 member of `seeds`)
  and `mean-std` of `seeds` (k = 1), seeds 11 to 13. Compared at equal KL: gold's rise since before step 1 interpolated
  on the root of the KL at the smaller of the two last distances, and at half of it; and the gold's best evaluation.
  The agreement of the reward with the gold on the policy's own replies (eval/agreement/eval_scorer) at first and last.
  Added after these had been seen, as a control: `mean` of `seeds`, which tells what the lower bound alone does.
- Cost: CPU seconds of scoring the held-out replies, the least of 3.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from preferences_in_world import held_out_prompts
from scipy import stats
from shared import ROOT, describe_machine, metrics_of, write_result

from lmgym.apps.lab.pool import sample_replies
from lmgym.generation.protocol import Sampling
from lmgym.models.loading import load_tokenizer
from lmgym.scoring.agreement import pair_agreement
from lmgym.scoring.combinations import error_correlation, spread
from lmgym.scoring.ensembles import read_ensemble, write_ensemble
from lmgym.scoring.folders import is_ensemble
from lmgym.scoring.named_scorers import load_scorer
from lmgym.scoring.scorers import read_settings
from lmgym.statistics import jackknife
from lmgym.text import Conversation

KINDS, MEMBERS, SEEDS, PPO_SEEDS = ("heads", "adapters", "seeds"), 4, (11, 12, 13, 14), (11, 12, 13)
PROMPTS, SAMPLES, POOL, UPDATES = 100, 8, 64, 320
ANNOTATORS = 0.6  # scale of the noise of the world's annotators
TRAIN = {
    "precision": "fp32", "max_length": 128, "train_size": 4000, "eval_size": 500, "global_batch": 32,
    "micro_batch": 32, "tracking": "none", "save_updates": -1,
}  # fmt: skip
OF_KIND: dict[str, dict[str, object]] = {
    "heads": {"learning_rate": 1e-3, "heads": MEMBERS},
    "adapters": {"learning_rate": 1e-2, "lora_rank": 8, "lora_alpha": 16},
    "seeds": {"learning_rate": 1e-3},
}


def run(script: str, output: Path, **flags: object) -> float:
    """Runs an experiment on one rank and thread, unless its folder says finished; CPU seconds of training."""
    record = output / "run.json"
    if not record.exists() or json.loads(record.read_text())["outcome"] != "finished":
        words = [sys.executable, script, "--output", output, *(w for k, v in flags.items() for w in (f"--{k}", v))]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(list(map(str, words)), cwd=ROOT, env=environment, capture_output=True, text=True)
        if done.returncode not in (0, 68):  # 68: a policy that collapsed
            raise SystemExit(f"{script} ended with {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(record.read_text())["cpu_seconds"]


def train(demo: Path, folder: Path) -> dict[str, dict[str, Any]]:
    """By kind the scorer's path, the CPU seconds of its training and the held-out figures of its members."""
    from transformers import AutoModel

    if not (folder / "trunk/config.json").exists():
        AutoModel.from_pretrained(demo / "small_llama").save_pretrained(folder / "trunk")
        load_tokenizer(str(demo / "small_llama")).save_pretrained(folder / "trunk")
    common = {"dataset": demo / "world/pairs.parquet", "model": folder / "trunk", **TRAIN}
    found = {}
    for kind in KINDS:
        seeds = SEEDS[:1] if kind == "heads" else SEEDS
        runs = [folder / f"{kind}_{seed}" for seed in seeds]
        seconds = [
            run("reward_models/experiments/hh_pairwise.py", one, **common, **OF_KIND[kind], seed=seed)
            for one, seed in zip(runs, seeds, strict=True)
        ]
        path = runs[0] / "model" if kind == "heads" else write_ensemble([str(one) for one in runs], str(folder / kind))
        figures = [json.loads((one / "evaluation.json").read_text())["metrics"] for one in runs]
        names = ("accuracy", "nll", "ece", "temperature", "ece_calibrated", "member_error_correlation")
        kept = [{name: round(one[name], 4) for name in names if name in one} for one in figures]
        found[kind] = {"path": str(path), "training_cpu_seconds": round(sum(seconds), 1), "held_out_pairs": kept}
        print(kind, found[kind], flush=True)
    return found


def sample(policy: Path, prompts: list[Conversation], n: int) -> list[list[str]]:
    """n replies a prompt."""
    return sample_replies(str(policy), prompts, n, Sampling(32, seed=1), 256)


def flat(prompts: list[Conversation], replies: list[list[str]]) -> tuple[list[Conversation], list[str]]:
    """Conversations and replies, one of each a reply."""
    return [p for p, own in zip(prompts, replies, strict=True) for _ in own], [r for own in replies for r in own]


def with_interval(first: NDArray, second: NDArray) -> dict[str, float | None]:
    """Spearman of two arrays [prompts, replies], with its interval over prompts."""

    def rho(kept: NDArray) -> float:
        return float(stats.spearmanr(first[kept].ravel(), second[kept].ravel()).statistic)

    everyone = np.arange(len(first))
    found = jackknife(rho(everyone), [rho(np.delete(everyone, i)) for i in everyone], first.size)
    return {"value": found.value, "low": found.low, "high": found.high}


def calibration(mean: NDArray, gold: NDArray, temperature: float) -> float:
    """ECE of sigmoid(score difference / T) over pairs of replies [prompts, replies] to a prompt, in ten bins of the
    confidence, against the annotators' probability of the side that is picked.
    """
    one, other = np.triu_indices(mean.shape[1], 1)
    margins = ((mean[:, one] - mean[:, other]) / temperature).ravel()
    truth = 1 / (1 + np.exp(-np.sign(margins) * (gold[:, one] - gold[:, other]).ravel() / ANNOTATORS))
    confidence = 1 / (1 + np.exp(-np.abs(margins)))
    place = np.minimum((20 * (confidence - 0.5)).astype(int), 9)
    gaps = [abs(confidence[place == i].mean() - truth[place == i].mean()) * (place == i).sum() for i in set(place)]
    return float(sum(gaps) / len(place))


def describe(members: NDArray, gold: NDArray, line: tuple[float, float], temperature: float) -> dict[str, Any]:
    """Figures of members' scores [members, prompts, replies] and gold [prompts, replies]."""
    mean, deviation = members.mean(0), spread(torch.from_numpy(members)).numpy()
    predicted = line[0] + line[1] * mean
    errors = torch.from_numpy((line[0] + line[1] * members - gold).reshape(len(members), -1))
    return {
        "spread_and_error": with_interval(deviation, np.abs(predicted - gold)),
        "spread_and_overestimate": with_interval(deviation, predicted - gold),
        "score_and_gold": with_interval(mean, gold),
        "agreement": pair_agreement(
            mean.ravel(), gold.ravel(), np.repeat(np.arange(len(gold)), gold.shape[1]).tolist()
        ),
        "spread": float(deviation.mean()),
        "error": float(np.abs(predicted - gold).mean()),
        "bias": float((predicted - gold).mean()),
        "error_correlation": error_correlation(errors),
        "ece": calibration(mean, gold, 1.0),
        "ece_at_temperature": calibration(mean, gold, temperature),
        "gold": float(gold.mean()),
    }


class Measured:
    """A kind of scorer on sets of replies."""

    def __init__(self, path: str, demo: Path) -> None:
        self.scorer: Any = load_scorer(path)
        self.gold = load_scorer("world:0")
        folders = read_ensemble(path)[0] if is_ensemble(path) else [path]
        self.temperature = float(np.mean([read_settings(one).get("temperature") or 1.0 for one in folders]))

    def scores(self, prompts: list[Conversation], replies: list[list[str]]) -> tuple[NDArray, NDArray]:
        """(members' scores [members, prompts, replies], gold [prompts, replies])."""
        owners, texts = flat(prompts, replies)
        members = np.asarray(self.scorer.score_members(owners, texts), float)
        gold = np.asarray(self.gold.score(owners, texts), float)
        return members.reshape(len(members), len(prompts), -1), gold.reshape(len(prompts), -1)

    def seconds(self, prompts: list[Conversation], replies: list[list[str]]) -> float:
        """CPU seconds of scoring, the least of 3."""
        found = []
        for _ in range(3):
            began = time.process_time()
            self.scorer.score(*flat(prompts, replies))
            found.append(time.process_time() - began)
        return min(found)


def spreads(demo: Path, scorers: dict[str, dict[str, Any]], optimised: Path | None) -> dict[str, Any]:
    """By kind and set of replies the figures of `describe`."""
    prompts = held_out_prompts(demo)[:PROMPTS]
    pool = sample(demo / "policy/model", prompts, POOL)
    held_out = [own[:SAMPLES] for own in pool]
    of_ppo = sample(optimised, prompts, SAMPLES) if optimised else None
    found: dict[str, Any] = {}
    for kind, about in scorers.items():
        measured = Measured(about["path"], demo)
        members, gold = measured.scores(prompts, held_out)
        fit = stats.linregress(members.mean(0).ravel(), gold.ravel())
        line = float(fit.intercept), float(fit.slope)
        of_pool, gold_of_pool = measured.scores(prompts, pool)
        best = np.argsort(-of_pool.mean(0), axis=1)[:, :SAMPLES]
        chosen = np.stack([np.take_along_axis(one, best, 1) for one in of_pool])
        sets = {"held out": (members, gold), "best of 64": (chosen, np.take_along_axis(gold_of_pool, best, 1))}
        if of_ppo:
            sets["PPO"] = measured.scores(prompts, of_ppo)
        found[kind] = {name: describe(*one, line, measured.temperature) for name, one in sets.items()}
        found[kind] |= {"cpu_seconds": measured.seconds(prompts, held_out), "replies": PROMPTS * SAMPLES}
        found[kind]["temperature"] = measured.temperature
        print(kind, json.dumps(found[kind]), flush=True)
    single = Measured(scorers["seeds"]["path"], demo)
    single.scorer = single.scorer.scorers[0]
    return found | {"single_cpu_seconds": single.seconds(prompts, held_out)}


def optimise(demo: Path, folder: Path, path: str, arm: str, seed: int) -> dict[str, Any]:
    """One run against a scorer: the gold's rise along the distance, and the reward's agreement with it."""
    output = folder / f"ppo_{arm}_{seed}"
    seconds = run(
        "lmgym/apps/world/experiments/world_engagement.py", output, model=demo / "policy/model",
        prompts=demo / "world/logs.parquet", scorers=f"reward={path}", eval_scorer="world:0", seed=seed,
        init_kl_coef=0, max_kl=0, max_updates=UPDATES, eval_updates=UPDATES // 10, save_updates=-1, tracking="none",
    )  # fmt: skip
    row = {"arm": arm, "seed": seed, "cpu_seconds": round(seconds, 1), "curve": curve(output)}
    print(arm, seed, json.dumps(row["curve"]), flush=True)
    return row


def curve(output: Path) -> list[dict[str, float]]:
    """At each evaluation: the root of the KL, the reward, the gold and their agreement."""
    lines = [line for line in metrics_of(output) if "eval/eval_scorer" in line]
    return [
        {
            "update": line["step"],
            "sqrt_kl": line.get("kl/sqrt_reference", 0.0) or 0.0,
            "reward": round(line["eval/reward/mean"], 4),
            "gold": round(line["eval/eval_scorer"], 4),
            "agreement": round(line["eval/agreement/eval_scorer"], 4),
        }
        for line in lines
    ]


def at_equal_kl(rows: list[dict[str, Any]], other: str) -> list[dict[str, Any]]:
    """A row a seed: the gold's rise of `single` and another arm at the smaller last distance, half of it, at best."""
    found = []
    for seed in PPO_SEEDS:
        curves = {row["arm"]: row["curve"] for row in rows if row["seed"] == seed and row["arm"] in ("single", other)}
        if len(curves) < 2:
            continue
        most = min(max(point["sqrt_kl"] for point in one) for one in curves.values())
        row: dict[str, Any] = {"seed": seed, "sqrt_kl": most}
        for arm, points in curves.items():
            x, gold = (np.array([point[name] for point in points]) for name in ("sqrt_kl", "gold"))
            order = np.argsort(x, kind="stable")
            rise = [float(np.interp(at, x[order], gold[order]) - gold[0]) for at in (most, most / 2)]
            row[arm] = {"rise": rise[0], "rise_at_half": rise[1], "best_rise": float(gold.max() - gold[0])}
            row[arm] |= {"agreement_before": points[0]["agreement"], "agreement_last": points[-1]["agreement"]}
        found.append(row)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--demo", type=Path, required=True, help="what `lmgym demo` made, of world 0")
    parser.add_argument("--folder", type=Path, default=ROOT / "outputs/uncertainty", help="of the runs")
    parser.add_argument("--parts", nargs="+", default=["train", "ppo", "spreads"])
    parser.add_argument("--arms", nargs="+", default=["single", "mean-std", "mean"], help="of PPO")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/uncertainty.json")
    arguments = parser.parse_args()
    demo, folder = arguments.demo.resolve(), arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = json.loads(arguments.output.read_text()) if arguments.output.exists() else {}
    scorers = train(demo, folder)

    def note(part: str, value: Any) -> None:
        found.update({"machine": describe_machine(), part: value})
        plain = json.loads(json.dumps(found).replace(f"{folder}/", ""))
        write_result(arguments.output, plain, "world", "rows", "sampler", "method", "intervals")

    note("scorers", scorers)
    if "ppo" in arguments.parts:
        path = scorers["seeds"]["path"]
        arms = {"single": str(folder / "seeds_11/model"), "mean-std": f"{path}#mean-std", "mean": path}
        rows = [optimise(demo, folder, arms[arm], arm, seed) for seed in PPO_SEEDS for arm in arguments.arms]
        note("ppo", {"runs": rows, "at_equal_kl": {other: at_equal_kl(rows, other) for other in ("mean-std", "mean")}})
    if "spreads" in arguments.parts:
        optimised = folder / f"ppo_single_{PPO_SEEDS[0]}/model"
        note("spreads", spreads(demo, scorers, optimised if optimised.is_dir() else None))


if __name__ == "__main__":
    main()
