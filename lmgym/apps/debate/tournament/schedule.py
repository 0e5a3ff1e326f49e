"""The schedule: every round of a tournament in its order, a function of the settings alone.

Round k is the same whatever --rounds and --shard are, so that a longer run goes on where a shorter one ended.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from lmgym.apps.debate.formats import Format
from lmgym.apps.debate.tournament.config import TournamentConfig
from lmgym.environments.engine import hash_of
from lmgym.errors import InputError, listed, shown


@dataclass(frozen=True)
class ScheduledRound:
    """A round to play: its question, the debaters by name, and who argues for which answer."""

    number: int
    question: int
    """index"""
    players: tuple[str, ...]
    """names of the debaters that the format has, Debater_A first"""
    flipped: bool
    """Debater_A argues for the second option"""
    seed: int


def make_schedule(
    config: TournamentConfig, names: Sequence[str], questions: int, format: Format
) -> list[ScheduledRound]:
    """The rounds that this configuration plays, all shards together.

    Raises InputError for unknown players, and for more rounds than there are.
    """
    pairs = _pairs(config, names, len(format.debaters))
    if config.pairs == "capped":
        plays = [_capped(names, pair, questions) for pair in pairs]
    else:
        each = max(1, round(config.share * questions))
        plays = [{(i * each + j) % questions for j in range(each)} for i in range(len(pairs))]
    rounds: list[ScheduledRound] = []
    for replicate in range(config.replicates):
        for question in range(questions):
            seed = hash_seed(config.seed, question, replicate)
            for i, pair in enumerate(pairs):
                if question in plays[i]:
                    for players, flipped in _sides(config.sides, pair, bool(seed & 1), question + replicate):
                        rounds.append(ScheduledRound(len(rounds), question, players, flipped, seed))
    if config.rounds is None:
        return rounds
    if config.rounds > len(rounds):
        raise InputError(
            f"rounds={config.rounds:,}, and {questions} question(s), {len(pairs)} pair(s), sides={config.sides} and "
            f"replicates={config.replicates} give {len(rounds):,}; needed: at most so many, or more replicates"
        )
    return rounds[: config.rounds]


def hash_seed(*numbers: int | str) -> int:
    """A seed of 63 bits."""
    return hash_of(repr(numbers))


def _pairs(config: TournamentConfig, names: Sequence[str], debaters: int) -> list[tuple[str, ...]]:
    if debaters == 0:
        return [()]
    if config.pairs == "capped":
        return _capped_pairs(config.custom, names, debaters)
    if config.pairs == "custom":
        return [_custom(pair, names, debaters) for pair in config.custom]
    if debaters == 1:
        return [(name,) for name in names]
    if config.pairs == "self_play" or len(names) == 1:
        return [(name, name) for name in names]
    return list(combinations(names, 2))


def _capped_pairs(custom: Sequence[str], names: Sequence[str], debaters: int) -> list[tuple[str, ...]]:
    """Each pair of different players, or those of --custom, in the players' order."""
    if debaters != 2 or len(names) < 2:
        raise InputError(
            f"pairs=capped with {len(names)} player(s) and {debaters} debater(s) a round; needed: at least 2 players, "
            "and a format with two debaters"
        )
    pairs = list(combinations(names, 2))
    wanted = {frozenset(_custom(pair, names, debaters)) for pair in custom}
    if any(len(pair) < 2 for pair in wanted):
        raise InputError("pairs=capped with a player that meets itself in custom; needed: two players")
    return [pair for pair in pairs if not wanted or frozenset(pair) in wanted]


def _capped(names: Sequence[str], pair: Sequence[str], questions: int) -> set[int]:
    """The questions of a pair: of as many parts as there are players, that with the number i + j - 1.

    A player meets each of the others on another part. Raises InputError for fewer questions than players.
    """
    if (size := questions // len(names)) == 0:
        raise InputError(f"pairs=capped with {questions} question(s) and {len(names)} players; needed: one a player")
    part = (names.index(pair[0]) + names.index(pair[1]) - 1) % len(names)
    return set(range(part * size, (part + 1) * size))


def _custom(text: str, names: Sequence[str], debaters: int) -> tuple[str, ...]:
    pair = tuple(text.split(":"))
    if len(pair) != debaters or not set(pair) <= set(names):
        form = "first:second" if debaters == 2 else "a name"
        raise InputError(f"custom pair {shown(text)}; needed: {form}, of the players {listed(names)}")
    return pair


def _sides(sides: str, pair: tuple[str, ...], flipped: bool, place: int) -> list[tuple[tuple[str, ...], bool]]:
    """(players, flipped) of each round of a pair about a question.

    Exchanged debaters also exchange their answers, since those stay with the sides; a lone consultant gets the other
    answer.
    """
    exchanged = (pair[::-1], flipped) if len(pair) == 2 else (pair, not flipped)
    if sides == "flipped":
        # a player that meets itself gains nothing from an exchange of equals: the answers change sides
        return [(pair, flipped), (pair, not flipped) if len(set(pair)) < len(pair) else exchanged]
    return [exchanged if sides == "alternate" and place % 2 else (pair, flipped)]
