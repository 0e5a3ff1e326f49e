"""Four of Gymnasium's small games as text: Blackjack, FrozenLake, Taxi and CliffWalking.

An observation is the whole state, so a prompt holds one and no history. The maps are in the rules.
"""

from typing import Any

from lmgym.apps.games.gym_text import GymText
from lmgym.apps.games.replies import choice_of
from lmgym.errors import InputError

BLACKJACK = {"stick": 0, "hit": 1}
LAKE = {"left": 0, "down": 1, "right": 2, "up": 3}
TAXI = {"south": 0, "north": 1, "east": 2, "west": 3, "pickup": 4, "dropoff": 5}
CLIFF = {"up": 0, "right": 1, "down": 2, "left": 3}
STANDS = {"Red": (0, 0), "Green": (0, 4), "Yellow": (4, 0), "Blue": (4, 3)}
CLIFF_COLUMNS = 12
LAKE_MAPS = {
    4: "SFFF FHFH FFFH HFFG",
    8: "SFFFFFFF FFFFFFFF FFFHFFFF FFFFFHFF FFFHFFFF FHHFFFHF FHFFHFHF FFFHFFFG",
}
TAXI_MAP = """R . | . . G
. . | . . .
. . . . .
. | . . | . .
Y | . . | B ."""


def blackjack() -> GymText:
    """A hand of Blackjack-v1 without its special rule for naturals (sab=False): 1 won, 0 drawn, -1 lost."""
    return GymText(
        "Blackjack-v1",
        show_hand,
        choice_of(BLACKJACK),
        lambda hand: tuple(BLACKJACK),
        max_steps=24,
        settings={"sab": False},
    )


def show_hand(hand: tuple[int, int, int]) -> str:
    """(own sum, the dealer's card, whether an ace counts 11) in words."""
    total, dealer, ace = hand
    held = f"{total} with an ace that counts 11" if ace else f"{total}"
    return f"You hold {held}. The dealer shows {'an ace' if dealer == 1 else dealer}. Hit or stick?"


def frozen_lake(slippery: bool = False, size: int = 4) -> GymText:
    """FrozenLake-v1 on its map of 4x4 or 8x8: 1 at the goal, else 0. 100 steps at most.

    On slippery ice a move goes to either side of its direction with a probability of one third each.
    """
    if size not in LAKE_MAPS:
        raise InputError(f"size={size}; needed: one of {', '.join(map(str, LAKE_MAPS))}")
    slips = " The ice is slippery: a move may go to either side." if slippery else ""
    rules = (
        "Cross the frozen lake from S to G. F is ice, H is a hole; rows count from the top, columns from the left."
        + slips
        + "\n"
        + LAKE_MAPS[size].replace(" ", "\n")
    )
    settings = {"is_slippery": slippery, "map_name": f"{size}x{size}", "max_episode_steps": 100}
    return GymText(
        "FrozenLake-v1",
        lambda state: _at(state, size, LAKE),
        choice_of(LAKE),
        lambda state: tuple(LAKE),
        max_steps=100,
        rules=rules,
        settings=settings,
    )


def cliff_walking(max_steps: int = 200) -> GymText:
    """CliffWalking-v1: -1 a step, -100 for the cliff, which leads back to the start. `max_steps` truncates."""
    rules = (
        "Walk from S to G in few steps, not over the cliff C; rows count from the top, columns from the left.\n"
        "............\n............\n............\nSCCCCCCCCCCG"
    )
    return GymText(
        "CliffWalking-v1",
        lambda state: _at(state, CLIFF_COLUMNS, CLIFF),
        choice_of(CLIFF),
        lambda state: tuple(CLIFF),
        max_steps,
        rules=rules,
    )


def taxi() -> GymText:
    """Taxi-v4: -1 a step, -10 for a wrong pickup or dropoff, 20 for the right dropoff. 200 steps at most."""
    rules = f"Fetch the passenger and drive to the destination. A | is a wall. The map:\n{TAXI_MAP}"
    return GymText("Taxi-v4", show_taxi, choice_of(TAXI), lambda state: tuple(TAXI), max_steps=200, rules=rules)


def show_taxi(state: int) -> str:
    """A state of Taxi-v4 in words."""
    row, column, passenger, destination = taxi_state(state)
    names = list(STANDS)
    waits = "is in the taxi" if passenger == len(names) else f"waits at {_stand(names[passenger])}"
    return (
        f"The taxi is at row {row + 1}, column {column + 1}. The passenger {waits}. The destination is "
        f"{_stand(names[destination])}. {', '.join(TAXI)}?"
    )


def taxi_state(state: Any) -> tuple[int, int, int, int]:
    """(row, column, passenger's stand or 4 in the taxi, destination's stand) of a state's number."""
    place, destination = divmod(int(state), 4)
    place, passenger = divmod(place, 5)
    return (*divmod(place, 5), passenger, destination)


def _stand(name: str) -> str:
    row, column = STANDS[name]
    return f"{name} (row {row + 1}, column {column + 1})"


def _at(state: Any, columns: int, moves: dict[str, int]) -> str:
    row, column = divmod(int(state), columns)
    # one token for the place, beside the two that a map is read by
    return f"You are on square {int(state) + 1}: row {row + 1}, column {column + 1}. {', '.join(moves)}?"
