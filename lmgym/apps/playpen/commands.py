"""The command lines `playpen`, `clem` and `lmgym playpen`."""

from collections.abc import Callable, Sequence
from typing import Any

import click

from lmgym.errors import MOST_TEMPERATURE, MOST_TOGETHER
from lmgym.runs.launch import launch
from lmgym.runs.usage import OneLineErrors

MODES = click.argument("mode", type=click.Choice(["games", "models", "backends", "keys"]), default="games")
VERBOSE = click.option("-v", "--verbose", is_flag=True, help="whole specs")
SELECTOR = click.option(
    "-s", "--selector", default="all", show_default=True, help="a name, or a part of a spec: \"{'players':2}\""
)
GAMES = click.option(
    "--games",
    metavar="PATH",
    help="a checkout of clembench, or a registry's file  [default: game_registry.json, or the folder clembench]",
)
TEMPERATURE = click.option(
    "-T",
    "--temperature",
    type=click.FloatRange(0, MOST_TEMPERATURE),
    default=0.0,
    show_default=True,
    help="of sampling; 0 is greedy",
)
MAX_TOKENS = click.option(
    "-L",
    "--max_tokens",
    type=click.IntRange(1, MOST_TOGETHER),
    default=300,
    show_default=True,
    help="tokens of a reply",
)
SEED = click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="of the episodes")
AT_ONCE = click.option(
    "--at_once", type=click.IntRange(1, 4096), default=64, show_default=True, help="episodes that are played together"
)


RESULTS = click.option(
    "-r", "--results_dir", metavar="DIR", default="results", show_default=True, help="folder of the results"
)
SELECTED = click.option(
    "-g",
    "--game",
    "selectors",
    multiple=True,
    default=["all"],
    metavar="GAME...",
    help="names, or parts of a spec: \"{'benchmark':['2.0']}\"  [default: all]",
)


class SeveralWords(click.Command):
    """A command whose repeatable options take all words up to the next option: -g taboo wordle -m mock mock."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Parses `-g a b` as `-g a -g b`."""
        names = [o for p in self.params if isinstance(p, click.Option) and p.multiple for o in p.opts]
        return super().parse_args(context, _repeated(args, names))


def _repeated(args: Sequence[str], names: Sequence[str]) -> list[str]:
    found: list[str] = []
    option, words = "", 0
    for word in args:
        if word.startswith("-"):
            option, words = word if word in names else "", 0
        else:
            words += 1
            found += [option] if option and words > 1 else []
        found.append(word)
    return found


@click.group(cls=OneLineErrors, file_command="run")
def playpen() -> None:
    """Train models by dialogue games, and evaluate them. `playpen FILE.py ...` is `playpen run FILE.py ...`."""


@click.group(cls=OneLineErrors)
def clem() -> None:
    """Play clembench's games, and our own; score, read and compare what was played."""


def _list(mode: str, verbose: bool, selector: str, games: str | None) -> None:
    from lmgym.apps.playpen.listing import list_backends, list_games, list_keys, list_models
    from lmgym.apps.playpen.registries.games import load_games
    from lmgym.apps.playpen.registries.models import load_models

    kinds: dict[str, Callable[[], None]] = {
        "games": lambda: list_games(load_games(games), selector, verbose),
        "models": lambda: list_models(load_models(), selector, verbose),
        "backends": lambda: list_backends(selector, verbose),
        "keys": list_keys,
    }
    launch(kinds[mode])


for _group in (playpen, clem):

    @_group.command("list")
    @MODES
    @VERBOSE
    @SELECTOR
    @GAMES
    def list_entries(mode: str, verbose: bool, selector: str, games: str | None) -> None:
        """List games, models, backends or API keys."""
        _list(mode, verbose, selector, games)


@playpen.command("run")
@click.argument("file")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="[-- FLAGS]...")
@click.option("-l", "--learner", required=True, metavar="MODEL", help="the model that learns: see playpen list models")
@click.option("-t", "--teacher", metavar="MODEL", help="its partner in games of two players")
@TEMPERATURE
@MAX_TOKENS
@GAMES
@click.option("-g", "--game", multiple=True, metavar="GAME", help="only this game; several times for several")
def run_trainer(file: str, flags: tuple[str, ...], **settings: Any) -> None:
    """Run the trainer that FILE defines: a subclass of BasePlayPen (lmgym.apps.playpen.trainers.base).

    FLAGS, after --, are the trainer's own.
    """
    from lmgym.apps.playpen.running import run_file

    launch(lambda: run_file(file, flags=flags, **settings))


@playpen.command("eval")
@click.argument("model")
@click.option("--suite", type=click.Choice(["clem", "static", "all"]), default="all", show_default=True)
@click.option(
    "-g",
    "--game",
    multiple=True,
    metavar="GAME",
    help="only this game, several times for several; with -r its results are replaced",
)
@click.option("-r", "--results_dir", metavar="DIR", help="folder of the results  [default: playpen-eval/TIMESTAMP]")
@click.option("--skip_gameplay", is_flag=True, help="score the episodes of -r, and play none")
@click.option(
    "--instances",
    metavar="LIST",
    help="play only its rows of game, experiment and task_id: a file, a folder, a data set of the hub with :SPLIT, or "
    "all  [default: of a checkout's games the validation split of colab-potsdam/playpen-data, of ours all]",
)
@click.option("--static", metavar="ROWS", help="questions of the static suite: a file, or a data set of the hub")
@TEMPERATURE
@MAX_TOKENS
@GAMES
@SEED
@AT_ONCE
def evaluate_model(
    model: str, temperature: float, max_tokens: int, games: str | None, results_dir: str | None, **settings: Any
) -> None:
    """Evaluate MODEL on the suites: clemscore, statscore, and a table of each game."""
    from lmgym.apps.playpen.evaluation import EvalSettings
    from lmgym.apps.playpen.running import run_eval

    launch(lambda: run_eval(model, temperature, max_tokens, games, EvalSettings(folder=results_dir, **settings)))


