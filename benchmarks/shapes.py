"""The models of shapes.json, made on the spot because no model hub is within reach.

S and L are ours; those named qwen3 have the numbers of the config.json of Qwen/Qwen3-0.6B, -1.7B, -4B, -8B and
-14B.
"""

import contextlib
import json
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from transformers import AutoConfig

from lmgym.models.forward.policies import load_policy
from lmgym.models.loading import load_classifier, load_tokenizer
from lmgym.models.small_models import build_model, train_tokenizer

SHAPES_FILE = Path(__file__).with_name("shapes.json")


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
    shape = read_shape(name)
    return train_tokenizer(texts, shape["vocab_size"], shape.get("max_position_embeddings") or shape["n_positions"])


def save_shape(name: str, folder: str | Path, tokenizer, head: str, seed: int) -> None:
    """A seeded model of the shape with a head of `small_models`, beside its tokenizer."""
    random_model(name, tokenizer, head, seed).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def save_real(source: str | Path, folder: str | Path, head: str, seed: int) -> None:
    """A fp32 copy of a causal model's folder, with a pad token that is not eos; or a classifier with a new head."""
    tokenizer = load_tokenizer(str(source))
    if head == "classifier":
        model, _ = load_classifier(str(source), tokenizer, seed=seed)
    else:
        model = load_policy(str(source), tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def random_model(name: str, tokenizer, head: str, seed: int, device: str = "cpu"):
    """A seeded fp32 model of the shape with a head of `small_models`, made where it will be used."""
    shape = read_shape(name)
    settings = {key: value for key, value in shape.items() if key != "family"}
    with torch.device(device):
        return build_model(shape["family"], tokenizer, head, seed, **settings)


@contextlib.contextmanager
def saved_config(name: str, dtype: str | None = None) -> Iterator[str]:
    """A folder with the config.json of a shape, for what reads a model's config and not its weights.

    It states the `dtype` of a checkpoint, if one is given.
    """
    settings = {key: value for key, value in read_shape(name).items() if key != "family"}
    with tempfile.TemporaryDirectory() as folder:
        AutoConfig.for_model(read_shape(name)["family"], dtype=dtype, **settings).save_pretrained(folder)
        yield folder
