"""Scripted players of Gymnasium's small games, and exact returns: by enumeration, and by backward induction.

A player is a function of (environment, observation, random generator).
"""

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import numpy as np

from lmgym.apps.games.gym_text import GymText
from lmgym.apps.games.toy_text import CLIFF, CLIFF_COLUMNS, LAKE, STANDS, TAXI, taxi_state
from lmgym.environments.protocol import Observation

CARDS = [(card, (4 if card == 10 else 1) / 13) for card in range(1, 11)]
"""(value, probability) of a draw; an ace is 1. Draws are with replacement"""
BUST, DEALER_STANDS, HEURISTIC_STANDS = 21, 17, 17
MIDDLE_ROW = 2
Hand = tuple[int, int, bool]
"""(own sum, the dealer's card, whether an ace counts 11)"""
Probabilities = Callable[[Hand], tuple[float, float]]
"""probabilities of (stick, hit); what is missing to 1 is an illegal reply"""


def hit_below_17(game: GymText, seen: Observation, rng: np.random.Generator) -> str:
    """The dealer's own rule."""
    return "hit" if game.observation[0] < HEURISTIC_STANDS else "stick"


def basic_strategy(game: GymText, seen: Observation, rng: np.random.Generator) -> str:
    """The best move, by enumeration."""
    total, dealer, ace = game.observation
    return best_moves()[total, dealer, bool(ace)]


def draw(total: int, ace: bool, card: int) -> tuple[int, bool]:
    """A sum after another card."""
    if card == 1 and total + 11 <= BUST:
        return total + 11, True
    total += card
    return (total - 10, False) if total > BUST and ace else (total, ace)


@cache
def dealer_ends(total: int, ace: bool) -> dict[int, float]:
    """Probability of each final sum of the dealer; 0 if over 21."""
    if total > BUST:
        return {0: 1.0}
    if total >= DEALER_STANDS:
        return {total: 1.0}
    ends: dict[int, float] = {}
    for card, chance in CARDS:
        for end, p in dealer_ends(*draw(total, ace, card)).items():
            ends[end] = ends.get(end, 0.0) + chance * p
    return ends


@cache
def value_of_sticking(total: int, dealer: int) -> float:
    """Expected reward of Blackjack-v1 (sab=False)."""
    first = (11, True) if dealer == 1 else (dealer, False)
    return sum(p * float(np.sign(total - end)) for end, p in dealer_ends(*first).items())


def expected_return(policy: Probabilities, illegal_reward: float = -1.0) -> float:
    """Expected return of a policy on `blackjack()`, exactly, but for its limit of steps.

    An illegal reply costs `illegal_reward` and leaves the hand: V = p_stick S + p_hit H + p_illegal (r + V).
    """
    values: dict[Hand, float] = {}

    def value(total: int, dealer: int, ace: bool) -> float:
        hand = (total, dealer, ace)
        if hand not in values:
            stick, hit = policy(hand)
            illegal = max(0.0, 1 - stick - hit)
            moved = stick * value_of_sticking(total, dealer) + hit * value_of_hitting(hand, value)
            values[hand] = (moved + illegal * illegal_reward) / max(stick + hit, 1e-9)
        return values[hand]

    return _over_deals(value)


def value_of_hitting(hand: Hand, value: Callable[[int, int, bool], float]) -> float:
    """Expected value after another card."""
    total, dealer, ace = hand
    after = [(chance, *draw(total, ace, card)) for card, chance in CARDS]
    return sum(p * (-1.0 if sum_ > BUST else value(sum_, dealer, soft)) for p, sum_, soft in after)


def _over_deals(value: Callable[[int, int, bool], float]) -> float:
    found = 0.0
    for first, p in CARDS:
        for second, q in CARDS:
            total, ace = draw(*draw(0, False, first), second)
            found += p * q * sum(chance * value(total, dealer, ace) for dealer, chance in CARDS)
    return found


