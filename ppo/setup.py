"""Set-up: models, sampling weights, engine, experience and learner, in the order in which they must be made."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from lmgym.distributed.deepspeed_config import resolve_config, zero_stage
from lmgym.distributed.deepspeed_engine import FREEZABLE, LEARNING_RATE_SCALE, Engine, without_sharded_load
from lmgym.distributed.plain_engine import PlainEngine, TrainingEngine
from lmgym.distributed.random_state import seeded
from lmgym.distributed.ranks import rank, world_size
from lmgym.environments.protocol import Task
from lmgym.generation.prompt_fitting import distinct_prompts, fit_prompts
from lmgym.generation.protocol import Sampling
from lmgym.generation.vllm_server import ServerOptions
from lmgym.models.classifiers import round_frozen_weights
from lmgym.models.config_fields import width
from lmgym.models.critics import is_on_trunk, load_critic, load_value_head
from lmgym.models.forward.decoder import Decoder
from lmgym.models.forward.freezing import freeze_below
from lmgym.models.forward.policies import load_policy
from lmgym.models.forward.structure import inspect_decoder
from lmgym.models.lora import add_lora
from lmgym.report.status_line import StatusLine
from lmgym.runs.run import Run
from lmgym.runs.supervisor import Supervisor
from lmgym.training.capabilities import Suite, suite_of_run
from lmgym.training.reporting import show_notes
from lmgym.training.schedules import learning_rate
from lmgym.training.setup import record_size, refuse_unsavable
from ppo.actor_critic import ActorCritic, Reference, count_layers
from ppo.algorithms.learning import EstimateAdvantages, advantage_estimator, loss_function
from ppo.check import Plan
from ppo.config import PPOConfig
from ppo.engine_sampler import EngineSampler
from ppo.experience import Experience
from ppo.learner import Learner, NonFinite, Split, minibatches
from ppo.task_setups import TaskSetup
from ppo.weight_sync import Sampler, SamplingPolicy

ADAM_EPSILON = 1e-5
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}  # of a server; others are refused before
PROBED = 64  # tasks whose prompts may prove a sync of weights
# of a DeepSpeed config: dropped, because each parameter group has its own rate here
OWN_SECTIONS = {"optimizer", "scheduler"}
UNUSED = "DeepSpeed config: {} not used; PPO has its own AdamW and schedule, by --learning_rate, --schedule and others"


@dataclass
class TrainingComponents:
    """The objects that the training loop uses."""

    setup: TaskSetup
    tokenizer: Any
    engine: TrainingEngine
    sampler: Sampler
    experience: Experience
    estimate_advantages: EstimateAdvantages
    learner: Learner
    sampling: Sampling
    status: StatusLine
    evaluation_seconds: float = 0.0
    """of the last evaluation"""
    capabilities: Suite | None = None
    """tests at each evaluation"""


def set_up(plan: Plan, run: Run, supervisor: Supervisor) -> TrainingComponents:
    """Models, sampling weights and engine, in this order: an engine may shard what it is given."""
    config, deepspeed = plan.config, plan.deepspeed
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    actor, reference = build(config, plan.tokenizer)
    decoders = [actor.decoder, *filter(None, [actor.critic_decoder])]
    show_notes(sorted({decoder.note for decoder in decoders if decoder.note}), run)
    record_size(config, actor, run, supervisor, keeps_best=config.reward.best_metric is not None)
    for model in filter(None, (actor.policy, actor.critic)):
        refuse_unsavable(model, plan.tokenizer, run)
    o = config.optimizer
    updates = plan.iterations * plan.updates_per_iteration
    rate = learning_rate(o.learning_rate, o.schedule, o.warmup, updates)
    status = StatusLine("PPO", updates, "updates", shown=run.is_main)

    def begin(update: int) -> None:
        supervisor.heartbeat(f"update {update + 1}")
        status.update(update)

    updates_of_run = Updates(rate, supervisor.stop_non_finite, begin, status)
    servers = partial(_engine_sampler, plan, run, device) if config.engine.engine else None
    found = connect(config, deepspeed, actor, reference, plan.tokenizer, plan.setup, device, updates_of_run, servers)
    found.capabilities = suite_of_run(plan.capabilities, config.capabilities, supervisor)
    return found


@dataclass(frozen=True)
class Updates:
    """A run's optimizer updates: their learning rates, and the calls before and after them."""

    rate: Callable[[int], float]
    non_finite: NonFinite
    begin: Callable[[int], None]
    """called before each"""
    status: StatusLine


