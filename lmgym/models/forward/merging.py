"""An adapter's folder as the folder of a whole model: the base with the adapter merged in."""

import os
import shutil
from pathlib import Path

import torch

from lmgym.distributed.weights import untied_weights
from lmgym.errors import InputError, shown_path
from lmgym.models.forward.policies import read_causal, with_adapter
from lmgym.models.loading import load_config, load_tokenizer
from lmgym.models.saving import replace_folder, save_plain
from lmgym.models.scorer_folders import adapter_base, load_scorer_model, read_adapter
from lmgym.models.sources import ADAPTER, base_of_adapter

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
SCORER = "scorer.json"


def adapter_folder(name: str) -> Path:
    """The adapter of a folder: its own, or that of a run. Raises InputError for a folder without one."""
    folder = Path(os.path.expanduser(name))
    found = next((one for one in (folder, folder / "adapter") if (one / ADAPTER).is_file()), None)
    if found:
        return found
    if not folder.is_dir():
        raise InputError(
            f"there is no folder {shown_path(name)}; needed: the folder of an adapter, or of a run with one"
        )
    whole = next((one for one in (folder, folder / "model") if (one / "config.json").is_file()), None)
    hint = f"; {shown_path(whole)} is a whole model already" if whole else ""
    raise InputError(
        f"{shown_path(name)} holds no {ADAPTER}; needed: the folder of an adapter, or of a run with one{hint}"
    )


def merge_adapter(name: str, output: str | None, base: str | None, precision: str | None) -> Path:
    """Merges an adapter into its base, or another `base`, in fp32, and saves the model; returns its folder.

    `output` is by default `merged` beside a run's adapter, else ADAPTER-merged. Weights are saved in the base's
    dtype, or in `precision`. Raises InputError for an adapter that does not fit, and for an output that exists.
    """
    folder = adapter_folder(name)
    beside = folder.with_name("merged" if folder.name == "adapter" else f"{folder.name}-merged")
    target = Path(os.path.expanduser(output)) if output else beside
    if target.exists():
        raise InputError(f"{shown_path(target)} exists; needed: --output of a folder that is not there yet")
    known = read_adapter(str(folder))
    source = base or base_of_adapter(str(folder)) or adapter_base(str(folder))
    assert source is not None, "an adapter's folder names its base"
    config = load_config(source)
    is_scorer = bool(known.labels) or known.settings.task_type == "SEQ_CLS"
    if is_scorer:
        if base:
            raise InputError("--base is for adapters of policies; a scorer's adapter is merged into the base it names")
        found = load_scorer_model(str(folder))
        model, tokenizer = found.model, found.tokenizer
    else:
        tokenizer = load_tokenizer(
            str(folder) if (folder / "tokenizer_config.json").is_file() else source, role="scorer"
        )
        model = with_adapter(read_causal(source, config), tokenizer, str(folder))
    dtype = DTYPES[precision] if precision else getattr(config, "dtype", None) or torch.float32
    model = model.to(dtype)
    target.parent.mkdir(parents=True, exist_ok=True)
    with replace_folder(target) as partial:
        save_plain(model, untied_weights(model), partial, tokenizer)
        if is_scorer and (folder / SCORER).is_file():
            shutil.copyfile(folder / SCORER, partial / SCORER)
    return target
