"""Specs of games."""

import json
import os
from types import SimpleNamespace


class GameSpec(SimpleNamespace):
    """Fields."""

    @classmethod
    def from_directory(cls, folder):
        """Those of clemgame.json."""
        with open(os.path.join(folder, "clemgame.json"), encoding="utf-8") as file:
            return [cls(game_path=folder, **json.load(file))]
