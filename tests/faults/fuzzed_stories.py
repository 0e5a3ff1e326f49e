"""A debate about QuALITY's own rows, as docs/debate.md tells users to write one, without a model."""

from lmgym.apps.debate.formats import debate
from lmgym.apps.debate.players.judges import LetterJudge
from lmgym.apps.debate.players.scripted import ScriptedPlayer, quote_text
from lmgym.apps.debate.prompts.debate import PROMPTS
from lmgym.apps.debate.tournament.config import Tournament, TournamentConfig
from lmgym.apps.debate.tournament.running import run_tournament
from lmgym.runs.flags import override
from lmgym.runs.launch import launch


def setup(config: TournamentConfig) -> Tournament:
    """The hard questions."""
    from lmgym.apps.debate.data import quality, read_questions

    questions = read_questions(config.dataset, quality)
    players = {"first": ScriptedPlayer(quote_text), "second": ScriptedPlayer(quote_text)}
    return Tournament(questions, players, LetterJudge("e"), debate(rounds=1), PROMPTS, "letter_e")


if __name__ == "__main__":
    launch(lambda: run_tournament(override(TournamentConfig(name="stories")), setup))
