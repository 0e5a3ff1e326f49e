"""The registry of games: those of game_registry.json or of --games before our own, which are packaged.

Only the folders that are named are read, and the folder `clembench` in the current one; nothing is run. A folder of
clembench has a clemgame.json for each game (one spec or several), at most MOST_DEPTH folders below. A game is code:
what just lies in the current folder, a registry or a checkout, can be listed, and is played only if --games names it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lmgym.apps.playpen.registries.own_games import OWN_GAMES
from lmgym.apps.playpen.registries.specs import (
    Spec,
    one_of,
    read_entries,
    read_selector,
    refuse_misspelt,
    unify,
)
from lmgym.console import say
from lmgym.errors import InputError, listed, one_line, shown, shown_path
from lmgym.origin import PACKAGED, origin_of, refuse

REGISTRY, CHECKOUT = "game_registry.json", "clembench"
GAME_FILE, MASTER = "clemgame.json", "master.py"
MOST_DEPTH = 3
MOST_PLAYERS = 99
LEFT_OUT = {"venv", "__pycache__", "docs", "in", "resources", "utils", "evaluation", "files"}  # as clemcore does
KEYS = frozenset({
    "benchmark_path", "game_path", "game_name", "description", "players", "main_game", "benchmark", "image",
    "languages", "instances", "roles",
})  # fmt: skip
ALL = "all"
BENCHMARK = "2.0"
"""version of clembench's suite"""


@dataclass(frozen=True)
class GameRegistry:
    """The entries, those of files first."""

    specs: Sequence[Spec]
    is_chosen: bool = False
    """True if the user has named each of the games"""

    def to_play(self) -> list[Spec]:
        """The games that are played unless one is named: those of benchmark 2.0, or our own if there are none."""
        if self.is_chosen:
            return list(self.specs)
        specs = self.select(ALL) if self.specs else []
        return [s for s in specs if BENCHMARK in (s.get("benchmark") or ())] or [s for s in specs if is_own(s)]

    def select(self, selector: str) -> list[Spec]:
        """All entries that a name, "all" or a part of a spec matches; of one name, those of the first source.

        Of `benchmark`, a list, one has to be in the entry's. Raises InputError if none matches.
        """
        if selector == ALL:
            return self._first_of_each_name(self.specs)
        fields = read_selector(selector, "game_name")
        if fields.keys() == {"game_name"}:
            name = str(fields["game_name"])
            return [one_of([s for s in self.specs if s.name == name], "game", name, self.names, self._elsewhere)]
        matches = [found for spec in self.specs if (found := _unify_game(fields, spec))]
        if not matches:
            known = f"a part of a spec of {listed(self.names, 30)}{self._elsewhere}"
            raise InputError(f"no game matches {shown(selector)}; needed: {known}")
        return self._first_of_each_name(matches)

    def get_game_specs_that_unify_with(
        self, selector: str | Mapping[str, Any] | Spec, verbose: bool = True
    ) -> list[Spec]:
        """`select`, by the name that trainers written for clemcore call; they may give an object."""
        fields = selector.fields if isinstance(selector, Spec) else selector
        return self.select(fields if isinstance(fields, str) else json.dumps(dict(fields)))

    @property
    def _elsewhere(self) -> str:
        """Where clembench's games come from, if there are none."""
        if not all(is_own(spec) for spec in self.specs):
            return ""
        return (
            f"; clembench's games: its checkout, by --games CHECKOUT or {REGISTRY} of this folder, "
            '[{"benchmark_path": "CHECKOUT"}], which is not here'
        )

    @property
    def names(self) -> list[str]:
        """The names, each once."""
        return list(dict.fromkeys(spec.name for spec in self.specs))

    def _first_of_each_name(self, specs: Sequence[Spec]) -> list[Spec]:
        first: dict[str, list[Spec]] = {}
        for spec in specs:
            first.setdefault(spec.name, []).append(spec)
        return [one_of(some, "game", name, first) for name, some in first.items()]


def _unify_game(fields: dict[str, Any], spec: Spec) -> Spec | None:
    wanted = fields.get("benchmark")
    versions = wanted if isinstance(wanted, list) else [wanted] if wanted else []
    if versions and not set(map(str, versions)) & set(map(str, spec.get("benchmark") or ())):
        return None
    found = unify({name: value for name, value in fields.items() if name != "benchmark"}, spec.fields)
    return None if found is None else replace(spec, fields=found)


