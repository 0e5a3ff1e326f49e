"""The memory of a PPO run on each device, estimated before anything is loaded."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from lmgym.aids import aid
from lmgym.distributed.deepspeed_config import allows_partial_backward, zero_stage
from lmgym.distributed.ranks import world_size
from lmgym.environments.protocol import Task
from lmgym.generation.prompt_fitting import longest_prompt
from lmgym.models.activations import activation_bytes, empty_model
from lmgym.models.config_fields import context_length, layer_count, vocabulary_size, width
from lmgym.models.critics import is_on_trunk
from lmgym.models.forward.freezing import freeze_below
from lmgym.models.loading import load_config
from lmgym.models.memory import (
    GIB,
    MemoryEstimate,
    WeightCounts,
    cache_numbers_per_token,
    check_memory,
    count_weights,
    counts_of,
    device_memory_gb,
    most_logits,
    quantized_bytes,
    weight_memory,
)
from ppo.config import PPOConfig
from ppo.config.rollout import OWN
from ppo.experience import FROZEN_CACHE_GIB, ROWS_AT_ONCE


def check_run_memory(config: PPOConfig, deepspeed: dict | None, tokenizer, tasks: Sequence[Task]) -> None:
    """Raises InputError if the estimate exceeds `--memory_gb` or, without it, the device's memory."""
    memory = config.run.memory_gb or device_memory_gb()
    if memory is None:
        return
    # the part of a server on the same GPU
    own = memory * config.engine.engine_memory if config.engine.engine == OWN else 0.0
    estimate = estimate_run(config, deepspeed, longest_prompt(tokenizer, tasks), world_size())
    if estimate is None:
        return
    allocated = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0  # scorers are loaded by now
    more = ("a smaller --max_prompt, --generation_batch_size or --num_layers_unfrozen",)
    estimate = replace(estimate, weights=estimate.weights + allocated)
    stage, micro_batch = zero_stage(deepspeed), config.optimizer.micro_batch
    if config.engine.engine_sleep:  # beside the server only what is held while it samples
        check_memory(replace(estimate, activations=0.0), memory - own, stage, micro_batch, more)
        own = 0.0
    check_memory(estimate, memory - own, stage, micro_batch, more)


@aid("the estimate of PPO's memory", refuses=True)
def estimate_run(
    config: PPOConfig, deepspeed: dict | None, longest: int, ranks: int, counts: WeightCounts | None = None
) -> MemoryEstimate | None:
    """Bytes per device, for prompts of at most `longest` tokens: policy, critic, reference, sampling weights, the
    larger of an update's activations and the sampler's cache, and the frozen layers' states. None if it is unknown.

    Rows are as long as the longest prompt and a reply, not as the context: with Qwen3's of 40,960 tokens a run of short
    chats would be refused on any GPU. `counts` are those of `count_trained`, if they are known.
    """
    settings, rollout, method = config.policy, config.rollout, config.method
    model, precision = load_config(settings.model, settings.trust_remote_code), settings.precision
    prompt = min(filter(None, (longest, rollout.max_prompt)), default=0)
    row = min(context_length(model), prompt + rollout.max_new_tokens)
    size, o = 4 if precision == "fp32" else 2, config.optimizer
    tokens, learned = o.batch_tokens(row), o.batch_tokens(rollout.max_new_tokens)  # of a micro-batch
    counts = counts or count_trained(config, model)
    layers = min(method.num_layers_unfrozen, layer_count(model)) if method.num_layers_unfrozen > 0 else None

    engine, logits = deepspeed is not None, most_logits(model, learned)
    states = activation_bytes(model, tokens, settings, engine, logits, layers)
    estimate, bits = weight_memory(counts, precision, deepspeed, ranks), settings.bits
    if bits:
        estimate = replace(estimate, weights=quantized_bytes(counts, model, settings, causal=True))
    if config.algorithm.has_critic and not is_on_trunk(config.critic.critic):
        critic = load_config(config.critic.critic)
        estimate += weight_memory(count_weights(critic), precision, deepspeed, ranks)
        of_critic = activation_bytes(critic, tokens, replace(settings, lora_rank=0, modules_to_save=""), engine)
        # one after the other if the engine allows it (ppo/learner.py)
        states = max(states, of_critic) if allows_partial_backward(deepspeed) else states + of_critic
    own = 0 if settings.lora_rank else counts.trained if layers else counts.total
    reference = own if method.reference is None else counts.total
    sampling = 0  # ppo/weight_sync.py
    if zero_stage(deepspeed) == 3:
        sampling = counts.total
    elif precision != "fp32" and deepspeed is None and not bits:
        tied = getattr(model, "tie_word_embeddings", False) and counts.trained < counts.total
        tied = tied and not counts.frozen_words  # else it is in bf16 itself
        sampling = counts.trained + tied * vocabulary_size(model) * width(model)
    rollouts = -(-rollout.num_rollouts // ranks)
    a_token = cache_numbers_per_token(model) * size
    sampled, new = min(rollout.generation_batch_size, rollouts), rollout.max_new_tokens
    prompts = -(-sampled // config.algorithm.num_generations) * (row - new)  # tokens: replies share their prompt's
    rounded = engine or not settings.lora_rank  # the sampler has its weights in bf16
    read = activation_bytes(model, prompts, settings, rounded, learns=False) if prompts else 0.0
    cache = prompts * a_token + max(read, sampled * new * a_token)
    again = min(ROWS_AT_ONCE * tokens, rollouts * row)  # ppo/experience.py
    states = max(states, activation_bytes(model, again, settings, engine, logits, layers, learns=False))
    frozen = min(FROZEN_CACHE_GIB * GIB, rollouts * row * width(model) * 4) if layers else 0
    weights = estimate.weights + size * (reference + sampling)
    return replace(estimate, weights=weights, activations=max(states, cache) + frozen)


def count_trained(config: PPOConfig, model_config) -> WeightCounts:
    """Weights of the policy, counted without allocating any."""
    unfrozen = config.method.num_layers_unfrozen
    if config.policy.lora_rank or unfrozen <= 0:
        return count_weights(model_config, config.policy, causal=True)
    model = empty_model(model_config, causal=True)
    freeze_below(model, max(0, layer_count(model_config) - unfrozen))
    return counts_of(model, model_config.dtype)
