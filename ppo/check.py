"""The check of a PPO run: all that can be refused before weights are loaded, and the plan that follows from it."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import torch

from lmgym.aids import aid
from lmgym.config import UpTo, check_eval_size, check_shared_settings
from lmgym.console import CONSOLE, say
from lmgym.data.truncation import describe_truncation
from lmgym.distributed.deepspeed_engine import engine_name
from lmgym.distributed.random_state import seed_all
from lmgym.distributed.ranks import raise_on_all_ranks, rank, world_size
from lmgym.environments.protocol import Task
from lmgym.errors import InputError, shown
from lmgym.generation.model_specs import read_model_spec
from lmgym.generation.prompt_fitting import (
    distinct_prompts,
    fit_prompts,
    longest_prompt,
    prompt_lengths,
    room_for_prompts,
)
from lmgym.generation.vllm_server import vllm_python
from lmgym.models.config_fields import context_length
from lmgym.models.critics import is_on_trunk, refuse_unfit_critic
from lmgym.models.forward.policies import refuse_no_eos, refuse_unfit_policy, refuse_unfit_reference
from lmgym.models.loading import load_config, load_tokenizer
from lmgym.models.memory import refuse_absent_modules
from lmgym.models.sources import base_of_adapter
from lmgym.runs.fields import flatten
from lmgym.runs.paths import with_absolute_paths
from lmgym.runs.user_code import call_user_code
from lmgym.scoring.alarm import preview
from lmgym.scoring.judge_family import family_notes
from lmgym.training.capabilities import check_capabilities
from lmgym.training.plan import fit_prompts_to_context, start_ranks
from lmgym.training.precision import with_native_precision
from lmgym.training.reporting import show_notes, show_rejections
from lmgym.training.setup import EVALUATIONS
from lmgym.turn_ends import template_notes
from ppo.actor_critic import count_layers
from ppo.algorithms.kl import MOST_CHANGE
from ppo.algorithms.methods import MethodName, preset
from ppo.best import check_best_metric
from ppo.config import PPOConfig
from ppo.config.rollout import OWN
from ppo.memory import check_run_memory
from ppo.opponents import check_opponents
from ppo.rewards import EVAL_SCORER, optimised, weight_notes
from ppo.task_setups import Prepare, TaskSetup, check_setup, verdict_notes

MOST_PASSES, FEWEST_ITERATIONS = 10, 10
"""over the tasks, and of a run, where the user did not set the number of updates"""


@dataclass(frozen=True)
class Plan:
    """All that is resolved before weights are loaded."""

    config: PPOConfig
    deepspeed: dict | None
    tokenizer: Any
    setup: TaskSetup
    prompt_room: int
    """maximum tokens of a prompt"""
    iterations: int
    notes: list[str]
    capabilities: Sequence[Any] = ()
    """tasks of lm-eval, at each evaluation"""

    @property
    def updates_per_iteration(self) -> int:
        """Optimizer updates between two rollout phases: each trained agent of a game has an episode of its own."""
        return self.config.updates_per_iteration * self.setup.trained_agents

    def show(self) -> None:
        """Print data, rejected rows, engine and notes; on rank 0."""
        if rank() != 0:
            return
        config, setup = self.config, self.setup
        say(
            f"{len(setup.tasks):,} tasks to train on, {len(setup.eval_tasks):,} to evaluate on; {self.iterations} "
            f"iterations of {config.rollout.num_rollouts} episodes and {self.updates_per_iteration} updates of "
            f"{config.optimizer.global_batch} ({self.iterations * config.rollout.num_rollouts / len(setup.tasks):.3g} "
            "passes over the tasks)"
        )
        if setup.rows:
            show_rejections(setup.tally)
        parts = [part.line("prompts") for part in setup.parts]
        show_notes([*setup.reading, *parts, str(config.algorithm), *verdict_notes(config, setup)])
        show_notes(weight_notes(setup.reward_function))
        say(f"{engine_name(self.deepspeed)}, {world_size()} rank(s), {config.policy.precision}")
        show_notes(self.notes)

    @aid("the preview of tasks")
    def show_tasks(self) -> None:
        """Print the first prompts of three tasks as the policy sees them; on rank 0."""
        for task in self.setup.tasks[:3] if rank() == 0 else []:
            for agent, seen in self.setup.first_observations(task).items():
                [prompt] = fit_prompts(self.tokenizer, [seen.prompt], self.prompt_room)
                lost = describe_truncation(prompt.dropped_turns, prompt.shortened)
                CONSOLE.rule(f"{agent}: {len(prompt.ids)} tokens{lost and f', {lost}'}", style="dim")
                CONSOLE.print(prompt.text, soft_wrap=True)


def check(config: PPOConfig, prepare: Prepare) -> Plan:
    """The plan of a run. Raises InputError for settings, data and models that PPO cannot use. Collective."""
    config = with_native_precision(with_absolute_paths(config))
    check_settings(config, world_size())
    deepspeed = start_ranks(config, config.policy, config.accumulation_steps(world_size()))
    tokenizer = load_tokenizer(config.policy.model, config.policy.trust_remote_code)
    context = check_models(config, tokenizer)
    max_prompt, notes = fit_prompts_to_context(
        config.rollout.max_prompt, context, config.rollout.max_new_tokens, config.policy.model
    )
    config = replace(config, rollout=replace(config.rollout, max_prompt=max_prompt))
    seed_all(config.optimizer.seed, rank())  # for rewards and environments that draw random numbers
    setup = call_user_code("the function that makes the tasks", lambda: prepare(config, tokenizer))
    if not isinstance(setup, TaskSetup):
        raise InputError(f"the function that makes the tasks returned {shown(setup)}; needed: a TaskSetup")
    if not config.rollout.replay:
        check_setup(config, setup, tokenizer)
    config = fit_rollouts(config, len(setup.tasks))
    check_opponents(config.rollout.opponents, setup)
    check_best_metric(config.reward, setup.monitors)
    tasks = [*setup.tasks, *setup.eval_tasks]
    cuts = raise_on_all_ranks(lambda: check_prompts(config, tokenizer, context, tasks) if rank() == 0 else [])
    check_run_memory(config, deepspeed, tokenizer, tasks)
    iterations = count_iterations(config, setup)
    notes += [*template_notes(tokenizer), *bias_notes(config), *warmup_notes(config, iterations), *cuts]
    notes += [
        *alarm_notes(config, setup, iterations),
        *config.sampler_notes,
        *unread_notes(config),
        *family_notes(optimised(config.reward), config.policy.model, tokenizer),
        *long_rows_note(config, tokenizer, tasks),
    ]
    room, capabilities = prompt_room(config, context), check_capabilities(config.capabilities, deepspeed)
    return Plan(config, deepspeed, tokenizer, setup, room, iterations, notes, capabilities)


def check_settings(config: PPOConfig, ranks: int) -> None:
    """Raises InputError for settings out of range, or that do not go together."""
    check_shared_settings(config, config.policy)
    check_eval_size(config.rollout.eval_size, "prompts")
    config.sampling  # noqa: B018 - checks its own ranges
    config.refuse_unfit_ahead()
    config.refuse_unfit_sleep()
    check_engine(config)
    check_normalize(config)
    method, algorithm, adapts = config.method, config.algorithm, config.method.target is not None
    rollouts, batch, group = config.rollout.num_rollouts, config.optimizer.global_batch, algorithm.num_generations
    compared = config.reward.has_comparing_judge
    unfrozen, lora, horizon = method.num_layers_unfrozen, config.policy.lora_rank, MOST_CHANGE * rollouts
    rules = {
        f"learning_rate={config.optimizer.learning_rate}; needed: above 0": config.optimizer.learning_rate == 0,
        f"global_batch={batch} cannot be shared by {ranks} ranks; use {_near(batch, ranks)}": batch % ranks > 0,
        f"num_rollouts={rollouts} is not a multiple of global_batch={batch}; use {_near(rollouts, batch)}: every "
        "update of an iteration sees as many rollouts": rollouts % batch > 0,
        f"num_layers_unfrozen={unfrozen} and lora_rank={lora}: each is a way to train a part of the policy; choose one "
        "(--num_layers_unfrozen -1 or --lora_rank 0)": unfrozen > 0 and lora > 0,
        "target needs init_kl_coef above 0: an adaptive weight of 0 stays 0; use --init_kl_coef 0.05, or "
        "--target none": adapts and algorithm.init_kl_coef == 0,
        f"num_rollouts={rollouts} is not a multiple of num_generations={group}; use {_near(rollouts, group)}: groups "
        "are whole": rollouts % group > 0,
        f"num_generations={group} with --method {algorithm.name}, which compares the replies to one prompt; needed: 2 "
        "or more": algorithm.compares and group < 2,
        f"--scorers {shown(config.reward.scorers)} compares the replies to one prompt, and --method {algorithm.name} "
        "has each reply alone; needed: --method grpo, rloo or another one that compares": compared
        and not algorithm.compares,
        f"--scorers {shown(config.reward.scorers)} compares the replies to one prompt, and {rollouts // max(1, group)} "
        f"groups on {ranks} ranks are split; needed: num_rollouts={_near(rollouts, group * ranks)}": compared
        and algorithm.compares
        and (rollouts // max(1, group)) % ranks > 0,
        f"delta={method.delta} with epsilon_high={algorithm.epsilon_high:g}; needed: a delta above "
        f"{1 + algorithm.epsilon_high:g}, or it would bound what is clipped already": method.delta is not None
        and method.delta <= 1 + algorithm.epsilon_high,
        f"horizon={method.horizon:g} with num_rollouts={rollouts}; needed: a horizon above {horizon:g}, or one "
        "iteration can take all of the KL coefficient; 10000 is usual": adapts and method.horizon <= horizon,
        "--precision fp16 without --deepspeed; needed: DeepSpeed, which alone scales the loss of PPO so that small "
        "gradients are not lost: use bf16 or fp32, or add --deepspeed zero2": (
            config.policy.precision == "fp16" and config.run.deepspeed is None and torch.cuda.is_available()
        ),
    }
    for message, broken in rules.items():
        if broken:
            raise InputError(message)


def check_normalize(config: PPOConfig) -> None:
    """Raises InputError for a way to normalise rewards that is none, or that other settings leave no place for."""
    normalize, algorithm, clip = config.reward.normalize, config.algorithm, config.reward.cliprange_reward
    if normalize not in (None, "run", "group", "none"):
        raise InputError(f"normalize={shown(normalize)}; needed: run, group or none")
    if normalize == "run" and config.reward.has_comparing_judge:
        raise InputError(
            "normalize=run with a judge that compares, whose strengths sum to 0 among the replies to each prompt; "
            "needed: --normalize none, or group"
        )
    if normalize != "group":
        return
    if not algorithm.compares or algorithm.percentile is not None:
        needed = ", ".join(
            name for name in get_args(MethodName) if preset(name).compares and preset(name).percentile is None
        )
        raise InputError(
            f"normalize=group with --method {algorithm.name}, whose advantages compare no replies to one prompt; "
            f"needed: one of {needed}, or --normalize run"
        )
    if config.method.scale_rewards is not None:
        raise InputError(
            f"scale_rewards={config.method.scale_rewards} with normalize=group, which scales each reward by its group "
            "and the sum by the batch; needed: the one or the other"
        )
    if clip is not None and clip < math.inf:
        raise InputError(f"cliprange_reward={clip:g} with normalize=group, which clips nothing; needed: one of both")


def check_engine(config: PPOConfig) -> None:
    """Raises InputError for an engine that is not known, and for what one outside this process cannot do."""
    engine, own = config.engine.engine, "lmgym's own engine: leave --engine out"
    if engine is None:
        return
    if engine != OWN and not (engine.startswith("vllm:") and read_model_spec(engine).urls):
        raise InputError(
            f"--engine {shown(engine)}; needed: vllm, vllm:URL[,URL] as in vllm:http://127.0.0.1:8000, or {own}: other "
            "servers give no log-probabilities by token ids and take no weights"
        )
    rollout, policy = config.rollout, config.policy
    neutral = rollout.top_k == 0 and rollout.top_p == 1 and rollout.repetition_penalty == 1
    rules = {
        "--policy_over actions, which reads the model's own log-probabilities": rollout.policy_over == "actions",
        "--capabilities, which are tested in this process: lmgym eval tests the result": bool(
            config.capabilities.capabilities
        ),
        "--top_k, --top_p or --repetition_penalty, after which vLLM gives its log-probabilities": not neutral,
        f"--load_in_{policy.bits}bit, whose weights vLLM does not have": policy.bits != 0,
        "--precision fp16; use bf16": policy.precision == "fp16",
        "--modules_to_save, which vLLM's adapters do not have": bool(policy.lora_rank and policy.modules_to_save),
        "a policy that is an adapter; save the merged model first": base_of_adapter(policy.model) is not None,
        "several machines, where vllm is of one of them alone; start lmgym engine serve and name vllm:URL": (
            engine == OWN and int(os.environ.get("LOCAL_WORLD_SIZE", world_size())) < world_size()
        ),
    }
    for what, found in rules.items():
        if found:
            raise InputError(f"--engine {shown(engine)} with {what}; needed: the one without the other, or {own}")
    if engine == OWN:
        vllm_python()


def _near(number: int, factor: int) -> str:
    low, high = number // factor * factor, -(-number // factor) * factor
    return f"{low} or {high}" if low else str(high)


def check_models(config: PPOConfig, tokenizer) -> int:
    """The policy's context, in tokens. Raises InputError for models that PPO cannot train with these settings."""
    settings, found = config.policy, load_config(config.policy.model, config.policy.trust_remote_code)
    refuse_unfit_policy(settings.model, found)
    refuse_no_eos(settings.model, tokenizer)
    count_layers(settings.model, found, config.method.num_layers_unfrozen)
    refuse_absent_modules(found, settings, causal=True)
    if config.algorithm.has_critic and not is_on_trunk(config.critic.critic):
        refuse_unfit_critic(config.critic.critic, tokenizer)
    if config.method.reference is not None:
        refuse_unfit_reference(config.method.reference, tokenizer, settings.trust_remote_code)
    context = context_length(found)
    room_for_prompts(context, config.sampling)
    return context


