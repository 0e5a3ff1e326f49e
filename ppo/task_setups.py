"""What a policy trains in: tasks, environments, who rewards, and who is only watched. An experiment names one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from lmgym.data.prompts import Prompts, read_prompts
from lmgym.data.rejections import Rejection, Tally, tally
from lmgym.distributed.deepspeed_engine import without_sharded_load
from lmgym.distributed.ranks import raise_on_all_ranks
from lmgym.environments.app_conversation import AppConversation
from lmgym.environments.function_reward import FunctionReward
from lmgym.environments.protocol import Environment, RewardFunction, Task
from lmgym.environments.random_walks import draw_random_walks
from lmgym.environments.scored_chat import ScoredChat
from lmgym.environments.scorer_reward import ScorerReward
from lmgym.errors import MOST_SCORE, InputError, one_line, shown
from lmgym.generation.protocol import Generator
from lmgym.scoring.named_scorers import load_scorers, read_names, read_world
from lmgym.scoring.scorers import Scorer
from lmgym.world.streams import draw_population
from lmgym.world.world import World
from ppo.config import PPOConfig, RewardConfig

USERS, FIRST_USER = 4096, 1_000_000
OF_SCORERS = ("scorers", "weights", "gold", "watched")

Metric = Callable[..., Mapping[str, Any]]
"""trlx's `metric_fn(samples, prompts, outputs, tokenizer, **columns)`: a number each, or one a sample; with a
parameter `output_ids`, the sampled ids too"""


@dataclass(frozen=True)
class TaskSetup:
    """Where episodes come from and what they are worth."""

    tasks: Sequence[Task]
    eval_tasks: Sequence[Task]
    environment: Callable[[], Environment]
    reward_function: RewardFunction | None
    fingerprint: str
    metric: Metric | None = None
    """figures of the evaluation's episodes besides the reward"""
    watched: Mapping[str, Scorer] = field(default_factory=dict)
    """scorers that are never optimised; the one named gold has an alarm"""
    others: Mapping[str, Generator] = field(default_factory=dict)
    """agents that are not trained"""
    trained_agents: int = 1
    """of a game, each of whom acts in it: they all are the policy, and each has an episode of its own"""
    rejections: Sequence[Rejection] = ()
    rows: int = 0
    """of the files that the tasks were read from"""
    uses_settings: frozenset[str] = frozenset()
    """of scorers, weights, gold and watched the settings that a judge of one's own goes by; the others are refused
    where neither a ScorerReward nor `watched` does"""

    @property
    def tally(self) -> Tally:
        """The rejections by reason."""
        return tally(self.rejections, self.rows)

    @property
    def counts(self) -> dict[str, Any]:
        """What is recorded."""
        return {"train_tasks": len(self.tasks), "eval_tasks": len(self.eval_tasks), **self.tally.counts}


class Prepare(Protocol):
    """What an experiment hands to `train`."""

    def __call__(self, config: PPOConfig, tokenizer: Any) -> TaskSetup:
        """The setup, on every rank. Raises InputError for what cannot be had."""
        ...


def chat_with_scorers(config: PPOConfig, tokenizer: Any) -> TaskSetup:
    """One reply to each prompt, judged by the scorers that the settings name, on the rank that sampled it."""
    prompts = read_prompts(config.rollout, config.optimizer.split_seed)
    reward_function, watched = load_scorer_reward(config.reward)
    return TaskSetup(
        prompts.train, prompts.evaluation, ScoredChat, reward_function, prompts.fingerprint, watched=watched,
        rejections=prompts.rejections, rows=prompts.rows,
    )  # fmt: skip


def app_conversations(config: PPOConfig, tokenizer: Any) -> TaskSetup:
    """Conversations of the app: each message that a user goes on with is worth 1. `prompts` is world:SEED.

    The users are those of no A/B test of fewer than FIRST_USER users. Raises InputError for other prompts and scorers.
    """
    why = "the app's users reward by going on, and a scorer judges one reply to a prompt"
    refuse_unused(config.reward, OF_SCORERS, why)
    world, held_out = World(read_world(config.rollout.prompts)), int(config.rollout.eval_size)
    if not 1 <= held_out < USERS:
        raise InputError(f"eval_size={config.rollout.eval_size:g}; needed: 1 to {USERS - 1} users to evaluate on")
    population = draw_population(world, FIRST_USER + np.arange(USERS), config.optimizer.split_seed)
    tasks = [{"user": int(number)} for number in population.numbers]
    fingerprint = f"{USERS} users from {FIRST_USER} of world {world.seed}, {config.optimizer.split_seed}"
    return TaskSetup(tasks[held_out:], tasks[:held_out], lambda: AppConversation(world, population), None, fingerprint)


def load_scorer_reward(settings: RewardConfig) -> tuple[ScorerReward, Mapping[str, Scorer]]:
    """The scorers with their weights, not normalised yet, and those that are only watched. Collective.

    Raises InputError, on every rank, where one does not load.
    """
    if not settings.scorers:
        raise InputError("scorers is empty: nobody rewards; needed: --scorers name=PATH, more of them behind commas")
    weights = read_weights(settings.weights, settings.scorers)
    found, watched = _load(settings, settings.scorers, _watched_words(settings))
    reward_function = ScorerReward(
        found, weights, None, settings.cliprange_reward, settings.reward_timeout, settings.reward_retries
    )
    return reward_function, watched


def _watched(settings: RewardConfig) -> dict[str, str]:
    """Paths of what is only watched, by name. Raises InputError for words that name nothing, and for two of a name."""
    named = read_names(settings.watched, "--watched") if settings.watched else {}
    if not settings.gold:
        return named
    if "gold" in named:
        raise InputError(f"--gold {settings.gold} and --watched {settings.watched} both name gold; needed: a name each")
    return {"gold": settings.gold, **named}


