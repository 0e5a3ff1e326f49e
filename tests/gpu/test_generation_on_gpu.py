"""Generation and scoring on a GPU: captured graphs, bf16, prefixes. Every test skips itself without one."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.protocol import Completion, Sampling
from lmgym.generation.steps import PackedSteps
from lmgym.models.classifiers import round_weights
from lmgym.models.loading import load_tokenizer
from lmgym.scoring.scorers import HFScorer
from lmgym.text import Conversation, Turn

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

FAMILIES = ("gpt2", "llama", "qwen3")


def generator_of(folder: Path, device: str = "cuda", dtype: torch.dtype = torch.float32) -> LocalGenerator:
    """Weights so large that every token matters."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and "head" not in name:
                parameter.mul_(4.0)
    round_weights(model, dtype)
    return LocalGenerator(model.to(device), load_tokenizer(str(folder)))


def prompts_of(count: int, longest: int = 60) -> list[list[int]]:
    """Ragged prompts of random tokens."""
    rng = np.random.default_rng(0)
    return [rng.integers(5, 400, rng.integers(1, longest)).tolist() for _ in range(count)]


@pytest.fixture(autouse=True)
def exact_products():
    """TF32 has 10 bits."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_replayed_step_is_the_step(family: str, n: int, small_models: dict[str, Path]) -> None:
    decoder = generator_of(small_models[family]).decoder
    prompts = prompts_of(12 // n)
    plain, graphed = (PackedSteps(decoder, 20) for _ in range(2))
    logits, _ = (steps.start(prompts, n) for steps in (plain, graphed))
    assert graphed.graphs
    plain.graphs = False
    tokens = logits.argmax(-1).repeat_interleave(n)
    for _ in range(20):
        [expected] = plain.advance([tokens])
        torch.testing.assert_close(graphed.advance([tokens])[0], expected, rtol=0, atol=1e-4)
        tokens = expected.topk(3).indices[torch.arange(12), torch.arange(12) % 3]
    assert (plain.caches[0].length, graphed.caches[0].length) == (20, 20)


def share_alike(some: list[list[Completion]], others: list[list[Completion]]) -> float:
    """Of the replies, those that are equal token for token."""
    pairs = [(a.ids, b.ids) for x, y in zip(some, others, strict=True) for a, b in zip(x, y, strict=True)]
    return float(np.mean([a == b for a, b in pairs]))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_replies_in_fp32_are_those_of_the_cpu(
    family: str, temperature: float, small_models, capsys, monkeypatch
) -> None:
    # a rounding may move a boundary across a sampled number: nearly all replies are equal, and the share is said
    sampling = Sampling(max_new_tokens=40, temperature=temperature, top_p=0.95, seed=3)
    prompts = prompts_of(16)
    expected = generator_of(small_models[family], "cpu").generate(prompts, 2, sampling)
    generator = generator_of(small_models[family])
    found = generator.generate(prompts, 2, sampling)
    monkeypatch.setattr("lmgym.generation.steps.GRAPH_STEPS", 1 << 30)
    eager = generator.generate(prompts, 2, sampling)
    with capsys.disabled():
        print(f"\n{family} T={temperature}: GPU as CPU {share_alike(found, expected):.3f}, "
              f"replayed as eager {share_alike(found, eager):.3f}")  # fmt: skip
    assert share_alike(found, expected) > 0.9
    assert share_alike(found, eager) > 0.9


@pytest.mark.parametrize("family", FAMILIES)
def test_bf16_talks_with_logprobs_of_its_own_full_forward(family: str, small_models) -> None:
    generator = generator_of(small_models[family], dtype=torch.bfloat16)
    prompts = prompts_of(6)
    for prompt, replies in zip(prompts, generator.generate(prompts, 4, Sampling(max_new_tokens=30)), strict=True):
        for reply in replies:
            assert np.isfinite(reply.logprobs).all()
            with torch.no_grad():
                logits = generator.model(torch.tensor([prompt + list(reply.ids)], device="cuda")).logits
            wanted = logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
            wanted = wanted.gather(1, torch.tensor(reply.ids, device="cuda")[:, None])[:, 0].cpu()
            assert (torch.tensor(reply.logprobs) - wanted).abs().mean() < 0.1


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_go_on_from_turn_to_turn_as_on_the_cpu(family: str, scorer_folders) -> None:
    gpu, cpu = (HFScorer.load(scorer_folders[family], device=device) for device in ("cuda", "cpu"))
    turns: tuple[Turn, ...] = ()
    for line in ("hello", "and then?", "why?"):
        turns = (*turns, Turn("user", line))
        replies = ["because.", "i do not know, do you?", "soup " * 20, ""]
        scores, expected = (s.score([Conversation(turns)] * 4, replies) for s in (gpu, cpu))
        torch.testing.assert_close(scores, expected, rtol=0, atol=1e-3)
        turns = (*turns, Turn("bot", replies[0]))
