"""Task setups: tasks, an environment, a reward function, and monitors. An experiment names one."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from lmgym.data.mixing import Part, drawn_by_set
from lmgym.data.prompts import Prompts, RowCheck, read_prompts
from lmgym.data.rejections import Rejection, Tally, tally
from lmgym.distributed.ranks import all_gather_objects
from lmgym.environments.bounds import read_result
from lmgym.environments.function_reward import FunctionReward
from lmgym.environments.players import Actor
from lmgym.environments.protocol import Environment, Observation, RewardFunction, StepResult, Task
from lmgym.environments.random_walks import draw_random_walks
from lmgym.environments.scored_chat import ScoredChat
from lmgym.environments.scorer_reward import ScorerReward, Source
from lmgym.errors import InputError, shown
from lmgym.generation.actions import read_candidates
from lmgym.runs.user_code import call_user_code
from lmgym.scoring.comparing_judge import ComparingJudge
from lmgym.scoring.named_scorers import read_weights
from lmgym.scoring.strengths import comparisons_of
from lmgym.shell import command
from ppo.config import PPOConfig, RewardConfig
from ppo.rewards import (
    EVAL_SCORER,
    SCORER_SETTINGS,
    columns_of,
    limits_of,
    load_monitors,
    load_scorer_reward,
    monitored,
)

RewardFunctions = Callable[..., Any] | Mapping[str, Callable[..., Any]]
"""a reward function in a form of lmgym/scoring/function_forms.py, or several by name"""
Metric = Callable[..., Mapping[str, Any]]
"""trlx's `metric_fn(samples, prompts, outputs, tokenizer, **columns)`: a number per name, or one per sample; with a
parameter `output_ids`, it receives the sampled ids too"""


@dataclass(frozen=True)
class TaskSetup:
    """The source of episodes and their rewards."""

    tasks: Sequence[Task]
    eval_tasks: Sequence[Task]
    environment: Callable[[], Environment]
    reward_function: RewardFunction | None
    fingerprint: str
    metric: Metric | None = None
    """further metrics of the evaluation's episodes"""
    monitors: Mapping[str, Source] = field(default_factory=dict)
    """scorers that are never optimised; the one named EVAL_SCORER has an alarm"""
    players: Mapping[str, Actor] = field(default_factory=dict)
    """generators of the agents that are not trained"""
    trained_agents: int = 1
    """per game; each acts in every game, is the policy, and has an episode of its own"""
    rejections: Sequence[Rejection] = ()
    rows: int = 0
    """number of rows that the tasks were read from"""
    parts: Sequence[Part] = ()
    """of several data sets, what is drawn of each"""
    reading: Sequence[str] = ()
    """a line on each data set: what its columns are taken for"""
    reference_lines: Mapping[str, float] = field(default_factory=dict)
    """returns of other players by name, between which the report draws the reward"""
    uses_settings: frozenset[str] = frozenset()
    """SCORER_SETTINGS that a custom reward function uses, and "opponents"; those that nothing uses are refused"""
    eval_environment: Callable[[], Environment] | None = None
    """of evaluations, with `eval_players`; None: they are played as training is"""
    eval_players: Mapping[str, Actor] = field(default_factory=dict)
    together: int = 1
    """tasks in a row that an iteration plays together, such as both orders of a pair; divides their number"""

    def __post_init__(self) -> None:
        for name in ("tasks", "eval_tasks"):
            object.__setattr__(self, name, _rows(name, getattr(self, name)))
        for name, (is_right, needed) in _KINDS.items():
            if not is_right(value := getattr(self, name)):
                raise InputError(f"TaskSetup({name}=...) is {shown(value)}; needed: {needed}")
        if len(self.tasks) % self.together:
            found = f"TaskSetup(together={self.together}) with {len(self.tasks):,} tasks"
            raise InputError(f"{found}; needed: a number that divides that of the tasks")

    def new_environment(self) -> Environment:
        """One for an episode. Raises InputError if its constructor ends the process, or makes something else."""
        environment: Any = call_user_code("the environment's constructor", self.environment)
        if missing := [name for name in ("reset", "step") if not callable(getattr(environment, name, None))]:
            found = f"TaskSetup(environment=...) makes {shown(environment)}, without {' and '.join(missing)}"
            raise InputError(f"{found}; needed: a function or class that makes an Environment")
        return environment

    def first_observations(self, task: Task) -> Mapping[str, Observation]:
        """Those of a new environment with seed 0, by agent. Raises InputError if it ends the process."""
        environment = self.new_environment()
        found = call_user_code("the environment's reset", lambda: environment.reset(task, 0))
        try:
            return read_result(StepResult(found)).observations
        except (TypeError, ValueError) as error:
            raise InputError(f"reset of {type(environment).__name__}: {error}") from error

    @property
    def for_evaluation(self) -> "TaskSetup":
        """The setup that evaluations are played by."""
        if self.eval_environment is None:
            return self
        return replace(self, environment=self.eval_environment, players=self.eval_players)

    @property
    def tally(self) -> Tally:
        """The rejections by reason."""
        return tally(self.rejections, self.rows)

    @property
    def counts(self) -> dict[str, Any]:
        """Counts for run.json, and the reference lines."""
        counts = {"train_tasks": len(self.tasks), "eval_tasks": len(self.eval_tasks), **self.tally.counts}
        lines = {"reference_lines": dict(self.reference_lines)} if self.reference_lines else {}
        return counts | drawn_by_set(self.parts) | lines


