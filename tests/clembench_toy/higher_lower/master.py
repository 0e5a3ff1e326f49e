"""A small game of the tests' own, for clemcore 2.5.2 and for its stand-in: the guesser finds a number from 1 to 9.

The helper answers a wrong guess with higher or lower. What is neither a number nor one of these words aborts. A number
of 9 breaks the scorer, and an instance without a number the game; "luck" is drawn from the global generator.
"""

import random

from clemcore.clemgame import GameBenchmark, GameMaster, GameScorer, Player


class Seat(Player):
    """Either player; a programmed one guesses 5, and says higher."""

    def _custom_response(self, context):
        return "5" if self.game_role == "Guesser" else "higher"


class HigherLower(GameMaster):
    """Plays by itself: clemcore's step is not used."""

    def setup(self, number, game_id):
        """Two players, in the order of models."""
        self.number = number
        self.seats = []
        for place, role in enumerate(("Guesser", "Helper"), 1):
            seat = Seat(self.player_models[place - 1], name=f"Player {place}", game_role=role)
            seat.game_recorder = self.game_recorder
            seat.initial_prompt = f"You are the {role}."
            self.log_player(seat)
            self.seats.append(seat)

    def play(self):
        """Guess, and help."""
        guesser, helper = self.seats
        self.log_key("luck", random.random())
        hint = "guess"
        for _ in range(self.experiment["most"]):
            guess = guesser({"role": "user", "content": hint})
            if not guess.isdigit():
                return self.log_to_self("aborted", guess)
            if int(guess) == self.number:
                return self.log_to_self("won", guess)
            hint = helper({"role": "user", "content": f"{guess} is wrong, it is {self.number}"})
            if hint not in ("higher", "lower"):
                return self.log_to_self("aborted", hint)
            self.log_next_round()
        return self.log_to_self("lost", "")


class Scorer(GameScorer):
    """100 / the number of guesses."""

    def compute_scores(self, episode_interactions):
        """From the last event."""
        events = [event for turn in episode_interactions["turns"] for event in turn]
        kind = events[-1]["action"]["type"]
        guesses = sum(event["from"] == "Player 1" for event in events)
        main = {"won": 100 / guesses, "lost": 0}.get(kind, float("nan"))
        if self.game_instance["number"] == 9:
            main = 1 / 0
        found = {"Aborted": int(kind == "aborted"), "Success": int(kind == "won"), "Lose": int(kind == "lost")}
        for name, value in (found | {"Main Score": main}).items():
            self.log_episode_score(name, value)


class HigherLowerBenchmark(GameBenchmark):
    """As clemcore finds it."""

    def create_game_master(self, experiment, player_models):
        """A master for an episode."""
        return HigherLower(self.game_spec, experiment, player_models)

    def create_game_scorer(self, experiment, game_instance):
        """A scorer for an episode."""
        return Scorer(self.game_name, experiment, game_instance)
