"""How far vLLM's log-probabilities are from the trainer's in bf16, with heads in bf16 and in fp32 on either side.

    .venv/bin/python benchmarks/fp32_head.py outputs/models/smollm2-135m

Two replies of up to 48 tokens to each of 12 questions, at temperature 1 and seed 3, from each server (its head in fp32
by `--hf-overrides '{"head_dtype": "float32"}'`), read by three forwards of the trainer. Needs `lmgym engine setup`.
Writes benchmarks/results/fp32_head.json.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from shared import describe_machine, write_result

from lmgym.generation.local_generation import load_causal
from lmgym.generation.protocol import Sampling
from lmgym.generation.vllm_generator import VLLMGenerator
from lmgym.generation.vllm_server import ServerOptions, VLLMServer
from lmgym.models.forward.decoder import Decoder
from lmgym.models.forward.logprobs import token_logprobs
from lmgym.models.forward.packed_rows import pack_rows
from lmgym.text import Conversation, Turn, render_all, tokenize_texts

RESULTS = Path(__file__).parent / "results/fp32_head.json"
QUESTIONS = [
    "Name three colours.", "What is 2 + 2?", "Tell me about cats.", "Write a poem about rain.", "How do I boil an egg?",
    "Who was Newton?", "Give me a recipe for soup.", "Why is the sky blue?", "Explain gravity.", "What is a noun?",
    "Say something nice.", "Plan a day in Rome.",
]  # fmt: skip
SERVERS = {"bf16": (), "fp32": ("--hf-overrides", '{"head_dtype": "float32"}')}
TRAINERS = {"bf16": (True, True), "fp32": (True, False), "all in fp32": (False, False)}
"""(the layers run in bf16, the head runs in bf16)"""


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    model = parser.parse_args().model
    ours = load_causal(model)
    decoder = Decoder(ours.model.float())
    conversations = [Conversation((Turn("user", text),)) for text in QUESTIONS]
    prompts = tokenize_texts(ours.tokenizer, render_all(ours.tokenizer, conversations))
    results: dict = {"machine": describe_machine()}
    flags = ServerOptions._flags
    for name, more in SERVERS.items():
        given = mock.patch.object(ServerOptions, "_flags", lambda *a, more=more: [*flags(*a), *more])
        with tempfile.TemporaryDirectory() as folder, given:
            with VLLMServer(ServerOptions(model, "bfloat16", 256), Path(folder, "log")) as server:
                generator = VLLMGenerator([server.url], "model", ours.tokenizer, ours.eos, 256)
                replies = generator.generate(prompts, 2, Sampling(48, 1.0, seed=3))
        pairs = [(prompt, reply) for prompt, several in zip(prompts, replies, strict=True) for reply in several]
        rows = pack_rows([[*prompt, *reply.ids] for prompt, reply in pairs], [len(reply.ids) for _, reply in pairs])
        targets = torch.tensor([id_ for _, reply in pairs for id_ in reply.ids])
        served = torch.tensor([x for _, reply in pairs for x in reply.logprobs])
        for trainer, (layers, head) in TRAINERS.items():
            with torch.no_grad():
                with torch.autocast("cpu", torch.bfloat16, enabled=layers):
                    states = decoder.hidden(rows)
                with torch.autocast("cpu", torch.bfloat16, enabled=head):
                    difference = token_logprobs(decoder, states, targets) - served
            found = {"gap": difference.abs().mean().item(), "largest": difference.abs().max().item(),
                     "chi_square": (2 * difference).exp().mean().item() - 1, "tokens": len(targets)}  # fmt: skip
            results[f"server's head {name}, trainer's {trainer}"] = found
            print(f"server's head {name}, trainer's {trainer}:", {k: round(v, 5) for k, v in found.items()}, flush=True)
    write_result(RESULTS, results)


if __name__ == "__main__":
    main()
