"""What must hold before the first update, or nothing that follows means anything; a failure names the token."""

from collections.abc import Sequence
from functools import partial

import torch

from lmgym.distributed.ranks import raise_on_all_ranks
from lmgym.environments.protocol import Task
from lmgym.environments.rollout_engine import Episode
from lmgym.errors import InputError
from lmgym.generation.prompt_fitting import fit_prompts, room_for_prompts
from lmgym.models.forward.policies import refuse_no_eos, refuse_unfit_policy
from lmgym.models.loading import context_length, load_config
from lmgym.models.memory import count_weights
from lmgym.text import Conversation, render_all, tokenize_texts
from ppo.actor_critic import count_layers, is_on_trunk, refuse_unfit_critic
from ppo.config import PPOConfig
from ppo.experience import LogprobMismatch
from ppo.learner import FirstLook
from ppo.rollouts import Rollouts
from ppo.setup import TrainingComponents
from ppo.state import LoopState
from ppo.weight_sync import Rounding, allowed_apart, measure_rounding

EXACT_GAP = 1e-4
"""nats that two computations of a log-probability in fp32 may differ by; of 16 bits see ppo/rounding.py"""
COARSE_ROUNDING = 0.1
"""nats a token between a model's log-probabilities in 16 bits and in fp32 above which people are warned: half of what
PPO's clip range is"""


def prompt_lengths(tokenizer, tasks: Sequence[Task]) -> list[int]:
    """Tokens of each prompt, each prompt once; none of tasks whose environment makes the prompts."""
    return _lengths(tokenizer, _distinct_prompts(tasks))


def _distinct_prompts(tasks: Sequence[Task]) -> list[str | Conversation]:
    prompts = (task.get("prompt") for task in tasks)
    return list(dict.fromkeys(prompt for prompt in prompts if isinstance(prompt, str | Conversation)))


def _lengths(tokenizer, prompts: Sequence[str | Conversation]) -> list[int]:
    rendered = iter(render_all(tokenizer, [prompt for prompt in prompts if not isinstance(prompt, str)]))
    texts = [prompt if isinstance(prompt, str) else next(rendered) for prompt in prompts]
    return [len(ids) for ids in tokenize_texts(tokenizer, texts)]


def check_policy(config: PPOConfig, tokenizer) -> int:
    """The policy's context, in tokens. Raises InputError, before any weights are read, for a policy that PPO cannot
    train, adapters on layers that it has not, a critic that reads other words, and replies that leave no room for a
    prompt.
    """
    settings, method = config.policy, config.method
    found = load_config(settings.model, settings.trust_remote_code)
    refuse_unfit_policy(settings.model, found)
    refuse_no_eos(settings.model, tokenizer)
    count_layers(config, found)
    if settings.lora_rank:
        count_weights(found, settings, causal=True)
    if not is_on_trunk(method.critic):
        refuse_unfit_critic(method.critic, tokenizer)
    context = context_length(found)
    most_of_a_prompt(config, context)
    return context


def most_of_a_prompt(config: PPOConfig, context: int) -> int:
    """Tokens of a prompt that the policy sees. Raises InputError where a reply leaves no room for any."""
    return room_for_prompts(context, config.sampling, config.rollout.max_prompt or None)


def check_prompts(config: PPOConfig, tokenizer, max_length: int, tasks: Sequence[Task]) -> list[str]:
    """A line where prompts are longer than the context leaves room for, and lose their oldest turns.

    Raises InputError where they are to be refused, where nothing of one would be left, or where a reply leaves no room.
    """
    settings = config.rollout
    room = most_of_a_prompt(config, max_length)
    prompts = _distinct_prompts(tasks)
    lengths = _lengths(tokenizer, prompts)
    long = [length for length in lengths if length > room]
    if not long:
        return []
    found = f"{len(long)} of {len(lengths)} prompts have more than {room} tokens, the longest {max(long)}"
    if settings.long_prompts == "refuse":
        raise InputError(
            f"{found}; needed: shorter ones, fewer max_new_tokens (now {settings.max_new_tokens} of a context of "
            f"{max_length}), or long_prompts=cut"
        )
    cut = fit_prompts(tokenizer, [p for p, length in zip(prompts, lengths, strict=True) if length > room], room)
    shortened = sum(prompt.shortened > 0 for prompt in cut)
    ends = f"; of {shortened} only the end of the last turn is left (--long_prompts refuse stops)" if shortened else ""
    return [f"{found}: they lose their oldest turns{ends}"]


