"""Parts that several benchmarks share: the machine, runs in processes of their own, models without a hub, real pairs.

Nothing here imports torch, transformers or lmgym before a function needs it: --help of a benchmark needs none of them.
"""

import contextlib
import gzip
import json
import os
import platform
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

BENCHMARKS = Path(__file__).resolve().parent
ROOT = BENCHMARKS.parent
RESULTS = BENCHMARKS / "results"
BF16_FLAGS = ("avx512_bf16", "amx_bf16")
# S and L are ours; those named qwen3 have the numbers of the config.json of Qwen/Qwen3-0.6B, -1.7B, -4B, -8B and -14B
SHAPES_FILE = BENCHMARKS / "shapes.json"
PAIRS_FILE = ROOT.parent / "shared/data/hh-rlhf-harmless/pairs.jsonl.gz"
REPLY_MARK = "\n\nAssistant:"
PROMPTS, PROMPT_TOKENS = 512, (64, 128)  # of `cut_prompts`


def code_versions() -> dict[str, str]:
    """The parts of the code whose changes make figures old, each with its present version."""
    from lmgym import versions
    from lmgym.apps.lab import record
    from lmgym.apps.world import world

    own = {name.lower(): str(value) for name, value in vars(versions).items() if name.isupper()}
    return {"world": world.VERSION, "lab": record.VERSION, **own}


def origin(*rests_on: str) -> dict[str, Any]:
    """The origin of a result file: its command, and the versions of what its figures rest on (`code_versions`).

    Times and memory rest on none of them: their machine and day are in the file.
    """
    versions = code_versions()
    words = [word.removeprefix(f"{ROOT}/") for word in sys.argv[1:]]
    return {
        "command": shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *words]),
        "rests_on": {name: versions[name] for name in rests_on},
    }


def write_result(path: Path, record: dict[str, Any], *rests_on: str) -> None:
    """Writes a result file: its `origin`, then the record, which may be that of an earlier launch with more in it."""
    known = origin(*rests_on)
    others = {name: value for name, value in record.items() if name not in known}
    path.write_text(json.dumps(known | others, indent=1) + "\n")


def cpu_lines() -> dict[str, str]:
    """The first processor's entries of /proc/cpuinfo; empty where there is no such file."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return {}
    first = path.read_text().split("\n\n")[0]
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}


def describe_machine() -> dict:
    """Model, cores, the flags that decide bf16's speed, and how busy the machine was at the start."""
    cpu = cpu_lines()
    flags = set(cpu.get("flags", "").split())
    return {
        "cpu": cpu.get("model name", platform.processor() or "unknown"),
        "cores": os.cpu_count(),
        "native_bf16_flags": [flag for flag in BF16_FLAGS if flag in flags],
        "vector_flags": sorted(flag for flag in flags if flag.startswith(("avx", "amx"))),
        "load_average_at_start": os.getloadavg()[0],
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def describe_gpu() -> dict:
    """Name, memory, and what drives the GPU in use."""
    import torch

    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "name": found.name,
        "memory_gib": found.total_memory / 2**30,
        "multiprocessors": found.multi_processor_count,
        "capability": f"{found.major}.{found.minor}",
        "cuda": torch.version.cuda,
        "allocator": torch.cuda.get_allocator_backend(),
    }


def pin_command(core: int) -> list[str]:
    """`taskset` words that keep a process on one core; empty where that cannot be done."""
    if shutil.which("taskset") is None or core not in os.sched_getaffinity(0):
        return []
    return ["taskset", "-c", str(core)]


def bf16_remark(machine: dict) -> str:
    """One line on whether bf16 means anything here."""
    if machine["native_bf16_flags"]:
        return f"bf16 is native here ({', '.join(machine['native_bf16_flags'])})"
    return "bf16 is NOT native here (no avx512_bf16, no amx_bf16): it is emulated, its figures say little"


