"""`lmgym games list` and `measure`: the ladders as tables."""

from rich import box
from rich.table import Table

from lmgym.apps.games.ladder import GAMES, Measured, find_game
from lmgym.apps.games.self_play.two_players import TWO_PLAYER_GAMES
from lmgym.config import SEED, Range
from lmgym.console import CONSOLE, say

EPISODES = Range(2, 10**7)
PLAYERS = ("random", "heuristic", "optimal")


def show_ladder() -> None:
    """Prints the recorded returns of all games."""
    title = "Mean returns of scripted players ± standard error"
    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    for column in ("game", *PLAYERS, "episodes"):
        table.add_column(column, justify="left" if column == "game" else "right", no_wrap=True)
    for game in GAMES.values():
        figures = [shown(game.measured[name]) if name in game.measured else "–" for name in PLAYERS]
        episodes = max((one.episodes for one in game.measured.values()), default=0)
        table.add_row(game.name, *figures, f"{episodes:,}")
    CONSOLE.print(table)
    say("lmgym games measure GAME measures them again; lmgym games play GAME plays")
    both = " and ".join(name for name in TWO_PLAYER_GAMES if name in GAMES)
    say(f"{both} are textarena's here; `lmgym train ppo self_play` and `lmgym games rate` have rules of their own")


def show_measured(name: str, episodes: int, seed: int) -> None:
    """Measures the players of a game and prints their returns beside the recorded ones."""
    EPISODES.check("episodes", episodes)
    SEED.check("seed", seed)
    game = find_game(name)
    table = Table(box=box.SIMPLE_HEAD, title=f"{game.about}: {episodes:,} games a player", title_justify="left")
    for column in ("player", "return", "recorded", ""):
        table.add_column(column, justify="left" if column in ("player", "") else "right", no_wrap=column != "")
    for player, script in game.players.items():
        recorded = game.measured.get(player)
        about = (script.__doc__ or "").partition("\n")[0].rstrip(".")
        found = shown(game.measure(script, episodes, seed))
        table.add_row(player, found, shown(recorded) if recorded else "–", about)
    CONSOLE.print(table)


def shown(measured: Measured) -> str:
    """`-0.396 ± 0.003`."""
    digits = 3 if abs(measured.mean) < 10 else 1 if abs(measured.mean) < 1000 else 0
    return f"{measured.mean:,.{digits}f} ± {measured.error:.{digits}f}"
