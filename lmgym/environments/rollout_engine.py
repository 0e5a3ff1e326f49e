"""The rollout engine: many episodes advance together, whatever their environments do and however long they take.

Design decisions:
- All pending observations are one request to the generator, and all score requests one call of the reward function.
- The seed of a reply is a function of (`sampling.seed`, the episode's seed, its step, the agent), so that the rest of
  the batch changes nothing.
- Sampled ids are never tokenised again: a later prompt of an agent is its last prompt's ids, the ids that it sampled,
  and those of the text that the observation adds. Where the observation does not continue what the agent read and said
  (a template that rewrites history, an environment that does, turns that were dropped), the whole is rendered and
  tokenised anew.
- An `ActionPolicy` as the generator chooses among the actions that observations list.
- An exception of an environment, or a result out of bounds (bounds.py), ends its episode, whose rewards are masked;
  the others go on. The caller decides if too many have failed.
- An agent with a generator of its own acts and leaves no steps. Rewards of a trained agent while others act are added
  to its latest step.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import Any, Literal, TypeVar

from lmgym.environments.episodes import Episode, RunningEpisode, Step
from lmgym.environments.process_state import process_state_kept
from lmgym.environments.protocol import Environment, Observation, RewardFunction, Sample, StepResult, Task
from lmgym.errors import InputError, RunStopped, shown
from lmgym.generation.actions import ActionPolicy, accepted, read_candidates
from lmgym.generation.prompt_fitting import FittedPrompt, fit_prompts, room_for_prompts
from lmgym.generation.protocol import Completion, Generator, Sampling, TokenGenerator, seeds_of
from lmgym.text import Conversation, Turn

MAX_THREADS = 64  # for environments that block
OnLongPrompt = Literal["cut", "refuse"]
T = TypeVar("T")
Actor = Generator | ActionPolicy
"""acts for an agent that is not trained"""


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
) -> list[Episode]:
    """Plays task i by seed i in environment i to its end; returns an `Episode` for each trained agent that acted.

    Episodes of one seed differ only by their replies, which differ by `members`, their numbers in a group (None: 0).
    `beginnings[i]` are the first actions of episode i, as in `Episode.actions`: they are replayed, leave no steps, and
    earn nothing. To fork an episode at step k is to give it its first k actions and another member.

    `others` act for the agents of those names, which are not trained: their rewards and score requests are ignored. A
    prompt has at most `max_prompt` tokens (None: the context less `sampling.max_new_tokens`); a longer one loses its
    oldest turns, or is refused. Raises InputError for that, for a context without room, an instance that is given
    twice, and, of an ActionPolicy, observations without actions, or with actions that cannot be told apart. An episode
    whose `reset` or `step` raises another exception than InputError and RunStopped, or breaks the protocol, ends there:
    its agents' last rewards are None, with the error. If none had acted, it is an `Episode` without agent and steps.
    """
    assert len(environments) == len(tasks) == len(seeds)
    if len(set(map(id, environments))) < len(environments):
        raise InputError("an environment was given twice; needed: an instance an episode, as [Chat() for _ in tasks]")
    room = room_for_prompts(generator.max_length, sampling, max_prompt)
    agents = ActingAgents(generator, tokenizer, sampling, others or {}, room, on_long_prompt)
    numbers = members if members is not None else [0] * len(tasks)
    given = zip(range(len(tasks)), seeds, environments, numbers, strict=True)
    episodes = [RunningEpisode(i, seed, env, member) for i, seed, env, member in given]
    threads = ThreadPoolExecutor(MAX_THREADS)  # starts a thread when it is first needed
    try:
        resets = [partial(e.environment.reset, task, e.seed) for e, task in zip(episodes, tasks, strict=True)]
        for episode, observations in zip(episodes, _call_all(threads, episodes, resets), strict=True):
            if isinstance(observations, Exception):
                episode.fail(observations)
            else:
                episode.receive(StepResult(observations))
        _replay(threads, episodes, beginnings or ())
        while pending := [episode for episode in episodes if not episode.ended]:
            _step(threads, pending, agents.act(pending))
            _add_rewards(pending, reward_function, agents.others)
    finally:
        threads.shutdown(cancel_futures=True)
    return agents.finish(episodes)


def _step(
    threads: ThreadPoolExecutor, episodes: Sequence[RunningEpisode], actions: Sequence[Mapping[str, str]]
) -> None:
    """Give each episode its agents' actions."""
    steps = [partial(e.environment.step, action) for e, action in zip(episodes, actions, strict=True)]
    results = _call_all(threads, episodes, steps)
    for episode, action, result in zip(episodes, actions, results, strict=True):
        episode.actions.append(action)
        if isinstance(result, Exception):
            episode.fail(result)
        else:
            episode.receive(result)


