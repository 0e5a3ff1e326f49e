"""The files episodes/*.jsonl: a sample of each iteration's games, and all of the evaluations'; and their replay."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from lmgym.aids import aid
from lmgym.console import CONSOLE, clean, say
from lmgym.environments.recorded import FOLDER, record_games, replay
from lmgym.errors import RunStopped, shown_path
from lmgym.runs.files import read_line
from lmgym.runs.run import Run
from ppo.evaluation import rollout_rows, write_samples
from ppo.rollouts import Played, Rollouts
from ppo.task_setups import TaskSetup

SAMPLES = 8  # games of an iteration that are written
DIFFERS = 1
"""exit code of a replay that is not as it was recorded"""


@aid("the files of an iteration")
def write_rollouts(run: Run, update: int, played: Played, rollouts: Rollouts) -> None:
    """Write an iteration's first episodes as replies, and its first games whole, with the mean advantage of a reply."""
    advantages = (rollouts.row_sums(rollouts.advantages) / torch.from_numpy(rollouts.reply_lengths)).tolist()
    episodes, tasks = played.episodes, played.share.tasks
    write_samples(run, "rollouts", update, rollout_rows(episodes[:SAMPLES], advantages))
    first = [episode for episode in episodes if episode.index < SAMPLES]
    write_games(run, "rollouts", update, record_games(first, tasks, advantages))


def write_games(run: Run, kind: str, update: int, games: Sequence[dict[str, Any]]) -> None:
    """Write recorded games, a line each."""
    if games:
        run.write_lines(f"{FOLDER}/{kind}-{update:08d}.jsonl", [{"update": update, **game} for game in games])


def replay_file(setup: TaskSetup, words: str) -> None:
    """Play a recorded game again and print it turn by turn. `words` is FILE, whose first line is played, or FILE:LINE.

    Raises InputError for another file, and RunStopped (exit 1) if an observation or a reward differs.
    """
    name, colon, number = words.rpartition(":")
    path, line = (Path(name), int(number)) if colon and number.isdecimal() else (Path(words), 1)
    row = read_line(path, line)
    setup = setup.for_evaluation if path.name.startswith("evaluation") else setup
    turns, different = replay(setup.new_environment(), row)
    for turn in turns:
        CONSOLE.rule(f"step {turn.step}: {turn.agent}", style="dim")
        CONSOLE.print(clean(turn.seen), soft_wrap=True)
        earned = "" if turn.reward is None else f"   (reward {turn.recorded if turn.scored else turn.reward:g})"
        say(f"{turn.agent}: {turn.reply.strip()}{earned}")
    if scored := sum(turn.scored for turn in turns):
        say(f"{scored} replies have a reward function's score, which was not asked for again")
    where = f"{shown_path(path)}, line {line}"
    if different:
        raise RunStopped(f"{where} is not played as it was recorded: {'; '.join(different)}", "failed", DIFFERS)
    say(f"{where}: {len(turns)} replies, observations and rewards as they were recorded")
