"""The tasks of an environment that the command line names, to train and to evaluate on."""

import pytest

from lmgym.environments.named import NamedEnvironment
from lmgym.errors import InputError
from ppo.named_environments import split_tasks


def split(tasks, eval_tasks=(), size: float = 3):
    return split_tasks(NamedEnvironment("x", object, tasks, eval_tasks), size, 0)


def test_a_single_task_is_in_both_since_episodes_differ_by_their_seeds():
    assert split([{}]) == ([{}], [{}] * 3)


def test_a_single_task_to_evaluate_on_takes_its_place_there():
    assert split([{"split": "train"}], [{"split": "validation"}]) == (
        [{"split": "train"}],
        [{"split": "validation"}] * 3,
    )


def test_the_first_of_several_tasks_to_evaluate_on_are_taken():
    assert split([{}], [{"i": i} for i in range(5)]) == ([{}], [{"i": 0}, {"i": 1}, {"i": 2}])


def test_others_are_held_out_of_those_to_train_on():
    train, held_out = split([{"i": i} for i in range(10)])
    assert (len(train), len(held_out)) == (7, 3)
    assert sorted(task["i"] for task in [*train, *held_out]) == list(range(10))


@pytest.mark.parametrize(("tasks", "eval_tasks", "size"), [(2, 0, 2), (1, 3, 4), (1, 0, 0.5)])
def test_more_than_there_are_is_refused(tasks: int, eval_tasks: int, size: float):
    with pytest.raises(InputError, match="eval_size="):
        split([{"i": i} for i in range(tasks)], [{"i": i} for i in range(eval_tasks)], size)