def connect(
    config: PPOConfig,
    deepspeed: dict | None,
    actor: ActorCritic,
    reference: Reference | None,
    tokenizer: Any,
    setup: TaskSetup,
    device: torch.device,
    updates: Updates,
    servers: Callable[[TrainingEngine], Sampler] | None = None,
) -> TrainingComponents:
    """The components of a run around loaded models, which move to the device. With `servers` these sample."""
    if config.policy.precision == "bf16" and deepspeed is None:
        round_frozen_weights(actor.policy)
    actor.to(device)
    if servers is None:
        own = SamplingPolicy(  # before an engine shards the policy
            actor,
            tokenizer,
            config.policy.precision,
            zero_stage(deepspeed) == 3,
            deepspeed is not None,
            config.rollout.generation_batch_size,
        )
    if reference is not None:
        if config.policy.precision == "bf16":
            reference.round(everything=deepspeed is not None)
        reference.model.to(device)
    engine = make_engine(config, actor, deepspeed)
    return TrainingComponents(
        setup,
        tokenizer,
        engine,
        servers(engine) if servers else own,
        make_experience(config, engine, reference, device),
        make_estimator(config),
        make_learner(config, engine, updates.rate, device, updates.non_finite, updates.begin),
        config.sampling,
        updates.status,
    )


def make_experience(
    config: PPOConfig, engine: TrainingEngine, reference: Reference | None, device: torch.device
) -> Experience:
    """The part that computes the numbers that updates need of rollouts."""
    given = config.policy.precision, config.correction, config.is_off_policy
    return Experience(config.algorithm, config.optimizer, *given, engine, reference, device)


def make_estimator(config: PPOConfig) -> EstimateAdvantages:
    """The estimator of the advantages."""
    return advantage_estimator(config.algorithm, config.method.credit == "turn", config.critic)


def make_learner(
    config: PPOConfig,
    engine: TrainingEngine,
    rate: Callable[[int], float],
    device: torch.device,
    non_finite: NonFinite,
    begin: Callable[[int], None] = lambda _: None,
    split: Split = minibatches,
) -> Learner:
    """The part that makes the updates, by the loss of the config's method."""
    loss = loss_function(config.algorithm, config.method, config.critic)
    sizes = config.optimizer, config.policy.precision, config.rollout.max_new_tokens
    return Learner(config.algorithm, config.method, *sizes, engine, loss, rate, device, non_finite, begin, split)


def _engine_sampler(plan: Plan, run: Run, device: torch.device, engine: TrainingEngine) -> EngineSampler:
    tasks: Sequence[Task] = plan.setup.tasks[:PROBED]
    prompts = (
        distinct_prompts(tasks)
        or [  # or environments make them
            seen.prompt for task in tasks[:1] for seen in plan.setup.new_environment().reset(task, 0).values()
        ]
    )
    ids = [prompt.ids for prompt in fit_prompts(plan.tokenizer, prompts, plan.prompt_room)]
    length = plan.prompt_room + plan.config.rollout.max_new_tokens
    config, options = plan.config, server_options(plan.config, length)
    given = engine, plan.tokenizer, ids, run.folder / "engine", device
    return EngineSampler(config.name, config.engine, options, config.policy.precision, *given)


def server_options(config: PPOConfig, max_length: int) -> ServerOptions:
    """The options of the server that the run starts."""
    return ServerOptions(
        model=config.policy.model,
        dtype=DTYPES[config.policy.precision],
        max_length=max_length,
        seed=config.optimizer.seed % 2**31,
        memory_fraction=config.engine.engine_memory,
        max_lora_rank=config.policy.lora_rank,
        receives_weights=True,
        sleeps=config.engine.engine_sleep,
        trust_remote_code=config.policy.trust_remote_code,
        served_name="policy",
    )


