"""Policies of one simulated world by the hidden utility of a reply: ours, and TRL's trainers beside them.

    .venv/bin/python benchmarks/lab_score.py --world 7 --folder outputs/lab_score \
        --trl_python .venv-bench/bin/python

Makes what is missing in the folder, and goes on where it was stopped. A seed makes everything anew but the world and
the model that scorers start from: SFT on the world's chats; a scorer from 4,000 ranked pairs; DPO on 4,500 pairs, less
those whose prompt is held out; GRPO and PPO against the scorer; TRL's DPOTrainer on the same pairs from the same SFT;
TRL's GRPOTrainer on the same prompts, from the same SFT, with the same scorer, which `lmgym serve rewards` gives it.
TRL's trainers are as installed, in an environment of their own; what `train_with_trl` does not name is TRL's default.
`lmgym lab score` measures all.

Fixed before world 7 was made:
- the commands and numbers below, other than the learning rates, by what the demo has (its SFT, its PPO) or by what is
  usual (beta .1, 8 replies a prompt); the weight of the KL is .1 for PPO, for GRPO and for TRL's GRPO;
- equal for GRPO and TRL's GRPO: 160 updates of 64 replies, 10,240 replies in all, one pass over each; for DPO and
  TRL's: one pass over the pairs in batches of 32; the same schedule and warm-up; PPO as in the demo: 320 updates, four
  passes over 5,120 replies;
- LEARNING_RATES: for DPO, GRPO and TRL's the best of TRIED by the same score on world 100, seed 1 (`--world 100 --seeds
  1 --tune`, results/lab_score_tuning.json; there TRL's DPO had the 252 pairs of held-out prompts too); for PPO the
  experiment's own, as in the demo;
- three seeds, all of which are reported; the figure of a line is the mean over seeds, its interval is over prompts.

Added after seed 1 of world 7 had been seen: TRL's DPO once more, at the learning rate of ours. At its own, the best of
one seed on world 100, 91% of its replies were garbled there.

CPU seconds are those of all processes of a command, from its start to its end: the reward server's and our runs'
evaluations are included.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from shared import ROOT, describe_machine, write_result

ROWS, PAIRS, HELD_OUT, PROMPTS, EVAL_PROMPTS = 50_000, 4500, 500, 5120, 256
BATCH, ROLLOUTS, GROUP, TOKENS, KL, BEST_OF = 64, 256, 8, 48, 0.1, 4
UPDATES = {"grpo": 160, "trl_grpo": 160, "ppo": 320}
TRIED = {
    "dpo": (1e-4, 3e-4, 1e-3, 3e-3),
    "trl_dpo": (1e-4, 3e-4, 1e-3, 3e-3, 1e-2),
    "grpo": (1e-4, 3e-4, 1e-3),
    "trl_grpo": (3e-4, 1e-3),
}
LEARNING_RATES = {"dpo": 1e-3, "trl_dpo": 3e-3, "grpo": 1e-3, "ppo": 1e-3, "trl_grpo": 1e-3}
COMMON = ("--precision", "fp32", "--save_updates", -1, "--tracking", "none")
TRL_VERSION = "import importlib.metadata as m; print(m.version('trl'))"
LABELS = {
    "bots": "the world's bots",
    "sft": "SFT",
    "best": f"SFT, best of {BEST_OF} by the scorer",
    "dpo": "DPO",
    "grpo": "GRPO",
    "ppo": "PPO",
    "trl_dpo": "TRL's DPO",
    "trl_grpo": "TRL's GRPO",
    "trl_dpo_as_ours": "TRL's DPO at the learning rate of ours",
}


def lmgym(*words: object) -> list[str]:
    """A command of lmgym."""
    return [sys.executable, "-m", "lmgym", *map(str, words)]


class Steps:
    """Commands that leave a file each, run once, and the CPU seconds that they took."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.record = folder, folder / "cpu_seconds.json"
        folder.mkdir(parents=True, exist_ok=True)
        self.seconds: dict[str, float] = json.loads(self.record.read_text()) if self.record.exists() else {}

    def run(self, name: str, command: Sequence[str], done: Path, server: Sequence[str] = ()) -> Path:
        """Runs a command unless its file is there, beside a server if one is named; returns the file's path."""
        if name in self.seconds and done.exists():
            return done
        print(f"{self.folder}: {name}", flush=True)
        before = cpu_of_children()
        log = self.folder / f"{name}.log"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}
        with log.open("w") as file:
            if server:
                process, environment["LMGYM_URL"] = start(server, file)
            try:
                code = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, env=environment).returncode
            finally:
                if server:
                    process.terminate()
                    process.wait()
        if code or not done.exists():
            raise SystemExit(f"{name} ended with exit code {code}: {log}")
        self.seconds[name] = round(self.seconds.get(name, 0) + cpu_of_children() - before, 1)
        self.record.write_text(json.dumps(self.seconds, indent=1) + "\n")
        return done


