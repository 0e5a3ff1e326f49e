"""A stand-in for TextWorld's `textworld` and `textworld.gym`: a game of one room that ends at "open door".

As in TextWorld 1.7, `step` gives four values, of which the second is the score so far, and a command must be a text.
"""

from types import ModuleType
from typing import Any


class Room:
    """An episode is at most `most` commands."""

    def __init__(self, most: int) -> None:
        self.most = most

    def reset(self) -> tuple[str, dict[str, Any]]:
        self.steps = 0
        return "A header $$$$$$$ \n\nYou are in a room with a door.", {"admissible_commands": ["look", "open door"]}

    def step(self, command: str) -> tuple[str, int, bool, dict[str, Any]]:
        opened = command.strip() == "open door"
        self.steps += 1
        return f"After {command}: a room.", int(opened), opened or self.steps >= self.most, {}

    def render(self) -> None: ...

    def close(self) -> None: ...


def modules() -> dict[str, ModuleType]:
    """The modules by their names, for `sys.modules`."""
    textworld, gym = ModuleType("textworld"), ModuleType("textworld.gym")
    games: dict[str, Room] = {}

    def register_game(path: str, max_episode_steps: int, request_infos: Any) -> str:
        games[path] = Room(max_episode_steps)
        return path

    vars(gym).update(register_game=register_game, make=games.__getitem__)
    vars(textworld).update(gym=gym, EnvInfos=lambda admissible_commands: admissible_commands)
    return {"textworld": textworld, "textworld.gym": gym}
