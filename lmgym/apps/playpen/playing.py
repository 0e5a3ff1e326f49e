"""Games that are played: many episodes together, each player's turns in one request.

A game gives environments of the protocol (lmgym/environments/protocol.py) whose agents are its seats, and which keep
the records of their episode. An episode that fails has its reason as record; the others go on. So it is with a request
that a server refuses or does not answer; a server that answers none ends the play.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Protocol

from lmgym.apps.games.dialogue.records import Records
from lmgym.apps.playpen.players import Player
from lmgym.apps.playpen.registries.specs import Spec
from lmgym.environments.protocol import Observation, StepResult
from lmgym.errors import InputError, ServerError, TooLong, one_line
from lmgym.generation.protocol import Completion, ScriptedGenerator
from lmgym.text import Conversation, Turn

MAX_THREADS = 64
MOST_UNANSWERED = 8
"""requests in a row that a server may leave without a reply"""


class EpisodeFailed(RuntimeError):
    """An episode that cannot go on, with the reason."""


class ServerGone(InputError):
    """A server answers no request any more: what has not been played is left for another time."""


GAME_ERRORS = (EpisodeFailed, InputError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError)
"""of an episode that fails alone"""


class Playable(Protocol):
    """An environment that keeps records. `task` is {"experiment", "instance", "players": names by seat}."""

    def reset(self, task: Mapping[str, Any], seed: int) -> Mapping[str, Observation]:
        """Begin an instance's episode; one that ends without a turn of a player gives no observation."""
        ...

    def step(self, actions: Mapping[str, str]) -> StepResult:
        """Take the replies of the agents that had an observation."""
        ...

    def records(self) -> Records:
        """The record of the episode, once it has ended."""
        ...


class Game(Protocol):
    """A game with its instances."""

    @property
    def spec(self) -> Spec:
        """The registry's entry."""
        ...

    @property
    def seats(self) -> Sequence[str]:
        """The agents, in the order of players."""
        ...

    def experiments(self) -> Sequence[Mapping[str, Any]]:
        """clembench's: a name, shared parameters, and `game_instances`. Raises InputError for a game without any."""
        ...

    def environment(self) -> Playable:
        """A new environment, for one episode."""
        ...

    def script(self, seat: str) -> Callable[..., str] | None:
        """The reply of a programmed player in that seat to (conversation, random generator); None: by the game."""
        ...


@dataclass(frozen=True)
class Task:
    """An instance to play, with its place among its experiment's."""

    number: int
    experiment: Mapping[str, Any]
    """without its instances"""
    experiment_number: int
    instance: Mapping[str, Any]

    @property
    def folder(self) -> str:
        """The experiment's folder and the episode's in it."""
        return f"{self.experiment_number}_{self.experiment['name']}/episode_{self.number}"


def tasks_of(game: Game, only: str | None = None) -> list[Task]:
    """All instances of a game, or those of one experiment. Raises InputError for none."""
    tasks = [
        Task(number, {k: v for k, v in experiment.items() if k != "game_instances"}, place, instance)
        for place, experiment in enumerate(game.experiments())
        for number, instance in enumerate(experiment.get("game_instances") or ())
        if only in (None, experiment.get("name"))
    ]
    if not tasks:
        found = ", ".join(str(experiment.get("name")) for experiment in game.experiments()) or "none"
        which = f" of experiment {only}; it has {found}" if only else ""
        raise InputError(f"{game.spec.name} has no instances{which}; needed: at least one, in its instances file")
    return tasks


@dataclass
class _Episode:
    """An episode while it is played."""

    index: int
    environment: Playable
    seed: int
    observations: Mapping[str, Observation] = field(default_factory=dict)
    steps: int = 0
    failure: str = ""


def play(
    game: Game, players: Sequence[Player], tasks: Sequence[Task], seed: int = 0, at_once: int = 64,
    done: Callable[[int, Records], None] = lambda index, records: None, skipped: Container[int] = (),
) -> list[Records]:  # fmt: skip
    """The records of each task but the `skipped`, which `done` gets too, as (index, records), when its episode ends.

    One player takes all seats, or each seat has one. The seed of an episode is a function of `seed` and its index.
    Raises InputError for another number of players, and ServerGone if a server answers no request: those that it was
    to answer have failed by then, and the others are kept.
    """
    if len(players) not in (1, len(game.seats)):
        raise InputError(
            f"{game.spec.name} has {len(game.seats)} players, and {len(players)} models are given; needed: one for "
            "all seats, or one for each"
        )
    seats = dict(zip(game.seats, players if len(players) > 1 else [players[0]] * len(game.seats), strict=True))
    records: dict[int, Records] = {}
    chosen = [i for i in range(len(tasks)) if i not in skipped]
    waiting = [_Episode(i, game.environment(), _seed(seed, i, 0, "")) for i in chosen]
    unanswered: dict[str, int] = {}
    names = {seat: player.name for seat, player in seats.items()}
    with ThreadPoolExecutor(MAX_THREADS) as threads:
        playing: list[_Episode] = []
        while waiting or playing:
            fresh, waiting = waiting[: at_once - len(playing)], waiting[max(0, at_once - len(playing)) :]

            def begin(episode: _Episode) -> None:
                task = tasks[episode.index]
                given = {"experiment": task.experiment, "instance": task.instance, "players": names}
                episode.observations = episode.environment.reset(given, episode.seed)

            _each(threads, fresh, begin)
            playing = _ended(playing + fresh, records, done)
            actions = _replies(game, seats, [e for e in playing if not e.failure], unanswered)

            def step(episode: _Episode, actions: Mapping[int, Mapping[str, str]] = actions) -> None:
                result = episode.environment.step(actions[episode.index])
                over = result.terminated or result.truncated
                episode.observations = {} if over else result.observations
                episode.steps += 1

            _each(threads, [e for e in playing if not e.failure], step)
            failure = next((e.failure.partition("; needed:")[0] for e in playing if e.failure), "")
            playing = _ended(playing, records, done)
            if max(unanswered.values(), default=0) >= min(MOST_UNANSWERED, len(chosen)):
                played = sum(not found.failure for found in records.values())
                raise ServerGone(f"{played} of {len(chosen)} episodes of {game.spec.name} were played: {failure}")
    return [records[i] for i in chosen]


