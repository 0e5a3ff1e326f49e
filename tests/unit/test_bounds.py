"""Every number of every config is finite and has an upper limit, and what a message says of a bound is true."""

import importlib
import math
import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple, get_args, get_type_hints

import pytest

import ppo.check
import preferences.check
import preferences.iterative.check
import reward_models.check
import sft.check
from lmgym.config import ModelConfig, Range
from lmgym.errors import InputError, shown
from lmgym.generation.protocol import Sampling
from lmgym.runs.fields import flatten
from lmgym.runs.flags import override
from ppo.config import PPOConfig
from ppo.train import train as train_ppo
from preferences.config import PreferenceConfig
from preferences.iterative.config import IterativeConfig
from preferences.iterative.train import train as train_iterative
from preferences.train import train as train_preferences
from reward_models.config import RewardModelConfig
from reward_models.train import train_pairwise
from sft.config import SftConfig
from sft.tasks import CHAT
from sft.train import train as train_sft

ROOT = Path(__file__).parents[2]
NO_MODEL = ModelConfig("./nowhere")
STAGES: dict[str, tuple[Any, Callable[[Any], None], Callable[[Any], None]]] = {
    "sft": (SftConfig("x", NO_MODEL), sft.check.check_settings, lambda config: train_sft(config, CHAT)),
    "preferences": (PreferenceConfig("x", NO_MODEL), preferences.check.check_settings, train_preferences),
    "preferences in rounds": (
        IterativeConfig("x", NO_MODEL),
        lambda config: preferences.iterative.check.check_settings(config, {"own": ...}),  # type: ignore[dict-item]
        train_iterative,
    ),
    "reward_models": (RewardModelConfig("x", NO_MODEL), reward_models.check.check_settings, train_pairwise),
    "ppo": (
        PPOConfig("x", NO_MODEL),
        lambda config: ppo.check.check_settings(config, 1),
        lambda config: train_ppo(config, pytest.fail),
    ),
}
# what may be inf, and says so: nothing is clipped then
INFINITE = {"cliprange", "cliprange_reward", "cliprange_value", "epsilon_high"}
SAMPLING = {"max_new_tokens", "top_k", "top_p", "repetition_penalty"}


class Number(NamedTuple):
    """A field of a stage's config that is a number, or None."""

    stage: str
    group: str
    name: str
    whole: bool

    def __str__(self) -> str:
        return f"{self.stage}-{self.name}"

    def config(self, value: object) -> Any:
        config = STAGES[self.stage][0]
        change: dict[str, Any] = {self.name: value}
        return replace(
            config, **({self.group: replace(getattr(config, self.group), **change)} if self.group else change)
        )

    def refusal(self, value: object) -> str:
        """Why this field cannot have the value; nothing where it can, or where only others do not go with it."""
        try:
            STAGES[self.stage][1](self.config(value))
        except InputError as error:
            return str(error) if str(error).startswith(f"{self.name}={shown(value)}; needed: ") else ""
        return ""


def numbers() -> list[Number]:
    found = []
    for stage, (config, _, _) in STAGES.items():
        groups = {"": config} | {f.name: g for f in fields(config) if is_dataclass(g := getattr(config, f.name))}
        for group, settings in groups.items():
            for name, hint in get_type_hints(type(settings)).items():
                kinds = set(get_args(hint) or (hint,)) - {NoneType}
                if kinds in ({int}, {float}):
                    found.append(Number(stage, group, name, kinds == {int}))
    return found


def test_the_finder_of_numbers_sees_whole_ones_others_and_those_that_may_be_left_out() -> None:
    found = {(n.stage, n.group, n.name, n.whole) for n in numbers()}
    assert {
        ("sft", "optimizer", "seed", True), ("sft", "samples", "top_p", False), ("sft", "run", "memory_gb", False),
        ("reward_models", "", "centering", False), ("reward_models", "", "rows_per_user", True),
        ("ppo", "method", "target", False),
    } <= found  # fmt: skip
    assert not {name for _, _, name, _ in found} & {"packed", "dry_run", "model"}
    assert len(found) > 80


@pytest.mark.parametrize("number", numbers(), ids=str)
def test_no_number_is_nan_infinite_or_absurdly_large(number: Number) -> None:
    for value in (math.nan, -math.inf, 10**30, -(10**30), 1e30):
        assert number.refusal(value), value
    assert bool(number.refusal(math.inf)) == (number.name not in INFINITE)
    assert not number.refusal(
        getattr(STAGES[number.stage][0], number.group, STAGES[number.stage][0]).__dict__[number.name]
    )


