"""Our sampler on a real pretrained model beside transformers' generate: the same greedy ids, turns that end, memory."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.protocol import Sampling
from lmgym.models.loading import load_tokenizer
from lmgym.text import Conversation, Turn, render_all, tokenize_texts

QUESTIONS = ("What is the capital of France?", "Say hello to my cat, and no more than that.")
# most memory that sampling takes beyond what a process with a tokenizer has, as a multiple of the weights
SCRIPT = """
import sys, torch
from pathlib import Path
from transformers import AutoModelForCausalLM
import lmgym.models.forward.policies
from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.protocol import Sampling
from lmgym.models.loading import load_tokenizer

def peak():
    # not ru_maxrss, which begins with that of the parent
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024

tokenizer = load_tokenizer(sys.argv[1])
before = peak()
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
LocalGenerator(model, tokenizer).generate([[5] * 64] * 8, 1, Sampling(16, ends_at_eos=False))
print((peak() - before) / sum(p.numel() * 4 for p in model.parameters()))
"""


@pytest.mark.slow
@pytest.mark.real
def test_greedy_ids_equal_transformers_generate_and_turns_end(real_model: Path) -> None:
    tokenizer = load_tokenizer(str(real_model))
    model = AutoModelForCausalLM.from_pretrained(real_model, dtype=torch.float32).eval()
    generator = LocalGenerator(model, tokenizer)
    assert generator.decoder.packed
    chats = [Conversation((Turn("user", question),)) for question in QUESTIONS]
    prompts = tokenize_texts(tokenizer, render_all(tokenizer, chats))
    one, two = (generator.generate(prompts, n, Sampling(12, temperature=0)) for n in (1, 2))
    for prompt, *replies in zip(prompts, one, two, strict=True):
        ids = torch.tensor([prompt])
        theirs = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12)
        for found in replies:
            assert {reply.ids for reply in found} == {tuple(theirs[0, len(prompt) :].tolist())}
    assert one[0][0].text == "The capital of France is Paris."
    assert one[0][0].finish_reason == "eos"


@pytest.mark.slow
@pytest.mark.real
def test_sampling_takes_at_most_half_the_memory_of_the_weights(real_model: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(real_model)], capture_output=True, text=True, check=True)
    assert 0.9 < float(done.stdout.split()[-1]) < 1.5