def _replay(
    threads: ThreadPoolExecutor,
    episodes: Sequence[RunningEpisode],
    beginnings: Sequence[Sequence[Mapping[str, str]]],
) -> None:
    """Give each episode its first actions. Raises InputError for actions that the episode does not ask for."""
    for number in range(max(map(len, beginnings), default=0)):
        going_on = zip(episodes, beginnings, strict=True)
        replayed = [e for e, given in going_on if number < len(given) and not e.error]
        actions = [beginnings[e.index][number] for e in replayed]
        for episode, action in zip(replayed, actions, strict=True):
            if episode.ended or action.keys() != episode.observations.keys():
                waiting = "has ended" if episode.ended else f"waits for {sorted(episode.observations)}"
                raise InputError(
                    f"{episode} {waiting}, and its beginning has actions of {sorted(action)}; needed: the actions of "
                    "an episode of the same environment, task and seed"
                )
        _step(threads, replayed, actions)


def _call_all(
    threads: ThreadPoolExecutor, episodes: Sequence[RunningEpisode], calls: Sequence[Callable[[], T]]
) -> list[T | Exception]:
    """The result of each episode's call, or its exception; those of blocking environments run in threads, all at once.

    Raises InputError and RunStopped, which are no failures of one episode.
    """
    with process_state_kept():  # what threads change, too
        futures = {
            i: threads.submit(call)
            for i, (episode, call) in enumerate(zip(episodes, calls, strict=True))
            if getattr(episode.environment, "blocking", False)
        }
        given = enumerate(zip(episodes, calls, strict=True))
        return [_guarded(episode, futures[i].result if i in futures else call) for i, (episode, call) in given]


def _guarded(episode: RunningEpisode, call: Callable[[], T]) -> T | Exception:
    try:
        with process_state_kept():
            return call()
    except (Exception, SystemExit) as error:
        error.add_note(f"in {episode}")
        if isinstance(error, InputError | RunStopped):
            raise
        return error if isinstance(error, Exception) else RuntimeError(repr(error))


def _add_rewards(
    episodes: Sequence[RunningEpisode], reward_function: RewardFunction | None, others: Mapping[str, Actor]
) -> None:
    """Add to each step the environment's reward and, from one call, the reward function's."""
    requested: list[tuple[RunningEpisode, Sample]] = []
    for episode in episodes:
        for request in episode.add_environment_rewards(others):
            step = episode.latest_step(request.agent)
            requested.append((episode, Sample(request, step.prompt_text, step.completion)))
    if not requested:
        return
    if reward_function is None:
        raise InputError(f"{requested[0][0]} requests a score; needed: a reward function or scorers")
    rewards = reward_function.rewards([sample for _, sample in requested])
    if len(rewards) != len(requested):
        raise ValueError(
            f"the reward function gave {len(rewards)} rewards for {len(requested)} replies; needed: one each"
        )
    for (episode, sample), result in zip(requested, rewards, strict=True):
        episode.add_reward(sample.request.agent, result.reward, result.scores, result.error)


