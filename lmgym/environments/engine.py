"""The engine: many episodes advance together, of any environments and any players.

Design decisions:
- All pending observations of a player are one request to it, and all score requests one call of the reward function.
- An exception of an environment, or a result out of bounds (bounds.py), ends its episode, whose rewards are masked;
  the others go on. The caller decides if too many have failed.
- An agent with a player of its own acts and leaves no steps. Rewards of a trained agent while others act are added to
  its latest step.
- Where a server has no room (`NoRoom`) fewer episodes are played at once: as many as have begun, and after that one
  more each time, until there is none for it again.
- Nothing here imports torch: games between scripts start at once.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from time import sleep
from typing import TypeVar

from lmgym.environments.episodes import RunningEpisode
from lmgym.environments.players import ActionRequest, Player, ask
from lmgym.environments.protocol import Action, Environment, NoRoom, RewardFunction, Sample, Task
from lmgym.errors import InputError, RunStopped, shown
from lmgym.runs.process_state import process_state_kept
from lmgym.runs.user_code import users_code

MAX_THREADS = 64  # for environments that block
ROOM_TRIES, ROOM_SECONDS = 60, 1.0  # to begin an episode while none is played, and between them
T = TypeVar("T")
Watch = Callable[[RunningEpisode], None]
SeedOf = Callable[[RunningEpisode, str], int]
"""the seed of an agent's next action in an episode"""
Players = Mapping[str, Player]
"""by agent"""


def hashed_seeds(base: int) -> SeedOf:
    """Seeds by a hash of (base, the episode's seed, its step, the agent, its number among episodes of this seed)."""

    def seed_of(episode: RunningEpisode, agent: str) -> int:
        member = f" {episode.member}" if episode.member else ""
        return hash_of(base, episode.seed, episode.step_number, f"{agent}{member}")

    return seed_of


def hash_of(*parts: object) -> int:
    """A hash of 63 bits of the parts as words."""
    return int.from_bytes(blake2b(" ".join(map(str, parts)).encode(), digest_size=8).digest(), "big") >> 1


SEEDS = hashed_seeds(0)


def play(
    environments: Sequence[Environment],
    tasks: Sequence[Task],
    seeds: Sequence[int],
    players: Players | Sequence[Players],
    policy: Player | None = None,
    *,
    reward_function: RewardFunction | None = None,
    members: Sequence[int] | None = None,
    beginnings: Sequence[Sequence[Mapping[str, str]]] | None = None,
    seed_of: SeedOf = SEEDS,
    watch: Watch | None = None,
    at_once: int | None = None,
    most_steps: int | None = None,
    stops: tuple[type[Exception], ...] = (InputError, RunStopped),
) -> list[RunningEpisode]:
    """Plays task i by seed i in environment i to its end; all episodes, in order.

    `players` are those of the agents of these names, the same in all episodes or a mapping for each; all other agents
    are the `policy`, which is trained: its actions are steps with rewards. Episodes of one seed differ only by their
    actions, which differ by `members`, their numbers in a group (None: 0). `beginnings[i]` are the first actions of
    episode i, as in `RunningEpisode.actions`: they are replayed, leave no steps, and earn nothing. To fork an episode
    at step k is to give it its first k actions and another member.

    `watch` is called with an episode once it has begun, and after each of its steps. `at_once` episodes are played at a
    time (None: all), and truncated after `most_steps` steps (None: never). Exceptions of the kinds `stops` end the
    play; any other one of an environment, a result that breaks the protocol, and an `Action.error` end their episode
    alone: its steps have no reward, with the error.
    Raises InputError for an agent without a player, for requests for scores without a reward function, and for
    beginnings that an episode does not ask for.
    """
    assert len(environments) == len(tasks) == len(seeds)
    numbers = members if members is not None else [0] * len(tasks)
    given = zip(range(len(tasks)), seeds, environments, numbers, strict=True)
    episodes = [RunningEpisode(i, seed, env, member, most_steps=most_steps) for i, seed, env, member in given]
    table = Table([players] * len(tasks) if isinstance(players, Mapping) else players, policy, seed_of, stops)
    waiting, playing, refused = list(episodes), list[RunningEpisode](), 0
    room = most = at_once or len(episodes)
    with table.threads():
        while waiting or playing:
            fresh, waiting = waiting[: room - len(playing)], waiting[room - len(playing) :]
            late = table.begin(fresh, tasks, beginnings or ())
            begun = [episode for episode in fresh if episode not in late]
            waiting, playing = late + waiting, _going_on(table, playing + begun, begun, watch)
            room = max(1, len(playing)) if late else min(room + 1, most)
            refused = refused + 1 if late and not playing else 0
            if refused:
                waiting = _going_on(table, waiting, _wait_for_room(waiting, refused), watch)
                continue
            table.step(playing)
            if policy is not None:
                add_rewards(playing, table.players, reward_function, grouped=members is not None)
            playing = _going_on(table, playing, playing, watch)
    return episodes


