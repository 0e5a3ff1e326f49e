"""Loading of a game."""

import contextlib
import importlib.util
import inspect
import os

from clemcore.clemgame import GameBenchmark


@contextlib.contextmanager
def load_from_spec(game_spec, do_setup=True):
    """The one GameBenchmark of master.py."""
    spec = importlib.util.spec_from_file_location(game_spec.game_name, os.path.join(game_spec.game_path, "master.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kinds = [k for k in vars(module).values() if inspect.isclass(k) and issubclass(k, GameBenchmark)]
    [kind] = [k for k in kinds if k is not GameBenchmark]
    yield kind(game_spec)
