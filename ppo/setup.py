"""What the loop works with: models, the weights that sample, the engine, in the order in which they must be made."""

from dataclasses import dataclass
from typing import Any

import torch

from lmgym.distributed.deepspeed_config import resolve_config, zero_stage
from lmgym.distributed.deepspeed_engine import MAY_REST, RATE_SCALE, Engine
from lmgym.distributed.plain_engine import PlainEngine, Trained
from lmgym.distributed.ranks import rank, world_size
from lmgym.generation.protocol import Sampling
from lmgym.models.config_fields import width
from lmgym.models.parameters import count_parameters
from lmgym.runs.run import Run
from lmgym.runs.supervisor import Supervisor
from lmgym.training.reporting import show_notes
from lmgym.training.schedules import learning_rate
from lmgym.training.setup import room_for_checkpoints
from ppo.actor_critic import ActorCritic, build
from ppo.config import PPOConfig
from ppo.experience import Experience
from ppo.learner import Learner
from ppo.task_setups import TaskSetup
from ppo.weight_sync import SamplingPolicy

ADAM_EPSILON = 1e-5
OWN_SECTIONS = {"optimizer", "scheduler"}  # of a DeepSpeed config: dropped, for each group has a rate of its own here
UNUSED = "DeepSpeed config: {} not used; PPO has its own AdamW and schedule, by --learning_rate, --schedule and others"


@dataclass
class TrainingComponents:
    """What the loop works with."""

    setup: TaskSetup
    tokenizer: Any
    engine: Trained
    sampler: SamplingPolicy
    experience: Experience
    learner: Learner
    sampling: Sampling
    updates: int
    """optimizer updates an iteration"""


def set_up(
    config: PPOConfig,
    setup: TaskSetup,
    deepspeed: dict | None,
    tokenizer,
    run: Run,
    supervisor: Supervisor,
    iterations: int,
) -> TrainingComponents:
    """Models, the weights that sample, and the engine, in this order: an engine may shard what it is given."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    actor, reference = build(config, tokenizer)
    if run.is_main:
        decoders = [actor.decoder, *filter(None, [actor.critic_decoder])]
        show_notes(sorted({decoder.note for decoder in decoders if decoder.note}))
    trainable, parameters = count_parameters(actor)
    run.update(parameters=parameters, trainable_parameters=trainable)
    supervisor.checkpoint_bytes = room_for_checkpoints(config, actor, run)
    actor.to(device)
    sampler = SamplingPolicy(
        actor, tokenizer, config.policy.precision, zero_stage(deepspeed) == 3, deepspeed is not None,
        config.rollout.batch_rows,
    )  # fmt: skip
    if reference is not None:
        if config.policy.precision == "bf16":
            reference.round(everything=deepspeed is not None)
        reference.model.to(device)
    engine = make_engine(config, actor, deepspeed)
    o = config.optimizer
    updates = updates_an_iteration(config, setup)
    rate = learning_rate(o.learning_rate, o.schedule, o.warmup, iterations * updates)
    learner = Learner(config, engine, rate, device, supervisor.leave_non_finite, supervisor.heartbeat)
    experience = Experience(config, engine, reference, device)
    return TrainingComponents(setup, tokenizer, engine, sampler, experience, learner, config.sampling, updates)


def make_engine(
    config: PPOConfig, actor: ActorCritic, deepspeed: dict | None, adam_epsilon: float = ADAM_EPSILON
) -> Trained:
    """The policy and its critic with AdamW, under DeepSpeed or without."""
    o = config.optimizer
    optimizer = torch.optim.AdamW(
        _groups(config, actor), lr=o.learning_rate, betas=(0.9, o.adam_beta2), eps=adam_epsilon, fused=deepspeed is None
    )
    if deepspeed is None:
        return PlainEngine(actor, optimizer, config.policy.precision, o.max_grad_norm)
    if own := sorted(deepspeed.keys() & OWN_SECTIONS):
        show_notes([UNUSED.format(" and ".join(own))] if rank() == 0 else [])
    resolved = resolve_config(
        {key: section for key, section in deepspeed.items() if key not in OWN_SECTIONS},
        o.micro_batch, config.accumulation_steps(world_size()), world_size(),
        config.policy.precision, o.max_grad_norm, width(actor.config),
    )  # fmt: skip
    resolved["zero_force_ds_cpu_optimizer"] = False  # ours is AdamW of torch, also where its state is offloaded
    return Engine.prepare(actor, optimizer, resolved)


def _groups(config: PPOConfig, actor: ActorCritic) -> list[dict[str, Any]]:
    """Trained weights by their rate and decay: matrices decay, the critic may have a rate of its own, and the policy
    rests while it warms up.
    """
    rate, critic_rate = config.optimizer.learning_rate, config.method.critic_learning_rate
    of_policy = {id(p) for p in actor.policy.parameters()}
    found: dict[tuple[float, float, bool], list[torch.Tensor]] = {}
    for p in actor.parameters():
        if p.requires_grad:
            scale = critic_rate / rate if critic_rate and id(p) not in of_policy else 1.0
            decay = config.optimizer.weight_decay if p.ndim >= 2 else 0.0
            rests = config.method.critic_warmup > 0 and id(p) in of_policy
            found.setdefault((scale, decay, rests), []).append(p)
    return [
        {"params": own, "weight_decay": decay, RATE_SCALE: scale, MAY_REST: rests}
        for (scale, decay, rests), own in found.items()
    ]


def updates_an_iteration(config: PPOConfig, setup: TaskSetup) -> int:
    """Optimizer updates between two rollout phases: each trained agent of a game has an episode of its own."""
    return config.updates_an_iteration * setup.trained_agents


def count_iterations(config: PPOConfig, setup: TaskSetup) -> int:
    """Rollout phases of a run: as many as its updates need, or its passes over the tasks."""
    if config.optimizer.max_updates > 0:
        return -(-config.optimizer.max_updates // updates_an_iteration(config, setup))
    return max(1, round(config.optimizer.epochs * len(setup.tasks) / config.rollout.num_rollouts))
