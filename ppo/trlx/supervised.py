"""SFT of a trlx program: stages never import each other, so it runs as a command of its own, on a file of rows."""

import json
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lmgym.console import say
from lmgym.distributed.ranks import world_size
from lmgym.errors import InputError, shown
from lmgym.runs.fields import flatten
from lmgym.runs.files import write_text
from ppo.trlx.data.configs import TRLConfig
from ppo.trlx.settings import number, sampling_settings, shared_settings, show

ROLES = ("user", "assistant")
UNUSED_REPLY = "..."  # where the stage generates one
OF_RUN = ("output", "deepspeed", "tracking", "eval_updates", "save_updates")


def train_on_samples(config: TRLConfig, samples: Any, eval_prompts: Any, metric_fn: Any) -> None:
    """Fine-tune on the samples' outputs, and save to checkpoint_dir/model.

    Raises InputError for samples that are no pairs of prompt and output, and if the command fails.
    """
    rows = _rows(samples)
    batch = number("train.batch_size", config.train.batch_size, int)
    shared = shared_settings(config, updates_per_epoch=-(-len(rows) // max(1, batch)))
    sampling, notes = sampling_settings(config.method.gen_kwargs, None)
    if config.model.num_layers_unfrozen > 0 and not config.model.peft_config:
        notes.append(f"model.num_layers_unfrozen={config.model.num_layers_unfrozen} is not used: SFT trains all layers")
    if metric_fn is not None:
        notes.append("metric_fn is not called: SFT prints the held-out loss, and replies to eval_prompts")
    flags: dict[str, Any] = {**flatten(shared.model), **flatten(shared.optimizer)}
    flags |= {name: value for name, value in flatten(shared.run).items() if name in OF_RUN}
    flags |= {"max_length": config.train.seq_length, "sample_tokens": sampling["max_new_tokens"]}
    flags |= {name: sampling[name] for name in ("temperature", "top_p") if name in sampling}
    flags |= {"merge_adapter": True} if shared.model.lora_rank else {}
    folder = Path(config.train.checkpoint_dir)
    flags["dataset"] = _write(folder, "samples", rows)
    if eval_prompts is not None and (prompts := [_conversation([one, UNUSED_REPLY]) for one in eval_prompts]):
        flags |= {"prompts": _write(folder, "eval_prompts", prompts), "sample_prompts": len(prompts)}
    show([*shared.notes, *notes])
    _run(flags)


def _rows(samples: Any) -> list[dict[str, Any]]:
    """A conversation for each sample: prompt, output, prompt, output, ..."""
    if not isinstance(samples, Iterable) or isinstance(samples, str | Mapping):
        raise InputError(f"samples is {shown(samples)}; needed: a list of [prompt, output], for SFT")
    rows = []
    for place, sample in enumerate(samples):
        texts = list(sample) if isinstance(sample, Sequence) and not isinstance(sample, str) else []
        if not texts or len(texts) % 2 or not all(isinstance(text, str) for text in texts):
            raise InputError(
                f"samples[{place}] is {shown(sample)}; needed: [prompt, output], or more of both in turn: SFT here "
                "learns replies, not plain texts; split a text into its beginning and the rest"
            )
        rows.append(_conversation(texts))
    return rows


def _conversation(texts: Sequence[str]) -> dict[str, Any]:
    return {"messages": [{"role": ROLES[i % 2], "content": text} for i, text in enumerate(texts)]}


def _write(folder: Path, name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Writes a JSONL file beside the results: a run must begin in a folder of its own."""
    path = folder.with_name(f"{folder.name}_{name}.jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def _run(flags: Mapping[str, Any]) -> None:
    """Runs the command. Raises InputError if it fails, or under a launcher of several ranks."""
    given = {name: value for name, value in flags.items() if value != "" and value is not False}
    words = [word for name, value in given.items() for word in (f"--{name}", _word(value))]
    command = ["lmgym", "train", "sft", "chat", *words]
    if world_size() > 1:
        raise InputError(f"SFT of a trlx program runs in one process; needed, for several: {shlex.join(command)}")
    say(f"$ {shlex.join(command)}")
    code = subprocess.run([sys.executable, "-m", "sft.experiments.chat", *words], check=False).returncode
    if code:
        raise InputError(f"SFT ended with exit code {code}; its message is above, and its command")


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)