def check_first_rollouts(
    config: PPOConfig, tokenizer, eos: Sequence[int], episodes: Sequence[Episode], rollouts: Rollouts,
    rounding_gap: float | None = None,
) -> None:  # fmt: skip
    """Raises InputError, with the token, where the reference is another model, a reply's eos has no place in the loss,
    or a score stands on the wrong token. For the first iteration of a run; in 16 bits `rounding_gap` is the policy's
    own distance from fp32.
    """
    if far := _far_apart(config, rollouts.logprobs, rollouts.reference_logprobs, rounding_gap):
        found, place = far
        raise InputError(
            f"policy and reference have the same weights and differ by {found}, most at "
            f"{_token(tokenizer, rollouts, place)}"
        )
    if set(eos) == {tokenizer.pad_token_id}:  # beside others it may end replies, as Qwen's does
        raise InputError(
            f"pad and eos are one token ({tokenizer.pad_token!r}): needed: a pad token of its own in the tokenizer's "
            "folder, or replies would never be seen to end"
        )
    _check_scores(config, tokenizer, set(eos), episodes, rollouts)


def check_rollouts(
    config: PPOConfig,
    p: TrainingComponents,
    state: LoopState,
    episodes: Sequence[Episode],
    rollouts: Rollouts,
    gap: LogprobMismatch,
) -> list[str]:
    """What must hold before an update, in the first iteration and in every one. Raises InputError, on all ranks.

    In 16 bits what they let differ is measured on the first rollouts, and again where that is not enough; returns lines
    on what people should know of it. Collective.
    """
    notes: list[str] = []
    raise_on_all_ranks(partial(check_finite, config, p.tokenizer, rollouts))
    raise_on_all_ranks(partial(p.sampler.refuse_stale, p.engine.version))
    known = state.rounding_gap
    if config.policy.precision == "fp32":
        raise_on_all_ranks(partial(check_gap, config, p.tokenizer, rollouts))
    elif known is None or gap.mean > allowed_apart(known, gap.tokens):
        rounding = measure_rounding(p.sampler.whole, rollouts, p.experience.actor.temperature, p.experience.device)
        raise_on_all_ranks(partial(check_gap, config, p.tokenizer, rollouts, rounding))
        notes = [] if known is not None else coarse(config, rounding)
        state.rounding_gap = rounding.trainer
    if state.iteration == 0:
        given = (p.tokenizer, p.sampler.generator.eos, episodes, rollouts, state.rounding_gap)
        raise_on_all_ranks(lambda: check_first_rollouts(config, *given))
    return notes


def coarse(config: PPOConfig, rounding: Rounding) -> list[str]:
    """A line where 16 bits are too few for this policy's ratios to mean much."""
    if rounding.trainer <= COARSE_ROUNDING:
        return []
    precision = config.policy.precision
    return [
        f"warning: {precision} is coarse for this policy: its log-probabilities differ by {rounding.trainer:.2g} nats "
        f"a token between {precision} and fp32 ({rounding.tokens} tokens), where PPO clips ratios at "
        f"{config.method.cliprange:g}; --precision fp32 learns from more than rounding"
    ]


def ratio_check(config: PPOConfig, p: TrainingComponents, state: LoopState, rollouts: Rollouts) -> FirstLook | None:
    """Before step 1: what looks at the log-probabilities of the very first forward that learns. Collective."""
    if state.iteration > 0:
        return None
    check = partial(check_ratio, config, p.tokenizer, rollouts)
    return lambda places, logprobs: raise_on_all_ranks(lambda: check(places, logprobs, state.rounding_gap))


def check_finite(config: PPOConfig, tokenizer, rollouts: Rollouts) -> None:
    """Raises InputError, with the token, where the policy gives no finite log-probability. In every iteration."""
    wrong = ~torch.isfinite(rollouts.logprobs)
    if wrong.any():
        place = int(wrong.long().argmax())
        raise InputError(
            f"the policy gives {_token(tokenizer, rollouts, place)} the log-probability {rollouts.logprobs[place]:g}: "
            f"its weights hold numbers that are not finite, or too large for {config.policy.precision}; needed: a "
            "model whose log-probabilities are finite"
        )


def check_gap(config: PPOConfig, tokenizer, rollouts: Rollouts, rounding: Rounding | None = None) -> None:
    """Raises InputError where sampler and trainer compute another function, as with other positions or another
    temperature: in fp32 by any token, in 16 bits by what `rounding` measured of both.
    """
    if rounding is None:
        if far := _far_apart(config, rollouts.logprobs, rollouts.sampler_logprobs):
            found, place = far
            raise InputError(
                f"sampler and trainer differ by {found}, most at {_token(tokenizer, rollouts, place)}: the first "
                "update's ratio would not be 1; a defect of ours, or an untested family"
            )
        return
    precision, own = config.policy.precision, rounding.trainer
    if rounding.sampler > rounding.allowed:
        apart = (rollouts.logprobs - rollouts.sampler_logprobs).abs()
        most = f", most at {_token(tokenizer, rollouts, int(apart.argmax()))}" if len(apart) else ""
        raise InputError(
            f"sampler and trainer differ: log-probabilities of {rounding.tokens} sampled tokens, as the sampler gives "
            f"them in {precision}, are {rounding.sampler:.2g} nats a token from the trainer's forward in fp32; the "
            f"trainer's own in {precision} are {own:.2g} from it, which allows {rounding.allowed:.2g}{most}: the first "
            "update's ratio would not be 1; a defect of ours, or an untested family"
        )