def cpu_of_children() -> float:
    """CPU seconds of the commands that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def start(command: Sequence[str], log) -> tuple[subprocess.Popen, str]:
    """(the server's process, its address)."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "LMGYM_TOKEN": ""}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
    assert process.stdout
    for line in process.stdout:
        if " answers " in line:
            return process, line.split()[0]
    raise SystemExit("the server did not start")


def make_rows(world: Path) -> None:
    """The rows of all trainers, as Parquet for ours, and as messages for TRL."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from lmgym.messages import from_transcript
    from lmgym.text import messages

    pairs = pq.read_table(world / "pairs.parquet").to_pylist()
    texts = list(dict.fromkeys(pq.read_table(world / "logs.parquet", columns=["input_text"])["input_text"].to_pylist()))
    order = np.random.default_rng(0).permutation(len(texts))[: PROMPTS + EVAL_PROMPTS].tolist()
    prompts = [{"prompt": texts[i]} for i in order]
    held_out = {row["prompt"] for row in pairs[PAIRS : PAIRS + HELD_OUT]}
    parts = {
        # ours would leave out what is held out too, TRL's would not
        "pairs_train": [row for row in pairs[:PAIRS] if row["prompt"] not in held_out],
        "pairs_eval": pairs[PAIRS : PAIRS + HELD_OUT],
        "prompts_train": prompts[:PROMPTS],
        "prompts_eval": prompts[PROMPTS:],
    }
    for name, rows in parts.items():
        pq.write_table(pa.Table.from_pylist(rows), world / f"{name}.parquet")
    for name in ("pairs_train", "prompts_train"):
        with (world / f"{name}.jsonl").open("w") as file:
            for row in parts[name]:
                prompt = messages(from_transcript(row["prompt"]))
                sides = {side: [{"role": "assistant", "content": row[side]}] for side in row if side != "prompt"}
                file.write(json.dumps({"prompt": prompt, **sides}) + "\n")


def make_world(folder: Path, world: int) -> Path:
    """The world's tables, the trainers' rows, and the model that scorers start from."""
    steps, made, trunk = Steps(folder), folder / "world", folder / "trunk"
    steps.run("world", lmgym("world", "--rows", ROWS, "--seed", world, "--output", made), made / "sft.parquet")
    steps.run("rows", [sys.executable, __file__, "--rows", str(made)], made / "prompts_train.jsonl")
    model = lmgym("world-model", "--world", made, "--steps", 500, "--output", trunk)
    steps.run("trunk", model, trunk / "config.json")
    return made


def make_bases(steps: Steps, world: Path, seed: int) -> tuple[Path, Path]:
    """(SFT, scorer) of a seed."""
    folder = steps.folder
    untrained, sft, scorer = (folder / name for name in ("untrained", "sft", "scorer"))
    steps.run(
        "untrained",
        lmgym("world-policy", "--world", world, "--output", untrained, "--seed", seed),
        untrained / "config.json",
    )
    steps.run(
        "sft",
        lmgym(
            *("train", "sft", "chat", "--model", untrained, "--dataset", world / "sft.parquet", "--max_length", 128),
            *("--adam_beta2", 0.99, "--eval_size", 200, "--global_batch", 16, "--micro_batch", 16),
            *("--learning_rate", "3e-3", "--weight_decay", 0.1, "--epochs", 3, "--sample_prompts", 4),
            *("--split_by", "prompt", "--seed", seed, "--output", sft, *COMMON),
        ),
        sft / "model/config.json",
    )
    steps.run(
        "scorer",
        lmgym(
            *(
                "train",
                "reward",
                "hh_pairwise",
                "--model",
                world.parent / "trunk",
                "--dataset",
                world / "pairs.parquet",
            ),
            *("--train_size", 4000, "--eval_size", 500, "--max_length", 128, "--global_batch", 32),
            *("--micro_batch", 32, "--learning_rate", "1e-3", "--audit", "none", "--seed", seed),
            *("--output", scorer, *COMMON),
        ),
        scorer / "model/config.json",
    )
    return sft / "model", scorer / "model"


def train(steps: Steps, name: str, rate: float, world: Path, index: int, seed: int, trl_python: str) -> Path:
    """One of the five trained policies, in a folder by its learning rate."""
    sft, scorer = make_bases(steps, world, seed)
    run = f"{name}_{rate:g}"
    output = steps.folder / run
    if name.startswith("trl_"):
        rows = world / ("pairs_train.jsonl" if name == "trl_dpo" else "prompts_train.jsonl")
        words = [trl_python, __file__, "--train", name, "--model", sft, "--rows", rows, "--rate", rate]
        command = [str(word) for word in (*words, "--seed", seed, "--output", output / "model")]
        server = lmgym("serve", "rewards", f"reward={scorer}", "--port", 0) if name == "trl_grpo" else ()
        return steps.run(run, command, output / "model/config.json", server).parent
    if name == "dpo":
        words = ["train", "dpo", "dpo", "--dataset", world / "pairs_train.parquet", "--max_length", 128,
                 "--eval_dataset", world / "pairs_eval.parquet", "--beta", 0.1, "--global_batch", 32,
                 "--micro_batch", 32, "--best_metric", "none"]  # fmt: skip
    else:
        words = ["train", name, ROOT / "lmgym/apps/world/experiments/world_engagement.py",
                 "--prompts", world / "prompts_train.parquet", "--eval_prompts", world / "prompts_eval.parquet",
                 "--scorers", f"reward={scorer}", "--eval_scorer", f"world:{index}", "--init_kl_coef", KL,
                 "--num_rollouts", ROLLOUTS, "--global_batch", BATCH, "--micro_batch", BATCH,
                 "--max_new_tokens", TOKENS, "--max_updates", UPDATES[name]]  # fmt: skip
    command = lmgym(*words, "--model", sft, "--learning_rate", rate, "--seed", seed, "--output", output, *COMMON)
    return steps.run(run, command, output / "model/config.json").parent


def train_with_trl(name: str, model: str, rows: str, rate: float, seed: int, output: str) -> None:
    """A run of TRL, in its own environment; saves the policy."""
    import torch
    from datasets import load_dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed
    from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer

    torch.set_num_threads(1)
    set_seed(seed)
    tokenizer, data = AutoTokenizer.from_pretrained(model), load_dataset("json", data_files=rows, split="train")
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    common = {
        "output_dir": f"{output}-trainer", "use_cpu": True, "bf16": False, "gradient_checkpointing": False,
        "learning_rate": rate, "seed": seed, "logging_steps": 10, "save_strategy": "no", "report_to": [],
    }  # fmt: skip
    if name == "trl_dpo":
        settings = DPOConfig(
            beta=0.1, per_device_train_batch_size=32, num_train_epochs=1, lr_scheduler_type="cosine", warmup_steps=0.1,
            **common,
        )  # fmt: skip
        trainer = DPOTrainer(model=policy, args=settings, train_dataset=data, processing_class=tokenizer)
    else:
        sys.path.insert(0, str(ROOT / "lmgym/apps/serve"))  # as a copy of the file beside a training script
        import lmgym_client

        settings = GRPOConfig(
            beta=KL, per_device_train_batch_size=BATCH, steps_per_generation=ROLLOUTS // BATCH, num_generations=GROUP,
            max_completion_length=TOKENS, max_steps=UPDATES[name], lr_scheduler_type="linear", warmup_steps=0.03,
            **common,
        )  # fmt: skip
        trainer = GRPOTrainer(
            model=policy, reward_funcs=lmgym_client.trl_reward(), args=settings, train_dataset=data,
            processing_class=tokenizer,
        )  # fmt: skip
    trainer.train()
    trainer.model.save_pretrained(output)
    tokenizer.save_pretrained(output)


def score(steps: Steps, name: str, policies: Sequence[object], world: int, seed: int) -> dict:
    """The record of `lmgym lab score` of policies, the first of which the others are compared with."""
    output = steps.folder / f"{name}.json"
    if output.exists() and [one["policy"] for one in json.loads(output.read_text())["policies"]] != list(
        map(str, policies)
    ):
        output.unlink()  # of other learning rates
    words = lmgym("lab", "score", *policies, "--world", world, "--seed", seed, "--output", output)
    return json.loads(steps.run(name, words, output).read_text())


def tune(folder: Path, world: int, seed: int, trl_python: str) -> dict:
    """The score of each method at each rate that is tried."""
    made, steps, found = make_world(folder, world), Steps(folder / f"seed_{seed}"), {}
    for name, rates in TRIED.items():
        by_rate: dict[float, float] = {}
        for rate in rates:
            policy = train(steps, name, rate, made, world, seed, trl_python)
            [row] = score(steps, f"score_{name}_{rate:g}", [policy], world, seed)["policies"]
            by_rate[rate] = row["utility"]
            print(name, f"{rate:g}", row["utility"], row["words"], row["garbled"], flush=True)
        found[name] = {f"{rate:g}": utility for rate, utility in by_rate.items()}
    return {"world": world, "seed": seed, "utility": found, "cpu_seconds": steps.seconds}


def measure(folder: Path, world: int, seeds: Sequence[int], trl_python: str) -> dict:
    """Every line's figures, by seed and over seeds."""
    from lmgym.statistics import mean

    made, records, cpu = make_world(folder, world), [], []
    for seed in seeds:
        steps = Steps(folder / f"seed_{seed}")
        rates = LEARNING_RATES.items()
        trained = {name: train(steps, name, rate, made, world, seed, trl_python) for name, rate in rates}
        sft, scorer = make_bases(steps, made, seed)
        trained["trl_dpo_as_ours"] = train(steps, "trl_dpo", LEARNING_RATES["dpo"], made, world, seed, trl_python)
        known = {"bots": "bots", "sft": sft, "best": f"{sft}@{scorer}:{BEST_OF}", **trained}
        policies = [known[name] for name in LABELS]
        records.append(score(steps, "score", policies, world, seed))
        cpu.append({**Steps(folder).seconds, **steps.seconds})
        rows = json.loads((trained["dpo"].parent / "run.json").read_text())["data"]["train_pairs"]
        assert rows == sum(1 for _ in (made / "pairs_train.jsonl").open()), "DPO and TRL's have the same pairs"
    lines, trained_as = {}, {name: f"{name}_{rate:g}" for name, rate in LEARNING_RATES.items()}
    trained_as["trl_dpo_as_ours"] = f"trl_dpo_{LEARNING_RATES['dpo']:g}"
    for place, (name, label) in enumerate(LABELS.items()):
        own = [record["policies"][place] for record in records]
        by_prompt = [sum(values) / len(values) for values in zip(*(one["by_prompt"] for one in own), strict=True)]
        lines[name] = {
            "label": label,
            **mean(by_prompt).named("utility"),
            "by_seed": [one["utility"] for one in own],
            **{key: sum(one[key] for one in own) / len(own) for key in ("words", "garbled", "cut")},
            "training_cpu_seconds": [seconds.get(trained_as.get(name, name)) for seconds in cpu],
        }
    kept = {key: records[0][key] for key in records[0] if key not in ("policies", "bots", "seed")}
    versions = {"trl": subprocess.check_output([trl_python, "-c", TRL_VERSION], text=True).strip()}
    return {
        **kept,
        **versions,
        "seeds": list(seeds),
        "learning_rates": LEARNING_RATES,
        "lines": lines,
        "cpu_seconds": cpu,
    }


def table(lines: dict) -> str:
    """The lines as a table of README."""
    rows = ["| policy | hidden utility a reply | by seed | words | garbled | training, CPU s |", "|---|" + "---|" * 5]
    for line in lines.values():
        seconds = [one for one in line["training_cpu_seconds"] if one is not None]
        value = f"{line['utility']:.2f} ({line['utility_low']:.2f} to {line['utility_high']:.2f})"
        seeds = ", ".join(f"{one:.2f}" for one in line["by_seed"])
        cpu = f"{sum(seconds) / len(seconds):.0f}" if seconds else ""
        rows.append(f"| {line['label']} | {value} | {seeds} | {line['words']:.1f} | {line['garbled']:.0%} | {cpu} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--world", type=int, default=7)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--folder", type=Path, default=Path("outputs/lab_score"))
    parser.add_argument("--trl_python", default=str(ROOT / ".venv-bench/bin/python"), help="with TRL 1.16")
    parser.add_argument("--tune", action="store_true", help="try learning rates, with the first seed")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--train", choices=["trl_dpo", "trl_grpo"], help="one run of TRL; used by this script")
    for name in ("model", "rows"):
        parser.add_argument(f"--{name}", default="", help="used by this script")
    parser.add_argument("--rate", type=float, help="used by this script")
    parser.add_argument("--seed", type=int, default=0, help="used by this script")
    asked = parser.parse_args()
    if asked.train:
        train_with_trl(asked.train, asked.model, asked.rows, asked.rate, asked.seed, str(asked.output))
    elif asked.rows:
        make_rows(Path(asked.rows))
    else:
        folder, machine = asked.folder.resolve() / f"world_{asked.world}", describe_machine()
        if asked.tune:
            found, name = tune(folder, asked.world, asked.seeds[0], asked.trl_python), "lab_score_tuning"
        else:
            found, name = measure(folder, asked.world, asked.seeds, asked.trl_python), "lab_score"
            print(table(found["lines"]))
        output = asked.output or ROOT / f"benchmarks/results/{name}.json"
        write_result(output, {**found, "machine": machine}, "world", "lab", "rows", "sampler", "method", "intervals")


if __name__ == "__main__":
    main()
