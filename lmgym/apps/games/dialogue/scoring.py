"""Results of episodes: their scores by clembench's names, and the rewards that follow from them.

Main Score is 0 to 100: 0 of a lost game, nan of one that was aborted because a reply broke the rules of form.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from lmgym.errors import InputError, shown

ABORTED, SUCCESS, LOSE, MAIN_SCORE = "Aborted", "Success", "Lose", "Main Score"
RewardKind = Literal["main_score", "outcome"]
"""main_score: Main Score / 100. outcome: 1 for a success, 0 for a lost game, as in Playpen's paper"""
ABORT_REWARD = -1.0


@dataclass(frozen=True)
class Result:
    """The end of an episode."""

    main_score: float
    """0 to 100; nan if aborted"""
    is_success: bool = False
    aborted_by: str = ""
    """the player whose reply broke the rules of form; empty if none did"""
    more: Mapping[str, float] = field(default_factory=dict)
    """scores of this game alone"""

    @property
    def is_aborted(self) -> bool:
        """True if a reply broke the rules of form."""
        return bool(self.aborted_by)

    @property
    def outcome(self) -> str:
        """success, lose or aborted."""
        return "aborted" if self.is_aborted else "success" if self.is_success else "lose"


def success(main_score: float, **more: float) -> Result:
    """A game that was won."""
    return Result(main_score, True, more=more)


def lose(main_score: float = 0.0, **more: float) -> Result:
    """A game that was played by the rules and not won."""
    return Result(main_score, more=more)


def abort(player: str, **more: float) -> Result:
    """A game that a player's reply ended."""
    return Result(math.nan, aborted_by=player, more=more)


def episode_scores(result: Result, requests: int) -> dict[str, float]:
    """The scores by clembench's names; at most one of the `requests`, the last, broke the rules of form."""
    violated = int(result.is_aborted)
    parsed = requests - violated
    return {
        "Request Count": requests,
        "Parsed Request Count": parsed,
        "Violated Request Count": violated,
        "Request Success Ratio": round(parsed / requests, 4) if requests else 0.0,
        ABORTED: violated,
        SUCCESS: int(result.is_success),
        LOSE: int(not result.is_aborted and not result.is_success),
        MAIN_SCORE: result.main_score,
        **result.more,
    }


def outcome_of_scores(scores: Mapping[str, float]) -> str:
    """success, lose or aborted, from an episode's scores; empty if they do not say. As `Result.outcome`."""
    names = {"aborted": ABORTED, "success": SUCCESS, "lose": LOSE}
    return next((outcome for outcome, name in names.items() if scores.get(name) == 1), "")


def rewards_of(result: Result, acted: Sequence[str], kind: RewardKind = "main_score") -> dict[str, float]:
    """The reward of each player that acted, in [-1, 1].

    An aborted game is -1 for the player whose reply ended it, and 0 for the others, who could not help it.
    """
    if result.is_aborted:
        return {player: ABORT_REWARD if player == result.aborted_by else 0.0 for player in acted}
    reward = result.main_score / 100 if kind == "main_score" else float(result.is_success)
    return dict.fromkeys(acted, reward)


def check_reward_kind(kind: str) -> None:
    """Raises InputError for a kind of reward that there is not."""
    if kind not in get_args(RewardKind):
        raise InputError(f"reward={shown(kind)}; needed: {' or '.join(get_args(RewardKind))}")
