"""The rollout engine: many episodes advance together, whatever their environments do and however long they take.

Design decisions:
- All pending observations go into one request to the generator, and all score requests into one to the reward function.
- The seed of a reply is a function of (`sampling.seed`, the episode's seed, its step, the agent): who else is in the
  batch changes nothing.
- What was sampled stays as the sampler's ids: only what an environment shows is tokenised.
- An agent with a generator of its own acts and leaves no step. What a trained agent earns while others act belongs to
  its latest act.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import Any, Literal, Protocol, TypeVar

from lmgym.environments.protocol import Environment, Observation, RewardFunction, Sample, StepResult, Task
from lmgym.errors import InputError
from lmgym.generation.prompt_fitting import Prompt, fit_prompts, room_for_prompts
from lmgym.generation.protocol import Completion, Generator, Sampling, seeds_of
from lmgym.text import Conversation, Turn

MOST_THREADS = 64  # blocking environments that wait at the same time
Reward = float | tuple[float, ...] | None
OnLongPrompt = Literal["cut", "refuse"]
T = TypeVar("T")


class TokenGenerator(Protocol):
    """Who samples for the agents that are trained: token ids in and out."""

    @property
    def max_length(self) -> int:
        """Tokens of a prompt and its reply together."""
        ...

    def generate(self, prompts: Sequence[list[int]], n: int, sampling: Sampling) -> list[list[Completion]]:
        """n completions of each prompt, by a seed each."""
        ...


@dataclass(frozen=True)
class Step:
    """One act of an agent that is trained."""

    prompt: list[int]
    """ids that the policy saw"""
    prompt_text: str
    """the same in words"""
    completion: Completion
    reward: Reward = 0.0
    """the environment's and the reward's; one a sampled id where that is dense, the environment's on the last; None
    where the reward failed: to be masked"""
    scores: Mapping[str, float] = field(default_factory=dict)
    error: str = ""
    dropped_turns: int = 0
    """oldest turns that the prompt was shown without"""
    shortened: int = 0
    """tokens that its last turn lost: see lmgym/data/truncation.py"""


@dataclass(frozen=True)
class Episode:
    """The steps of one agent in one episode, in order."""

    index: int
    """which task of the request"""
    agent: str
    steps: list[Step]
    terminated: bool
    truncated: bool
    final_prompt: list[int] | None
    """of an episode that was truncated: ids of what this agent would see next, to bootstrap from"""
    info: Mapping[str, float]


def run_episodes(
    environments: Sequence[Environment],
    tasks: Sequence[Task],
    seeds: Sequence[int],
    generator: TokenGenerator,
    tokenizer,
    sampling: Sampling,
    reward_function: RewardFunction | None,
    others: Mapping[str, Generator] | None = None,
    max_prompt: int | None = None,
    on_long_prompt: OnLongPrompt = "cut",
) -> list[Episode]:
    """Environment i plays task i by seed i to its end; an `Episode` for each trained agent who acted, in that order.

    `others` act for the agents of those names, which are not trained: score requests for them are left out. A prompt
    has at most `max_prompt` tokens (None: what the context leaves beside `sampling.max_new_tokens`); a longer one
    loses its oldest turns, or is refused. Raises InputError for that, for a context without room, an instance that
    is given twice, and environments that break the protocol; what an environment raises goes through with a note of
    the episode, what the reward function raises as it is.
    """
    assert len(environments) == len(tasks) == len(seeds)
    if len(set(map(id, environments))) < len(environments):
        raise InputError("an environment was given twice; needed: an instance an episode, as [Chat() for _ in tasks]")
    room = room_for_prompts(generator.max_length, sampling, max_prompt)
    players = _Players(generator, tokenizer, sampling, others or {}, room, on_long_prompt)
    running = [_Running(i, seed, one) for i, (seed, one) in enumerate(zip(seeds, environments, strict=True))]
    threads = ThreadPoolExecutor(MOST_THREADS)  # none starts before it is needed
    try:
        resets = [partial(one.environment.reset, task, one.seed) for one, task in zip(running, tasks, strict=True)]
        for one, observations in zip(running, _call_all(threads, running, resets), strict=True):
            one.go_on(StepResult(observations))
        while pending := [one for one in running if not one.ended]:
            actions = players.act(pending)
            steps = [partial(one.environment.step, said) for one, said in zip(pending, actions, strict=True)]
            for one, result in zip(pending, _call_all(threads, pending, steps), strict=True):
                one.number += 1
                one.go_on(result)
            _reward(pending, reward_function, players.others)
    finally:
        threads.shutdown(cancel_futures=True)
    return players.episodes(running)


@dataclass
class _Running:
    """An episode under way."""

    index: int
    seed: int
    environment: Environment
    number: int = 0
    """steps that were taken"""
    result: StepResult = field(default_factory=StepResult)
    steps: dict[str, list[Step]] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"episode {self.index} (seed {self.seed}) of {type(self.environment).__name__}, step {self.number}"

    @property
    def observations(self) -> Mapping[str, Observation]:
        return self.result.observations

    @property
    def ended(self) -> bool:
        return self.result.terminated or self.result.truncated

    def go_on(self, result: StepResult) -> None:
        if not isinstance(result, StepResult):
            raise InputError(
                f"{self}: `step` gave a {type(result).__name__}; needed: a StepResult, which Gymnasium's tuples become "
                "as in lmgym/environments/blackjack.py"
            )
        self.result = result
        seen = self.observations.values() if isinstance(self.observations, Mapping) else [self.observations]
        if strange := [type(one).__name__ for one in seen if not isinstance(one, Observation)]:
            raise InputError(
                f"{self}: a {strange[0]} is observed; needed: {{agent: Observation(prompt)}} for all who act next"
            )
        if not (self.observations or self.ended):
            raise InputError(
                f"{self}: nobody has an observation and the episode has not ended; needed: an observation for who acts "
                "next, or terminated or truncated"
            )

    def latest(self, agent: str) -> Step:
        if agent not in self.steps:
            raise InputError(
                f"{self}: a reward or a score request for {agent!r}, who has not acted; needed: one of "
                f"{sorted(self.steps)}"
            )
        return self.steps[agent][-1]

    def earn(self, agent: str, reward: Reward, scores: Mapping[str, float], error: str) -> None:
        """Adds to the agent's latest step."""
        step = self.latest(agent)
        if isinstance(reward, tuple) and len(reward) != len(step.completion.ids):
            raise ValueError(
                f"{self}: the reward function gave {len(reward)} rewards for a reply of {len(step.completion.ids)} "
                "tokens; needed: one a token"
            )
        self.steps[agent][-1] = replace(
            step,
            reward=_sum(step.reward, reward),
            scores={**step.scores, **scores},
            error="; ".join(filter(None, (step.error, error))),
        )


