"""A model advises the judge alone, for either answer: what debates are compared with.

lmgym debate consultancy --model outputs/models/smollm2-135m --speech_tokens 60
"""

from lmgym.apps.debate.formats import consultancy
from lmgym.apps.debate.prompts.consultancy import PROMPTS
from lmgym.apps.debate.synthetic import synthetic_questions
from lmgym.apps.debate.tournament.config import Tournament, TournamentConfig
from lmgym.apps.debate.tournament.running import run_tournament
from lmgym.runs.flags import override
from lmgym.runs.launch import launch

CONFIG = TournamentConfig(name="consultancy", questions=20, model="outputs/models/smollm2-135m")


def setup(config: TournamentConfig) -> Tournament:
    """The same model consults and judges; a flipped round is about the other answer."""
    from lmgym.apps.debate.players.models import model_judge, model_player

    players = {"model": model_player(config.model, config.temperature, config.concurrency)}
    judge = model_judge(config.judge_model or config.model, PROMPTS, config.concurrency)
    questions = synthetic_questions(config.questions or 20, seed=config.seed)
    return Tournament(questions, players, judge, consultancy(rounds=2), PROMPTS, "model")


if __name__ == "__main__":
    launch(lambda: run_tournament(override(CONFIG), setup))
