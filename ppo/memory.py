"""What a run of PPO needs of a device's memory, estimated before a policy is loaded.

Design decisions:
- Rows are as long as the longest prompt that there is and a reply, not as long as the context: that of Qwen3 has 40,960
  tokens, for which a run of short chats would be refused on any GPU.
- Sampling and training follow each other: of the cache of the one and the activations of the other the larger counts.
- Whoever rewards is loaded by then, and counts with what it takes.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from accelerate import init_empty_weights
from transformers import AutoModelForCausalLM

from lmgym.distributed.deepspeed_config import refuse_disagreement, run_values, takes_parts, zero_stage
from lmgym.distributed.ranks import world_size
from lmgym.environments.protocol import Task
from lmgym.models.config_fields import layer_count, vocabulary_size, width
from lmgym.models.forward.logprobs import CHUNK_LOGITS
from lmgym.models.freezing import freeze_below
from lmgym.models.loading import context_length, load_config
from lmgym.models.memory import (
    GIB,
    MemoryEstimate,
    bytes_in_bits,
    cached_numbers,
    check_memory,
    count_weights,
    device_memory_gb,
    of_states,
    of_weights,
)
from lmgym.models.quantized import bits_of
from lmgym.text import Conversation
from ppo.actor_critic import is_on_trunk
from ppo.config import PPOConfig
from ppo.preflight import prompt_lengths

MEASURED = 256  # prompts that are tokenised to find the longest


def check_run_memory(config: PPOConfig, deepspeed: dict | None, tokenizer, tasks: Sequence[Task]) -> None:
    """Raises InputError where the estimate exceeds `--memory_gb`, or the device's memory; without either all fits.

    Also where a DeepSpeed config says otherwise than the arguments, which the estimate goes by.
    """
    if deepspeed is not None:  # here and not with the engine: by then policy and reference are loaded
        o, ranks, precision = config.optimizer, world_size(), config.policy.precision
        decided = run_values(o.micro_batch, config.accumulation_steps(ranks), ranks, precision, o.max_grad_norm)
        refuse_disagreement(deepspeed, decided)
    memory = config.run.memory_gb or device_memory_gb()
    if memory is None:
        return
    longest = longest_prompt(tokenizer, tasks)
    demand = estimate_run(config, deepspeed, longest, world_size())
    taken = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0
    demand = replace(demand, weights=demand.weights + taken)
    more = ("a smaller --max_prompt, --batch_rows or --num_layers_unfrozen",)
    check_memory(demand, memory, zero_stage(deepspeed), config.optimizer.micro_batch, more)


def longest_prompt(tokenizer, tasks: Sequence[Task]) -> int:
    """Tokens of the longest prompt, by the MEASURED with most characters; 0 where environments make the prompts."""
    return max(prompt_lengths(tokenizer, sorted(tasks, key=_characters)[-MEASURED:]), default=0)


def _characters(task: Task) -> int:
    prompt = task.get("prompt")
    if isinstance(prompt, Conversation):
        return len(prompt.persona) + sum(len(turn.text) for turn in prompt.turns)
    return len(prompt) if isinstance(prompt, str) else 0


def estimate_run(config: PPOConfig, deepspeed: dict | None, longest: int, ranks: int) -> MemoryEstimate:
    """Bytes on each of the ranks' devices, for prompts of at most `longest` tokens: policy, critic, reference, the
    weights that sample, the larger of an update's activations and the cache that sampling reads, and the frozen layers'
    states.

    An update's logits are held for so many tokens at a time that they are CHUNK_LOGITS; with their softmax and gradient
    they take 12 bytes each.
    """
    settings, rollout, method = config.policy, config.rollout, config.method
    model = load_config(settings.model, settings.trust_remote_code)
    context = context_length(model)
    prompt = min(filter(None, (longest, rollout.max_prompt)), default=0)
    row, size = min(context, prompt + rollout.max_new_tokens), 4 if settings.precision == "fp32" else 2
    whole, trained = _count(config, model)
    layers = min(method.num_layers_unfrozen, layer_count(model)) if method.num_layers_unfrozen > 0 else None

    rows = config.optimizer.micro_batch
    states = of_states(model, rows * row, settings.precision, settings.gradient_checkpointing, layers)
    states += 12 * min(rows * rollout.max_new_tokens * vocabulary_size(model), CHUNK_LOGITS)
    demand = of_weights(whole, trained, settings.precision, deepspeed, ranks)
    bits = bits_of(settings)
    if bits:
        demand = replace(demand, weights=bytes_in_bits((whole, trained), model, bits))
    if not is_on_trunk(method.critic):
        critic = load_config(method.critic)
        demand += of_weights(*count_weights(critic), settings.precision, deepspeed, ranks)
        own = of_states(critic, rows * row, settings.precision, settings.gradient_checkpointing)
        # one after the other where the engine bears it (ppo/learner.py)
        states = max(states, own) if takes_parts(deepspeed) else states + own
    reference = 0 if settings.lora_rank else trained if layers else whole
    rounds = settings.precision != "fp32" and deepspeed is None and not bits
    sampling = whole if zero_stage(deepspeed) == 3 or rounds else 0  # ppo/weight_sync.py
    own_rollouts = -(-rollout.num_rollouts // ranks)
    cache = min(rollout.batch_rows, own_rollouts) * row * cached_numbers(model) * size
    frozen = min(rollout.cache_gb * GIB, own_rollouts * row * width(model) * 4) if layers else 0
    weights = demand.weights + size * (reference + sampling)
    return replace(demand, weights=weights, activations=max(states, cache) + frozen)


def _count(config: PPOConfig, model_config) -> tuple[int, int]:
    """(all, trainable) weights of the policy, counted without allocating any."""
    unfrozen = config.method.num_layers_unfrozen
    if config.policy.lora_rank or unfrozen <= 0:
        return count_weights(model_config, config.policy, causal=True)
    with init_empty_weights():
        model = AutoModelForCausalLM.from_config(model_config)
    model.tie_weights()  # as count_weights does
    freeze_below(model, max(0, layer_count(model_config) - unfrozen))
    counts = [(p.numel(), p.requires_grad) for p in model.parameters()]
    return sum(n for n, _ in counts), sum(n for n, learns in counts if learns)
