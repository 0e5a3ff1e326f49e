"""Rewards of the settings: functions and scorers with their weights, what normalises them, and monitors."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from lmgym.data.prompts import Task
from lmgym.distributed.deepspeed_engine import without_sharded_load
from lmgym.distributed.ranks import raise_on_all_ranks
from lmgym.environments.function_reward import FunctionReward
from lmgym.environments.protocol import RewardFunction
from lmgym.environments.scorer_reward import ScorerReward, Source
from lmgym.errors import InputError, listed
from lmgym.scoring.comparing_judge import ComparingJudge
from lmgym.scoring.function_forms import Given
from lmgym.scoring.function_scorers import NOTHING, FileScorer
from lmgym.scoring.named_scorers import load_scorers, read_names, read_weights
from ppo.config import RewardConfig

SCORER_SETTINGS = ("reward", "scorers", "weights", "normalize", "eval_scorer", "monitor_scorers")
CLIP = 10.0
"""standard deviations, of scores that are normalised by run, where cliprange_reward is None"""
EVAL_SCORER = "eval_scorer"
"""name among the monitors of the scorer that has an alarm"""


def columns_of(*parts: Iterable[Task]) -> set[str]:
    """The names of the columns of tasks, beside their prompts."""
    return {name for part in parts for task in part for name in task if name != "prompt"}


def limits_of(settings: RewardConfig) -> tuple[float | None, float]:
    """(largest normalised score, seconds) of a ScorerReward."""
    clip = CLIP if settings.cliprange_reward is None else settings.cliprange_reward
    return clip, settings.reward_timeout


def load_scorer_reward(
    settings: RewardConfig, tokenizer: Any = None, columns: Collection[str] = ()
) -> tuple[ScorerReward, Mapping[str, Source]]:
    """The functions and scorers with their weights, not normalised yet, and the monitors. Collective.

    Functions get the tokenizer and the `columns` of the tasks. Raises InputError, on every rank, if one does not load,
    or requires another column.
    """
    paths = optimised(settings)
    if not paths:
        raise InputError("there is no reward; needed: --reward FILE.py:FUNCTION or --scorers [name=]PATH")
    weights = read_weights(settings.weights, paths)
    given = Given(frozenset(columns), of_policy=tokenizer is not None)
    sources, monitors = _load(settings, tokenizer, given, _joined(paths), _joined(monitored(settings)))
    return ScorerReward(sources, weights.last, None, *limits_of(settings), first_weights=weights.first), monitors


def normalised_by_run(settings: RewardConfig, reward: RewardFunction | None) -> list[str]:
    """Names of what is normalised by its moments before step 1: all by `run`, trained scorers unless another is given.

    A function's numbers are on a scale that its author chose.
    """
    if not isinstance(reward, ScorerReward) or settings.normalize not in ("run", None):
        return []
    asked = settings.normalize == "run"
    own = {n: one for n, one in reward.scorers.items() if not isinstance(one, ComparingJudge)}
    return [name for name, one in own.items() if asked or not isinstance(one, FunctionReward)]


def at_iteration(reward: RewardFunction | None, iteration: int, iterations: int) -> RewardFunction | None:
    """The reward with the weights of an iteration of a run: the first one's, the last one's, or between them."""
    if not isinstance(reward, ScorerReward) or not reward.first_weights:
        return reward
    return reward.at(iteration / max(1, iterations - 1))


def changing_weights(reward: RewardFunction | None) -> dict[str, float]:
    """Metrics of an iteration: those weights of its reward that change in a run."""
    changing = reward.first_weights if isinstance(reward, ScorerReward) else {}
    return {f"reward/weight/{name}": reward.weights[name] for name in changing}  # type: ignore[union-attr]


def weight_notes(reward: RewardFunction | None) -> list[str]:
    """A line on weights that change."""
    first = reward.first_weights if isinstance(reward, ScorerReward) else {}
    changes = [f"{name} from {begin:g} to {reward.weights[name]:g}" for name, begin in first.items()]  # type: ignore[union-attr]
    return [f"weights change evenly over the run: {', '.join(changes)}; evaluations have the last ones"] * bool(first)


def weights_by_group(settings: RewardConfig, reward: RewardFunction | None) -> Mapping[str, float] | None:
    """The weights of rewards that are normalised within each group before their sum; None: they are summed at once."""
    return reward.weights if settings.normalize == "group" and isinstance(reward, ScorerReward) else None


def optimised(settings: RewardConfig) -> dict[str, str]:
    """Paths of what is optimised, by name. Raises InputError for malformed settings, and for two of one name."""
    named = {
        flag: read_names(words, f"--{flag}") for flag in ("reward", "scorers") if (words := getattr(settings, flag))
    }
    if twice := sorted(set.intersection(*map(set, named.values())) if len(named) > 1 else ()):
        raise InputError(f"--reward and --scorers both name {listed(twice)}; needed: distinct names, as name=PATH")
    return {name: path for of_flag in named.values() for name, path in of_flag.items()}


def scorers_of_chats(settings: RewardConfig, reward: RewardFunction | None) -> str:
    """name=PATH, comma-separated, of what is optimised and can score a chat: without columns and token ids."""
    loaded = reward.scorers if isinstance(reward, ScorerReward) else {}
    return _joined({name: path for name, path in optimised(settings).items() if _scores_chats(loaded.get(name))})


def _scores_chats(source: Source | None) -> bool:
    if isinstance(source, FunctionReward):
        try:
            source.call.check(NOTHING)
        except InputError:
            return False
    return True


def load_monitors(settings: RewardConfig, tasks: Sequence[Task], tokenizer: Any = None) -> Mapping[str, Source]:
    """The monitors. Raises InputError, before any loads, if a prompt is a text. Collective."""
    words = _joined(monitored(settings))
    texts = [prompt for task in tasks if isinstance(prompt := task.get("prompt"), str)]
    if words and texts:
        raise InputError(
            f"--eval_scorer and --monitor_scorers name {words}, and a prompt is the text {texts[0]!r:.60}; needed: "
            "conversations, which scorers score replies to: text_with_function(..., as_text=False), or leave them out"
        )
    given = Given(frozenset(columns_of(tasks)), of_policy=tokenizer is not None)
    [monitors] = _load(settings, tokenizer, given, words)
    return monitors


def monitored(settings: RewardConfig) -> dict[str, str]:
    """Paths of the monitors by name. Raises InputError for a malformed setting, and for two of one name."""
    named = read_names(settings.monitor_scorers, "--monitor_scorers") if settings.monitor_scorers else {}
    if not settings.eval_scorer:
        return named
    if EVAL_SCORER in named:
        raise InputError(
            f"--eval_scorer {settings.eval_scorer} and --monitor_scorers {settings.monitor_scorers} both name "
            f"{EVAL_SCORER}; needed: different names"
        )
    return {EVAL_SCORER: settings.eval_scorer, **named}


def _joined(paths: Mapping[str, str]) -> str:
    return ",".join(f"{name}={path}" for name, path in paths.items())


def _load(settings: RewardConfig, tokenizer: Any, given: Given, *several: str) -> list[dict[str, Source]]:
    """The scorers of each setting `name=PATH,...`, with functions that get what is given. Collective."""
    limits = tokenizer, settings.reward_timeout

    def load(words: str) -> dict[str, Source]:
        found = load_scorers(words, given) if words else {}
        return {
            name: FunctionReward(one.function, *limits, name=one.name) if isinstance(one, FileScorer) else one
            for name, one in found.items()
        }

    with without_sharded_load():
        return raise_on_all_ranks(lambda: list(map(load, several)))