def make_engine(
    config: PPOConfig, actor: ActorCritic, deepspeed: dict | None, adam_epsilon: float = ADAM_EPSILON
) -> TrainingEngine:
    """Actor and critic with AdamW, under DeepSpeed or without."""
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
        o.smallest_micro_batch,
        config.accumulation_steps(world_size()),
        world_size(),
        config.policy.precision,
        o.max_grad_norm,
        width(actor.config),
    )
    resolved["zero_force_ds_cpu_optimizer"] = False  # ours is AdamW of torch, also where its state is offloaded
    return Engine.prepare(actor, optimizer, resolved)


def _groups(config: PPOConfig, actor: ActorCritic) -> list[dict[str, Any]]:
    """Trained weights by learning rate and decay: matrices decay, the critic may have its own rate, and the policy
    rests during the critic's warm-up.
    """
    rate, critic_rate = config.optimizer.learning_rate, config.critic.critic_learning_rate
    of_policy = {id(p) for p in actor.policy.parameters()}
    found: dict[tuple[float, float, bool], list[torch.Tensor]] = {}
    for p in actor.parameters():
        if p.requires_grad:
            scale = critic_rate / rate if critic_rate and id(p) not in of_policy else 1.0
            decay = config.optimizer.weight_decay if p.ndim >= 2 else 0.0
            rests = config.critic.critic_warmup > 0 and id(p) in of_policy
            found.setdefault((scale, decay, rests), []).append(p)
    return [
        {"params": own, "weight_decay": decay, LEARNING_RATE_SCALE: scale, FREEZABLE: rests}
        for (scale, decay, rests), own in found.items()
    ]


def build(config: PPOConfig, tokenizer) -> tuple[ActorCritic, Reference | None]:
    """The policy with its critic, in fp32, and its reference. Raises InputError for models that do not load.

    Call it after start_ranks: under ZeRO-3 models are loaded whole, and sharded by the engine.
    """
    settings, of_critic = config.policy, config.critic.critic
    with without_sharded_load():
        policy: Any = load_policy(settings.model, tokenizer, settings.trust_remote_code, settings.bits)
        own = config.algorithm.has_critic and not is_on_trunk(of_critic)
        critic = load_critic(of_critic, tokenizer) if own else None
        reference = None
        if config.method.reference is not None:
            other: Any = load_policy(config.method.reference, tokenizer, settings.trust_remote_code)
            reference = Reference(Decoder(other.requires_grad_(False).eval()), 0, config.rollout.temperature)
    actor, before = adapted(config, policy, critic)
    return actor, reference or before


def adapted(config: PPOConfig, policy, critic=None) -> tuple[ActorCritic, Reference | None]:
    """A loaded policy with its frozen layers or adapters, its critic, and its reference."""
    settings, method = config.policy, config.method
    layers = count_layers(settings.model, policy.config, method.num_layers_unfrozen)
    frozen = layers - method.num_layers_unfrozen if method.num_layers_unfrozen > 0 else 0
    structure = inspect_decoder(policy)
    if method.num_layers_unfrozen > 0:  # also for all layers: embeddings and a tied head are then frozen
        freeze_below(policy, frozen, structure)
    if settings.freeze_embeddings:
        policy.get_input_embeddings().requires_grad_(False)
    if settings.lora_rank:
        with seeded(config.optimizer.seed):  # every rank draws the same adapters
            policy = add_lora(
                policy,
                settings.lora_rank,
                settings.lora_alpha,
                0.0,
                settings.lora_target_modules,
                settings.modules_to_save,
            )
    actor = ActorCritic(
        policy,
        critic,
        frozen,
        config.rollout.temperature,
        settings.gradient_checkpointing,
        config.optimizer.seed,
        structure,
        config.algorithm.has_critic,
    )
    if actor.value_head is not None and config.critic.critic != "head":
        load_value_head(actor.value_head, config.critic.critic)
    return actor, Reference.of(actor)