def _rows(name: str, rows: Any) -> Sequence[Task]:
    """The tasks as a sequence of rows. Raises InputError for anything else."""
    needed = 'needed: a list of rows, as [{"prompt": "..."}]'
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
        raise InputError(f"TaskSetup({name}=...) is {shown(rows)}; {needed}")
    if not isinstance(rows, Sequence):  # a generator
        rows = call_user_code(f"TaskSetup({name}=...)", lambda: list(rows))
    for place, row in enumerate(rows):
        if not isinstance(row, Mapping) or not all(isinstance(column, str) for column in row):
            raise InputError(f"TaskSetup({name}=...) has {shown(row)} in place {place}; {needed}")
    return rows


def _named(*methods: str) -> Callable[[Any], bool]:
    """A test for a mapping from names to objects that have one of the methods."""

    def is_right(value: Any) -> bool:
        has_method = (any(callable(getattr(one, name, None)) for name in methods) for one in value.values())
        return all(isinstance(name, str) for name in value) and all(has_method)

    return lambda value: isinstance(value, Mapping) and is_right(value)


def _several(kind: type) -> Callable[[Any], bool]:
    """A test for a sequence or a set of objects of a kind."""
    return lambda value: (
        isinstance(value, Sequence | Set) and not isinstance(value, str) and all(isinstance(one, kind) for one in value)
    )