def _each(threads: ThreadPoolExecutor, episodes: Sequence[_Episode], call: Callable[[_Episode], None]) -> None:
    """Call for each episode, in threads if its environment blocks; an error is the episode's own failure."""

    def guarded(episode: _Episode) -> None:
        try:
            call(episode)
        except GAME_ERRORS as error:
            episode.failure, episode.observations = one_line(f"{type(error).__name__}: {error}", 400), {}

    blocking = [e for e in episodes if getattr(e.environment, "blocking", False)]
    list(threads.map(guarded, blocking))
    for episode in episodes:
        if episode not in blocking:
            guarded(episode)


def _ended(
    episodes: Sequence[_Episode], records: dict[int, Records], done: Callable[[int, Records], None]
) -> list[_Episode]:
    """The episodes that go on; the records of the others are kept."""
    for episode in episodes:
        if not episode.observations:
            found = episode.environment.records() if not episode.failure else Records(failure=episode.failure)
            records[episode.index] = found
            done(episode.index, found)
    return [episode for episode in episodes if episode.observations]


def _replies(
    game: Game, seats: Mapping[str, Player], episodes: Sequence[_Episode], unanswered: dict[str, int]
) -> dict[int, dict[str, str]]:
    """The replies of all agents with an observation, by episode; a request without a reply fails its episode.

    `unanswered` counts a player's requests without a reply since its last one; prompts that are too long count not.
    """
    replies: dict[int, dict[str, str]] = {episode.index: {} for episode in episodes}
    turns = [(episode, seat) for episode in episodes for seat in episode.observations]
    # one request a model, whatever seats it has; players of one spec are one model
    for player in dict.fromkeys(seats[seat].descriptor for _, seat in turns):
        acting = [(episode, seat) for episode, seat in turns if seats[seat].descriptor == player]
        prompts = [conversation_of(episode.observations[seat]) for episode, seat in acting]
        seeds = [_seed(episode.seed, 0, episode.steps, seat) for episode, seat in acting]
        model = seats[acting[0][1]]
        found = (
            [_scripted(game, seat, p, s) for (_, seat), p, s in zip(acting, prompts, seeds, strict=True)]
            if model.is_programmed
            else _ask(model, prompts, seeds)
        )
        lost = sum(isinstance(one, Exception) and not isinstance(one, TooLong) for one in found)
        unanswered[player] = unanswered.get(player, 0) + lost if lost == len(found) else 0
        for (episode, seat), completion in zip(acting, found, strict=True):
            if isinstance(completion, Exception):
                episode.failure = one_line(f"{type(completion).__name__}: {completion}", 400)
                episode.observations = {}
            else:
                replies[episode.index][seat] = completion.text
    return replies


def _ask(player: Player, prompts: Sequence[Conversation], seeds: Sequence[int]) -> list[Completion | Exception]:
    """The reply to each prompt, or why there is none; if one has none, they are asked for one by one."""
    try:
        return list(player.reply(prompts, seeds))
    except (InputError, ServerError) as error:
        if len(prompts) == 1:
            return [error]
    with ThreadPoolExecutor(getattr(player.generator, "concurrency", 1)) as threads:  # as many as the server takes
        return [found for [found] in threads.map(lambda p, s: _ask(player, [p], [s]), prompts, seeds)]


def _scripted(game: Game, seat: str, prompt: Conversation, seed: int) -> Completion:
    script = game.script(seat)
    assert script is not None, "a game without scripts plays its programmed seats itself"
    from lmgym.generation.protocol import Sampling

    [[completion]] = ScriptedGenerator(script).reply([prompt], 1, replace(Sampling(), seed=seed))
    return completion


def conversation_of(observation: Observation) -> Conversation:
    """An observation as a conversation: a text is one turn of the user."""
    prompt = observation.prompt
    return Conversation((Turn("user", prompt),)) if isinstance(prompt, str) else prompt


def _seed(*parts: object) -> int:
    """A hash of 63 bits."""
    return int.from_bytes(blake2b(" ".join(map(str, parts)).encode(), digest_size=8).digest(), "big") >> 1
