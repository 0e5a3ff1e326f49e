"""Judges that give probabilities: by a count, by a scorer, by chance; as players, and as rewards."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lmgym.apps.debate.formats import DEBATERS, FIRST, SECOND
from lmgym.apps.debate.players.protocol import Judge, round_of, slot_of
from lmgym.apps.debate.prompts.wordings import Prompts, PromptSet, read_prompts
from lmgym.apps.debate.rendering import judge_conversation, needed_tags
from lmgym.apps.debate.transcript import Transcript
from lmgym.apps.debate.verdicts import write_verdict
from lmgym.environments.engine import hash_of
from lmgym.environments.players import ActionRequest
from lmgym.environments.protocol import Action, Sample, SampleReward
from lmgym.errors import InputError, shown
from lmgym.scoring.protocol import Scorer, read_scores

RANDOM, LETTER = "random", "letter:"
"""how judges without a model are named"""


@dataclass(frozen=True)
class LetterJudge:
    """P(win) by how often a letter stands in the speeches of each side: a / (a + b), and .5 without any."""

    letter: str = "l"

    def __post_init__(self) -> None:
        if len(self.letter) != 1:
            raise InputError(f"letter={shown(self.letter)}; needed: one character")

    def p_first(self, transcripts: Sequence[Transcript]) -> list[float]:
        """The first side's share of the letter."""
        return [self._share(transcript) for transcript in transcripts]

    def _share(self, transcript: Transcript) -> float:
        speeches = [speech for speech in transcript.speeches if speech.kind == "speech"]
        first, second = (
            sum(s.text.lower().count(self.letter.lower()) for s in speeches if s.speaker == side) for side in DEBATERS
        )
        return first / (first + second) if first + second else 0.5


@dataclass(frozen=True)
class RandomJudge:
    """P(win) uniform in [0, 1], by the round's seed and its speeches."""

    seed: int = 0

    def p_first(self, transcripts: Sequence[Transcript]) -> list[float]:
        """A number for each round, the same each time, and another one where something else is said."""
        said = [hash_of(*((speech.speaker, speech.text) for speech in t.speeches)) for t in transcripts]
        seeds = zip(transcripts, said, strict=True)
        return [float(np.random.default_rng([self.seed, t.seed, spoken]).random()) for t, spoken in seeds]


def judge_without_model(name: str) -> Judge | None:
    """The judge of the names `random` and `letter:X`; None for any other name, which is a model's."""
    if name == RANDOM:
        return RandomJudge()
    return LetterJudge(name.removeprefix(LETTER)) if name.startswith(LETTER) else None


@dataclass(frozen=True)
class ScorerJudge:
    """A scorer as judge: its scores of both names as replies to what the judge reads.

    A score is P(name), as of NameJudge, or any number: `logits` takes their softmax, as for a reward model. With
    `both_orders` each round is also judged with the names exchanged, and P is the mean, so that a preference for a name
    cancels.
    """

    scorer: Scorer
    prompts: PromptSet
    logits: bool = False
    both_orders: bool = False

    def p_first(self, transcripts: Sequence[Transcript]) -> list[float]:
        """P(Debater_A) / (P(Debater_A) + P(Debater_B)); .5 if both are 0. One call of the scorer."""
        if not self.both_orders:
            return self._as_given(transcripts)
        p = np.array(self._as_given([*transcripts, *(t.mirrored() for t in transcripts)])).reshape(2, -1)
        return ((p[0] + 1 - p[1]) / 2).tolist()

    def _as_given(self, transcripts: Sequence[Transcript]) -> list[float]:
        read: dict[object, Prompts] = {}
        conversations = []
        for transcript in transcripts:
            if transcript.format not in read:
                read[transcript.format] = read_prompts(self.prompts, needed_tags(transcript.format))
            conversations += [judge_conversation(read[transcript.format], transcript)] * 2
        names = [*DEBATERS] * len(transcripts)
        scores = np.array(read_scores(self.scorer.score(conversations, names), len(names))).reshape(-1, 2)
        if self.logits:
            scores = np.exp(scores - scores.max(1, keepdims=True))
        elif scores.size and scores.min() < 0:
            raise InputError(f"a score of {scores.min():g} is no probability; needed: ScorerJudge(..., logits=True)")
        total = scores.sum(1)
        return np.divide(scores[:, 0], total, out=np.full(len(scores), 0.5), where=total > 0).tolist()


@dataclass(frozen=True)
class JudgePlayer:
    """A judge that gives a probability as a player, whose verdict is its text form. It picks and asks nothing."""

    judge: Judge

    def act(self, requests: Sequence[ActionRequest], n: int = 1) -> list[list[Action]]:
        """The verdict of each round, n times: it is no sample. Raises InputError for anything else that is asked."""
        for request in requests:
            if (kind := slot_of(request).kind) != "verdict":
                raise InputError(
                    f"a {kind} is asked of a {type(self.judge).__name__}; needed: a judge that writes, as "
                    "SpeechPlayer, or a format without it"
                )
        found = self.judge.p_first([round_of(request).transcript for request in requests])
        return [[Action(write_verdict(p))] * n for p in found]


def won(p_win: float) -> float:
    """1 for a side that has won with this probability, 0 for one that has lost, 1/2 at P = 1/2."""
    return 0.5 + 0.5 * ((p_win > 0.5) - (p_win < 0.5))


@dataclass(frozen=True)
class JudgeReward:
    """A judge as the reward function of rounds whose verdict is a scorer's: P(win) less the side's baseline.

    Its scores are P(win) and whether the round is won: 1, 0, or 1/2 at P = 1/2.
    """

    judge: Judge

    def rewards(self, samples: Sequence[Sample]) -> list[SampleReward]:
        """One reward a sample, in order. Raises InputError for requests that are not of a Debate."""
        requests = [sample.request for sample in samples]
        if lost := next((r for r in requests if not isinstance(r.columns.get("transcript"), Transcript)), None):
            raise InputError(f"a request for {lost.agent} has no transcript; needed: those of Debate(verdict='scorer')")
        rounds = {id(r.columns["transcript"]): r.columns["transcript"] for r in requests}
        first = dict(zip(rounds, self.judge.p_first(list(rounds.values())), strict=True))
        rewards = []
        for request in requests:
            p = first[id(request.columns["transcript"])]
            p_win = {FIRST: p, SECOND: 1 - p}[request.reply]  # the agent may have another name: "policy"
            rewards.append(SampleReward(p_win - request.columns["baseline"], {"p_win": p_win, "won": won(p_win)}))
        return rewards
