"""Records."""


class DefaultGameRecorder:
    """Interactions and requests."""

    def __init__(self, game_name, experiment_name, game_id, results_folder, player_model_infos):
        meta = {"game_name": game_name, "experiment_name": experiment_name, "game_id": game_id}
        players = {"GM": {"game_role": "Game Master", "model_name": "programmatic"}}
        self.interactions = {"meta": meta, "player_models": player_model_infos, "players": players, "turns": [[]]}
        self.requests = []

    def log_event(self, sender, receiver, action, call=None):
        """An event of the round."""
        self.interactions["turns"][-1].append({"from": sender, "to": receiver, "action": action})
        if call:
            self.requests.append({"manipulated_prompt_obj": call[0], "raw_response_obj": call[1]})
