"""Episodes of a policy in training: `run_episodes` plays them with the policy's token ids kept.

Design decisions:
- The seed of a reply is a function of (`sampling.seed`, the episode's seed, its step, the agent), so that the rest of
  the batch changes nothing.
- Sampled ids are never tokenised again: a later prompt of an agent is its last prompt's ids, the ids that it sampled,
  and those of the text that the observation adds. Where the observation does not continue what the agent read and said
  (a template that rewrites history, an environment that does, turns that were dropped), the whole is rendered and
  tokenised anew.
- An `ActionPolicy` as the generator chooses among the actions that observations list.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from lmgym.environments.engine import hashed_seeds, play
from lmgym.environments.episodes import Episode, RunningEpisode
from lmgym.environments.players import ActionRequest, Actor, GeneratorPlayer
from lmgym.environments.protocol import Action, Environment, Observation, RewardFunction, Task
from lmgym.errors import InputError
from lmgym.generation.actions import ActionPolicy, accepted, read_candidates
from lmgym.generation.prompt_fitting import FittedPrompt, fit_prompts, room_for_prompts
from lmgym.generation.protocol import Completion, Sampling, TokenGenerator, seeds_of

OnLongPrompt = Literal["cut", "refuse"]


def run_episodes(
    environments: Sequence[Environment],
    tasks: Sequence[Task],
    seeds: Sequence[int],
    generator: TokenGenerator | ActionPolicy,
    tokenizer,
    sampling: Sampling,
    reward_function: RewardFunction | None,
    others: Mapping[str, Actor] | None = None,
    max_prompt: int | None = None,
    on_long_prompt: OnLongPrompt = "cut",
    members: Sequence[int] | None = None,
    beginnings: Sequence[Sequence[Mapping[str, str]]] | None = None,
    most_steps: int | None = None,
) -> list[Episode]:
    """Plays task i by seed i in environment i to its end; returns an `Episode` for each trained agent that acted.

    `members`, `beginnings` and `most_steps` are those of `play` (engine.py). `others` act for the agents of those
    names, which are not trained: their rewards and score requests are ignored. A prompt has at most `max_prompt` tokens
    (None: the context less `sampling.max_new_tokens`); a longer one loses its oldest turns, or is refused. Raises
    InputError for that, for a context without room, an instance that is given twice, and, of an ActionPolicy,
    observations without actions, or with actions that cannot be told apart. An episode whose `reset` or `step` raises
    another exception than InputError and RunStopped, or breaks the protocol, ends there: its agents' last rewards are
    None, with the error. If none had acted, it is an `Episode` without agent and steps.
    """
    if len(set(map(id, environments))) < len(environments):
        raise InputError("an environment was given twice; needed: an instance an episode, as [Chat() for _ in tasks]")
    room = room_for_prompts(generator.max_length, sampling, max_prompt)
    policy = PolicyPlayer(generator, tokenizer, sampling, room, on_long_prompt)
    players = {agent: GeneratorPlayer(actor, sampling) for agent, actor in (others or {}).items()}
    [base] = seeds_of(sampling, 1)
    with getattr(generator, "turns", contextlib.nullcontext)():
        episodes = play(
            environments,
            tasks,
            seeds,
            players,
            policy,
            reward_function=reward_function,
            members=members,
            beginnings=beginnings,
            most_steps=most_steps,
            seed_of=hashed_seeds(base),
        )
    return policy.finish(episodes)


@dataclass(frozen=True)
class PolicyPlayer:
    """The policy in training: its actions carry the ids that it read and sampled."""

    generator: TokenGenerator | ActionPolicy
    tokenizer: Any
    sampling: Sampling
    room: int
    """most tokens of a prompt"""
    on_long_prompt: OnLongPrompt

    def act(self, requests: Sequence[ActionRequest], n: int = 1) -> list[list[Action]]:
        """A reply to each observation, or one of the actions that it lists."""
        assert n == 1, "a step of training has one action"
        whose = [(_episode_of(request), request.agent, request.observation) for request in requests]
        prompts = self._fit_prompts(whose, self.on_long_prompt)
        seeded = replace(self.sampling, seed=tuple(request.seed for request in requests))
        completions = self._complete(whose, [prompt.ids for prompt in prompts], seeded)
        given = zip(prompts, completions, strict=True)
        return [[Action(completion.text, completion, prompt)] for prompt, [completion] in given]

    def _complete(
        self, agents: Sequence[tuple[RunningEpisode, str, Observation]], prompts: Sequence[list[int]], seeded: Sampling
    ) -> list[list[Completion]]:
        """One reply to each prompt, or one of the actions that its observation lists."""
        if not isinstance(self.generator, ActionPolicy):
            return self.generator.generate(prompts, 1, seeded)
        seen = [observation for _, _, observation in agents]
        read = read_candidates(
            self.tokenizer,
            [one.prompt for one in seen],
            [one.actions for one in seen],
            self.sampling.max_new_tokens,
            self.generator.scores,
        )

        def whose(number: int) -> str:
            episode, agent, _ = agents[number]
            return f"{episode}: --policy_over actions: the observation of {agent!r}"

        return self.generator.choose(prompts, accepted(read, whose), seeded)

    def finish(self, episodes: Sequence[RunningEpisode]) -> list[Episode]:
        """The episodes of trained agents, with the final prompt of truncated ones."""
        truncated = [episode for episode in episodes if episode.result.truncated and not episode.result.terminated]
        waiting = [(e, agent, seen) for e in truncated for agent, seen in e.observations.items() if agent in e.steps]
        # these prompts are only valued, so a long one is cut rather than refused with all that was played
        prompts = self._fit_prompts(waiting, "cut")
        final = {(episode.index, agent): p.ids for (episode, agent, _), p in zip(waiting, prompts, strict=True)}
        return [
            Episode(
                episode.index,
                agent,
                steps,
                episode.result.terminated,
                episode.result.truncated,
                final.get((episode.index, agent)),
                episode.result.info,
                episode.seed,
                episode.actions,
                episode.error,
                sorted(episode.unclaimed - episode.steps.keys()),
            )
            for episode in episodes
            for agent, steps in (episode.steps or ({"": []} if episode.error else {})).items()
        ]

    def _fit_prompts(
        self, agents: Sequence[tuple[RunningEpisode, str, Observation]], on_long: OnLongPrompt
    ) -> list[FittedPrompt]:
        """The observations of agents, rendered by the policy's template, in at most `room` tokens.

        Those that continue what the agent read and said begin with the same ids.
        """
        seen = [observation.prompt for _, _, observation in agents]
        prompts = fit_prompts(self.tokenizer, seen, self.room, [e.last_said(agent) for e, agent, _ in agents])
        for (episode, agent, _), prompt in zip(agents, prompts, strict=True):
            if not prompt.ids:
                raise InputError(
                    f"{episode}: the prompt of {agent!r} has no token; needed: text, or a BOS in the template"
                )
            if prompt.truncated and on_long == "refuse":
                raise InputError(
                    f"{episode}: a prompt for {agent!r} has more than {self.room} tokens; needed: at most so many, the "
                    f"context of {self.generator.max_length} less max_new_tokens={self.sampling.max_new_tokens}, or "
                    'max_prompt; leave such tasks out, or let on_long_prompt be "cut"'
                )
        return prompts


def _episode_of(request: ActionRequest) -> RunningEpisode:
    assert request.episode is not None, "the policy acts within `play` only"
    return request.episode
