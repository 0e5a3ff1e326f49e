"""Judges by name: what stands for a judge on the command line."""

import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal

from lmgym.apps.debate.debate import Debate
from lmgym.apps.debate.formats import JUDGE
from lmgym.apps.debate.players.judges import LetterJudge, RandomJudge, ScorerJudge
from lmgym.apps.debate.players.protocol import Call, Judge, Player
from lmgym.apps.debate.prompts.debate import PROMPTS
from lmgym.apps.debate.prompts.wordings import PromptSet
from lmgym.apps.debate.tournament.config import Tournament
from lmgym.apps.debate.tournament.playing import has_probabilities
from lmgym.apps.debate.tournament.schedule import hash_seed
from lmgym.apps.debate.transcript import Transcript
from lmgym.apps.debate.verdicts import read_verdict
from lmgym.errors import InputError, shown, shown_path

LETTER, SCORER = "letter:", "scorer:"
PROBE, SETTINGS = "probe.json", "scorer.json"


@dataclass(frozen=True)
class WritingJudge:
    """A player that writes its verdict, as a judge that gives a probability: 1 or 0 where it only names a debater."""

    player: Player
    prompts: PromptSet
    seed: int = 0

    def p_first(self, transcripts: Sequence[Transcript]) -> list[float]:
        """P(Debater_A) of each verdict; .5 for one that cannot be read."""
        calls = []
        for transcript in transcripts:
            debate = Debate(transcript.format, self.prompts)
            debate.begin(transcript)
            debate.slot = len(transcript.format.slots) - 1
            read = debate.observations()[JUDGE].prompt
            assert not isinstance(read, str)
            calls.append(Call(debate, JUDGE, read, hash_seed(self.seed, transcript.number)))
        return [read_verdict(spoken.text).p_first for [spoken] in self.player.speak(calls)]


def load_judge(
    name: str, both_orders: bool = False, on_long: Literal["refuse", "cut"] = "refuse"
) -> tuple[Judge, PromptSet]:
    """The judge of a name, and its prompts.

    letter:X and random; FILE.py: the judge of that tournament; scorer:NAME, or a folder with a scorer.json: a reward
    model, whose scores of the names are logits; a folder of a probe; any other name: a causal model, by P of the names,
    which refuses texts longer than its context, or leaves out their beginning. Raises InputError for what does not
    load.
    """
    if name.startswith(LETTER):
        return LetterJudge(name.removeprefix(LETTER)), PROMPTS
    if name == "random":
        return RandomJudge(), PROMPTS
    if name.endswith(".py"):
        return _of_file(Path(name))
    if name.startswith(SCORER) or (Path(name) / SETTINGS).is_file():
        from lmgym.scoring.named_scorers import load_scorer

        scorer = load_scorer(name.removeprefix(SCORER))
        return ScorerJudge(scorer, PROMPTS, logits=True, both_orders=both_orders), PROMPTS
    if (Path(name) / PROBE).is_file():
        from lmgym.apps.debate.players.probe import LinearProbe

        return ScorerJudge(LinearProbe.load(name), PROMPTS, both_orders=both_orders), PROMPTS
    from lmgym.apps.debate.players.name_judge import NameJudge

    return ScorerJudge(NameJudge.load(name, on_long), PROMPTS, both_orders=both_orders), PROMPTS


def _of_file(path: Path) -> tuple[Judge, PromptSet]:
    module = _import(path)
    setup, config = getattr(module, "setup", None), getattr(module, "CONFIG", None)
    if not callable(setup) or config is None:
        raise InputError(f"{shown_path(path)} has no setup() and CONFIG; needed: the file of a tournament")
    tournament = setup(config)
    if not isinstance(tournament, Tournament):
        raise InputError(f"setup() of {shown_path(path)} gave {shown(tournament)}; needed: a Tournament")
    judge = tournament.judge
    if not has_probabilities(judge):
        judge = WritingJudge(judge, tournament.prompts)  # type: ignore[arg-type]
    return judge, tournament.prompts  # type: ignore[return-value]


def _import(path: Path) -> ModuleType:
    if not path.is_file():
        raise InputError(f"there is no file {shown_path(path)}; needed: the file of a tournament")
    spec = importlib.util.spec_from_file_location(f"lmgym_judge_{path.stem}", path.resolve())
    assert spec is not None, "a .py file has a loader"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module
