"""The best of 1, 2, 4 and 8 speeches by the judge's own P(win): what choosing for the judge does to accuracy.

lmgym debate best_of_n --model outputs/models/smollm2-135m --speech_tokens 60
"""

from lmgym.apps.debate.formats import debate
from lmgym.apps.debate.prompts.debate import PROMPTS
from lmgym.apps.debate.synthetic import synthetic_questions
from lmgym.apps.debate.tournament.config import Tournament, TournamentConfig
from lmgym.apps.debate.tournament.running import run_tournament
from lmgym.runs.flags import override
from lmgym.runs.launch import launch

CONFIG = TournamentConfig(name="best_of_n", questions=20, pairs="self_play", model="outputs/models/smollm2-135m")


def setup(config: TournamentConfig) -> Tournament:
    """The best of 1, 2, 4 and 8 speeches of one model, which also judges; each debater meets itself."""
    from lmgym.apps.debate.players.best_of_n import BestOfNPlayer
    from lmgym.apps.debate.players.models import model_judge, model_player

    model = model_player(config.model, config.temperature, config.concurrency)
    judge = model_judge(config.judge_model or config.model, PROMPTS, config.concurrency)
    players = {f"best_of_{n}": BestOfNPlayer(model, judge, n) for n in (1, 2, 4, 8)}
    questions = synthetic_questions(config.questions or 20, seed=config.seed)
    return Tournament(questions, players, judge, debate(rounds=2), PROMPTS, "model")


if __name__ == "__main__":
    launch(lambda: run_tournament(override(CONFIG), setup))
