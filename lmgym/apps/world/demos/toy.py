"""`make demo`: from scratch to a policy that users like better, with the commands that a user would type.

The steps: a world; a policy by supervised fine-tuning; a scorer of users' behaviour, trained on two ranks; the policy
optimised against that scorer by PPO; and an A/B test in the simulated app of both policies, alone and with the best of
4 replies by the scorer. Completed steps are skipped; a step that was killed resumes from its last checkpoint. Commands
and their output go to a log per step.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from lmgym.apps.world.demos.results import compare_scorer, show_gains, show_report, show_scores
from lmgym.apps.world.demos.steps import CompletedSteps, DemoStep, deepspeed, run_steps
from lmgym.config import SEED
from lmgym.console import say
from lmgym.report.status_line import StepTimes

ROWS, HELD_OUT, STEPS, UPDATES = 50_000, 3000, 500, 320
USERS = 280  # find the pilot's change of retention on day 7 with power .9 (docs/results.md)
KL = 1.0  # at .1, replies lose up to half of their distinct openings (docs/negative_results.md)
BEST_OF = 4
ABOUT = {  # by step: what it does, and about its seconds on 2 idle cores of a Xeon with AVX-512
    "world": ("simulate users who chat with bots", 10.0),
    "untrained policy": ("make an untrained policy with a tokenizer", 6.0),
    "policy": ("train the policy on the chats (SFT)", 48.0),
    "model for the scorer": ("pretrain a model for the scorer", 42.0),
    "scorer": ("train the scorer on what users did", 82.0),
    "ppo": ("optimise the policy against the scorer (PPO)", 34.0),
    "app": ("A/B test both policies in the app", 105.0),
}
RESULTS = ("compare the scorer with baselines", 15.0)
NEXT = """
Talk to it:
    {bin}/lmgym chat {policy} --scorers demo={scorer} --best_of 4
Train on your own data (conversations; README goes on to scorers and PPO):
    {bin}/lmgym train sft chat --deepspeed zero2 --model Qwen/Qwen3-0.6B --dataset YOURS.jsonl"""


def run_demo(
    output: str, seed: int, rows: int = ROWS, steps: int = STEPS, updates: int = UPDATES, users: int = USERS
) -> int:
    """Runs all steps and prints the results. Returns 0, or the exit code of the step that failed."""
    from lmgym.apps.world.ab import print_table

    SEED.check("seed", seed)
    began = time.perf_counter()
    folder = Path(output)
    completed = CompletedSteps(folder / "demo.json")
    times = StepTimes([*(seconds for _, seconds in ABOUT.values()), RESULTS[1]])
    say(f"commands and output of the steps: {folder / 'logs'}")
    if code := run_steps(_steps(folder, seed, rows, steps, updates, users), ABOUT, folder, completed, times):
        return code
    say(f"{times.number} {RESULTS[0]}, about {RESULTS[1]:.0f} s")
    compare_scorer(folder / "world", folder / "scorer")
    show_scores(folder / "world", folder / "scorer" / "model", seed)
    completed.note({"diversity": show_gains(folder / "ppo")})
    record = json.loads((folder / "ab/ab.json").read_text())
    print_table(with_short_names(record, folder))
    say(f"demo: {time.perf_counter() - began:.0f} s; all results are in {folder.resolve()}")
    names = {"bin": Path(sys.executable).parent, "policy": folder / "ppo/model", "scorer": folder / "scorer/model"}
    for line in NEXT.format(**names).splitlines():
        say(line)
    show_report(folder / "ppo")
    return 0


def _steps(folder: Path, seed: int, rows: int, steps: int, updates: int, users: int) -> list[DemoStep]:
    world, model, scorer, policy = (folder / name for name in ("world", "small_llama", "scorer", "policy"))
    lmgym = Path(sys.executable).parent / "lmgym"
    ppo = folder / "ppo"
    common = ("--max_length", 128, "--adam_beta2", 0.99, "--precision", "fp32", "--seed", seed, "--tracking", "none")

    def step(name: str, done: Path, *words: object) -> DemoStep:
        return DemoStep(name, [str(word) for word in words], done)

    return [
        step("world", world / "gold.parquet", lmgym, "world", "--rows", rows, "--seed", seed, "--output", world),
        step(
            "untrained policy", folder / "untrained/config.json",
            *(lmgym, "world-policy", "--world", world, "--output", folder / "untrained", "--seed", seed),
        ),
        step(
            "policy", policy / "model/config.json",
            *deepspeed("chat"), "--model", folder / "untrained", "--dataset", world / "sft.parquet", *common,
            *("--eval_size", 200, "--global_batch", 16, "--micro_batch", 8, "--learning_rate", "3e-3"),
            *("--weight_decay", 0.1, "--epochs", 3, "--sample_prompts", 4, "--output", policy),
            *("--split_by", "prompt"),  # users who begin alike are not one conversation
        ),
        step(
            "model for the scorer", model / "config.json",
            *(lmgym, "world-model", "--world", world, "--steps", steps, "--output", model),
        ),
        step(
            "scorer", scorer / "model/config.json",
            *deepspeed("convo_joint"), "--model", model, "--dataset", world / "logs.parquet", *common,
            *("--probe_data", world, "--eval_size", min(HELD_OUT, rows // 5), "--global_batch", 64),
            *("--micro_batch", 32, "--learning_rate", "3e-3", "--weight_decay", 0.3, "--freeze_embeddings"),
            *("--epochs", 2, "--name", "demo", "--output", scorer),
        ),
        step(
            "ppo", ppo / "model/config.json",
            *deepspeed("world_engagement"), "--model", policy / "model", "--prompts", world / "logs.parquet",
            *("--scorers", f"joint={scorer / 'model'}", "--eval_scorer", f"world:{seed}", "--seed", seed),
            *("--output", ppo, "--max_updates", updates, "--init_kl_coef", KL, "--tracking", "none"),
        ),
        step(
            "app", folder / "ab/ab.json",
            *(lmgym, "ab", *_arms(folder), "--users", users, "--paired", "--seed", seed),
            *("--world_seed", seed, "--output", folder / "ab"),
        ),
    ]  # fmt: skip


def _arms(folder: Path) -> dict[str, str]:
    """Short names of the policies, by their names for `lmgym ab`."""
    sft, ppo, scorer = (folder / name / "model" for name in ("policy", "ppo", "scorer"))
    return {
        str(sft): "SFT",
        f"{sft}@{scorer}:{BEST_OF}": f"SFT, best of {BEST_OF}",
        str(ppo): "PPO",
        f"{ppo}@{scorer}:{BEST_OF}": f"PPO, best of {BEST_OF}",
    }


def with_short_names(record: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The record of `lmgym ab` with short names instead of paths."""
    names = _arms(folder)
    arms = [{**arm, "policy": names[arm["policy"]]} for arm in record["policies"]]
    return {**record, "policies": arms}
