"""Training by debate in rounds: the prompts are those of debaters, and the scorers are the judge's P(win) and wins."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lmgym.apps.debate.formats import Format
from lmgym.apps.debate.players.models import model_player
from lmgym.apps.debate.players.protocol import Judge, SpeechPlayer
from lmgym.apps.debate.prompts.wordings import PromptSet
from lmgym.apps.debate.questions import Question
from lmgym.apps.debate.training.scored_speeches import ScoredSpeeches
from lmgym.errors import InputError, shown
from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.protocol import Sampling
from lmgym.runs.files import write_lines
from lmgym.scoring.scorers import FunctionScorer
from preferences.iterative.config import IterativeConfig
from preferences.iterative.train import train


def train_on_debates(
    config: IterativeConfig, questions: Sequence[Question], format: Format, prompts: PromptSet, judge: Judge
) -> None:
    """Train on first speeches about the questions, of which the last --eval_size are evaluated on, from both sides.

    The opponent is the reference: with --renew_reference the policy at the beginning of each round, else the policy
    that training starts from, which evaluations are always against. Two scorers choose replies by --weights: `p_win`,
    and `won`, which is 1, 0, or 1/2 at P = 1/2. The prompts are written to --prompts, and beside it those of
    evaluations. Raises InputError for too few questions.
    """
    held_out = int(config.data.eval_size)
    if not 1 <= held_out < len(questions):
        raise InputError(
            f"eval_size={config.data.eval_size:g} of {len(questions)} questions; needed: at least 1, and 1 left"
        )
    if config.data.eval_prompts:
        raise InputError(
            f"--eval_prompts {shown(config.data.eval_prompts)} would not be used: the last --eval_size questions are "
            "evaluated on; leave it out"
        )
    limited = format.with_tokens(speech=config.rounds.max_new_tokens)
    start = model_player(config.policy.model, config.rounds.temperature)
    speeches = ScoredSpeeches(questions[:-held_out], limited, prompts, start, judge, questions[-held_out:])
    files = Path(config.data.prompts), Path(config.data.prompts).with_suffix(".eval.jsonl")
    files[0].parent.mkdir(parents=True, exist_ok=True)
    for file, rows in zip(files, (speeches.rows, speeches.eval_rows), strict=True):
        write_lines(file, rows)

    def renew_opponent(policy: LocalGenerator) -> None:
        speeches.renew(SpeechPlayer(policy, Sampling(temperature=config.rounds.temperature), on_long="cut"))

    train(
        replace(config, data=replace(config.data, eval_prompts=str(files[1]))),
        {"p_win": FunctionScorer(speeches), "won": FunctionScorer(speeches.won)},
        renew_opponent if config.rounds.renew_reference else None,
    )