@playpen.command("setup")
@click.option("--folder", metavar="DIR", help="of the environment  [default: outputs/clemcore]")
@click.option("--clemcore", "version", default="2.5.2", show_default=True, help="version")
@click.option("--check", "check_only", is_flag=True, help="only say what it needs, and whether that is there")
def set_up_clembench(folder: str | None, version: str, check_only: bool) -> None:
    """Make the environment in which games of clembench run."""
    from lmgym.apps.playpen.clembench.installation import set_up

    launch(lambda: set_up(folder, version, check_only))


@clem.command("run", cls=SeveralWords)
@click.option(
    "-g",
    "--game",
    "selectors",
    required=True,
    multiple=True,
    metavar="GAME...",
    help="names, \"all\", or parts of a spec: -g taboo \"{'benchmark':['2.0']}\"",
)
@click.option(
    "-m", "--models", required=True, multiple=True, metavar="MODEL...", help="one for all players, or one for each"
)
@RESULTS
@click.option("-e", "--experiment_name", help="only this experiment")
@click.option("-i", "--instances_filename", metavar="NAME", help="of the instances' file in a game's folder in/")
@click.option("-t", "--temperature", type=click.FloatRange(0, MOST_TEMPERATURE), default=0.0, show_default=True)
@click.option("-l", "--max_tokens", type=click.IntRange(1, MOST_TOGETHER), default=300, show_default=True)
@GAMES
@SEED
@click.option(
    "-b",
    "--batch_size",
    "--at_once",
    "at_once",
    type=click.IntRange(1, 4096),
    default=64,
    show_default=True,
    help="episodes that are played together",
)
def run_games(results_dir: str, seed: int, at_once: int, **chosen: Any) -> None:
    """Play games, and score them: -g taboo wordle -m FIRST SECOND."""
    from lmgym.apps.playpen.evaluation import EvalSettings
    from lmgym.apps.playpen.running import run_clem

    settings = EvalSettings(folder=results_dir, seed=seed, at_once=at_once)
    launch(lambda: run_clem(settings=settings, **chosen))


@clem.command("score", cls=SeveralWords)
@SELECTED
@click.option("-m", "--model", metavar="NAME", help="only results whose folder has this in its name")
@RESULTS
@GAMES
def score_games(selectors: tuple[str, ...], model: str | None, results_dir: str, games: str | None) -> None:
    """Score recorded episodes anew, by the games' own scorers: scores.json."""
    from lmgym.apps.playpen.registries.games import load_games
    from lmgym.apps.playpen.rescoring import score_results

    launch(lambda: score_results(results_dir, load_games(games), selectors, model))


@clem.command("transcribe", cls=SeveralWords)
@SELECTED
@RESULTS
@GAMES
def transcribe_games(selectors: tuple[str, ...], results_dir: str, games: str | None) -> None:
    """Write each recorded episode as a page: transcript.html."""
    from lmgym.apps.playpen.registries.games import load_games
    from lmgym.apps.playpen.transcripts import transcribe

    launch(lambda: transcribe(results_dir, load_games(games), selectors))


@clem.command("eval", cls=SeveralWords)
@RESULTS
@click.option("--std", is_flag=True, help="with the standard deviation of each game's quality")
@click.option("--sort", type=click.Choice(["model_name", "clemscore"]), default="model_name", show_default=True)
@click.option("-m", "--model", metavar="NAME", help="only these models' scores anew, the others of raw.csv")
@click.option("-g", "--game", "games", multiple=True, metavar="GAME...", help="only these games' scores anew")
def compare_results(results_dir: str, std: bool, sort: str, model: str | None, games: tuple[str, ...]) -> None:
    """Write the table of all models' scores: results.csv, results.html and raw.csv."""
    from lmgym.apps.playpen.results_table import write_table

    launch(lambda: write_table(results_dir, model, games, std, sort))


@clem.command("register")
@click.argument("mode", type=click.Choice(["model", "key"]))
@click.option("-n", "--name", required=True, metavar="NAME", help="of the model, or of the key's backend")
@click.option(
    "-v",
    "--values",
    required=True,
    metavar="KEY=VALUE,...",
    help="of the entry, such as backend=openai,model_id=gpt-4o",
)
@click.option("-r", "--reset", is_flag=True, help="replace the entry  [default: change these values]")
@click.option("--cwd", is_flag=True, help="write key.json of the current folder  [default: the one that is read]")
def register_entry(mode: str, name: str, values: str, reset: bool, cwd: bool) -> None:
    """Write an entry of model_registry.json or key.json."""
    from lmgym.apps.playpen.registries.registering import register_key, register_model

    launch(lambda: register_model(name, values, reset) if mode == "model" else register_key(name, values, reset, cwd))


def playpen_main() -> None:
    """The console script `playpen`."""
    playpen(prog_name="playpen")


def clem_main() -> None:
    """The console script `clem`."""
    clem(prog_name="clem")
