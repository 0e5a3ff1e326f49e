"""The tables of docs/settings.md: memory by `lmgym estimate`, hours from rates measured on one GPU (see pages.py).

Rates are read from results/on_gpu.json: seconds a token of an update, of a forward, and of a step of generation, each
at some sizes of a model. A line through the smallest and the largest, in the number of weights, gives the others.
"""

from model_costs import Shape
from shared import ROOT, read_shape, saved_config

from lmgym.cli.estimate import estimate_of

SHAPES = ("qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b", "qwen3-14b")
CHECKPOINTS = ("--gradient_checkpointing",)
LORA = ("--lora_rank", "16")
COLUMNS = {
    "SFT": ("sft", "--max_length", "2048", "--micro_batch", "4"),
    "reward model": ("reward", "--max_length", "1024", "--micro_batch", "4"),
    "DPO": ("dpo", "--max_length", "1024", "--micro_batch", "4"),
    "PPO, GRPO": ("ppo", "--num_rollouts", "64", "--max_prompt", "512", "--max_new_tokens", "512"),
}
ALL = ("--num_layers_unfrozen", "-1")
ZERO3 = ("--deepspeed", str(ROOT / "configs/zero3.json"))
WAYS = {
    "LoRA 16, one GPU": (LORA, 1),
    "LoRA 16, base in 4 bits, one GPU": ((*LORA, "--load_in_4bit"), 1),
    "all weights, one GPU": (ALL, 1),
    "all weights, 8 GPUs, ZeRO 3": ((*ALL, *ZERO3), 8),
}
ROWS, TOKENS = 10_000, 500
ITERATIONS, REPLIES, REPLY, PROMPT = 200, 64, 256, 256


def memory_table() -> list[str]:
    """GiB on each GPU, and the smallest usual GPU that holds them."""
    lines = [
        f"| model | billion weights | {' | '.join(COLUMNS)} |",
        f"|---|---|{'---|' * len(COLUMNS)}",
    ]
    for way, (flags, ranks) in WAYS.items():
        lines.append(f"| **{way}** | |{' |' * len(COLUMNS)}")
        for name in SHAPES:
            cells = [memory_cell(name, word, (*more, *CHECKPOINTS, *flags), ranks) for word, *more in COLUMNS.values()]
            lines.append(f"| {title(name)} | {Shape.of(read_shape(name)).weights / 1e9:.1f} | {' | '.join(cells)} |")
    return lines


def memory_cell(name: str, word: str, flags: tuple[str, ...], ranks: int) -> str:
    """'20.5 (24)': GiB, and GB of the smallest GPU."""
    if word != "ppo":
        flags = tuple(flag for flag in flags if flag not in ALL)  # a setting of PPO
    with saved_config(name, "bfloat16") as folder:  # as those of Qwen's checkpoints
        found = estimate_of(word, [*flags, "--model", folder], ranks)
    return f"{found.gib:.0f} ({found.gpu or 'none'})"


def title(name: str) -> str:
    """Qwen3-0.6B."""
    return name.replace("qwen3", "Qwen3").replace("b", "B")


def with_adapters(record: dict) -> dict:
    """Runs of PPO with adapters of on_gpu.json, by model."""
    return {name.split()[0]: run for name, run in record["ppo"].items() if name.endswith(" lora")}


def rates_of(run: dict) -> dict[str, float]:
    """Seconds: of a token of an update, of a token of a forward, of a step of generation."""
    phases = run["phases"]
    new_tokens = run["sizes"]["new_tokens"]
    return {
        "update": 1 / phases["epochs"]["tokens_per_second"],
        # the policy and the reference
        "forward": 0.5 / phases["log-probs, values, reference"]["tokens_per_second"],
        "step": phases["generation"]["seconds"]["median"] / new_tokens,
    }


def rates(name: str, runs: dict) -> dict[str, float]:
    """Measured, or on the line through the smallest and the largest model that were measured."""
    if name in runs:
        return rates_of(runs[name])
    sizes = {model: Shape.of(read_shape(model)).weights for model in runs}
    low, high = min(sizes, key=lambda model: sizes[model]), max(sizes, key=lambda model: sizes[model])
    share = (Shape.of(read_shape(name)).weights - sizes[low]) / (sizes[high] - sizes[low])
    ends = rates_of(runs[low]), rates_of(runs[high])
    return {part: ends[0][part] + share * (ends[1][part] - ends[0][part]) for part in ends[0]}


def hours_table(record: dict) -> list[str]:
    """Minutes of the jobs that the page names, with adapters, by the rates of on_gpu.json."""
    runs = with_adapters(record)
    lines = [
        "| model | rates | SFT | reward model | DPO | GRPO | PPO, 4 epochs |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in SHAPES:
        found = rates(name, runs)
        update, forward, step = found["update"], found["forward"], found["step"]
        through = REPLIES * (PROMPT + REPLY)
        sampled = ITERATIONS * (REPLY * step + 2 * forward * through)
        seconds = {
            "SFT": ROWS * TOKENS * update,
            "reward model": 2 * ROWS * TOKENS * update,
            "DPO": 2 * ROWS * TOKENS * (update + forward),
            "GRPO": sampled + ITERATIONS * through * update,
            "PPO": sampled + 4 * ITERATIONS * through * update,
        }
        cells = " | ".join(in_words(value) for value in seconds.values())
        lines.append(f"| {title(name)} | {'measured' if name in runs else 'computed'} | {cells} |")
    return lines


def in_words(seconds: float) -> str:
    """'12 min' or '1.4 h'."""
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
