"""Dialogue games played reply by reply, and as the episodes of an engine."""

from lmgym.apps.games.dialogue.games import GAMES
from lmgym.apps.games.dialogue.records import RecordedEnvironment
from lmgym.environments.protocol import StepResult


def begun(name: str, instance: dict | None = None, reward: str = "main_score", seed: int = 0) -> RecordedEnvironment:
    """A game of the instance; of none, one that follows from the seed."""
    game = GAMES[name].environment(reward)
    game.reset({"experiment": {"name": "some"}, "instance": instance} if instance else {}, seed)
    return game


def said(game: RecordedEnvironment, *replies: tuple[str, str]) -> StepResult:
    """The result of the last of these (player, reply)."""
    for player, reply in replies:
        result = game.step({player: reply})
    return result


def scores(game: RecordedEnvironment) -> dict:
    return dict(game.records().outcome)


def shown(result: StepResult) -> str:
    """The last message that the next player reads."""
    [observation] = result.observations.values()
    return observation.prompt.turns[-1].text
