"""Any causal model by folder or hub id."""

import torch

from lmgym.console import say
from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.protocol import Generator
from lmgym.models.architectures import refuse_encoder
from lmgym.models.loading import load_config, load_tokenizer
from lmgym.models.policies import read_causal


def load_causal(name: str) -> Generator:
    """A generator of that model, in bf16 on a GPU and in fp32 elsewhere. Raises InputError where it does not load."""
    config = load_config(name)
    refuse_encoder(name, config)
    tokenizer = load_tokenizer(name)
    device, dtype = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
    generator = LocalGenerator(read_causal(name, config, dtype=dtype).to(device).eval(), tokenizer)
    if generator.decoder.note:
        say(generator.decoder.note, error=True)
    return generator