def _wait_for_room(waiting: list[RunningEpisode], refused: int) -> list[RunningEpisode]:
    """Those that have waited long enough, and have failed: all or none."""
    if refused < ROOM_TRIES:
        sleep(ROOM_SECONDS)
        return []
    for episode in waiting:
        episode.fail(NoRoom(f"no room for an episode, in {refused} tries"))
    return waiting


def _going_on(
    table: "Table", episodes: Sequence[RunningEpisode], changed: Sequence[RunningEpisode], watch: Watch | None
) -> list[RunningEpisode]:
    """The episodes that have not ended, once those that changed were watched, and those that ended were closed."""
    if watch is not None:
        for episode in changed:
            watch(episode)
    table.close(changed)
    return [episode for episode in episodes if not episode.ended]


@dataclass
class Table:
    """The players of the episodes and the threads of environments that block."""

    players: Sequence[Players]
    """by number of the episode"""
    policy: Player | None
    seed_of: SeedOf
    stops: tuple[type[Exception], ...]
    pool: ThreadPoolExecutor | None = None

    @contextmanager
    def threads(self) -> Iterator[None]:
        """Starts a thread when it is first needed; ends with the play, without what still waits."""
        self.pool = ThreadPoolExecutor(MAX_THREADS)
        try:
            yield
        finally:
            self.pool.shutdown(cancel_futures=True)

    def begin(
        self,
        episodes: Sequence[RunningEpisode],
        tasks: Sequence[Task],
        beginnings: Sequence[Sequence[Mapping[str, str]]],
    ) -> list[RunningEpisode]:
        """Reset the episodes' environments, and replay their beginnings; those for which there is no room so far."""
        resets = [partial(e.environment.reset, tasks[e.index], e.seed) for e in episodes]
        late = []
        for episode, observations in zip(episodes, self._call_all(episodes, resets), strict=True):
            if isinstance(observations, NoRoom):
                late.append(episode)
            elif isinstance(observations, Exception):
                episode.fail(observations)
            else:
                episode.begin(observations)
        episodes = [episode for episode in episodes if episode not in late]
        for number in range(max((len(beginnings[e.index]) for e in episodes), default=0) if beginnings else 0):
            replayed = [e for e in episodes if number < len(beginnings[e.index]) and not e.error]
            for episode in replayed:
                _refuse_other_actions(episode, beginnings[episode.index][number])
            said = [{a: Action(text) for a, text in beginnings[e.index][number].items()} for e in replayed]
            self._give(replayed, said)
        return late

    def step(self, episodes: Sequence[RunningEpisode]) -> None:
        """Ask all agents with an observation, and give their actions to the environments."""
        asked = {(e.index, agent): self._request(e, agent) for e in episodes for agent in e.observations}
        with users_code("a player"):
            found = ask(asked)
        going_on, said = [], []
        for episode in episodes:
            actions = {agent: found[episode.index, agent][0] for agent in episode.observations}
            if error := next((action.error for action in actions.values() if action.error), ""):
                episode.end_as_failed(error)
                continue
            going_on.append(episode)
            said.append(actions)
        self._give(going_on, said)

    def close(self, episodes: Sequence[RunningEpisode]) -> None:
        """Close the environments of those that have ended, where they can be closed; whether it fails or not."""
        ended = [episode for episode in episodes if episode.ended and hasattr(episode.environment, "close")]
        self._call_all(ended, [episode.environment.close for episode in ended])  # type: ignore[attr-defined]

    def _request(self, episode: RunningEpisode, agent: str) -> tuple[Player, ActionRequest]:
        players = self.players[episode.index]
        player = players.get(agent, self.policy)
        if player is None:
            raise InputError(f"{episode}: {shown(agent)} has no player; needed: one of {sorted(players)}, or a player")
        seed = self.seed_of(episode, agent)
        return player, ActionRequest(episode.environment, agent, episode.observations[agent], seed, players, episode)

    def _give(self, episodes: Sequence[RunningEpisode], said: Sequence[Mapping[str, Action]]) -> None:
        """Give each episode its agents' actions."""
        steps = []
        for episode, actions in zip(episodes, said, strict=True):
            episode.take(actions)
            texts = {agent: action.text for agent, action in actions.items()}
            steps.append(partial(episode.environment.step, texts))
        for episode, result in zip(episodes, self._call_all(episodes, steps), strict=True):
            if isinstance(result, Exception):
                episode.fail(result)
            else:
                episode.receive(result)

    def _call_all(self, episodes: Sequence[RunningEpisode], calls: Sequence[Callable[[], T]]) -> list[T | Exception]:
        """The result of each episode's call, or its exception; those of blocking environments run in threads, at once.

        Raises exceptions of the kinds `stops`, which are no failures of one episode.
        """
        assert self.pool is not None
        blocking = [getattr(episode.environment, "blocking", False) for episode in episodes]
        with process_state_kept() if any(blocking) else nullcontext():  # what threads change, too
            futures = {i: self.pool.submit(call) for i, call in enumerate(calls) if blocking[i]}
            given = enumerate(zip(episodes, calls, strict=True))
            return [self._guarded(e, futures[i].result if i in futures else call) for i, (e, call) in given]

    def _guarded(self, episode: RunningEpisode, call: Callable[[], T]) -> T | Exception:
        try:
            with process_state_kept():
                return call()
        except (Exception, SystemExit) as error:
            error.add_note(f"in {episode}")
            if isinstance(error, self.stops):
                raise
            return error if isinstance(error, Exception) else RuntimeError(repr(error))


def _refuse_other_actions(episode: RunningEpisode, actions: Mapping[str, str]) -> None:
    """Raises InputError for actions that the episode does not ask for."""
    if episode.ended or actions.keys() != episode.observations.keys():
        waiting = "has ended" if episode.ended else f"waits for {sorted(episode.observations)}"
        raise InputError(
            f"{episode} {waiting}, and its beginning has actions of {sorted(actions)}; needed: the actions of an "
            "episode of the same environment, task and seed"
        )


def add_rewards(
    episodes: Sequence[RunningEpisode],
    players: Sequence[Players],
    reward_function: RewardFunction | None,
    grouped: bool,
) -> None:
    """Add to each step the environment's reward and, from one call, the reward function's; `players` get none."""
    requested: list[tuple[RunningEpisode, Sample]] = []
    for episode in episodes:
        for request in episode.add_environment_rewards(players[episode.index]):
            step = episode.latest_step(request.agent)
            group = (episode.seed, request.agent) if grouped else None
            requested.append((episode, Sample(request, step.prompt_text, step.completion, group)))
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
