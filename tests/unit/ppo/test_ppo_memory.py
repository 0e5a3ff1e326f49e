"""The memory that a run of PPO needs of a device, counted by hand."""

import contextlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import LlamaConfig

from lmgym.config import ModelConfig, OptimizerConfig
from lmgym.errors import InputError
from lmgym.generation import prompt_fitting
from lmgym.generation.prompt_fitting import longest_prompt, prompt_lengths
from lmgym.models.activations import activation_bytes
from lmgym.models.loading import load_config, load_tokenizer
from lmgym.models.memory import CHUNK_LOGITS, GIB, MemoryEstimate
from lmgym.models.parameters import count_parameters
from lmgym.text import Conversation, Turn
from ppo import memory
from ppo.actor_critic import Reference
from ppo.config import PPOConfig, RolloutConfig
from ppo.config.rollout import EngineConfig
from ppo.memory import check_run_memory, count_trained, estimate_run
from ppo.setup import build

EMBEDDINGS, NORM, HEAD = 32 * 8, 8, 32 * 8
# queries and output, keys and values of one head of two, the gated layer, two norms
LAYER = 2 * 64 + 2 * 32 + 3 * 8 * 16 + 16
POLICY, CRITIC = EMBEDDINGS + 2 * LAYER + NORM + HEAD, EMBEDDINGS + 2 * LAYER + NORM + 8
TOP = LAYER + NORM + HEAD
TOKENS = 2 * (10 + 6)  # two rows a micro-batch, each the longest prompt and a reply
LOGITS = 2 * 6 * 32
NUMBERS = 2 * 2 * 4  # keys and values of a token: two layers, one head of 4
ZERO2, ZERO3 = ({"zero_optimization": {"stage": stage}} for stage in (2, 3))


def save(folder: Path, **settings) -> str:
    config = LlamaConfig(
        num_hidden_layers=2, hidden_size=8, intermediate_size=16, num_attention_heads=2, num_key_value_heads=1,
        head_dim=4, vocab_size=32, max_position_embeddings=40_960, tie_word_embeddings=False, **settings,
    )  # fmt: skip
    config.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def config(tmp_path: Path) -> PPOConfig:
    return PPOConfig(
        "test",
        ModelConfig(save(tmp_path / "policy"), precision="fp32"),
        RolloutConfig(num_rollouts=8, max_new_tokens=6),
        optimizer=OptimizerConfig(micro_batch=2, global_batch=8),
    )


def change(config: PPOConfig, **groups) -> PPOConfig:
    return replace(config, **{name: replace(getattr(config, name), **own) for name, own in groups.items()})


def update(config: PPOConfig, tokens: int, logits: int = LOGITS, **more) -> float:
    """Bytes of a micro-batch's activations."""
    more = {"engine": False} | more
    return activation_bytes(load_config(config.policy.model), tokens, config.policy, logits=logits, **more)


def sampling(config: PPOConfig, rows: int, prompt: int, reply: int = 6) -> float:
    """Bytes of the prompts' keys and values in fp32 and, one after the other, of their forward and the replies'."""
    model = load_config(config.policy.model)
    forward = activation_bytes(model, rows * prompt, config.policy, engine=True, learns=False) if prompt else 0
    return rows * prompt * NUMBERS * 4 + max(forward, rows * reply * NUMBERS * 4)


def test_a_policy_with_a_value_head_and_a_whole_reference(config: PPOConfig) -> None:
    again = update(config, 8 * 16, learns=False)  # the log-probabilities of four micro-batches at a time
    states = max(update(config, TOKENS), again, sampling(config, 8, 10))
    assert estimate_run(config, None, 10, 1) == MemoryEstimate(4 * 2 * POLICY, 4 * POLICY, 8 * POLICY, states)


