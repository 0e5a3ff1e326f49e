"""A best-of-n debater: in every turn the sample that a judge likes best, against samples of the opponent."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from statistics import mean
from typing import Annotated, Literal

from lmgym.apps.debate.debate import Debate
from lmgym.apps.debate.formats import FIRST, other
from lmgym.apps.debate.players.protocol import Call, Judge, Player, Spoken
from lmgym.apps.debate.rendering import conversation_for
from lmgym.apps.debate.transcript import Transcript
from lmgym.config import Range, check_ranges

MOST_SAMPLES = 1024
SEEDS = 1 << 63


@dataclass(frozen=True)
class BestOfNPlayer:
    """Samples `n` speeches of a player and says the one with the highest P(win).

    The opponent's `opponent_n` samples come from the opponent's own player: those of the same slot if both speak at
    once, and its replies to each sample if it speaks next. P(win) of a speech is their mean, or with `reduce="min"` the
    least, as against a strong opponent. All samples and scores are kept: training needs those that lost. With a
    `RecordedPlayer` as `player` the samples are recorded ones, and only their scores are new.
    """

    player: Player
    judge: Judge
    n: Annotated[int, Range(1, MOST_SAMPLES)] = 4
    opponent_n: Annotated[int, Range(0, MOST_SAMPLES, hint="0: without the opponent's speech")] = 1
    reduce: Literal["mean", "min"] = "mean"

    def __post_init__(self) -> None:
        check_ranges(self)

    def speak(self, calls: Sequence[Call], n: int = 1) -> list[list[Spoken]]:
        """n speeches for each call, each the best of `self.n`; notes and choices are not compared."""
        found: dict[int, list[Spoken]] = {}
        compared = [i for i, call in enumerate(calls) if call.kind == "speech"]
        plain = [i for i, call in enumerate(calls) if call.kind != "speech"]
        if plain:
            found |= zip(plain, self.player.speak([calls[i] for i in plain], n), strict=True)
        if compared:
            found |= zip(compared, self._best([calls[i] for i in compared], n), strict=True)
        return [found[i] for i in range(len(calls))]

    def _best(self, calls: Sequence[Call], n: int) -> list[list[Spoken]]:
        samples = self.player.speak(calls, n * self.n)
        replies = _opponent_samples(calls, samples, self.opponent_n)
        outcomes = [
            (i, j, outcome)
            for i, call in enumerate(calls)
            for j, sample in enumerate(samples[i])
            for outcome in _outcomes(call, sample.text, replies[i][j])
        ]
        # all rounds, samples and opponents are one call of the judge
        p_first = self.judge.p_first([outcome for *_, outcome in outcomes])
        won: dict[tuple[int, int], list[float]] = {}
        for (i, j, _), p in zip(outcomes, p_first, strict=True):
            won.setdefault((i, j), []).append(p if calls[i].agent == FIRST else 1 - p)
        reduce = min if self.reduce == "min" else mean
        best = []
        for i, own in enumerate(samples):
            rated = [(float(reduce(won[i, j])), sample.text) for j, sample in enumerate(own)]
            known = tuple(dict.fromkeys(text for texts in replies[i] for text in texts))
            best.append([_chosen(rated[at : at + self.n], known) for at in range(0, len(rated), self.n)])
        return best


def _chosen(rated: Sequence[tuple[float, str]], opponents: tuple[str, ...]) -> Spoken:
    """The first of the speeches with the highest score."""
    _, text = max(rated, key=lambda scored: scored[0])
    return Spoken(text, tuple({"text": sample, "score": score} for score, sample in rated), opponents)


def _opponent_samples(calls: Sequence[Call], samples: Sequence[Sequence[Spoken]], n: int) -> list[list[list[str]]]:
    """The opponent's samples by call and by sample of the speech; none where it does not speak at once or next."""
    found: list[list[list[str]]] = [[[] for _ in own] for own in samples]
    asked: dict[int, list[tuple[Call, list[tuple[int, int]]]]] = {}  # by player: calls, and whom their replies are for
    players: dict[int, Player] = {}
    for i, call in enumerate(calls):
        player = call.opponent.player if isinstance(call.opponent, BestOfNPlayer) else call.opponent
        if player is None or not n:
            continue
        players[id(player)] = player
        own = asked.setdefault(id(player), [])
        if other(call.agent) in call.round.speakers:
            own.append((_opponent_call(call, call.round, 0), [(i, j) for j in range(len(samples[i]))]))
        elif _speaks_next(call):
            for j, sample in enumerate(samples[i]):
                own.append((_opponent_call(call, _after(call, sample.text), j), [(i, j)]))
    for key, requests in asked.items():
        if requests:
            for spoken, (_, places) in zip(
                players[key].speak([call for call, _ in requests], n), requests, strict=True
            ):
                for i, j in places:
                    found[i][j] = [s.text for s in spoken]
    return found


def _outcomes(call: Call, text: str, replies: Sequence[str]) -> list[Transcript]:
    """The round after a speech, with each of the opponent's samples."""
    opponent = other(call.agent)
    if not replies:
        return [call.round.with_speeches({call.agent: text})]
    if opponent in call.round.speakers:
        return [call.round.with_speeches({call.agent: text, opponent: reply}) for reply in replies]
    after = _after(call, text)
    return [after.with_speeches({opponent: reply}) for reply in replies]


def _speaks_next(call: Call) -> bool:
    """True if the opponent alone gives the next speech, in the same round."""
    slots, place = call.round.format.slots, call.round.slot
    following = slots[place + 1]
    return (following.speakers, following.kind, following.round) == ((other(call.agent),), "speech", slots[place].round)


def _after(call: Call, text: str) -> Debate:
    """The round in its next slot, if the agent says this and nobody else acts."""
    after = copy(call.round)
    after.transcript, after.slot = call.round.with_speeches({call.agent: text}), call.round.slot + 1
    return after


def _opponent_call(call: Call, round: Debate, sample: int) -> Call:
    opponent = other(call.agent)
    read = conversation_for(round.prompts, round.transcript, opponent, round.slot)
    return Call(round, opponent, read, (call.seed * 31 + sample + 1) % SEEDS)