def _sum(one: Reward, other: Reward) -> Reward:
    """Both rewards of a step; a single number beside dense ones lands on the last token."""
    if one is None or other is None:
        return None
    if isinstance(one, tuple) and isinstance(other, tuple):
        return tuple(a + b for a, b in zip(one, other, strict=True))
    if isinstance(one, tuple):
        one, other = other, one
    if isinstance(other, tuple):
        return (*other[:-1], other[-1] + one)  # type: ignore[operator]
    return one + other  # type: ignore[operator]


def _call_all(threads: ThreadPoolExecutor, running: Sequence[_Running], calls: Sequence[Callable[[], T]]) -> list[T]:
    """What each episode's call gives; those of blocking environments wait in threads, all at once."""
    waiting = {
        place: threads.submit(call)
        for place, (one, call) in enumerate(zip(running, calls, strict=True))
        if getattr(one.environment, "blocking", False)
    }
    found = []
    for place, (one, call) in enumerate(zip(running, calls, strict=True)):
        try:
            found.append(waiting[place].result() if place in waiting else call())
        except Exception as error:
            error.add_note(f"in {one}")
            raise
    return found


def _reward(
    running: Sequence[_Running], reward_function: RewardFunction | None, others: Mapping[str, Generator]
) -> None:
    """Add to each step the environment's reward and, from one call, the reward function's."""
    samples, owners = [], []
    for one in running:
        for agent, reward in one.result.rewards.items():
            if agent not in others:
                if not (hasattr(reward, "__float__") and math.isfinite(reward)):
                    raise InputError(f"{one}: a reward of {reward} for {agent!r}; needed: a finite number")
                one.earn(agent, float(reward), {}, "")
        for request in one.result.score_requests:
            if request.agent not in others:
                step = one.latest(request.agent)
                samples.append(Sample(request, step.prompt_text, step.completion))
                owners.append(one)
    if not samples:
        return
    if reward_function is None:
        raise InputError(f"{owners[0]} requests a score; needed: a reward function or scorers")
    rewards = reward_function.rewards(samples)
    if len(rewards) != len(samples):
        raise ValueError(
            f"the reward function gave {len(rewards)} rewards for {len(samples)} replies; needed: one each"
        )
    for one, sample, earned in zip(owners, samples, rewards, strict=True):
        one.earn(sample.request.agent, earned.reward, earned.scores, earned.error)