def launch(experiment: str, model: Path, output: Path, flags: Sequence[object], shown: bool = False) -> float:
    """CPU seconds of a run without checkpoints, from start to end, imports included; `shown`: what it prints."""
    words = [sys.executable, experiment, "--model", model, "--output", output, "--tracking", "none",
             "--save_updates", "-1", *flags]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    out = None if shown else subprocess.DEVNULL
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([*map(str, words)], cwd=ROOT, env=environment, check=True, stdout=out)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def metrics_of(output: Path) -> list[dict[str, Any]]:
    """A run's metrics, a dict a line."""
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def rewards_of(lines: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The mean reward of the rollouts before each update."""
    return {str(line["step"]): line["reward/mean"] for line in lines if "reward/mean" in line}


def seconds_of(output: Path) -> float:
    """CPU seconds that a run wrote down: of training and evaluation."""
    return json.loads((output / "run.json").read_text())["cpu_seconds"]


@dataclass(frozen=True)
class Contender:
    """A runner with a variant. `micro_batches` are those it may choose from; a single one is its own default."""

    name: str
    runner: str
    variant: str
    python: str
    micro_batches: tuple[int, ...]

    @property
    def script(self) -> Path:
        return BENCHMARKS / "runners" / f"{self.runner}.py"

    def missing(self) -> str:
        """The reason it cannot run, or an empty string."""
        if not self.script.exists():
            return f"no {self.script}"
        if not Path(self.python).exists():
            return f"no {self.python}: see benchmarks/README.md for the second virtual environment"
        return ""


def run_contender(contender: Contender, spec: dict, micro_batch: int, pin: list[str], *flags: str) -> dict:
    """One run; returns the runner's result. Raises RuntimeError with the end of its errors when it fails."""
    spec = {**spec, "variant": contender.variant, "micro_batch": micro_batch}
    with tempfile.TemporaryDirectory() as folder:
        spec_path, result_path = Path(folder, "spec.json"), Path(folder, "result.json")
        spec_path.write_text(json.dumps(spec))
        command = [*pin, contender.python, str(contender.script), str(spec_path), str(result_path), *flags]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if done.returncode or not result_path.exists():
            raise RuntimeError(f"{contender.name} ended with {done.returncode}:\n{done.stderr[-3000:]}")
        return json.loads(result_path.read_text())


def check_result(contender: Contender, result: dict, others: dict[str, list[dict]]) -> None:
    """Refuse to compare runs that did not train the same pairs and tokens."""
    for name, results in others.items():
        for other in results:
            for count in ("pairs", "tokens"):
                if result[count] != other[count]:
                    raise RuntimeError(f"{contender.name} trained {result[count]} {count}, {name} {other[count]}")


def read_shape(name: str) -> dict:
    """The settings of one shape of shapes.json. Raises ValueError on an unknown name."""
    shapes = json.loads(SHAPES_FILE.read_text())
    if name not in shapes:
        raise ValueError(f"unknown shape {name!r}; shapes.json has {', '.join(shapes)}")
    return shapes[name]


def make_shape(name: str, folder: str | Path, texts: Iterable[str], head: str = "classifier", seed: int = 0) -> None:
    """Train the tokenizer on the texts, build the model with its head, and save both to a Hugging Face folder.

    The vocabulary size is the shape's, also where the texts hold fewer merges.
    """
    save_shape(name, folder, train_shape_tokenizer(name, texts), head, seed)


def train_shape_tokenizer(name: str, texts: Iterable[str]):
    """A byte-level BPE with at most the shape's vocabulary."""
    from lmgym.models.small_models import train_tokenizer

    shape = read_shape(name)
    return train_tokenizer(texts, shape["vocab_size"], shape.get("max_position_embeddings") or shape["n_positions"])


def save_shape(name: str, folder: str | Path, tokenizer, head: str, seed: int) -> None:
    """A seeded model of the shape with a head of `small_models`, beside its tokenizer."""
    random_model(name, tokenizer, head, seed).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def save_real(source: str | Path, folder: str | Path, head: str, seed: int) -> None:
    """A fp32 copy of a causal model's folder, with a pad token that is not eos; or a classifier with a new head."""
    from lmgym.models.forward.policies import load_policy
    from lmgym.models.loading import load_classifier, load_tokenizer

    tokenizer = load_tokenizer(str(source))
    if head == "classifier":
        model, _ = load_classifier(str(source), tokenizer, seed=seed)
    else:
        model = load_policy(str(source), tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def random_model(name: str, tokenizer, head: str, seed: int, device: str = "cpu"):
    """A seeded fp32 model of the shape with a head of `small_models`, made where it will be used."""
    import torch

    from lmgym.models.small_models import build_model

    shape = read_shape(name)
    settings = {key: value for key, value in shape.items() if key != "family"}
    with torch.device(device):
        return build_model(shape["family"], tokenizer, head, seed, **settings)


@contextlib.contextmanager
def saved_config(name: str, dtype: str | None = None) -> Iterator[str]:
    """A folder with the config.json of a shape, for what reads a model's config and not its weights.

    It states the `dtype` of a checkpoint, if one is given.
    """
    from transformers import AutoConfig

    settings = {key: value for key, value in read_shape(name).items() if key != "family"}
    with tempfile.TemporaryDirectory() as folder:
        AutoConfig.for_model(read_shape(name)["family"], dtype=dtype, **settings).save_pretrained(folder)
        yield folder


def read_pairs(path: Path = PAIRS_FILE) -> list[dict[str, str]]:
    """The pairs, each with `chosen` and `rejected` whole. Raises ValueError where the data are absent."""
    if not path.exists():
        raise ValueError(f"no preference pairs at {path}; pass --data with a .jsonl.gz of chosen/rejected")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def split_pair(chosen: str, rejected: str) -> tuple[str, str, str] | None:
    """(prompt, chosen suffix, rejected suffix): the prompt ends with the last reply mark of both. None without one."""
    common = os.path.commonprefix([chosen, rejected])  # noqa: RUF071 (characters are meant, not paths)
    mark = common.rfind(REPLY_MARK)
    if mark < 0:
        return None
    end = mark + len(REPLY_MARK)
    return chosen[:end], chosen[end:], rejected[end:]


def tokenize_pair(texts: tuple[str, str, str], tokenizer) -> dict[str, list[int]]:
    """Ids of a prompt and its two suffixes, each suffix closed by eos."""
    prompt, chosen, rejected = (tokenizer.encode(text, add_special_tokens=False) for text in texts)
    return {
        "prompt_ids": prompt,
        "chosen_ids": [*chosen, tokenizer.eos_token_id],
        "rejected_ids": [*rejected, tokenizer.eos_token_id],
    }


def write_token_pairs(pairs: list[dict[str, str]], tokenizer, path: Path, max_length: int) -> dict[str, float]:
    """Write the pairs both of whose sides fit `max_length` tokens to a JSONL; returns counts, with what was left out.

    Tails are written without the prompt. Nothing is truncated: a truncated pair could lose what tells its sides apart.
    """
    kept, without_prompt, identical, too_long = [], 0, 0, 0
    for pair in pairs:
        texts = split_pair(pair["chosen"], pair["rejected"])
        if texts is None:
            without_prompt += 1
        elif texts[1] == texts[2]:
            identical += 1
        else:
            ids = tokenize_pair(texts, tokenizer)
            longest_tail = max(len(ids["chosen_ids"]), len(ids["rejected_ids"]))
            if len(ids["prompt_ids"]) + longest_tail > max_length:
                too_long += 1
            else:
                kept.append(ids)
    unfinished = path.with_suffix(".unfinished")
    with unfinished.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(ids) + "\n" for ids in kept)
    unfinished.rename(path)  # the finished name appears only when all is there
    prompt_tokens = sum(len(ids["prompt_ids"]) for ids in kept)
    tail_tokens = sum(len(ids["chosen_ids"]) + len(ids["rejected_ids"]) for ids in kept)
    return {
        "pairs_read": len(pairs),
        "pairs_kept": len(kept),
        "left_out_too_long": too_long,
        "left_out_identical_sides": identical,
        "left_out_without_shared_prompt": without_prompt,
        "max_length": max_length,
        "mean_prompt_tokens": prompt_tokens / len(kept),
        "mean_tail_tokens": tail_tokens / (2 * len(kept)),
        "mean_sequence_tokens": (2 * prompt_tokens + tail_tokens) / (2 * len(kept)),
        "shared_prompt_share_of_tokens": 2 * prompt_tokens / (2 * prompt_tokens + tail_tokens),
    }


def cut_prompts(texts: list[str], tokenizer, seed: int) -> list[list[int]]:
    """Beginnings of real texts, as token ids; lengths are uniform."""
    rng, prompts = np.random.default_rng(seed), []
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False)
        if len(ids) >= PROMPT_TOKENS[1]:
            prompts.append(ids[: rng.integers(PROMPT_TOKENS[0], PROMPT_TOKENS[1] + 1)])
        if len(prompts) == PROMPTS:
            return prompts
    raise ValueError(f"only {len(prompts)} texts of {PROMPT_TOKENS[1]} tokens; {PROMPTS} are needed")