def test_of_frozen_layers_nothing_is_learned_or_copied_and_one_state_is_kept(config: PPOConfig, monkeypatch) -> None:
    config = change(config, method={"num_layers_unfrozen": 1})
    found = estimate_run(config, None, 10, 1)
    states = 8 * 16 * 8 * 4  # fp32, of all rollouts
    again = update(config, 8 * 16, layers=1, learns=False)
    held = max(update(config, TOKENS, layers=1), again, sampling(config, 8, 10))
    assert found == MemoryEstimate(4 * (POLICY + TOP), 4 * TOP, 8 * TOP, held + states)
    every = estimate_run(change(config, method={"num_layers_unfrozen": 2}), None, 10, 1)
    assert every.gradients == 4 * (POLICY - EMBEDDINGS)
    monkeypatch.setattr(memory, "FROZEN_CACHE_GIB", 0.0)
    assert estimate_run(config, None, 10, 1).activations == found.activations - states


@pytest.mark.parametrize("unfrozen", [-1, 1, 2])
@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3"])
def test_what_is_counted_is_what_a_run_trains_and_copies(family: str, unfrozen: int, small_models) -> None:
    config = PPOConfig("x", ModelConfig(str(small_models[family])))
    config = change(config, method={"num_layers_unfrozen": unfrozen})
    whole, trained, *_ = count_trained(config, load_config(config.policy.model))
    actor, reference = build(config, load_tokenizer(config.policy.model))
    assert isinstance(reference, Reference)
    assert count_parameters(actor.policy) == (trained, whole)
    of_policy = {id(p) for p in actor.policy.parameters()}
    assert sum(p.numel() for p in reference.model.parameters() if id(p) not in of_policy) == trained


def test_a_critic_of_its_own_learns_too_and_runs_after_the_policy_where_it_can(config: PPOConfig, tmp_path) -> None:
    critic = save(tmp_path / "critic", num_labels=1)
    config = change(config, policy={"precision": "bf16"}, critic={"critic": critic})
    both = POLICY + CRITIC
    of_policy = update(config, TOKENS, engine=True)
    of_critic = activation_bytes(load_config(critic), TOKENS, config.policy, engine=True)
    one, two = max(of_policy, of_critic), of_policy + of_critic
    # 2 bytes a weight, 2 a gradient, 12 for the fp32 master and two moments; the reference in 2 bytes
    assert estimate_run(config, ZERO2, 10, 2) == MemoryEstimate(2 * both + 2 * POLICY, both, 6 * both, one)
    # besides, a whole copy that samples
    assert estimate_run(config, ZERO3, 10, 2) == MemoryEstimate(both + 4 * POLICY, both, 6 * both, two)
    offload = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
    assert estimate_run(config, offload, 10, 2).activations == two


def test_bf16_without_deepspeed_samples_by_a_rounded_copy(config: PPOConfig) -> None:
    config = change(config, policy={"precision": "bf16"})
    found = estimate_run(config, None, 10, 1)
    states = max(update(config, TOKENS), update(config, 8 * 16, learns=False))
    assert found == MemoryEstimate((4 + 2 + 2) * POLICY, 4 * POLICY, 8 * POLICY, states)


def test_frozen_embeddings_of_a_checkpoint_in_bf16_need_half_and_no_copy_for_a_tied_head(
    config: PPOConfig, tmp_path: Path
) -> None:
    config = change(config, policy={"precision": "bf16"}, method={"num_layers_unfrozen": 1})
    found = {}
    for dtype in ("float32", "bfloat16"):
        folder = save(tmp_path / dtype, dtype=dtype)
        stated = json.loads(Path(folder, "config.json").read_text()) | {"tie_word_embeddings": True}
        Path(folder, "config.json").write_text(json.dumps(stated))
        found[dtype] = estimate_run(change(config, policy={"model": folder}), None, 10, 1)
    assert found["float32"].weights - found["bfloat16"].weights == (2 + 2) * EMBEDDINGS
    assert found["float32"].optimizer == found["bfloat16"].optimizer