@lru_cache(maxsize=1)
def best_moves() -> dict[Hand, str]:
    """The best move in each hand."""
    moves: dict[Hand, str] = {}
    values: dict[Hand, float] = {}

    def value(total: int, dealer: int, ace: bool) -> float:
        hand = (total, dealer, ace)
        if hand not in values:
            stick, hit = value_of_sticking(total, dealer), value_of_hitting(hand, value)
            values[hand], moves[hand] = max((stick, "stick"), (hit, "hit"))
        return values[hand]

    _over_deals(value)
    return moves


def hands() -> list[Hand]:
    """All hands in which a move can be asked for."""
    return list(best_moves())


def along_the_shore(game: GymText, seen: Observation, rng: np.random.Generator) -> str:
    """FrozenLake: right or down, each with probability 1/2."""
    return "right" if rng.random() < 0.5 else "down"


def along_the_top(game: GymText, seen: Observation, rng: np.random.Generator) -> str:
    """CliffWalking: up to the top row, right, and down at the end: the safest way."""
    row, column = divmod(int(game.observation), CLIFF_COLUMNS)
    if column == CLIFF_COLUMNS - 1:
        return "down"
    return "up" if row > 0 else "right"


def by_the_middle_row(game: GymText, seen: Observation, rng: np.random.Generator) -> str:
    """Taxi: columns are changed in the middle row, which has no walls; else straight to the next stand."""
    row, column, passenger, destination = taxi_state(game.observation)
    has_passenger = passenger == len(STANDS)
    wanted = list(STANDS.values())[destination if has_passenger else passenger]
    if (row, column) == wanted:
        return "dropoff" if has_passenger else "pickup"
    if column == wanted[1]:
        return "south" if row < wanted[0] else "north"
    if row != MIDDLE_ROW:
        return "south" if row < MIDDLE_ROW else "north"
    return "east" if column < wanted[1] else "west"


def optimal(game: GymText, seen: Observation, rng: np.random.Generator) -> str:
    """The best move with so many steps left, by backward induction over the game's own table."""
    names = {"FrozenLake-v1": LAKE, "CliffWalking-v1": CLIFF, "Taxi-v4": TAXI}[game.env_id]
    slippery = bool(game.env.spec.kwargs.get("is_slippery", False))
    size = str(game.env.spec.kwargs.get("map_name", ""))
    plan = _plan((game.env_id, slippery, size), game.max_steps, game.env.unwrapped)
    return list(names)[plan[game.max_steps - game.steps, int(game.observation)]]


_PLANS: dict[tuple, np.ndarray] = {}


def _plan(key: tuple, steps: int, env: Any) -> np.ndarray:
    if (*key, steps) not in _PLANS:
        _PLANS[(*key, steps)] = plan(*tables(env.P), steps)[0]
    return _PLANS[(*key, steps)]


def tables(transitions: dict) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(probability [S, A, K], next state [S, A, K], -1 after the end, reward [S, A]) of Gymnasium's table `P`."""
    states, actions = len(transitions), len(transitions[0])
    most = max(len(outcomes) for of_state in transitions.values() for outcomes in of_state.values())
    chances, after = np.zeros((states, actions, most)), np.full((states, actions, most), -1)
    rewards = np.zeros((states, actions))
    for state, of_state in transitions.items():
        for action, outcomes in of_state.items():
            for k, (chance, follows, reward, ends) in enumerate(outcomes):
                chances[state, action, k] = chance
                after[state, action, k] = -1 if ends else follows
                rewards[state, action] += chance * reward
    return chances, after, rewards


def plan(chances: np.ndarray, after: np.ndarray, rewards: np.ndarray, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """(best action, value) [steps + 1, S] with so many steps left; nothing follows the last."""
    states = len(chances)
    actions, values = np.zeros((steps + 1, states), dtype=int), np.zeros((steps + 1, states + 1))
    for left in range(1, steps + 1):
        q = rewards + (chances * values[left - 1][after]).sum(-1)  # index -1 is the end, of value 0
        actions[left], values[left, :states] = q.argmax(-1), q.max(-1)
    return actions, values[:, :states]