def _optional(is_right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or is_right(value)


def _from(least: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and value >= least


def _are_numbers(value: Any) -> bool:
    right = isinstance(value, Mapping) and all(isinstance(name, str) for name in value)
    return right and all(isinstance(one, int | float) and math.isfinite(one) for one in value.values())


_ACTORS = _named("reply", "pick"), "generators by the agents' names, as {'player_1': ScriptedGenerator(...)}"
_MAKES_ONE = "a function or class that makes an Environment"
_KINDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "environment": (callable, _MAKES_ONE),
    "reward_function": (
        _optional(lambda value: callable(getattr(value, "rewards", None))),
        "None, or a RewardFunction such as FunctionReward(function, tokenizer)",
    ),
    "fingerprint": (lambda value: isinstance(value, str), "a text that says which tasks these are"),
    "metric": (_optional(callable), "None or a function"),
    "monitors": (_named("score", "rewards"), "scorers by name"),
    "players": _ACTORS,
    "trained_agents": (_from(1), "a number from 1 on"),
    "together": (_from(1), "a number from 1 on"),
    "rejections": (_several(Rejection), "those that read_prompts returned"),
    "rows": (_from(0), "a number of rows"),
    "parts": (_several(Part), "those that read_prompts returned"),
    "reading": (_several(str), "a list of lines"),
    "reference_lines": (_are_numbers, "returns by name, as {'random': -0.4}"),
    "uses_settings": (_several(str), "names of settings, as frozenset({'scorers'})"),
    "eval_environment": (_optional(callable), f"None, or {_MAKES_ONE}"),
    "eval_players": _ACTORS,
}
"""by field: a test of its value, and what is needed"""


class Prepare(Protocol):
    """The function that an experiment passes to `train`."""

    def __call__(self, config: PPOConfig, tokenizer: Any) -> TaskSetup:
        """The task setup, on every rank. Raises InputError for data or scorers that cannot be loaded."""
        ...


def chat_with_scorers(config: PPOConfig, tokenizer: Any) -> TaskSetup:
    """One reply to each prompt, rewarded by the functions and scorers of the settings, on the rank that sampled it."""
    seed, columns = config.optimizer.split_seed, config.columns
    prompts = read_prompts(config.rollout, seed, tokenizer=tokenizer, columns=columns)
    names = columns_of(prompts.train, prompts.evaluation)
    # a replay scores nothing
    reward_function, monitors = (
        (None, {}) if config.rollout.replay else load_scorer_reward(config.reward, tokenizer, names)
    )
    return TaskSetup(
        prompts.train,
        prompts.evaluation,
        ScoredChat,
        reward_function,
        prompts.fingerprint,
        monitors=monitors,
        rejections=prompts.rejections,
        rows=prompts.rows,
        parts=prompts.parts,
        reading=prompts.reading,
    )


def text_with_function(
    function: RewardFunctions,
    metric: Metric | None = None,
    tasks: Sequence[Task] | None = None,
    eval_tasks: Sequence[Task] = (),
    as_text: bool = True,
    row_check: RowCheck | None = None,
) -> Prepare:
    """One reply to each prompt, rewarded by a function in a form of lmgym/scoring/function_forms.py.

    Of several functions by name it is their sum, weighted by the setting `weights`. `tasks` are read from the settings'
    prompts unless given; of those, rows in which `row_check` finds a fault are rejected. Monitors need prompts that are
    conversations.
    """

    def prepare(config: PPOConfig, tokenizer: Any) -> TaskSetup:
        why = "a Python function rewards here; scorers can only be monitors (--eval_scorer, --monitor_scorers)"
        unused = ("reward", "scorers", *(() if isinstance(function, Mapping) else ("weights", "normalize")))
        refuse_unused(config.reward, unused, why)
        reward = _function_reward(function, tokenizer, config.reward)
        if tasks is None:
            seed = config.optimizer.split_seed
            prompts = read_prompts(config.rollout, seed, as_text, tokenizer, row_check, config.columns)
            held_out: Sequence[Task] = prompts.evaluation
        else:
            prompts, held_out = Prompts(list(tasks), list(eval_tasks), []), eval_tasks or tasks
        for part in (prompts.train, [*prompts.train, *held_out]):  # training lacks columns that only the other has
            reward.check(columns_of(part))
        monitors = load_monitors(config.reward, held_out, tokenizer)
        return TaskSetup(
            prompts.train,
            held_out,
            ScoredChat,
            reward,
            prompts.fingerprint,
            metric,
            monitors,
            rejections=prompts.rejections,
            rows=prompts.rows,
            parts=prompts.parts,
            reading=prompts.reading,
            uses_settings=frozenset({"weights", "normalize"} - set(unused)),
        )

    return prepare


def _function_reward(
    function: RewardFunctions, tokenizer: Any, settings: RewardConfig
) -> FunctionReward | ScorerReward:
    """The reward of a function, or of several by name. Raises InputError for functions and weights that do not fit."""
    limits = tokenizer, settings.reward_timeout
    if not isinstance(function, Mapping):
        return FunctionReward(function, *limits)
    functions = {name: FunctionReward(one, *limits, name=name) for name, one in function.items()}
    weights = read_weights(settings.weights, functions)
    return ScorerReward(functions, weights.last, None, *limits_of(settings), first_weights=weights.first)


def random_walks(config: PPOConfig, tokenizer: Any, graph_seed: int = 1000) -> TaskSetup:
    """Walks in trlx's graph, rewarded for being short; every start 50 times in an evaluation."""
    why = "walks are rewarded for being short; a scorer needs conversations"
    refuse_unused(config.reward, SCORER_SETTINGS, why)
    known = draw_random_walks(graph_seed)
    reward = FunctionReward(known.reward, tokenizer, None)
    return TaskSetup(known.tasks, 50 * known.tasks, ScoredChat, reward, f"random walks {graph_seed}", known.metric)


def judges_that_compare(setup: TaskSetup) -> Mapping[str, ComparingJudge]:
    """Those among what is optimised and the monitors, by name."""
    reward = setup.reward_function
    sources = {**(reward.scorers if isinstance(reward, ScorerReward) else {}), **setup.monitors}
    return {name: source for name, source in sources.items() if isinstance(source, ComparingJudge)}


def share_starting_replies(setup: TaskSetup, known: Mapping[str, str]) -> dict[str, str]:
    """The replies before step 1 of all ranks, by prompt, with which judges that compare do so in evaluations from then
    on; `known` from a checkpoint. Collective.
    """
    judges = judges_that_compare(setup).values()
    own = {key: reply for judge in judges for key, reply in judge.starting.items()}
    shared = {key: reply for of_rank in all_gather_objects(own) for key, reply in of_rank.items()} | dict(known)
    for judge in judges:
        judge.starting = dict(shared)
    return shared


def verdict_notes(config: PPOConfig, setup: TaskSetup) -> list[str]:
    """A line on each judge that compares: the verdicts that an iteration asks it for at most."""
    group, replies = config.algorithm.num_generations, config.rollout.num_rollouts
    verdicts = 2 * comparisons_of(group) * (replies // group)
    return [
        f"{name} compares {group} replies to a prompt: at most {verdicts:,} verdicts an iteration, both orders counted"
        for name in judges_that_compare(setup)
        if name not in setup.monitors
    ]


def refuse_unused(settings: RewardConfig, names: Sequence[str], why: str) -> None:
    """Raises InputError if one of these settings is given, which nothing would use; `none` asks for nothing."""
    values = {name: getattr(settings, name) for name in names}
    given = [f"--{name} {value}" for name, value in values.items() if value and value != "none"]
    if given:
        raise InputError(f"{' '.join(given)} would not be used: {why}; leave {'it' if len(given) == 1 else 'them'} out")


def check_setup(config: PPOConfig, setup: TaskSetup, tokenizer: Any) -> None:
    """Raises InputError for settings and an environment that the setup does not use, and for a policy over actions if
    the first observation lists none, or some that cannot be told apart.
    """
    check_unused_settings(config.reward, setup)
    words = config.rollout.environment
    if words and "environment" not in setup.uses_settings:
        needed = command("lmgym", "train", "ppo", "environment", "--environment", words)
        raise InputError(f"--environment {shown(words)} is not used by this experiment; needed: {needed}")
    if config.rollout.policy_over == "actions":
        for agent, seen in setup.first_observations(setup.tasks[0]).items():
            if agent not in setup.players and isinstance(
                found := read_candidates(tokenizer, [seen.prompt], [seen.actions], config.rollout.max_new_tokens)[0],
                str,
            ):
                name = type(setup.new_environment()).__name__
                raise InputError(
                    f"--policy_over actions: {name}, first task, seed 0, step 0: the observation of {agent!r} {found}; "
                    "or leave --policy_over out"
                )


def check_unused_settings(settings: RewardConfig, setup: TaskSetup) -> None:
    """Raises InputError for scorers that a custom task setup neither optimises nor monitors."""
    missing = monitored(settings).keys() - setup.monitors.keys()
    unused = {
        **dict.fromkeys(SCORER_SETTINGS[:4], not isinstance(setup.reward_function, ScorerReward)),
        "eval_scorer": EVAL_SCORER in missing,
        "monitor_scorers": bool(missing - {EVAL_SCORER}),
    }
    names = [name for name in SCORER_SETTINGS if unused[name] and name not in setup.uses_settings]
    why = (
        "the task setup has no ScorerReward (load_scorer_reward) or monitors (load_monitors) of them, and "
        "TaskSetup(uses_settings=...) does not name them"
    )
    refuse_unused(settings, names, why)
