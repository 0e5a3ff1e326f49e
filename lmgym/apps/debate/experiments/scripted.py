"""Debaters that need no model, on made-up pages of facts, before the judge that counts a letter.

lmgym debate scripted --rounds 50
"""

from lmgym.apps.debate.formats import debate
from lmgym.apps.debate.players.judges import LetterJudge
from lmgym.apps.debate.players.scripted import ScriptedPlayer, invent_quote, quote_text, say_letters
from lmgym.apps.debate.prompts.debate import PROMPTS
from lmgym.apps.debate.synthetic import synthetic_questions
from lmgym.apps.debate.tournament.config import Tournament, TournamentConfig
from lmgym.apps.debate.tournament.running import run_tournament
from lmgym.runs.flags import override
from lmgym.runs.launch import launch

CONFIG = TournamentConfig(name="scripted", questions=20)


def setup(config: TournamentConfig) -> Tournament:
    """Three scripts in debates of two rounds."""
    scripts = {"quotes": quote_text, "invents": invent_quote, "letters": say_letters}
    players = {name: ScriptedPlayer(script) for name, script in scripts.items()}
    questions = synthetic_questions(config.questions or 20, seed=config.seed)
    return Tournament(questions, players, LetterJudge("e"), debate(rounds=2), PROMPTS, "letter_e")


if __name__ == "__main__":
    launch(lambda: run_tournament(override(CONFIG), setup))
