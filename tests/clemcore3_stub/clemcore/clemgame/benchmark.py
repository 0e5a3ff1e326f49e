"""A game, and its loading."""

import importlib.util
import inspect
import os


class GameBenchmark:
    """A game."""

    def __init__(self, game_spec):
        self.game_spec, self.game_name = game_spec, game_spec.game_name

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False

    @staticmethod
    def load_from_spec(game_spec):
        """The one GameBenchmark of master.py."""
        place = os.path.join(game_spec.game_path, "master.py")
        spec = importlib.util.spec_from_file_location(game_spec.game_name, place)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        kinds = [k for k in vars(module).values() if inspect.isclass(k) and issubclass(k, GameBenchmark)]
        [kind] = [k for k in kinds if k is not GameBenchmark]
        return kind(game_spec)
