"""A model debates itself about made-up pages, before a judge that counts a letter, or that of --judge_model.

lmgym debate self_play --model outputs/models/smollm2-135m
"""

from lmgym.apps.debate.formats import debate
from lmgym.apps.debate.prompts.debate import PROMPTS
from lmgym.apps.debate.synthetic import synthetic_questions
from lmgym.apps.debate.tournament.config import Tournament, TournamentConfig
from lmgym.apps.debate.tournament.running import run_tournament
from lmgym.runs.flags import override
from lmgym.runs.launch import launch

CONFIG = TournamentConfig(
    name="self_play", questions=10, sides="fixed", model="outputs/models/smollm2-135m", speech_tokens=40
)


def setup(config: TournamentConfig) -> Tournament:
    """One debater in debates of two rounds."""
    from lmgym.apps.debate.players.judges import LetterJudge
    from lmgym.apps.debate.players.models import model_judge, model_player

    players = {"model": model_player(config.model, config.temperature, config.concurrency)}
    judge = model_judge(config.judge_model, PROMPTS, config.concurrency) if config.judge_model else LetterJudge("e")
    questions = synthetic_questions(config.questions or 10, seed=config.seed)
    return Tournament(
        questions, players, judge, debate(rounds=2), PROMPTS, "model" if config.judge_model else "letter_e"
    )


if __name__ == "__main__":
    launch(lambda: run_tournament(override(CONFIG), setup))