def check_ratio(
    config: PPOConfig, tokenizer, rollouts: Rollouts, places: torch.Tensor, logprobs: torch.Tensor,
    rounding_gap: float | None = None,
) -> None:  # fmt: skip
    """Raises InputError where the first forward that learns gives other log-probabilities than its ratio divides by.

    `logprobs` are those of the tokens at `places` of the M, with the weights still as they were. `rounding_gap` as in
    `check_first_rollouts`.
    """
    if far := _far_apart(config, logprobs, rollouts.logprobs[places], rounding_gap):
        found, place = far
        raise InputError(
            f"before any update the new log-probabilities and the old ones differ by {found}, most at "
            f"{_token(tokenizer, rollouts, int(places[place]))}: PPO's ratio must begin at 1; a defect of ours, or a "
            "model whose forward is not the same twice"
        )


def _far_apart(
    config: PPOConfig, logprobs: torch.Tensor, others: torch.Tensor, rounding_gap: float | None = None
) -> tuple[str, int] | None:
    """How far in words, where that is more than allowed, and the place of the token that is farthest; NaN is far.

    Two computations of the trainer: in fp32 the largest difference counts, in 16 bits the mean.
    """
    if not len(logprobs):
        return None
    apart, precision = (logprobs - others).abs().nan_to_num(torch.inf), config.policy.precision
    if precision == "fp32":
        found, most, why = float(apart.max()), EXACT_GAP, f"fp32 allows {EXACT_GAP:g}"
    else:
        assert rounding_gap is not None
        found, most = float(apart.mean()), allowed_apart(rounding_gap, len(logprobs))
        why = f"the policy's own {precision} is {rounding_gap:.2g} from fp32, which allows {most:.2g}"
    return None if found <= most else (f"{found:.2g} nats a token ({why})", int(apart.argmax()))


def _check_scores(config: PPOConfig, tokenizer, eos: set[int], episodes: Sequence[Episode], rollouts: Rollouts) -> None:
    last = torch.from_numpy(rollouts.firsts[1:] - 1)
    elsewhere = rollouts.scores.clone()
    elsewhere[last] = 0
    steps = [step for episode in episodes for step in episode.steps]
    dense = any(isinstance(step.reward, tuple) for step in steps)
    if not dense and bool(elsewhere.any()):
        raise InputError(
            f"a score stands at {_token(tokenizer, rollouts, int(elsewhere.abs().argmax()))}, no reply's end"
        )
    for number, step in enumerate(steps):
        ended_by_eos = step.completion.finish_reason == "eos"
        final = rollouts.rows[number][-1]
        if ended_by_eos != (final in eos) and step.completion.finish_reason != "stop":
            raise InputError(
                f"reply {number} ended by {step.completion.finish_reason}, and its last token is "
                f"{_token(tokenizer, rollouts, int(last[number]))}: eos must be sampled, kept and rewarded"
            )


def _token(tokenizer, rollouts: Rollouts, place: int) -> str:
    """A token in words: which of which reply."""
    row = int(torch.searchsorted(torch.from_numpy(rollouts.firsts), place, right=True)) - 1
    within = place - int(rollouts.firsts[row])
    id_ = rollouts.rows[row][len(rollouts.rows[row]) - int(rollouts.counts[row]) + within]
    return f"token {within} of reply {row}, {tokenizer.decode([id_])!r} (id {id_})"


def biases(config: PPOConfig) -> list[str]:
    """A line where rollouts are drawn from another distribution than the policy's."""
    r = config.rollout
    found = [
        f"{name}={getattr(r, name)}"
        for name, off in (("top_k", 0), ("top_p", 1.0), ("repetition_penalty", 1.0))
        if getattr(r, name) != off
    ]
    if not found:
        return []
    return [
        f"warning: {', '.join(found)} in rollouts: replies are drawn from another distribution than the policy's, so "
        "the gradient is biased; PPO's own is temperature alone"
    ]


def idle_policy(config: PPOConfig, iterations: int) -> list[str]:
    """A line where the policy never learns, the critic's warm-up being as long as the run."""
    warmup = config.method.critic_warmup
    if warmup < iterations:
        return []
    return [f"warning: critic_warmup={warmup} of {iterations} iterations: the policy will not learn, only its critic"]
