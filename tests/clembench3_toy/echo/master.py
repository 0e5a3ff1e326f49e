"""A small game of the tests' own, for clemcore 3.7.2 and for its stand-in: a word is sent as WORD: x, and repeated.

What has not this form aborts, another word loses.
"""

import random

try:  # of clemcore 3.7.2
    from clemcore.clemgame.errors import ParseError
except ImportError:
    from clemcore.clemgame import ParseError
from clemcore.clemgame import DialogueGameMaster, GameScorer, Player
from clemcore.clemgame.benchmark import GameBenchmark


class Seat(Player):
    """Either player; a programmed one says the last word of its context."""

    def _custom_response(self, context):
        return f"WORD: {context['content'].split()[-1]}"


class Echo(DialogueGameMaster):
    """Two turns."""

    def _on_setup(self, word, **_):
        self.word = word
        self.sender = Seat(self.player_models[0], game_role="Sender")
        self.receiver = Seat(self.player_models[1], game_role="Receiver")
        self.add_player(self.sender, initial_context=f"Send the word {word}")
        self.add_player(self.receiver)

    def _on_before_game(self):
        self.log_key("luck", random.random())

    def _parse_response(self, player, response):
        if not response.startswith("WORD: "):
            raise ParseError("no WORD:")
        return response.removeprefix("WORD: ")

    def _advance_game(self, player, parsed_response):
        if parsed_response != self.word:
            self.state.failed()
        elif player is self.sender:
            self.set_context_for(self.receiver, f"Repeat {parsed_response}")
        else:
            self.state.succeed()

    def _on_parse_error(self, error):
        self.state.abort()

    def _on_after_game(self):
        self.log_key("outcome", getattr(self.state.outcome, "value", self.state.outcome))


class Scorer(GameScorer):
    """100 for the word."""

    def compute_scores(self, interactions):
        """From the outcome."""
        kinds = {"Aborted": "aborted", "Success": "success", "Lose": "failure"}
        for name, kind in kinds.items():
            self.log_episode_score(name, int(interactions["outcome"] == kind))
        main = {"success": 100, "failure": 0}.get(interactions["outcome"], float("nan"))
        self.log_episode_score("Main Score", main)


class EchoBenchmark(GameBenchmark):
    """As clemcore finds it."""

    def create_game_master(self, experiment, player_models):
        """A master for an episode."""
        return Echo(self.game_spec, experiment, player_models)

    def create_game_scorer(self, experiment, game_instance):
        """A scorer for an episode."""
        return Scorer(self.game_name, experiment, game_instance)
