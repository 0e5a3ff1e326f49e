"""The reference's log-probabilities of all replies: computed once before training, kept in a file of the run's folder.

The file says what it was computed from: the rows' token ids, the reference's weights, its tokenizer and the precision.
If any of these differs from a run's own, the run computes anew; a file that the user names is refused.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch

from lmgym.data.task_data import TaskData
from lmgym.distributed.ranks import all_gather_objects, raise_on_all_ranks, rank, sum_over_ranks
from lmgym.errors import InputError, regular, shown_path
from lmgym.models.classifiers import round_weights
from lmgym.models.forward.policies import PolicyModel, load_policy
from lmgym.models.loading import load_config
from lmgym.models.sources import resolve_source
from lmgym.runs.run import Run
from lmgym.runs.supervisor import Supervisor
from lmgym.text import Replies
from lmgym.training.plan import TrainingPlan
from lmgym.training.reporting import show_notes
from lmgym.training.setup import round_frozen
from lmgym.turn_ends import turn_ends
from preferences.config import PreferenceConfig
from preferences.examples import RepliesOf, WithReference
from preferences.objectives import ReplyModel
from preferences.probes import Forwards

FILE = "reference_logprobs.npz"
BLOCK = 1 << 24  # bytes of a weight file that are read at once

Key = dict[str, str]


def with_reference(plan: TrainingPlan[PreferenceConfig], run: Run, supervisor: Supervisor | None) -> TaskData:
    """The plan's data with the reference's log-probabilities, read from a file or computed. Collective.

    Raises InputError for a file, named by the user, of other rows or of another reference.
    """
    config, data = plan.config, plan.data
    if uses_adapter(config) or not config.loss.has_reference:
        return data
    examples = len(data.train) + len(data.evaluation)
    key = reference_key(plan) if rank() == 0 else {}
    values = raise_on_all_ranks(lambda: _read(config, run, key, 2 * examples) if rank() == 0 else None)
    found = torch.zeros(2 * examples, dtype=torch.float64)
    if all_gather_objects(values is not None)[0]:
        if values is not None:
            found += torch.from_numpy(values)
        found = sum_over_ranks(found)
    else:
        found = compute(plan, RepliesOf(data.train, data.evaluation), supervisor)
        if run.is_main:
            with run.writing(FILE):
                _write(run.folder / FILE, key, found.numpy())
        show_notes([f"the reference's log-probabilities of {len(found):,} replies were computed: {FILE}"], run)
    train, evaluation = found.view(-1, 2).split([len(data.train), len(data.evaluation)])
    filled = WithReference(data.train, train.numpy()), WithReference(data.evaluation, evaluation.numpy())
    return replace(data, train=filled[0], evaluation=filled[1])


def uses_adapter(config: PreferenceConfig) -> bool:
    """True if the reference is the policy with its adapters off."""
    settings = config.reference
    if settings.reference_source != "auto":
        return settings.reference_source == "adapter"
    given = settings.reference or settings.reference_logprobs
    return config.policy.lora_rank > 0 and not given and config.loss.has_reference


def compute(
    plan: TrainingPlan[PreferenceConfig], rows: Sequence[Replies], supervisor: Supervisor | None
) -> torch.Tensor:
    """[replies] float64: summed log-probabilities by the reference, loaded whole on every rank. Collective.

    Call it before TrainingArguments, or ZeRO-3 would shard the reference.
    """
    config, tokenizer = plan.config, plan.tokenizer
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    name = config.reference.reference or config.policy.model
    bits = _bits(config)
    model = load_policy(name, tokenizer, config.policy.trust_remote_code, bits)
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(config.policy.precision)
    if (
        half is not None and plan.deepspeed is not None and not bits
    ):  # DeepSpeed rounds the policy's weights, others cast as they go
        round_weights(model, half)
    policy = PolicyModel(model, config.trainer.packed).requires_grad_(False)
    round_frozen(policy.model, plan)
    if not bits:  # those are on the device already
        policy.to(device)
    forwards = Forwards(rows, ReplyModel(policy, turn_ends(tokenizer).ids[0]), batch_tokens(config))
    cast = (
        torch.autocast(device.type, half) if half is not None and plan.deepspeed is None else contextlib.nullcontext()
    )

    def heartbeat() -> None:
        if supervisor:
            supervisor.heartbeat("the reference's log-probabilities")

    with cast:
        return forwards.sums(policy, device, heartbeat=heartbeat)


def _bits(config: PreferenceConfig) -> int:
    """Bits of the reference's weights: those of the policy's, if it is the same model."""
    return 0 if config.reference.reference else config.policy.bits


def batch_tokens(config: PreferenceConfig) -> int:
    """Tokens of a forward without gradients."""
    return config.optimizer.batch_tokens(2 * config.data.max_length)


def reference_key(plan: TrainingPlan[PreferenceConfig]) -> Key:
    """The inputs of log-probabilities, by name. Weights are those of the folder's files, or the commit of a hub id."""
    config = plan.config
    name = config.reference.reference or config.policy.model
    return {
        "rows": _hash_rows(RepliesOf(plan.data.train, plan.data.evaluation)),
        "reference": _hash_model(name, config.policy.trust_remote_code),
        "tokenizer": _hash_tokenizer(plan.tokenizer),
        "precision": config.policy.precision + (f", weights of {_bits(config)} bits" if _bits(config) else ""),
    }