def prompt_room(config: PPOConfig, context: int) -> int:
    """Maximum tokens of a prompt. Raises InputError if a reply leaves no room for any."""
    return room_for_prompts(context, config.sampling, config.rollout.max_prompt or None)


def check_prompts(config: PPOConfig, tokenizer, context: int, tasks: Sequence[Task]) -> list[str]:
    """A note if prompts are too long and lose their oldest turns. Raises InputError if they are to be refused."""
    room, prompts = prompt_room(config, context), distinct_prompts(tasks)
    lengths = prompt_lengths(tokenizer, prompts)
    long = [prompt for prompt, length in zip(prompts, lengths, strict=True) if length > room]
    if not long:
        return []
    found = f"{len(long)} of {len(prompts)} prompts have more than {room} tokens, the longest {max(lengths)}"
    if config.rollout.long_prompts == "refuse":
        raise InputError(
            f"{found}; needed: shorter ones, fewer max_new_tokens (now {config.rollout.max_new_tokens} of a context of "
            f"{context}), or long_prompts=cut"
        )
    shortened = sum(prompt.shortened > 0 for prompt in fit_prompts(tokenizer, long, room))
    ends = f"; of {shortened} only the end of the last turn is left (--long_prompts refuse stops)" if shortened else ""
    return [f"{found}: they lose their oldest turns{ends}"]