@dataclass(frozen=True)
class ActingAgents:
    """The agents that act: the policy for those that are trained, a generator each for the others."""

    generator: TokenGenerator | ActionPolicy
    tokenizer: Any
    sampling: Sampling
    others: Mapping[str, Actor]
    room: int
    on_long_prompt: OnLongPrompt

    def act(self, episodes: Sequence[RunningEpisode]) -> list[dict[str, str]]:
        """The reply of every agent with an observation, by episode; adds the steps of trained agents."""
        replies: dict[tuple[int, str], str] = {}
        trained = [(e, agent) for e in episodes for agent in e.observations if agent not in self.others]
        if trained:
            prompts = self._fit_prompts(trained, self.on_long_prompt)
            completions = self._complete(trained, [prompt.ids for prompt in prompts])
            for (episode, agent), prompt, [completion] in zip(trained, prompts, completions, strict=True):
                step = Step(
                    prompt.ids, prompt.text, completion, dropped_turns=prompt.dropped_turns, shortened=prompt.shortened,
                    observed=episode.observations[agent].prompt, appended=prompt.appended,
                )  # fmt: skip
                episode.steps.setdefault(agent, []).append(step)
                replies[episode.index, agent] = completion.text
        for agent, player in self.others.items():
            acting = [(episode, agent) for episode in episodes if agent in episode.observations]
            if acting:
                seen = [episode.observations[agent] for episode, _ in acting]
                for (episode, _), reply in zip(acting, replies_of(player, seen, self._seeded(acting)), strict=True):
                    replies[episode.index, agent] = reply
        return [{agent: replies[episode.index, agent] for agent in episode.observations} for episode in episodes]

    def _complete(
        self, agents: Sequence[tuple[RunningEpisode, str]], prompts: Sequence[list[int]]
    ) -> list[list[Completion]]:
        """One reply to each prompt, or one of the actions that its observation lists."""
        if not isinstance(self.generator, ActionPolicy):
            return self.generator.generate(prompts, 1, self._seeded(agents))
        seen = [episode.observations[agent] for episode, agent in agents]
        given = [one.prompt for one in seen], [one.actions for one in seen]
        read = read_candidates(self.tokenizer, *given, self.sampling.max_new_tokens, self.generator.scores)

        def whose(number: int) -> str:
            episode, agent = agents[number]
            return f"{episode}: --policy_over actions: the observation of {agent!r}"

        return self.generator.choose(prompts, accepted(read, whose), self._seeded(agents))

    def finish(self, episodes: Sequence[RunningEpisode]) -> list[Episode]:
        """The episodes of trained agents, with the final prompt of truncated ones."""
        _fail_unclaimed(episodes)
        truncated = [episode for episode in episodes if episode.result.truncated and not episode.result.terminated]
        waiting = [(e, agent) for e in truncated for agent in e.observations if agent in e.steps]
        # these prompts are only valued, so a long one is cut rather than refused with all that was played
        prompts = self._fit_prompts(waiting, "cut")
        final = {(episode.index, agent): p.ids for (episode, agent), p in zip(waiting, prompts, strict=True)}
        return [
            Episode(
                episode.index, agent, steps, episode.result.terminated, episode.result.truncated,
                final.get((episode.index, agent)), episode.result.info, episode.seed, episode.actions, episode.error,
            )
            for episode in episodes
            for agent, steps in (episode.steps or ({"": []} if episode.error else {})).items()
        ]  # fmt: skip

    def _fit_prompts(self, agents: Sequence[tuple[RunningEpisode, str]], on_long: OnLongPrompt) -> list[FittedPrompt]:
        """The observations of agents, rendered by the policy's template, in at most `room` tokens.

        Those that continue what the agent read and said begin with the same ids.
        """
        seen = [episode.observations[agent].prompt for episode, agent in agents]
        prompts = fit_prompts(self.tokenizer, seen, self.room, [e.last_said(agent) for e, agent in agents])
        for (episode, agent), prompt in zip(agents, prompts, strict=True):
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

    def _seeded(self, agents: Sequence[tuple[RunningEpisode, str]]) -> Sampling:
        [base] = seeds_of(self.sampling, 1)
        return replace(self.sampling, seed=tuple(_seed(base, episode, agent) for episode, agent in agents))


def _fail_unclaimed(episodes: Sequence[RunningEpisode]) -> None:
    """Fails the episodes with rewards of an agent that acted in none of them: most likely its name is misspelt."""
    acting = {agent for episode in episodes for agent in episode.steps}
    for episode in episodes:
        if unknown := [agent for agent, reward in episode.unclaimed.items() if reward and agent not in acting]:
            found = f"a reward of {episode.unclaimed[unknown[0]]:g} for {shown(unknown[0])}, who acted in no episode"
            episode.end_as_failed(f"{found}; needed: one of {sorted(acting)}")


def _seed(base: int, episode: RunningEpisode, agent: str) -> int:
    """Of the agent's next reply: a hash of 63 bits."""
    member = f" {episode.member}" if episode.member else ""
    words = f"{base} {episode.seed} {episode.step_number} {agent}{member}"
    return int.from_bytes(blake2b(words.encode(), digest_size=8).digest(), "big") >> 1


def replies_of(player: Actor, seen: Sequence[Observation], sampling: Sampling) -> list[str]:
    """A player's reply to each observation: a text, or one of the actions that it lists."""
    prompts = [_conversation(one) for one in seen]
    if isinstance(player, ActionPolicy):
        found = player.pick(prompts, [one.actions for one in seen], sampling)
    else:
        found = player.reply(prompts, 1, sampling)
    return [completion.text for [completion] in found]


def _conversation(observation: Observation) -> Conversation:
    """The prompt for a generator that takes only conversations: a text becomes one turn of the user."""
    prompt = observation.prompt
    return Conversation((Turn("user", prompt),)) if isinstance(prompt, str) else prompt
