"""Games that are played: many episodes together, each model's turns in one request.

A game gives environments whose agents are its seats, and which keep the records of their episode. An episode that fails
has its reason as record; the others go on. So it is with a request that a server refuses or does not answer; a server
that answers none ends the play.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from lmgym.apps.games.dialogue.records import RecordedEnvironment, Records
from lmgym.apps.playpen.players import Model
from lmgym.apps.playpen.registries.specs import Spec
from lmgym.environments import engine
from lmgym.environments.engine import hash_of
from lmgym.environments.episodes import RunningEpisode
from lmgym.environments.players import ActionRequest, GeneratorPlayer, Player
from lmgym.environments.protocol import Action
from lmgym.errors import InputError, RunStopped, ServerError, TooLong, one_line
from lmgym.generation.protocol import ReplyScript, ScriptedGenerator

MOST_UNANSWERED = 8
"""requests in a row that a server may leave without a reply"""


class ServerGone(InputError):
    """A server answers no request any more: what has not been played is left for another time."""


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

    def environment(self) -> RecordedEnvironment:
        """A new environment, for one episode."""
        ...

    def script(self, seat: str) -> ReplyScript | None:
        """The programmed player of that seat; None: the game plays it itself."""
        ...


@dataclass(frozen=True)
class GameTask:
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


def tasks_of(game: Game, only: str | None = None) -> list[GameTask]:
    """All instances of a game, or those of one experiment. Raises InputError for none."""
    tasks = [
        GameTask(number, {k: v for k, v in experiment.items() if k != "game_instances"}, place, instance)
        for place, experiment in enumerate(game.experiments())
        for number, instance in enumerate(experiment.get("game_instances") or ())
        if only in (None, experiment.get("name"))
    ]
    if not tasks:
        found = ", ".join(str(experiment.get("name")) for experiment in game.experiments()) or "none"
        which = f" of experiment {only}; it has {found}" if only else ""
        raise InputError(f"{game.spec.name} has no instances{which}; needed: at least one, in its instances file")
    return tasks


def close_games(games: Sequence[Game]) -> None:
    """End the subprocesses of games that have one."""
    for game in games:
        if close := getattr(game, "close", None):
            close()


def play(
    game: Game,
    models: Sequence[Model],
    tasks: Sequence[GameTask],
    seed: int = 0,
    at_once: int = 64,
    done: Callable[[int, Records], None] = lambda index, records: None,
    skipped: Container[int] = (),
) -> list[Records]:
    """The records of each task but the `skipped`, which `done` gets too, as (index, records), when its episode ends.

    One model takes all seats, or each seat has one. The seed of an episode is a function of `seed` and its index.
    Raises InputError for another number of models, and ServerGone if a server answers no request: those that it was
    to answer have failed by then, and the others are kept.
    """
    if len(models) not in (1, len(game.seats)):
        raise InputError(
            f"{game.spec.name} has {len(game.seats)} players, and {len(models)} models are given; needed: one for "
            "all seats, or one for each"
        )
    seated = dict(zip(game.seats, models if len(models) > 1 else [models[0]] * len(game.seats), strict=True))
    chosen = [i for i in range(len(tasks)) if i not in skipped]
    players = _players(game, seated, min(MOST_UNANSWERED, len(chosen)))
    environments = [game.environment() for _ in chosen]
    names = {seat: model.name for seat, model in seated.items()}
    given = [{"experiment": tasks[i].experiment, "instance": tasks[i].instance, "players": names} for i in chosen]
    records: dict[int, Records] = {}

    def keep(episode: RunningEpisode) -> None:
        if episode.ended:
            failed = Records(failure=episode.reason) if episode.error else None
            found = records[episode.index] = failed or environments[episode.index].records()
            done(chosen[episode.index], found)

    try:
        engine.play(
            environments,
            given,
            [hash_of(seed, i, 0, "") for i in chosen],
            players,
            seed_of=lambda episode, seat: hash_of(episode.seed, 0, episode.step_number, seat),
            watch=keep,
            at_once=at_once,
            stops=(RunStopped,),
        )
        for player in players.values():
            if isinstance(player, Answering):
                player.refuse_gone()
    except ServerGone as gone:
        played = sum(not found.failure for found in records.values())
        raise ServerGone(f"{played} of {len(chosen)} episodes of {game.spec.name} were played: {gone}") from None
    return [records[place] for place in range(len(chosen))]


def _players(game: Game, seated: Mapping[str, Model], patience: int) -> dict[str, Player]:
    """The players by seat. Models of one descriptor are one, which gets one request for all of its seats."""
    players: dict[str, Player] = {}
    answering: dict[str, Answering] = {}
    for seat, model in seated.items():
        if not model.is_programmed:
            if model.descriptor not in answering:
                answering[model.descriptor] = Answering(GeneratorPlayer(model.generator, model.sampling), patience)
            players[seat] = answering[model.descriptor]
        elif script := game.script(seat):
            players[seat] = GeneratorPlayer(ScriptedGenerator(script))
    return players


@dataclass
class Answering:
    """A model whose requests may go without a reply: their episodes fail, and after many in a row the play ends."""

    player: GeneratorPlayer
    patience: int
    """most requests in a row without a reply; prompts that are too long do not count"""
    unanswered: int = 0
    fault: str = ""
    """of the latest requests"""

    def act(self, requests: Sequence[ActionRequest], n: int = 1) -> list[list[Action]]:
        """One reply to each request, or why there is none. Raises ServerGone once too many had none."""
        assert n == 1, "a seat replies once"
        self.refuse_gone()
        found = self._ask(requests)
        faults = [one for one in found if isinstance(one, Exception)]
        lost = sum(not isinstance(one, TooLong) for one in faults)
        self.unanswered = self.unanswered + lost if lost == len(found) else 0
        if faults:
            self.fault = _shown(faults[0])
        return [[Action("", error=_shown(one)) if isinstance(one, Exception) else one] for one in found]

    def refuse_gone(self) -> None:
        """Raises ServerGone if too many requests had no reply."""
        if self.unanswered >= self.patience:
            raise ServerGone(self.fault.partition("; needed:")[0])

    def _ask(self, requests: Sequence[ActionRequest]) -> list[Action | Exception]:
        """The reply to each request, or why there is none; if one has none, they are asked for one by one."""
        try:
            return [action for [action] in self.player.act(requests)]
        except (InputError, ServerError) as error:
            if len(requests) == 1:
                return [error]
        at_once = getattr(self.player.generator, "concurrency", 1)  # as many as the server takes
        with ThreadPoolExecutor(at_once) as threads:
            return [found for [found] in threads.map(lambda request: self._ask([request]), requests)]


def _shown(error: Exception) -> str:
    return one_line(f"{type(error).__name__}: {error}", 400)
