"""Recorders: of a game's events, and of the requests of a player."""

from datetime import datetime


class GameInteractionsRecorder:
    """Interactions."""

    def __init__(self, game_name, experiment_name, game_id, results_folder, player_model_infos):
        meta = {"game_name": game_name, "experiment_name": experiment_name, "game_id": game_id}
        players = {"GM": {"game_role": "Game Master", "model_name": "programmatic"}}
        self.interactions = {"meta": meta, "player_models": player_model_infos, "players": players, "turns": [[]]}

    def log_player(self, player_name, game_role, model_name):
        """A player's entry."""
        self.interactions["players"][player_name] = {"game_role": game_role, "model_name": model_name}

    def log_event(self, from_, to, action, call=None):
        """An event."""
        self.interactions["turns"][-1].append({"from": from_, "to": to, "action": action})

    def log_key(self, key, value):
        """A key beside the rounds."""
        self.interactions[key] = value


class EventCallRecorder:
    """Requests of a player."""

    def __init__(self, game_name, *, experiment_name, game_id, player_name, game_role, model_name):
        self.player_name, self.requests = player_name, {"calls": []}

    def log_event(self, from_, to, action, call=None):
        """A request."""
        if from_ == self.player_name and call:
            found = {"manipulated_prompt_obj": call[0], "raw_response_obj": call[1]}
            self.requests["calls"].append({"round": 0, "call": {"timestamp": datetime.now().isoformat(), **found}})
