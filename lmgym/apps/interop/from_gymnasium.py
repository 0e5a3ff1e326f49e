"""`--environment gymnasium:ID?setting=value`: any environment of Gymnasium as text, by rule from its spaces.

A user's own class is one too: `--environment FILE.py:CLASS`, of a `gymnasium.Env`, whose settings are its own. Its
attributes `rules`, `illegal_reward` and `illegal_in_a_row`, if the class has them, are the settings of these names.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from lmgym.apps.games.gym_text import GymText, make_gymnasium
from lmgym.apps.games.replies import MAX_STEPS, missing_extra
from lmgym.environments.named import NamedEnvironment, Scheme, Settings
from lmgym.errors import InputError, shown
from lmgym.scoring.retries import read_number

OWN = ("rules", "illegal_reward", "illegal_in_a_row")
"""settings that are not Gymnasium's"""
MOST_STEPS = 1000
"""replies of an episode that has no limit of its own"""
IN_A_ROW = 3
Illegal = tuple[float, int]
"""(reward of a reply that is no action, after how many in a row the episode is truncated)"""


def load(name: str, settings: Settings, tokenizer: Any = None) -> NamedEnvironment:
    """An environment of Gymnasium, made with `settings`, such as `max_episode_steps`, but for three.

    `rules` (its name) is a text that the policy reads before what an action looks like. `illegal_reward` (-1) is earned
    by a reply that is no action, which leaves the environment as it is; it should be below the reward of any step.
    `illegal_in_a_row` (3) of them truncate the episode. Raises InputError without Gymnasium, for what cannot be made,
    and for spaces that cannot be text.
    """
    own = {key: value for key, value in settings.items() if key in OWN}
    make = partial(make_gymnasium, name, {key: value for key, value in settings.items() if key not in OWN})
    return by_rule(f"gymnasium:{name}", make, make(), own)


def by_rule(words: str, make: Callable[[], Any], first: Any, own: Settings) -> NamedEnvironment:
    """Environments that `make` makes, `first` among them, as text. Raises InputError for spaces that cannot be text."""
    from lmgym.apps.interop import spaces

    refuse_spaces(words, getattr(first, "observation_space", None), getattr(first, "action_space", None))
    named = first.spec.id if first.spec else type(first.unwrapped).__name__
    (reward, in_a_row), told = read_illegal(words, own), read_rules(words, own, named)
    told = f"{told} {spaces.wanted(first.action_space)}"
    limit = getattr(first.spec, "max_episode_steps", None) or MOST_STEPS
    first.close()

    def environment() -> GymText:
        env = make()
        actions = spaces.listed(env.action_space)
        show, read = partial(spaces.show, env.observation_space), partial(spaces.read, env.action_space)
        return GymText(env, show, read, lambda seen: actions, limit, reward, told, None, in_a_row)

    return NamedEnvironment(words, environment, about=f"at most {limit:,} replies; {about_illegal(reward, in_a_row)}")


def read_illegal(words: str, own: Settings) -> Illegal:
    """The settings `illegal_reward` and `illegal_in_a_row`. Raises InputError for what they cannot be."""
    try:
        reward = read_number(own.get("illegal_reward", -1.0))
    except (TypeError, ValueError) as error:
        raise InputError(f"{words}: illegal_reward: {error}") from error
    in_a_row = own.get("illegal_in_a_row", IN_A_ROW)
    if type(in_a_row) is not int:
        raise InputError(f"{words}: illegal_in_a_row={shown(in_a_row)}; needed: a whole number")
    MAX_STEPS.check("illegal_in_a_row", in_a_row)
    return reward, in_a_row


def about_illegal(reward: float, in_a_row: int) -> str:
    """The effect of replies that are no actions, in words."""
    return f"a reply that is no action earns {reward:g}, and {in_a_row:,} in a row end the episode"


def read_rules(words: str, own: Settings, name: str) -> str:
    """The setting `rules`, or a sentence with the environment's name. Raises InputError for what is no text."""
    rules = own.get("rules", "")
    if not isinstance(rules, str):
        raise InputError(f"{words}: rules={shown(rules)}; needed: a text")
    return rules or f"You act in {name}."


def refuse_spaces(words: str, observations: Any, actions: Any) -> None:
    """Raises InputError for spaces that cannot be text, and for none."""
    from gymnasium import Space

    from lmgym.apps.interop import spaces

    for part, space in (("observation", observations), ("action", actions)):
        if not isinstance(space, Space):
            raise InputError(f"the {part} space of {words} is {shown(space)}; needed: a space of Gymnasium")
    if found := spaces.unreadable(observations):
        raise InputError(f"{words} observes {found}, which is no text; needed: numbers or texts, such as by a wrapper")
    if found := spaces.unreadable(actions, acts=True):
        raise InputError(f"{words} acts by {found}, which no reply can name; needed: numbers or texts")


def names() -> Iterator[str]:
    """The latest versions of what is registered that can be made here and be text."""
    from gymnasium import logger, registry
    from gymnasium.envs.registration import find_highest_version

    level, logger.min_level = logger.min_level, logger.ERROR
    try:
        for name, spec in registry.items():
            if spec.version == find_highest_version(spec.namespace, spec.name):
                with suppress(Exception):  # of any package
                    load(name, {})
                    yield name
    finally:
        logger.min_level = level


def wrap(words: str, make: Callable[[], Any], first: Any) -> NamedEnvironment | None:
    """A user's own `gymnasium.Env`; None for anything else."""
    gymnasium = sys.modules.get("gymnasium")  # a class of it has imported it
    if gymnasium is None or not isinstance(first, gymnasium.Env):
        return None
    kind = type(first.unwrapped)
    return by_rule(words, make, first, {name: getattr(kind, name) for name in OWN if hasattr(kind, name)})


def _names() -> list[str]:
    return [] if missing() else list(names())


def missing() -> str:
    """The command that installs Gymnasium; empty if it is there."""
    return missing_extra("gymnasium", "gym")


SCHEME = Scheme(
    "gymnasium:ID", "any environment of Gymnasium whose spaces can be text", load, _names, missing, wrap=wrap
)
