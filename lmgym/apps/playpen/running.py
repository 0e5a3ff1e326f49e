"""`playpen run`, `playpen eval` and `clem run`: models and games by name, then the work."""

import inspect
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from lmgym.apps.playpen.clembench.clembench_game import open_game
from lmgym.apps.playpen.evaluation import EvalSettings, evaluate, play_game
from lmgym.apps.playpen.listing import say_found
from lmgym.apps.playpen.players import Model
from lmgym.apps.playpen.playing import ServerGone, close_games, tasks_of
from lmgym.apps.playpen.registries.games import GameRegistry, load_games
from lmgym.apps.playpen.registries.models import load_models, refuse_unnamed
from lmgym.apps.playpen.registries.specs import Spec, read_selector
from lmgym.apps.playpen.trainers.base import BasePlayPen
from lmgym.apps.playpen.trainers.names import make_importable
from lmgym.console import say
from lmgym.errors import InputError, RunStopped, ServerError, listed, shown_path
from lmgym.runs.user_code import failure, import_file

T = TypeVar("T")


def run_file(
    file: str,
    learner: str,
    teacher: str | None,
    temperature: float,
    max_tokens: int,
    games: str | None,
    game: Sequence[str] = (),
    flags: Sequence[str] = (),
) -> None:
    """Runs the trainer of a file. Raises InputError for a file without one, and for models that do not exist."""
    registry = load_games(games)
    if game:
        registry = GameRegistry([spec for name in game for spec in registry.select(name)], True)
    kind = load_trainer(file, registry)
    names = [learner] if teacher is None else [learner, teacher]
    try:
        inspect.signature(kind).bind(*names)
    except TypeError as error:
        what = "needs a teacher; needed: -t MODEL" if teacher is None else "takes no teacher; needed: leave -t out"
        raise InputError(f"{kind.__name__} of {shown_path(file)} {what}") from error
    models = [_model(name, temperature, max_tokens) for name in names]
    for partner in models[1:]:
        partner.refuse_unusable()  # before the trainer makes a folder
    trainer = _of_the_file(file, lambda: kind(*models))
    if flags and not trainer.takes_flags:
        raise InputError(
            f"{kind.__name__} of {shown_path(file)} takes no further flags; found {listed(flags)}; leave out"
        )
    trainer.flags, trainer.game_registry = list(flags), registry
    # of later versions of Playpen, `learn` takes no registry
    given = [registry][: len(inspect.signature(trainer.learn).parameters)]
    _of_the_file(file, lambda: trainer.learn(*given))


def _of_the_file(file: str, call: Callable[[], T]) -> T:
    """The result of a call of a trainer's. Raises InputError for an exception that is not `launch`'s to report."""
    try:
        return call()
    except (InputError, RunStopped, ServerError, OSError):
        raise
    except Exception as error:
        raise failure(shown_path(file), error) from error


def load_trainer(file: str, registry: GameRegistry | None = None) -> type[BasePlayPen]:
    """The subclass of BasePlayPen that a file defines. Raises InputError if it does not load or has another number."""
    make_importable(registry or load_games())
    sys.path.insert(0, os.path.dirname(os.path.abspath(os.path.expanduser(file))))  # it may import its neighbours
    module = import_file(file, "needed: a trainer, as examples/trl/sft_trainer_simple.py")
    found = [
        k
        for k in vars(module).values()
        if inspect.isclass(k) and issubclass(k, BasePlayPen) and k.__module__ == module.__name__
    ]
    if len(found) != 1:
        names = ", ".join(k.__name__ for k in found) or "none"
        raise InputError(f"{shown_path(file)} defines {names}; needed: one subclass of BasePlayPen")
    return found[0]


def run_eval(model: str, temperature: float, max_tokens: int, games: str | None, settings: EvalSettings) -> None:
    """Evaluates a model. One whose results are only scored may be in no registry."""
    if settings.skip_gameplay:
        name = read_selector(model, "model_name").get("model_name", model)
        player = Model(Spec({"model_name": name}), temperature, max_tokens)
    else:
        player = _model(model, temperature, max_tokens)
    evaluate(player, load_games(games), settings)


def run_clem(
    selectors: Sequence[str],
    models: Sequence[str],
    temperature: float,
    max_tokens: int,
    games: str | None,
    experiment_name: str | None,
    instances_filename: str | None,
    settings: EvalSettings,
) -> None:
    """Plays and scores games; of the settings, the folder, the seed and how many are played at once are used."""
    assert settings.folder, "the command has a default"
    folder, registry = Path(settings.folder).expanduser(), load_games(games)
    found = [spec for selector in selectors for spec in registry.select(selector)]
    specs = [spec.with_instances(instances_filename) for i, spec in enumerate(found) if spec not in found[:i]]
    chosen = [_model(name, temperature, max_tokens) for name in models]
    for spec in specs:
        opened = open_game(spec)
        try:
            play_game(opened, chosen, folder, settings, tasks_of(opened, experiment_name))
        except InputError as error:
            if len(specs) == 1 or isinstance(error, ServerGone):
                raise
            say(f"{spec.name} is left out: {error}", error=True)  # the other games are played
        finally:
            close_games([opened])


def _model(selector: str, temperature: float, max_tokens: int) -> Model:
    spec = load_models().select(selector)
    say_found(selector, spec)
    refuse_unnamed(spec, selector)
    return Model(spec, temperature, max_tokens)