def test_adapters_need_no_reference(config: PPOConfig) -> None:
    found = estimate_run(change(config, policy={"lora_rank": 1}), None, 10, 1)
    # of rank 1, a layer: queries and output 8 + 8, keys and values 8 + 4, three of the MLP 8 + 16
    adapters = 2 * (2 * 16 + 2 * 12 + 3 * 24)
    assert (found.weights, found.gradients) == (4 * (POLICY + adapters), 4 * adapters)


def test_the_cache_of_sampling_counts_where_it_is_larger(config: PPOConfig) -> None:
    config = change(
        config, rollout={"num_rollouts": 400, "generation_batch_size": 300}, optimizer={"global_batch": 400}
    )
    assert estimate_run(config, None, 10, 1).activations == sampling(config, 300, 10)
    assert estimate_run(config, None, 10, 2).activations == sampling(config, 200, 10)


@pytest.mark.parametrize(
    ("max_prompt", "longest", "row"),
    [(0, 10, 16), (4, 10, 10), (20, 10, 16), (20, 0, 26), (0, 0, 6), (0, 50_000, 40_960)],
)
def test_rows_are_as_long_as_the_longest_prompt_that_is_read(max_prompt, longest, row, config: PPOConfig) -> None:
    """Tasks whose environment makes the prompts have no longest one: the most that is allowed, if any is."""
    config = change(config, rollout={"max_prompt": max_prompt, "num_rollouts": 1}, optimizer={"global_batch": 2})
    held = max(update(config, 2 * row), sampling(config, 1, row - 6))
    assert estimate_run(config, None, longest, 1).activations == held


def test_the_longest_prompt_is_among_those_of_most_characters(small_models, monkeypatch) -> None:
    tokenizer = load_tokenizer(str(small_models["llama"]))
    chat = Conversation((Turn("user", "hello there " * 30), Turn("bot", "yes"), Turn("user", "why")), "a bot")
    tasks = [{"prompt": "short"}, {"prompt": chat}, {"prompt": "longer than short"}, {"user": 3}]
    every = prompt_lengths(tokenizer, [task["prompt"] for task in tasks if "prompt" in task])
    assert len(every) == 3
    monkeypatch.setattr(prompt_fitting, "MEASURED", 1)
    assert longest_prompt(tokenizer, tasks) == max(every) > 30
    assert longest_prompt(tokenizer, [{"user": 3}]) == longest_prompt(tokenizer, []) == 0


def test_logits_are_there_for_so_many_tokens_at_a_time(config: PPOConfig) -> None:
    config = change(config, rollout={"max_new_tokens": 40_000}, optimizer={"micro_batch": 100, "global_batch": 100})
    found = estimate_run(config, None, 10, 1).activations
    assert found == update(config, 100 * 40_010, CHUNK_LOGITS) >= 12 * CHUNK_LOGITS


@pytest.mark.parametrize(
    ("activations", "optimizer", "sleeps", "fits"),
    [(30, 10, False, False), (30, 10, True, True), (55, 10, True, False), (10, 50, True, False), (10, 10, False, True)],
)
def test_a_sleeping_server_takes_its_share_only_from_what_is_held_while_it_samples(
    config: PPOConfig, activations: float, optimizer: float, sleeps: bool, fits: bool, monkeypatch
) -> None:
    """Of 80 GiB its share is 24: 56 are left for 20 of weights and the optimizer, 80 for these and activations."""
    parts = MemoryEstimate(20 * GIB, 0.0, optimizer * GIB, activations * GIB)
    monkeypatch.setattr(memory, "estimate_run", lambda *_: parts)
    monkeypatch.setattr(memory, "longest_prompt", lambda *_: 10)
    engine = EngineConfig("vllm", engine_memory=0.3, engine_sleep=sleeps)
    config = replace(config, engine=engine, run=replace(config.run, memory_gb=80.0))
    with contextlib.nullcontext() if fits else pytest.raises(InputError, match="the run needs about"):
        check_run_memory(config, None, None, [])
