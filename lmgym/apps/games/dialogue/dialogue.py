"""The course of a dialogue game: what each player has seen and said, and the record of it.

A player's view is a conversation: the game's messages are the user's turns, those that follow each other joined by an
empty line, and its own replies the bot's.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lmgym.apps.games.dialogue.records import GAME_MASTER, Recorder, Records
from lmgym.apps.games.dialogue.scoring import Result, RewardKind, episode_scores, rewards_of
from lmgym.environments.protocol import Observation, StepResult
from lmgym.text import Conversation, Turn, messages


class Drawn(NamedTuple):
    """An instance, and a key: instances of one key are drawn once, and are on one side of a split."""

    key: str
    instance: dict[str, Any]
    held_out_by: str = ""
    """what is equal for instances of other keys that must be on the same side; empty: the key"""


@dataclass
class Dialogue:
    """An episode while it is played."""

    recorder: Recorder
    reward: RewardKind
    views: dict[str, list[Turn]] = field(default_factory=dict)
    """the turns that each player has seen and said"""
    replies: dict[str, int] = field(default_factory=dict)
    """numbers of replies of the players that have acted"""
    result: Result | None = None

    @staticmethod
    def begin(
        game: str, roles: Sequence[str], task: Mapping[str, Any], instance: Mapping[str, Any], reward: RewardKind
    ) -> "Dialogue":
        """An episode of an instance, before any message."""
        experiment = (task.get("experiment") or {}).get("name", "")
        meta = {"game_name": game, "experiment_name": experiment, "game_id": instance.get("game_id", 0)}
        return Dialogue(Recorder(meta, tuple(roles), dict(task.get("players") or {})), reward)

    def tell(self, player: str, text: str) -> None:
        """Give a player a message of the game."""
        view = self.views.setdefault(player, [])
        self.recorder.log(GAME_MASTER, player, "send message", text, "context" if view else "initial prompt")
        if view and view[-1].speaker == "user":
            view[-1] = Turn("user", f"{view[-1].text}\n\n{text}")
        else:
            view.append(Turn("user", text))

    def hear(self, player: str, reply: str) -> str:
        """Take a player's reply, and return it stripped."""
        given = messages(Conversation(tuple(self.views[player])))
        said = reply.strip()
        self.recorder.log_request(given, reply)
        self.recorder.log(player, GAME_MASTER, "get message", said, "response")
        self.views[player].append(Turn("bot", said))
        self.replies[player] = self.replies.get(player, 0) + 1
        return said

    def note(self, kind: str, content: str) -> None:
        """Record a decision of the game."""
        self.recorder.log(GAME_MASTER, GAME_MASTER, kind, content)

    def waiting_for(self, player: str) -> StepResult:
        """The player acts next."""
        return StepResult({player: Observation(Conversation(tuple(self.views[player])))}, info=self._info())

    def end(self, result: Result, kind: str, content: str = "") -> StepResult:
        """The game has ended: record why, and pay the players that acted."""
        self.note(kind, content or result.outcome)
        self.result = result
        return StepResult({}, rewards_of(result, list(self.replies), self.reward), terminated=True, info=self._info())

    def _info(self) -> dict[str, float]:
        """Main Score (0 if aborted), outcome, who aborted, and requests."""
        result = self.result
        aborted = bool(result and result.is_aborted)
        info = {
            "main_score": result.main_score if result and not aborted else 0.0,
            "aborted": float(aborted),
            "success": float(bool(result and result.is_success)),
            "requests": float(sum(self.replies.values())),
        }
        return info | {f"aborted_by_{r}": float(bool(result and result.aborted_by == r)) for r in self.recorder.roles}

    def records(self) -> Records:
        """The records of the episode, once it has ended."""
        assert self.result is not None, "the episode goes on"
        scores = episode_scores(self.result, sum(self.replies.values()))
        content = {"meta": dict(self.recorder.meta), "turn scores": {}, "episode scores": scores}
        # a round trip, so that scores are what their file says
        return Records(self.recorder.interactions, self.recorder.requests, json.loads(json.dumps(content)))
