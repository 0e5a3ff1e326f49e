"""The models of shapes.json, made on the spot because no model hub is within reach."""

import json
from collections.abc import Iterable
from pathlib import Path

from lmgym.small_models import build_model, train_tokenizer

SHAPES_FILE = Path(__file__).with_name("shapes.json")


def read_shape(name: str) -> dict:
    """The settings of one shape of shapes.json. Raises ValueError on an unknown name."""
    shapes = json.loads(SHAPES_FILE.read_text())
    if name not in shapes:
        raise ValueError(f"unknown shape {name!r}; shapes.json has {', '.join(shapes)}")
    return shapes[name]


def make_shape(name: str, folder: str | Path, texts: Iterable[str], seed: int = 0) -> None:
    """Train the tokenizer on the texts, build the model, and save both to an ordinary Hugging Face folder.

    The vocabulary size is the shape's, also where the texts hold fewer merges.
    """
    shape = read_shape(name)
    max_length = shape.get("max_position_embeddings") or shape["n_positions"]
    tokenizer = train_tokenizer(texts, shape["vocab_size"], max_length)
    settings = {key: value for key, value in shape.items() if key != "family"}
    build_model(shape["family"], tokenizer, seed=seed, **settings).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
