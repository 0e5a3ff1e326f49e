"""A model and scripts about real stories, with the model as judge: P of the two names in one forward pass.

lmgym debate stories --dataset articles.jsonl.gz --model outputs/models/smollm2-135m --speech_tokens 100
"""

from lmgym.apps.debate.formats import debate
from lmgym.apps.debate.prompts.debate import PROMPTS
from lmgym.apps.debate.tournament.config import Tournament, TournamentConfig
from lmgym.apps.debate.tournament.running import run_tournament
from lmgym.runs.flags import override
from lmgym.runs.launch import launch

CONFIG = TournamentConfig(name="stories", questions=10, model="outputs/models/smollm2-135m", speech_tokens=100)


def setup(config: TournamentConfig) -> Tournament:
    """A model and scripts debate excerpts of at most 600 words, around the words of question and answers."""
    from lmgym.apps.debate.data import quality_sample, read_questions, with_excerpts
    from lmgym.apps.debate.players.models import model_judge, model_player
    from lmgym.apps.debate.players.scripted import SCRIPTED

    questions = with_excerpts(read_questions(config.dataset, quality_sample)[: config.questions], words=600)
    players = {"model": model_player(config.model, config.temperature, config.concurrency), **SCRIPTED}
    judge = model_judge(config.judge_model or config.model, PROMPTS, config.concurrency)
    return Tournament(questions, players, judge, debate(rounds=2), PROMPTS, "model")


if __name__ == "__main__":
    launch(lambda: run_tournament(override(CONFIG), setup))