def _hash_rows(rows: Iterable[Replies]) -> str:
    digest = hashlib.sha256()
    for row in rows:
        for ids in (row.prefix, *row.suffixes):
            digest.update(np.array([len(ids), *ids], dtype=np.int64).tobytes())
    return digest.hexdigest()


def _hash_model(name: str, trust_remote_code: bool) -> str:
    source = resolve_source(name)
    if not os.path.isdir(source):
        commit = getattr(load_config(name, trust_remote_code), "_commit_hash", None)
        return f"{name} {commit}"
    digest = hashlib.sha256()
    for path in sorted([*Path(source).glob("*.safetensors"), Path(source) / "config.json"]):
        with regular(path).open("rb") as file:
            for block in iter(partial(file.read, BLOCK), b""):
                digest.update(block)
    return digest.hexdigest()


def _hash_tokenizer(tokenizer) -> str:
    content = [sorted(tokenizer.get_vocab().items()), tokenizer.chat_template, tokenizer.eos_token]
    return hashlib.sha256(json.dumps(content, ensure_ascii=True).encode()).hexdigest()


def _read(config: PreferenceConfig, run: Run, key: Key, replies: int) -> np.ndarray | None:
    """[replies] values of the file that the user names, or of the run's folder; None if they are to be computed.

    Raises InputError for a file, named by the user, that is of anything else.
    """
    given = config.reference.reference_logprobs
    path = Path(os.path.expanduser(given)) if given else run.folder / FILE
    content = _content(path)
    different = ["content"] if content is None else [name for name in key if content[0].get(name) != key[name]]
    if not different and content is not None and len(content[1]) == replies:
        show_notes([f"the reference's log-probabilities of {replies:,} replies were read from {path}"], run)
        return content[1]
    if not given:
        return None
    raise InputError(
        f"--reference_logprobs {shown_path(given)} {_fault(path, different)}; leave --reference_logprobs "
        "out to compute them"
    )


def _fault(path: Path, different: Sequence[str]) -> str:
    """Why a file cannot be used, in words."""
    if not path.is_file():
        return f"is no file; needed: the {FILE} of an earlier run"
    if list(different) == ["content"]:
        return f"cannot be read; needed: the {FILE} of an earlier run"
    words = {
        "rows": "the tokens of other rows",
        "reference": "another reference",
        "tokenizer": "another tokenizer",
        "precision": "another precision",
    }
    found = " and ".join(words[name] for name in different) or "another number of replies"
    return f"has log-probabilities of {found}; needed: those of this run's rows by its reference"


def _content(path: Path) -> tuple[Key, np.ndarray] | None:
    """(key, values) of a file; None if there is none or it cannot be read."""
    try:
        with np.load(path, allow_pickle=False) as file:
            key, values = json.loads(str(file["key"])), file["values"]
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        return None
    usable = isinstance(key, dict) and values.dtype == np.float64 and values.ndim == 1 and np.isfinite(values).all()
    return (key, values) if usable else None


def _write(path: Path, key: Key, values: np.ndarray) -> None:
    """Writes the file whole, or not at all."""
    partial = path.with_suffix(".partial.npz")
    with _removed_after_error(partial):
        np.savez(partial, key=json.dumps(key), values=values)
        partial.replace(path)


@contextlib.contextmanager
def _removed_after_error(path: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        path.unlink(missing_ok=True)
        raise
