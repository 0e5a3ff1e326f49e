"""Judges by name: what stands for a judge on the command line."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from lmgym.apps.debate.formats import JUDGE
from lmgym.apps.debate.players.judges import ScorerJudge, judge_without_model
from lmgym.apps.debate.players.protocol import Judge
from lmgym.apps.debate.prompts.debate import PROMPTS
from lmgym.apps.debate.prompts.wordings import PromptSet
from lmgym.apps.debate.tournament.config import Tournament
from lmgym.apps.debate.tournament.playing import play_on
from lmgym.apps.debate.tournament.schedule import hash_seed
from lmgym.apps.debate.transcript import Transcript
from lmgym.environments.players import Player
from lmgym.errors import InputError, shown, shown_path
from lmgym.runs.user_code import import_file
from lmgym.text import Conversation

if TYPE_CHECKING:
    from lmgym.scoring.comparing_judge import ComparingJudge

SCORER = "scorer:"
PROBE, SETTINGS = "probe.json", "scorer.json"


@dataclass(frozen=True)
class WritingJudge:
    """A player that writes its verdict, as a judge that gives a probability: 1 or 0 where it only names a debater."""

    player: Player
    prompts: PromptSet
    seed: int = 0

    def p_first(self, transcripts: Sequence[Transcript]) -> list[float]:
        """P(Debater_A) of each verdict; .5 for one that cannot be read."""
        numbers = [transcript.number for transcript in transcripts]
        judged = play_on(
            transcripts,
            self.prompts,
            {JUDGE: self.player},
            seed_of=lambda episode, agent: hash_seed(self.seed, numbers[episode.index]),
            slots=[len(transcript.format.slots) - 1 for transcript in transcripts],
        )
        return [transcript.verdict.p_first for transcript in judged if transcript.verdict is not None]


def load_judge(
    name: str, both_orders: bool = False, on_long: Literal["refuse", "cut"] = "refuse", concurrency: int = 8
) -> tuple[Judge, PromptSet]:
    """The judge of a name, and its prompts.

    letter:X and random; FILE.py: the judge of that tournament; scorer:NAME, or a folder with a scorer.json: a reward
    model, whose scores of the names are logits; a folder of a probe; any other name: a model's spec, by P of the names,
    which refuses texts longer than its context, or leaves out their beginning. Raises InputError for what does not
    load, and for a server without log-probabilities.
    """
    if judge := judge_without_model(name):
        return judge, PROMPTS
    if name.endswith(".py"):
        return _of_file(Path(name))
    if name.startswith(SCORER) or (Path(name) / SETTINGS).is_file():
        from lmgym.scoring.comparing_judge import ComparingJudge
        from lmgym.scoring.judge_settings import JudgeConfig
        from lmgym.scoring.named_scorers import load_scorer

        scorer = load_scorer(name.removeprefix(SCORER), asking=JudgeConfig(concurrency=concurrency))
        if isinstance(scorer, ComparingJudge):
            return ScorerJudge(ComparedNames(scorer), PROMPTS, both_orders=both_orders), PROMPTS
        return ScorerJudge(scorer, PROMPTS, logits=True, both_orders=both_orders), PROMPTS
    if (Path(name) / PROBE).is_file():
        from lmgym.apps.debate.players.probe import LinearProbe

        return ScorerJudge(LinearProbe.load(name), PROMPTS, both_orders=both_orders), PROMPTS
    from lmgym.apps.debate.players.models import name_scorer

    return ScorerJudge(name_scorer(name, on_long, concurrency), PROMPTS, both_orders=both_orders), PROMPTS


@dataclass(frozen=True)
class ComparedNames:
    """A judge that compares, as a scorer of both names: P that each is the better reply."""

    judge: "ComparingJudge"

    def score(self, conversations: Sequence[Conversation], replies: Sequence[str]) -> np.ndarray:
        """float32 [replies]; the names come in twos, to one conversation each."""
        found = self.judge.compare(conversations[::2], replies[::2], replies[1::2])
        return np.array([p for one in found for p in (one.p, 1 - one.p)], dtype=np.float32)


def _of_file(path: Path) -> tuple[Judge, PromptSet]:
    module = import_file(path, "needed: the file of a tournament")
    setup, config = getattr(module, "setup", None), getattr(module, "CONFIG", None)
    if not callable(setup) or config is None:
        raise InputError(f"{shown_path(path)} has no setup() and CONFIG; needed: the file of a tournament")
    tournament = setup(config)
    if not isinstance(tournament, Tournament):
        raise InputError(f"setup() of {shown_path(path)} gave {shown(tournament)}; needed: a Tournament")
    judge = tournament.judge
    return judge if isinstance(judge, Judge) else WritingJudge(judge, tournament.prompts), tournament.prompts
