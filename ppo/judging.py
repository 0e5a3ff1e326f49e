"""Pairs of replies as tasks of a judge: each order is a task of its own, and the label says which letter is right.

A judge that answers at once is a policy over two actions, [[A]] and [[B]], so that nothing but its choice is learned;
one over tokens gives its reasons first. A verdict that is right earns 1, a wrong one 0, and none in the asked form -1.
Both orders of a pair are played in the same iteration: what they teach about the places cancels. Of one order more than
of the other, the first update would learn a place, and a policy that always names it learns nothing more.
An evaluation asks both orders of a pair on the same rank: a pair is right if both verdicts are; the verdict changes
with the order if both name the same place.
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, final

import numpy as np

from lmgym.data.mixing import DataSet, read_sets
from lmgym.data.pairs import Pair, validate
from lmgym.data.rationales import has_rationale
from lmgym.data.splitting import overlap_notes, split_column, split_rows
from lmgym.distributed.ranks import rank, world_size
from lmgym.environments.protocol import POLICY, Observation, StepResult, Task
from lmgym.errors import InputError
from lmgym.generation.thoughts import split_thought
from lmgym.scoring.judge_prompts import NAMES, comparing_prompt
from lmgym.scoring.judge_settings import JUDGE_FILE, save_judge_tokens
from lmgym.scoring.label_probabilities import read_written
from lmgym.scoring.llm_judge import MOST_CHARACTERS, ONE
from lmgym.shell import command
from ppo.config import PPOConfig
from ppo.rewards import load_monitors
from ppo.task_setups import TaskSetup, refuse_unused

NO_VERDICT = -1.0
LOOKED_AT = 100  # rows of a set, for reasons
VERDICTS = tuple(f"[[{name}]]" for name in NAMES)


@final
class JudgedPair:
    """One verdict on two replies. A task is a judge's question as `prompt`, the right letter as `label`."""

    def __init__(self) -> None:
        self.task: Task = {}

    def reset(self, task: Task, seed: int) -> Mapping[str, Observation]:
        """Ask; the seed is ignored."""
        self.task = task
        return {POLICY: Observation(task["prompt"], VERDICTS)}

    def step(self, actions: Mapping[str, str]) -> StepResult:
        """Reward the verdict, and end."""
        found = verdict_of(actions[POLICY])
        reward = float(found == self.task["label"]) if found else NO_VERDICT
        return StepResult(terminated=True, rewards={POLICY: reward})


def judge_of_pairs(config: PPOConfig, tokenizer: Any) -> TaskSetup:
    """Both orders of each pair of the settings' rows. Raises InputError for rows that are no pairs."""
    refuse_unused(config.reward, ("reward", "scorers", "weights", "normalize"), "the labels of the pairs reward here")
    settings, columns, notes = config.rollout, config.columns, list[str]()
    column = split_column(settings.split_by)
    sets = read_sets(settings.prompts, settings.prompt_split, None, column)
    pairs, rejections = validate(*sets.values(), columns=columns, notes=notes)
    others = read_sets(settings.eval_prompts, "test", None, column) if settings.eval_prompts else {}
    held_out: list[Pair] | None = None
    if others:
        held_out, more = validate(*others.values(), columns=columns, notes=notes)
        rejections += more
    of_all = *sets.values(), *others.values()
    seed = config.optimizer.split_seed
    sides = split_rows(pairs, held_out, settings.split_by, of_all, settings.eval_size, seed, "pairs", "eval_prompts")
    if not sides.train:
        raise InputError(f"{settings.prompts} leaves 0 pairs to train on; needed: some that are not evaluated on")
    whole = sides.held_out[: len(sides.held_out) // world_size() * world_size()]
    reasons = settings.policy_over == "tokens"
    held = [task for order in (0, 1) for task in tasks_of(whole, (order,), reasons)]
    train = tasks_of(sides.train, (0, 1), reasons)
    return TaskSetup(
        train,
        held,
        JudgedPair,
        None,
        f"both orders of {len(pairs)} pairs, {'reasons first' if reasons else 'at once'}",
        both_orders,
        load_monitors(config.reward, held, tokenizer),
        rejections=[*rejections, *sides.rejections],
        rows=sum(map(len, of_all)),
        reading=[
            *notes,
            *sides.notes,
            *overlap_notes(sides.train, sides.held_out, sides.split_by, "pairs"),
            *_reasons_note(config, sets),
        ],
    )


def _reasons_note(config: PPOConfig, sets: Mapping[str, DataSet]) -> list[str]:
    """A line where rows have a rater's reasons, and the model has not learned to give any."""
    first = (record.fields for rows in sets.values() for record in islice(rows, LOOKED_AT))
    if not any(map(has_rationale, first)) or (Path(config.policy.model) / JUDGE_FILE).is_file():
        return []
    learn = command("lmgym", "train", "sft", "judge_rationales", "--dataset", config.rollout.prompts)
    return [f"rows have a rater's reasons, which are not read here: {learn} learns them first (docs/judges.md)"]


def tasks_of(pairs: Sequence[Pair], orders: Sequence[int], reasons: bool) -> list[Task]:
    """A task for each pair and order: 0 shows the preferred reply first, 1 second."""
    return [_task(pair, number, order, reasons) for number, pair in enumerate(pairs) for order in orders]


def _task(pair: Pair, number: int, order: int, reasons: bool) -> Task:
    first, second = (pair.rejected, pair.chosen) if order else (pair.chosen, pair.rejected)
    asked = comparing_prompt(pair.conversation, first, second, ONE, MOST_CHARACTERS, reasons)
    return {"prompt": asked.prompt, "label": NAMES[order], "pair": number}


def verdict_of(text: str) -> str:
    """The letter that a reply gives as its verdict; empty without one."""
    return read_written(split_thought(text).answer, NAMES)


def both_orders(
    samples: Any,
    prompts: Any,
    outputs: Sequence[str],
    tokenizer: Any,
    label: Sequence[str],
    pair: Sequence[int],
    **columns: Any,
) -> dict[str, list[float]]:
    """By reply: whether it is right, whether it gives a verdict, whether both orders of its pair are right, and whether
    its pair's verdict names the same place in both; a pair of which one order is missing is not right.
    """
    found = [verdict_of(text) for text in outputs]
    right = [one == wanted for one, wanted in zip(found, label, strict=True)]
    places: dict[int, list[int]] = {}
    for place, number in enumerate(pair):
        places.setdefault(number, []).append(place)
    together = {number: len(own) == len(NAMES) for number, own in places.items()}
    both = [together[number] and all(right[i] for i in places[number]) for number in pair]
    same = [
        together[number] and len({found[i] for i in places[number]}) == 1 and found[places[number][0]] != ""
        for number in pair
    ]
    columns_of = {
        "accuracy": right,
        "verdicts": [one != "" for one in found],
        "both_orders_right": both,
        "changes_with_order": same,
    }
    return {name: np.array(values, dtype=float).tolist() for name, values in columns_of.items()}


def save_settings(config: PPOConfig, folder: Path) -> None:
    """Writes how the judge in a run's folder is asked, which `compare:FOLDER` reads; on rank 0."""
    tokens = config.rollout.max_new_tokens if config.rollout.policy_over == "tokens" else None
    if rank() == 0 and not (config.run.dry_run or config.rollout.replay):
        save_judge_tokens(folder, tokens)
