"""Our own dialogue games, as the registry of games has them: no checkout and no other process is needed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmgym.apps.games.dialogue.games import GAMES, DialogueGame
from lmgym.apps.games.dialogue.instances import TRAIN, VALIDATION
from lmgym.apps.games.dialogue.records import RecordedEnvironment
from lmgym.apps.playpen.registries.specs import Spec
from lmgym.generation.protocol import ReplyScript

OWN_BENCHMARK = "lmgym"
OWN_GAMES: Mapping[str, DialogueGame] = GAMES
TRAINING_INSTANCES = 50  # of each experiment


@dataclass(frozen=True)
class OwnGame:
    """One of our games. Its instances are held out from those of `for_training`."""

    spec: Spec
    game: DialogueGame
    is_for_training: bool = False

    @property
    def seats(self) -> Sequence[str]:
        """The agents: the roles of the game."""
        return self.game.roles

    def experiments(self) -> Sequence[Mapping[str, Any]]:
        """Its experiments with their instances."""
        if self.is_for_training:
            return self.game.experiments(TRAINING_INSTANCES, split=TRAIN)
        return self.game.experiments(split=VALIDATION)

    def environment(self) -> RecordedEnvironment:
        """A new environment."""
        return self.game.environment()

    def script(self, seat: str) -> ReplyScript:
        """The scripted winner, which is what mock plays."""
        return self.game.script(seat)
