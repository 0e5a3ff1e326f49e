"""Any causal model by folder or hub id."""

from typing import Any

import torch
from transformers import AutoModelForCausalLM

from lmgym.console import say
from lmgym.errors import InputError
from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.protocol import Generator
from lmgym.models.architectures import refuse_encoder
from lmgym.models.finite_weights import refuse_non_finite_weights
from lmgym.models.loading import SCORER_HEADS, load_config, load_tokenizer
from lmgym.models.sources import refuse_pickles, source_arguments


def load_causal(name: str) -> Generator:
    """A generator of that model, in bf16 on a GPU and in fp32 elsewhere. Raises InputError where it does not load."""
    refuse_encoder(name, load_config(name))
    refuse_pickles(name)
    tokenizer = load_tokenizer(name)
    on_gpu = torch.cuda.is_available()
    found: Any
    try:
        found = AutoModelForCausalLM.from_pretrained(
            **source_arguments(name),
            dtype=torch.bfloat16 if on_gpu else torch.float32,
            use_safetensors=True,
            output_loading_info=True,
        )
    except InputError:
        raise
    except (OSError, ValueError, KeyError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"no causal model loads from {name}: {first}") from error
    model, info = found
    # with tied embeddings nothing is missing, but a head that is not used says what the folder is
    odd = sorted(info["missing_keys"]) or sorted(k for k in info["unexpected_keys"] if k.startswith(SCORER_HEADS))
    if odd:
        lacks = "lacks" if info["missing_keys"] else "has"
        raise InputError(f"{name} is no causal model: it {lacks} {odd[0]} ({len(odd)} such); a scorer cannot talk")
    refuse_non_finite_weights(model, name)
    model = model.to("cuda" if on_gpu else "cpu").eval()
    generator = LocalGenerator(model, tokenizer)
    if generator.decoder.note:
        say(generator.decoder.note, error=True)
    return generator