@dataclass(frozen=True)
class _Players:
    """Who acts: the policy for the agents that are trained, and others."""

    generator: TokenGenerator
    tokenizer: Any
    sampling: Sampling
    others: Mapping[str, Generator]
    room: int
    on_long_prompt: OnLongPrompt

    def act(self, running: Sequence[_Running]) -> list[dict[str, str]]:
        """The words of every agent with an observation, an episode each; a trained agent's step is noted."""
        said: dict[tuple[int, str], str] = {}
        trained = [(one, agent) for one in running for agent in one.observations if agent not in self.others]
        if trained:
            prompts = self._read(trained, self.on_long_prompt)
            found = self.generator.generate([prompt.ids for prompt in prompts], 1, self._seeded(trained))
            for (one, agent), prompt, [completion] in zip(trained, prompts, found, strict=True):
                step = Step(
                    prompt.ids, prompt.text, completion, dropped_turns=prompt.dropped_turns, shortened=prompt.shortened
                )  # fmt: skip
                one.steps.setdefault(agent, []).append(step)
                said[one.index, agent] = completion.text
        for agent, generator in self.others.items():
            asked = [(one, agent) for one in running if agent in one.observations]
            if asked:
                conversations = [_conversation(one.observations[agent]) for one, _ in asked]
                found = generator.reply(conversations, 1, self._seeded(asked))
                said |= {(one.index, agent): reply.text for (one, _), [reply] in zip(asked, found, strict=True)}
        return [{agent: said[one.index, agent] for agent in one.observations} for one in running]

    def episodes(self, running: Sequence[_Running]) -> list[Episode]:
        """Those that have ended; what comes next is read where it is to be valued."""
        stopped = [one for one in running if one.result.truncated and not one.result.terminated]
        waiting = [(one, agent) for one in stopped for agent in one.observations if agent in one.steps]
        # nobody is asked to reply to them: to value one that was cut is better than to refuse what was played
        finals = {
            (one.index, agent): p.ids for (one, agent), p in zip(waiting, self._read(waiting, "cut"), strict=True)
        }
        return [
            Episode(
                one.index, agent, steps, one.result.terminated, one.result.truncated, finals.get((one.index, agent)),
                one.result.info,
            )
            for one in running
            for agent, steps in one.steps.items()
        ]  # fmt: skip

    def _read(self, asked: Sequence[tuple[_Running, str]], on_long: OnLongPrompt) -> list[Prompt]:
        """What agents see, as the policy's template renders it, in at most `room` tokens."""
        prompts = fit_prompts(self.tokenizer, [one.observations[agent].prompt for one, agent in asked], self.room)
        for (one, agent), prompt in zip(asked, prompts, strict=True):
            if not prompt.ids:
                raise InputError(f"{one}: the prompt of {agent!r} has no token; needed: text, or a BOS in the template")
            if prompt.truncated and on_long == "refuse":
                raise InputError(
                    f"{one}: a prompt for {agent!r} has more than {self.room} tokens; needed: at most so many, the "
                    f"context of {self.generator.max_length} less max_new_tokens={self.sampling.max_new_tokens}, or "
                    'max_prompt; leave such tasks out, or let on_long_prompt be "cut"'
                )
        return prompts

    def _seeded(self, asked: Sequence[tuple[_Running, str]]) -> Sampling:
        [chance] = seeds_of(self.sampling, 1)
        return replace(self.sampling, seed=tuple(_seed(chance, one.seed, one.number, agent) for one, agent in asked))


def _seed(chance: int, episode: int, step: int, agent: str) -> int:
    """63 bits that other arguments do not share."""
    words = f"{chance} {episode} {step} {agent}".encode()
    return int.from_bytes(blake2b(words, digest_size=8).digest(), "big") >> 1


def _conversation(observation: Observation) -> Conversation:
    """For a generator that takes conversations alone: a text is one turn of the user."""
    prompt = observation.prompt
    return Conversation((Turn("user", prompt),)) if isinstance(prompt, str) else prompt
