"""A best-of-n debater: in every turn the sample that a judge likes best, against samples of the opponent."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from statistics import mean
from typing import Annotated, Literal

from lmgym.apps.debate.debate import Debate
from lmgym.apps.debate.formats import FIRST, other
from lmgym.apps.debate.players.protocol import Judge, request_for, round_of, slot_of, texts_of
from lmgym.apps.debate.transcript import Transcript
from lmgym.config import Range, check_ranges
from lmgym.environments.players import ActionRequest, Player, ask
from lmgym.environments.protocol import Action

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

    def act(self, requests: Sequence[ActionRequest], n: int = 1) -> list[list[Action]]:
        """n speeches for each request, each the best of `self.n`; notes and choices are not compared.

        The notes of a speech are its `candidates` and `opponent_samples`, as a transcript keeps them.
        """
        found: dict[int, list[Action]] = {}
        compared = [i for i, request in enumerate(requests) if slot_of(request).kind == "speech"]
        plain = [i for i, request in enumerate(requests) if slot_of(request).kind != "speech"]
        if plain:
            found |= zip(plain, self.player.act([requests[i] for i in plain], n), strict=True)
        if compared:
            found |= zip(compared, self._best([requests[i] for i in compared], n), strict=True)
        return [found[i] for i in range(len(requests))]

    def _best(self, requests: Sequence[ActionRequest], n: int) -> list[list[Action]]:
        samples = [texts_of(actions) for actions in self.player.act(requests, n * self.n)]
        replies = _opponent_samples(requests, samples, self.opponent_n)
        outcomes = [
            (i, j, outcome)
            for i, request in enumerate(requests)
            for j, sample in enumerate(samples[i])
            for outcome in _outcomes(request, sample, replies[i][j])
        ]
        # all rounds, samples and opponents are one call of the judge
        p_first = self.judge.p_first([outcome for *_, outcome in outcomes])
        won: dict[tuple[int, int], list[float]] = {}
        for (i, j, _), p in zip(outcomes, p_first, strict=True):
            won.setdefault((i, j), []).append(p if requests[i].agent == FIRST else 1 - p)
        reduce = min if self.reduce == "min" else mean
        best = []
        for i, own in enumerate(samples):
            rated = [(float(reduce(won[i, j])), sample) for j, sample in enumerate(own)]
            known = tuple(dict.fromkeys(text for texts in replies[i] for text in texts))
            best.append([_chosen(rated[at : at + self.n], known) for at in range(0, len(rated), self.n)])
        return best


def _chosen(rated: Sequence[tuple[float, str]], opponents: tuple[str, ...]) -> Action:
    """The first of the speeches with the highest score."""
    _, text = max(rated, key=lambda scored: scored[0])
    candidates = tuple({"text": sample, "score": score} for score, sample in rated)
    return Action(text, notes={"candidates": candidates, "opponent_samples": opponents})


def _opponent_samples(
    requests: Sequence[ActionRequest], samples: Sequence[Sequence[str]], n: int
) -> list[list[list[str]]]:
    """The opponent's samples by request and by sample of the speech; none where it does not speak at once or next."""
    asked: dict[tuple[int, int | None], tuple[Player, ActionRequest]] = {}
    for i, request in enumerate(requests):
        player, round = _opponent_of(request), round_of(request)
        if player is None or not n:
            continue
        if other(request.agent) in round.speakers:
            asked[i, None] = player, _opponent_request(request, round, 0)
        elif _speaks_next(request):
            for j, sample in enumerate(samples[i]):
                asked[i, j] = player, _opponent_request(request, _after(request, sample), j)
    found = {key: texts_of(actions) for key, actions in ask(asked, n).items()}
    return [[found.get((i, None), found.get((i, j), [])) for j in range(len(own))] for i, own in enumerate(samples)]


def _opponent_of(request: ActionRequest) -> Player | None:
    """The player of the other debater; of a best-of-n debater, the player whose samples it chooses from."""
    player = request.players.get(other(request.agent))
    return player.player if isinstance(player, BestOfNPlayer) else player


def _outcomes(request: ActionRequest, text: str, replies: Sequence[str]) -> list[Transcript]:
    """The round after a speech, with each of the opponent's samples."""
    round, opponent = round_of(request), other(request.agent)
    if not replies:
        return [round.with_speeches({request.agent: text})]
    if opponent in round.speakers:
        return [round.with_speeches({request.agent: text, opponent: reply}) for reply in replies]
    after = _after(request, text)
    return [after.with_speeches({opponent: reply}) for reply in replies]


def _speaks_next(request: ActionRequest) -> bool:
    """True if the opponent alone gives the next speech, in the same round."""
    slots, place = round_of(request).format.slots, round_of(request).slot
    following = slots[place + 1]
    alone = following.speakers == (other(request.agent),)
    return alone and following.kind == "speech" and following.round == slots[place].round


def _after(request: ActionRequest, text: str) -> Debate:
    """The round in its next slot, if the agent says this and nobody else acts."""
    after = copy(round_of(request))
    after.transcript, after.slot = after.with_speeches({request.agent: text}), after.slot + 1
    return after


def _opponent_request(request: ActionRequest, round: Debate, sample: int) -> ActionRequest:
    return request_for(round, other(request.agent), (request.seed * 31 + sample + 1) % SEEDS)
