"""Environments by name: schemes, settings, and the classes of a file."""

from importlib import metadata
from pathlib import Path

import pytest

from lmgym.environments.named import SPLITS, NamedEnvironment, load_environment, read_settings, schemes
from lmgym.errors import InputError
from lmgym.runs.paths import ENVIRONMENTS

GUESS = '''
from lmgym.environments.named import NamedEnvironment
from lmgym.environments.protocol import POLICY, Observation, StepResult
from lmgym.text import Conversation, Turn


class Guess:
    """Say the number."""

    tasks = [{"number": 3}, {"number": 4}]

    def __init__(self, prize=1.0):
        self.prize = prize

    def reset(self, task, seed):
        self.number = task["number"]
        return {POLICY: Observation(Conversation((Turn("user", "A number?"),)))}

    def step(self, actions):
        return StepResult(rewards={POLICY: self.prize * (actions[POLICY] == str(self.number))}, terminated=True)


def several(number):
    return NamedEnvironment("several", Guess, [{"number": i} for i in range(number)])


class Broken:
    def __init__(self):
        raise RuntimeError("no board")
'''


@pytest.fixture
def guess(tmp_path: Path) -> Path:
    path = tmp_path / "guess.py"
    path.write_text(GUESS)
    return path


def test_settings_are_json_or_python_values_or_texts():
    found = read_settings("x", "a=1&b=False&c=true&d=8x8&e=[1, 2]&f=null&g=0.5&h='x'&i=")
    assert found == {"a": 1, "b": False, "c": True, "d": "8x8", "e": [1, 2], "f": None, "g": 0.5, "h": "x", "i": ""}


@pytest.mark.parametrize("query", ["a", "a=1&a=2", "=&b"])
def test_settings_without_a_value_and_settings_given_twice_are_refused(query: str):
    with pytest.raises(InputError, match=r"needed: (name=VALUE|once)"):
        read_settings("x", query)


def test_a_class_of_a_file_is_an_environment_with_its_tasks_and_settings(guess: Path):
    named = load_environment(f"{guess}:Guess?prize=2.5")
    assert (named.tasks, named.about) == ([{"number": 3}, {"number": 4}], "Say the number.")
    environment = named.environment()
    environment.reset({"number": 3}, 0)
    assert environment.step({"policy": "3"}).rewards == {"policy": 2.5}
    assert named.environment() is not environment


def test_a_function_of_a_file_may_return_a_named_environment(guess: Path):
    assert len(load_environment(f"{guess}:several?number=7").tasks) == 7


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("{}:Gues", "has no class 'Gues'; did you mean Guess?"),
        ("{}:Guess?prise=2", "unexpected keyword argument 'prise'"),
        ("{}:Broken", "no board"),
        ("{}x.py:Guess", "there is no file"),
        ("gamez:nim", "is no environment; did you mean games?"),
        ("nim", "needed: FILE.py:CLASS, or one of"),
        ("games:nimm", "has no 'nimm'; did you mean nim?"),
        ("games:shop?size=3", "games:shop has no setting size; needed: none"),
        ("world:x", "names no world"),
        ("debate:x", "needed: debate:letters"),
        ("dialogue:taboo", "has no role ''; needed: dialogue:taboo/describer or /guesser"),
        ("dialogue:taboo/guesser?instances=0", "instances=0"),
        ("arithmetic:x", "operations='x'"),
        ("arithmetic:+?digit=2", "has no setting digit; needed: digits, examples, seed"),
    ],
)
def test_what_cannot_be_loaded_is_named_with_what_is_needed(guess: Path, words: str, message: str):
    with pytest.raises((InputError, TypeError, RuntimeError)) as refused:
        load_environment(words.format(guess))
    assert message in str(refused.value)


def test_every_scheme_of_the_package_is_named_after_its_entry_point_and_says_what_it_is():
    names = {point.name for point in metadata.entry_points(group=ENVIRONMENTS)}
    assert names >= {"arithmetic", "debate", "dialogue", "games", "world"}
    for name, scheme in schemes().items():
        assert scheme.form.startswith(f"{name}:")
        assert scheme.about


def test_every_listed_environment_loads_or_names_the_command_that_installs_it():
    for name, scheme in schemes().items():
        for one in scheme.names():
            try:
                found = load_environment(f"{name}:{one}")
            except InputError as error:
                found = error
            assert isinstance(found, NamedEnvironment) or "needed: pip install" in str(found)


@pytest.mark.parametrize("words", ["arithmetic:+-", "dialogue:taboo/guesser", "debate:letters", "world:0"])
def test_no_task_is_in_both_splits(words: str):
    named = load_environment(words)
    train, held_out = ({repr(sorted(task.items())) for task in named.splits[split]} for split in SPLITS)
    assert train.isdisjoint(held_out)
    if not named.eval_tasks:
        assert len(train) + len(held_out) == len(named.tasks)


def test_a_tenth_of_the_tasks_is_held_out_where_an_environment_holds_out_none():
    named = NamedEnvironment("x", object, [{"i": i} for i in range(25)])  # type: ignore[arg-type]
    assert [len(named.splits[split]) for split in SPLITS] == [22, 3]


def test_tasks_begin_again_with_the_next_seed():
    named = NamedEnvironment("x", object, [{"i": 0}, {"i": 1}], [{"i": 2}])  # type: ignore[arg-type]
    assert [named.episode("train", i) for i in range(3)] == [({"i": 0}, 0), ({"i": 1}, 0), ({"i": 0}, 1)]
    assert [named.episode("validation", i) for i in range(2)] == [({"i": 2}, 0), ({"i": 2}, 1)]


def test_validation_of_a_single_task_has_seeds_of_its_own():
    named = load_environment("games:blackjack")
    assert [named.episode("train", i)[1] for i in range(3)] == [0, 1, 2]
    own = {named.episode("validation", i)[1] for i in range(100)}
    assert len(own) == 100
    assert min(own) > 1000


def test_episodes_of_other_splits_and_before_the_first_are_refused():
    with pytest.raises(InputError, match="split='test'; needed: train or validation"):
        load_environment("games:shop").episode("test", 0)
    with pytest.raises(InputError, match="index=-1; needed: 0 or more"):
        load_environment("games:shop").episode("train", -1)
