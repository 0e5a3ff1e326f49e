"""Shares won at equal length, of judges that compare a policy's replies with those before step 1."""

from collections.abc import Mapping, Sequence

from lmgym.distributed.ranks import all_gather_objects
from lmgym.environments.episodes import Episode
from lmgym.environments.protocol import Task
from lmgym.scoring.comparing_judge import ComparingJudge
from lmgym.scoring.equal_length import share_at_equal_length
from lmgym.scoring.retries import RewardResult

Scores = Mapping[str, Sequence[RewardResult[float]]]


def shares_at_equal_length(
    judges: Mapping[str, ComparingJudge], episodes: Sequence[Episode], tasks: Sequence[Task], scores: Scores
) -> tuple[dict[str, float], list[str]]:
    """(metrics of an evaluation by judge, notes on those without). Collective.

    `scores` [episodes] are the monitors' by name; those of other judges are parts of the reward.
    """
    metrics, notes = dict[str, float](), list[str]()
    for name, judge in judges.items():
        own = _compared(name, judge, episodes, tasks, scores)
        rows = [row for of_rank in all_gather_objects(own) for row in of_rank]
        found = share_at_equal_length([won for won, _ in rows], [more for _, more in rows])
        metrics |= {key: value for key, value in found.named(f"eval/equal_length/{name}").items() if value is not None}
        if rows and found.value is None:
            notes.append(f"no share that {name} gives at equal length: {found.reason}")
    return metrics, notes


def _compared(
    name: str, judge: ComparingJudge, episodes: Sequence[Episode], tasks: Sequence[Task], scores: Scores
) -> list[tuple[float, int]]:
    """(share won, characters more than the reply before step 1) of this rank's replies that have both."""
    found = []
    for number, episode in enumerate(episodes):
        step, watched = episode.steps[-1], scores.get(name)
        won = watched[number].value if watched else step.scores.get(name)
        asked = tasks[episode.index].get("prompt") if watched else step.observed
        more = judge.longer_by(asked, step.completion.text)
        if won is not None and more is not None:
            found.append((won, more))
    return found