def _watched_words(settings: RewardConfig) -> str:
    return ",".join(f"{name}={path}" for name, path in _watched(settings).items())


def _load(settings: RewardConfig, *several: str) -> list[dict[str, Scorer]]:
    """The scorers of each of these words. Collective."""
    precision = settings.scorer_precision
    with without_sharded_load():
        return raise_on_all_ranks(lambda: [load_scorers(words, precision) if words else {} for words in several])


def load_watched(settings: RewardConfig, tasks: Sequence[Task]) -> Mapping[str, Scorer]:
    """The scorers that are only watched, before any loads refused where prompts are texts. Collective."""
    words = _watched_words(settings)
    texts = [prompt for task in tasks if isinstance(prompt := task.get("prompt"), str)]
    if words and texts:
        raise InputError(
            f"--gold and --watched name {words}, and a prompt is the text {texts[0]!r:.60}; needed: conversations, "
            "which is what scorers judge replies to: text_with_function(..., as_text=False), or leave them out"
        )
    [watched] = _load(settings, words)
    return watched


def refuse_unused(settings: RewardConfig, names: Sequence[str], why: str) -> None:
    """Raises InputError where one of these settings is given, which nobody would heed."""
    given = [f"--{name} {getattr(settings, name)}" for name in names if getattr(settings, name)]
    if given:
        them = "it" if len(given) == 1 else "them"
        raise InputError(f"{' '.join(given)} would not be heeded: {why}; leave {them} out")


def check_unused_settings(settings: RewardConfig, setup: TaskSetup) -> None:
    """Raises InputError for scorers that settings name, and that a setup of one's own neither pays nor watches."""
    why = (
        "the setup pays no scorers: its reward_function is no ScorerReward (load_scorer_reward), and "
        "TaskSetup(uses_settings=...) names none"
    )
    if not isinstance(setup.reward_function, ScorerReward):
        refuse_unused(settings, [name for name in ("scorers", "weights") if name not in setup.uses_settings], why)
    missing = _watched(settings).keys() - setup.watched.keys()
    found = {"gold": "gold" in missing, "watched": bool(missing - {"gold"})}
    lost = [name for name, lacks in found.items() if lacks and name not in setup.uses_settings]
    refuse_unused(
        settings,
        lost,
        "the task setup does not monitor them; set TaskSetup(watched=load_watched(...))",
    )


def read_weights(words: str | None, scorers: str) -> dict[str, float]:
    """A weight for each scorer. Raises InputError for anything but `name=NUMBER`."""
    names = [part.partition("=")[0].strip() for part in scorers.split(",") if part.strip()]
    given: dict[str, float] = {}
    for part in (words or "").split(","):
        if not part.strip():
            continue
        name, _, number = part.partition("=")
        try:
            given[name.strip()] = weight = float(number)
        except ValueError:
            raise InputError(
                f"--weights {shown(words)}: {shown(number)} is no number; needed: name=NUMBER behind commas"
            ) from None
        if not abs(weight) <= MOST_SCORE:
            raise InputError(
                f"--weights {shown(words)}: {shown(number)} is no weight; needed: at most {MOST_SCORE:,.0f} in size"
            )
    if unknown := given.keys() - set(names):
        named = one_line(", ".join(sorted(unknown)))
        raise InputError(f"--weights names {named}; the scorers are {', '.join(names)}")
    return {name: given.get(name, 1.0) for name in names}


def text_with_function(
    function: Callable[..., Any], metric: Metric | None = None, tasks: Sequence[Task] | None = None,
    eval_tasks: Sequence[Task] = (), as_text: bool = True,
) -> Prepare:  # fmt: skip
    """One reply to each prompt, rewarded by a function `(samples, prompts, outputs, tokenizer, **columns)`.

    `tasks` come from the settings' prompts unless given. Scorers may be watched where prompts are conversations.
    """

    def prepare(config: PPOConfig, tokenizer: Any) -> TaskSetup:
        why = "a Python function rewards here, and scorers can only be watched (--gold, --watched)"
        refuse_unused(config.reward, ("scorers", "weights"), why)
        timeout, retries = config.reward.reward_timeout, config.reward.reward_retries
        reward_function = FunctionReward(function, tokenizer, timeout, retries)
        if tasks is None:
            prompts = read_prompts(config.rollout, config.optimizer.split_seed, as_text)
            held_out: Sequence[Task] = prompts.evaluation
        else:
            prompts, held_out = Prompts(list(tasks), list(eval_tasks), []), eval_tasks or tasks
        for asked in (prompts.train, [*prompts.train, *held_out]):  # training must do without what only the other has
            reward_function.check({name for task in asked for name in task if name != "prompt"})
        watched = load_watched(config.reward, held_out)
        return TaskSetup(
            prompts.train, held_out, ScoredChat, reward_function, prompts.fingerprint, metric, watched,
            rejections=prompts.rejections, rows=prompts.rows,
        )  # fmt: skip

    return prepare


def random_walks(config: PPOConfig, tokenizer: Any, graph_seed: int = 1000) -> TaskSetup:
    """Walks in trlx's graph, worth their shortness; every start 50 times in an evaluation."""
    why = "walks are rewarded for their shortness, and are no conversations that a scorer could judge"
    refuse_unused(config.reward, OF_SCORERS, why)
    known = draw_random_walks(graph_seed)
    reward_function = FunctionReward(known.reward, tokenizer, None)
    return TaskSetup(
        known.tasks, 50 * known.tasks, ScoredChat, reward_function, f"random walks {graph_seed}", known.metric
    )