def is_due(iteration: int, updates: int, per_iteration: int, iterations: int) -> bool:
    """True if something that happens every so many updates (0: five times per run) happens after this iteration."""
    every = max(1, round(updates / per_iteration) if updates > 0 else -(-iterations // EVALUATIONS))
    return iteration % every == 0 or iteration == iterations


def alarm_notes(config: PPOConfig, setup: TaskSetup, iterations: int) -> list[str]:
    """A line on the falls that the alarm can show, if there is one."""
    if EVAL_SCORER not in setup.monitors or config.run.eval_updates < 0:
        return []
    prompts = {str(task.get("prompt", number)) for number, task in enumerate(setup.eval_tasks)}
    updates = config.updates_per_iteration * setup.trained_agents
    due = [is_due(number + 1, config.run.eval_updates, updates, iterations) for number in range(iterations)]
    return [preview(len(prompts), 1 + sum(due))]


def bias_notes(config: PPOConfig) -> list[str]:
    """A warning if rollouts are sampled from another distribution than the policy's."""
    r = config.rollout
    defaults = {"top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0}
    found = [f"{name}={getattr(r, name)}" for name, default in defaults.items() if getattr(r, name) != default]
    warning = (
        f"warning: {', '.join(found)} in rollouts: replies are drawn from another distribution than the policy's, so "
        "the gradient is biased; PPO's own is temperature alone"
    )
    return [warning] if found and r.policy_over == "tokens" else []


def unread_notes(config: PPOConfig) -> list[str]:
    """A line on settings of the experiment that are not read: those of the command line are refused."""
    defaults, values = flatten(PPOConfig(config.name)), flatten(config)
    found = [f"{name}={values[name]}" for name in values if name in config.unread and values[name] != defaults[name]]
    who = config.algorithm.name + " over actions" * (config.rollout.policy_over == "actions")
    return [f"{who} does not read {', '.join(found)} of the experiment"] if found else []


def warmup_notes(config: PPOConfig, iterations: int) -> list[str]:
    """A warning if the critic's warm-up is as long as the run."""
    warmup = config.critic.critic_warmup
    if warmup < iterations or not config.algorithm.has_critic:
        return []
    return [f"warning: critic_warmup={warmup} of {iterations} iterations: the policy will not learn, only its critic"]


def fit_rollouts(config: PPOConfig, tasks: int) -> PPOConfig:
    """The config with fewer episodes an iteration, where the user did not set them and the tasks are fewer."""
    rollouts, generations = config.rollout.num_rollouts, config.algorithm.num_generations
    if not isinstance(rollouts, UpTo):
        return config
    fitting, whole = int(rollouts), math.lcm(config.optimizer.global_batch, generations)
    while fitting > tasks * generations and fitting % (2 * whole) == 0:
        fitting //= 2
    return replace(config, rollout=replace(config.rollout, num_rollouts=fitting))


def count_iterations(config: PPOConfig, setup: TaskSetup) -> int:
    """Rollout phases of a run: as many as its updates need, or its passes over the tasks.

    Updates that the user did not set are at most those of MOST_PASSES over the tasks.
    """
    if (updates := config.optimizer.max_updates) > 0:
        asked = -(-updates // (config.updates_per_iteration * setup.trained_agents))
        passes = max(FEWEST_ITERATIONS, -(-MOST_PASSES * len(setup.tasks) // config.rollout.num_rollouts))
        return min(asked, passes) if isinstance(updates, UpTo) else asked
    return max(1, round(config.optimizer.epochs * len(setup.tasks) / config.rollout.num_rollouts))


def long_rows_note(config: PPOConfig, tokenizer, tasks: Sequence[Task]) -> list[str]:
    """A line if a reply and its prompt may exceed `--tokens_per_micro_batch`."""
    most, replies = config.optimizer.tokens_per_micro_batch, config.rollout.max_new_tokens
    longest = min(filter(None, (longest_prompt(tokenizer, tasks), config.rollout.max_prompt)), default=0) if most else 0
    if not most or longest + replies <= most:
        return []
    return [
        f"a prompt of {longest:,} tokens with a reply of {replies:,} exceeds --tokens_per_micro_batch {most:,}: such a "
        "row runs alone"
    ]
