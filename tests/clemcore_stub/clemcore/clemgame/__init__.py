"""Games."""

import json
import os

from clemcore.backends import CustomResponseModel


class GameMaster:
    """An episode."""

    def __init__(self, game_spec, experiment, player_models):
        self.game_spec, self.experiment, self.player_models = game_spec, experiment, player_models

    def log_player(self, player):
        """A player's entry."""
        entry = {"game_role": player.game_role, "model_name": player.model.name}
        self.game_recorder.interactions["players"][player.name] = entry

    def log_to_self(self, kind, value):
        """A decision."""
        self.game_recorder.log_event("GM", "GM", {"type": kind, "content": value})

    def log_key(self, key, value):
        """A key beside the rounds."""
        self.game_recorder.interactions[key] = value

    def log_next_round(self):
        """A new round."""
        self.game_recorder.interactions["turns"].append([])


class Player:
    """A seat."""

    def __init__(self, model, name=None, game_role=None):
        self.model, self.name, self.game_role = model, name, game_role
        self.messages = []
        self.initial_prompt = None

    def __call__(self, context):
        """The reply."""
        if not self.messages:
            self.messages.append({"role": "user", "content": self.initial_prompt})
            self.log("GM", self.name, "send message", self.initial_prompt)
        self.log("GM", self.name, "send message", context["content"])
        prompt, raw = context, {}
        if isinstance(self.model, CustomResponseModel):
            reply = self._custom_response(context)
        else:
            prompt, raw, reply = self.model.generate_response([*self.messages, context])
        self.log(self.name, "GM", "get message", reply, (prompt, raw))
        self.messages += [context, {"role": "assistant", "content": reply}]
        return reply

    def log(self, sender, receiver, kind, content, call=None):
        """An event."""
        self.game_recorder.log_event(sender, receiver, {"type": kind, "content": content}, call)


class GameScorer:
    """Scores of an episode."""

    def __init__(self, name, experiment, game_instance):
        self.game_name, self.experiment, self.game_instance = name, experiment, game_instance
        self.scores = {"meta": {}, "episode scores": {}}

    def log_episode_score(self, name, value):
        """A score."""
        self.scores["episode scores"][name] = value


class GameBenchmark:
    """A game."""

    def __init__(self, game_spec):
        self.game_spec, self.game_name, self.instances = game_spec, game_spec.game_name, None

    def setup(self):
        """Read the instances."""
        with open(os.path.join(self.game_spec.game_path, "in", "instances.json"), encoding="utf-8") as file:
            self.instances = json.load(file)
