"""`playpen run`, `playpen eval` and `clem run`: models and games by name, then the work."""

import inspect
import sys
from collections.abc import Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from lmgym.apps.playpen.clembench.clembench_game import open_game
from lmgym.apps.playpen.evaluation import EvalSettings, evaluate, play_game
from lmgym.apps.playpen.listing import say_found
from lmgym.apps.playpen.players import Player
from lmgym.apps.playpen.playing import ServerGone
from lmgym.apps.playpen.registries.games import GameRegistry, load_games
from lmgym.apps.playpen.registries.models import load_models, refuse_unnamed_code
from lmgym.apps.playpen.trainers.base import BasePlayPen, close_games
from lmgym.console import say
from lmgym.errors import InputError, RunStopped, listed, one_line, shown_path


def run_file(
    file: str, learner: str, teacher: str | None, temperature: float, max_tokens: int, games: str | None,
    game: Sequence[str] = (), flags: Sequence[str] = (),
) -> None:  # fmt: skip
    """Runs the trainer of a file. Raises InputError for a file without one, and for models that do not exist."""
    kind = load_trainer(file)
    registry = load_games(games)
    if game:
        registry = GameRegistry([spec for name in game for spec in registry.select(name)], True)
    names = [learner] if teacher is None else [learner, teacher]
    players = [_player(name, temperature, max_tokens) for name in names]
    if teacher is not None and len(inspect.signature(kind.__init__).parameters) < 3:
        raise InputError(f"{kind.__name__} of {shown_path(file)} takes no teacher; needed: leave -t out")
    trainer = kind(*players)
    if flags and not trainer.takes_flags:
        raise InputError(
            f"{kind.__name__} of {shown_path(file)} takes no further flags; found {listed(flags)}; leave out"
        )
    trainer.flags = list(flags)
    trainer.learn(registry)


def load_trainer(file: str) -> type[BasePlayPen]:
    """The subclass of BasePlayPen that a file defines. Raises InputError if it does not load or has another number."""
    path = Path(file).expanduser()
    if not path.is_file():
        raise InputError(
            f"there is no file {shown_path(file)}; needed: a trainer, as examples/trl/sft_trainer_simple.py"
        )
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{shown_path(file)} is not a Python file; needed: one that ends in .py")
    sys.path.insert(0, str(path.parent.absolute()))  # as for a script: it may import its neighbours
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # as an import does: dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except (InputError, RunStopped):
        raise
    except Exception as error:
        fault = one_line(f"{type(error).__name__}: {error}", 300)
        raise InputError(f"{shown_path(file)} does not load: {fault}; needed: a file that Python imports") from error
    found = [k for k in vars(module).values()
             if inspect.isclass(k) and issubclass(k, BasePlayPen) and k.__module__ == module.__name__]  # fmt: skip
    if len(found) != 1:
        names = ", ".join(k.__name__ for k in found) or "none"
        raise InputError(f"{shown_path(file)} defines {names}; needed: one subclass of BasePlayPen")
    return found[0]


def run_eval(
    model: str, suite: str, game: Sequence[str], results_dir: str | None, skip_gameplay: bool, static: str | None,
    temperature: float, max_tokens: int, games: str | None, seed: int, at_once: int,
) -> None:  # fmt: skip
    """Evaluates a model."""
    player = _player(model, temperature, max_tokens)
    evaluate(player, load_games(games), EvalSettings(suite, game, results_dir, skip_gameplay, static, seed, at_once))


def run_clem(
    game: str, models: Sequence[str], results_dir: str, experiment_name: str | None, temperature: float,
    max_tokens: int, games: str | None, seed: int, at_once: int,
) -> None:  # fmt: skip
    """Plays and scores games."""
    specs = load_games(games).select(game)
    players = [_player(name, temperature, max_tokens) for name in models]
    settings = EvalSettings(seed=seed, at_once=at_once)
    for spec in specs:
        opened = open_game(spec)
        try:
            play_game(opened, players, Path(results_dir).expanduser(), settings, experiment_name)
        except InputError as error:
            if len(specs) == 1 or isinstance(error, ServerGone):
                raise
            say(f"{spec.name} is left out: {error}", error=True)  # the other games are played
        finally:
            close_games([opened])


def _player(selector: str, temperature: float, max_tokens: int) -> Player:
    spec = load_models().select(selector)
    say_found(selector, spec)
    refuse_unnamed_code(spec, selector)
    return Player(spec, temperature, max_tokens)