def load_games(path: str | None = None) -> GameRegistry:
    """The games of a checkout or a registry's file, else of those in the current folder, then our own.

    Those of the current folder are its game_registry.json, and its folder clembench, which is named on stderr.

    Raises InputError for a faulty file, a folder that is no checkout, and games without a name or players.
    """
    own = [Spec(game.fields) for game in OWN_GAMES.values()]
    if path:
        given = Path(path).expanduser()
        return GameRegistry([*(read_checkout(given) if given.is_dir() else _read_registry(given)), *own])
    registry, checkout = Path.cwd() / REGISTRY, Path.cwd() / CHECKOUT
    found = [replace(s, unnamed=REGISTRY) for s in _read_registry(registry)] if registry.exists() else []
    if checkout.is_dir() and any(_game_files(checkout, 0)):
        games = [replace(spec, unnamed=CHECKOUT) for spec in read_checkout(Path(CHECKOUT))]
        say(f"{CHECKOUT}/ in this folder: {len(games)} games; to run them: --games {CHECKOUT}", error=True)
        found += games
    return GameRegistry([*found, *own])


def _read_registry(path: Path) -> list[Spec]:
    entries, text = read_entries(path)
    specs: list[Spec] = []
    for number, entry in enumerate(entries, 1):
        refuse_misspelt(path, text, entry, KEYS)
        if "benchmark_path" in entry:
            folder = Path(str(entry["benchmark_path"])).expanduser()
            specs += read_checkout(folder if folder.is_absolute() else path.parent / folder)
        elif "game_path" in entry:
            specs.append(_checked(entry, path))
        else:
            raise InputError(
                f"{shown_path(path)}: entry {number} has neither benchmark_path nor game_path; needed: "
                '[{"benchmark_path": "path/to/clembench"}]'
            )
    return specs


def read_checkout(folder: Path) -> list[Spec]:
    """The games in a folder. Raises InputError for a folder that does not exist or holds none."""
    if not folder.is_dir():
        raise InputError(f"{shown_path(folder)} is not a folder; needed: a checkout of clembench, or another --games")
    files = sorted(_game_files(folder, 0))
    if not files:
        raise InputError(
            f"{shown_path(folder)} is no checkout of clembench: no {GAME_FILE} in {MOST_DEPTH} levels of folders; "
            "needed: the folder that holds taboo/, wordle/ and others"
        )
    return [spec for file in files for spec in _read_game(file)]


def _game_files(folder: Path, depth: int) -> list[Path]:
    if (folder / GAME_FILE).is_file():
        return [folder / GAME_FILE]
    if depth == MOST_DEPTH:
        return []
    inner = [p for p in folder.iterdir() if p.is_dir() and p.name not in LEFT_OUT and not p.name.startswith(".")]
    return [file for child in inner for file in _game_files(child, depth + 1)]


def _read_game(file: Path) -> list[Spec]:
    entries, _ = read_entries(file)
    return [_checked({**entry, "game_path": str(file.parent)}, file) for entry in entries]


def _checked(entry: dict[str, Any], path: Path) -> Spec:
    if missing := [name for name in ("game_name", "players") if name not in entry]:
        raise InputError(f"{shown_path(path)}: a game has no {missing[0]}; needed: game_name, players and game_path")
    players = str(entry["players"])
    if not (players.isascii() and players.isdecimal() and 1 <= int(players[:9]) <= MOST_PLAYERS):
        found = f"{shown_path(path)}: game {shown(entry['game_name'])} has players={shown(entry['players'])}"
        raise InputError(f"{found}; needed: a number of 1 to {MOST_PLAYERS}")
    return Spec(entry, origin_of(path))


def refuse_unnamed(spec: Spec) -> None:
    """Raises InputError, with the flag that names it, for a game whose code the user has not named."""
    if spec.unnamed:
        code = f"{one_line(spec.name, 40)}, code in {shown_path(spec.get('game_path'))}"
        refuse(spec.source, code, f"to run it: --games {shown_path(spec.unnamed)}")


def is_of_a_suite(spec: Spec) -> bool:
    """True for a game of clembench's suite, and for one of the static suite."""
    return BENCHMARK in (spec.get("benchmark") or ()) or is_static(spec)


def is_static(spec: Spec) -> bool:
    """True for a game of the static suite: questions, of one turn."""
    return any("static" in str(version) for version in spec.get("benchmark") or ())


def is_own(spec: Spec) -> bool:
    """True for one of our own games."""
    return spec.source == PACKAGED