@pytest.mark.parametrize("number", numbers(), ids=str)
def test_a_number_is_refused_exactly_outside_its_range(number: Number) -> None:
    config = STAGES[number.stage][0]
    settings = getattr(config, number.group) if number.group else config
    hint = get_type_hints(type(settings), include_extras=True)[number.name]
    ranges = [one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Range)]
    if number.name in SAMPLING and number.stage == "ppo" and not ranges:
        return  # `Sampling` has its range
    [limits] = ranges
    assert number.refusal(math.nan).endswith(f"needed: {limits}")
    for value in {limits.low, limits.low - 1, limits.high, limits.high + 1, -1, 0, 1, *limits.also} - {None}:
        stricter = value == 0 and number.stage == "ppo" and number.name == "learning_rate"
        assert bool(number.refusal(value)) == (not limits.fits(value) or stricter), value


@pytest.mark.parametrize(
    ("limits", "words", "fit", "unfit"),
    [
        (Range(0, 1), "0 to 1", (0, 0.5, 1), (-0.1, 1.1, math.nan, math.inf, None, "1")),
        (Range(0, 1, below=True), "0 or more, below 1", (0,), (1,)),
        (Range(0, 1e9, above=True), "above 0; at most 1,000,000,000", (1e-9, 10**9), (0, 1e10)),
        (Range(0.5, 1, above=True, below=True), "above 0.5, below 1", (0.6,), (0.5, 1)),
        (Range(1, 9, also=(-1, None), hint="-1 for all"), "1 to 9, or -1, or none; -1 for all", (1, -1, None), (0, -2)),
        (Range(0, 9, above=True, infinite=True), "above 0; at most 9, or inf", (9, math.inf), (-math.inf, 10)),
    ],
    ids=lambda value: str(value) if isinstance(value, Range) else "",
)  # fmt: skip
def test_a_range_says_what_fits(limits: Range, words: str, fit: tuple, unfit: tuple) -> None:
    assert str(limits) == words
    for value in fit:
        limits.check("x", value)
    for value in unfit:
        with pytest.raises(InputError, match=f"^x={re.escape(shown(value))}; needed: {re.escape(words)}$"):
            limits.check("x", value)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", ["", ".", "..", "../..", "a/b", "/tmp/a", "a b", "a\x1b", "é", "x" * 201, "a\n"])
def test_an_experiments_name_is_no_path(stage: str, name: str) -> None:
    config, refuse, _ = STAGES[stage]
    with pytest.raises(InputError, match=r"^name=.*: it names a folder$") as refused:
        refuse(replace(config, name=name))
    assert str(refused.value).isprintable()
    for fine in ("a", "v1.2", "_x-Y", "..a"):
        refuse(replace(config, name=fine))


@pytest.mark.parametrize("flag", ["--lora_rank", "--learning_rate", "--seed", "--sample_prompts"])
def test_a_flag_of_any_number_of_digits_ends_in_one_line(flag: str, capsys) -> None:
    for digits in ("9" * 20, "9" * 10_000, "-" + "9" * 400):
        try:
            sft.check.check_settings(override(SftConfig("x"), [flag, digits]))
        except InputError as error:
            said = str(error)
        except SystemExit:
            said = capsys.readouterr().err.rstrip("\n")
        else:
            pytest.fail(f"{flag} {digits[:20]} was taken")
        assert said.isprintable()
        assert len(said) < 300


@pytest.mark.parametrize(
    "changes",
    [
        {"max_new_tokens": 2**31}, {"temperature": math.nan}, {"temperature": 101}, {"top_p": 1000},
        {"top_p": math.nan},
        {"top_k": 10**30}, {"repetition_penalty": math.inf}, {"seed": -1}, {"seed": 2**64}, {"seed": (0, 2**64)},
    ],
)  # fmt: skip
def test_sampling_is_bounded_whoever_asks_for_it(changes: dict) -> None:
    [name] = changes
    with pytest.raises(InputError, match=f"^{name}="):
        replace(Sampling(), **changes)
    Sampling(1 << 20, 100, 1 << 24, 1, 100, seed=(0, 2**64 - 1))


def config_of(path: Path) -> Any:
    return importlib.import_module(f"{path.parts[-3]}.experiments.{path.stem}").CONFIG


each_experiment = pytest.mark.parametrize(
    "path",
    sorted(path for stage in STAGES for path in (ROOT / stage / "experiments").glob("[a-z]*.py")),
    ids=lambda path: path.stem,
)


@each_experiment
def test_no_experiment_begins_with_a_model_in_its_own_output(path: Path) -> None:
    """It would lie among the run's results, and be moved or deleted with them."""
    config = config_of(path)
    assert not Path(flatten(config)["model"]).is_relative_to(config.output)


@each_experiment
def test_every_experiment_is_within_its_bounds(path: Path) -> None:
    config = config_of(path)
    [check] = [check for example, check, _ in STAGES.values() if type(example) is type(config)]
    assert check(config) is None
