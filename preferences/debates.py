"""Training by debate in rounds: the prompts are those of debaters, and the scorer is the judge's P(win)."""

from pathlib import Path

from lmgym.environments.debate.formats import debate
from lmgym.environments.debate.players.judges import LetterJudge
from lmgym.environments.debate.players.models import local_player
from lmgym.environments.debate.prompts.short import PROMPTS
from lmgym.environments.debate.synthetic import synthetic_questions
from lmgym.environments.debate.training.scored_speeches import ScoredSpeeches
from lmgym.runs.files import write_lines
from lmgym.scoring.scorers import FunctionScorer
from preferences.iterative.config import IterativeConfig
from preferences.iterative.train import train


def train_on_letters(config: IterativeConfig, letter: str, questions: int = 512) -> None:
    """Train on made-up questions before a judge that counts a letter; writes the debaters' prompts first.

    Copy it for another judge, other questions and wordings.
    """
    format = debate(rounds=1).with_tokens(config.rounds.max_new_tokens)
    asked = synthetic_questions(questions, seed=config.optimizer.split_seed)
    opponent = local_player(config.policy.model, config.rounds.temperature)
    speeches = ScoredSpeeches(asked, format, PROMPTS, opponent, LetterJudge(letter))
    path = Path(config.data.prompts)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_lines(path, speeches.rows)
    train(config, {"p_win": FunctionScorer(speeches)})
