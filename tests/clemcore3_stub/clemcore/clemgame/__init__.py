"""Games, whose masters step: nobody plays within them."""

from clemcore.backends import CustomResponseModel


class ParseError(Exception):
    """A reply that breaks the format."""


class Events:
    """Tells its events to those that registered."""

    def __init__(self):
        self.loggers = []

    def register(self, logger):
        """One more."""
        self.loggers.append(logger)

    def log_event(self, from_, to, action, call=None):
        """To all."""
        for logger in self.loggers:
            logger.log_event(from_, to, action, call)

    def log_key(self, key, value):
        """To all."""
        for logger in self.loggers:
            logger.log_key(key, value)


class Player(Events):
    """A seat with its memory."""

    def __init__(self, model, *, name=None, game_role=None):
        super().__init__()
        self.model, self.name, self.game_role, self.messages = model, name, game_role, []

    def __call__(self, context):
        """The reply."""
        if isinstance(self.model, CustomResponseModel):
            prompt, raw, reply = context, {}, self._custom_response(context)
        else:
            prompt, raw, reply = self.model.generate_response([*self.messages, context])
        self.log_event(self.name, "GM", {"type": "get message", "content": reply}, (prompt, raw))
        self.messages += [context, {"role": "assistant", "content": reply}]
        return reply


class State:
    """How the game stands."""

    outcome = "running"

    def succeed(self):
        """Won."""
        self.outcome = "success"

    def failed(self):
        """Lost."""
        self.outcome = "failure"

    def abort(self):
        """Aborted."""
        self.outcome = "aborted"


class DialogueGameMaster(Events):
    """An episode in which the players reply in turn."""

    def __init__(self, game_spec, experiment, player_models):
        super().__init__()
        self.game_spec, self.experiment, self.player_models = game_spec, experiment, player_models
        self.players, self.contexts, self.turn, self.state = [], {}, 0, State()

    def add_player(self, player, *, initial_context=None):
        """In the order of turns."""
        player.name = f"Player {len(self.players) + 1}"
        self.players.append(player)
        if initial_context is not None:
            self.set_context_for(player, initial_context)

    def set_context_for(self, player, content):
        """What it replies to next."""
        self.contexts[player.name] = {"role": "user", "content": content}

    def get_players(self):
        """All."""
        return self.players

    def get_context_for(self, player):
        """None if it has none."""
        return self.contexts.get(player.name)

    @property
    def current_player(self):
        """Whose turn it is."""
        return self.players[self.turn % len(self.players)]

    def setup(self, **instance):
        """An instance."""
        self._on_setup(**instance)

    def before_game(self):
        """The beginning."""
        self._on_before_game()

    def _on_before_game(self):
        """Nothing."""

    def step(self, response):
        """(ended, nothing) after a reply."""
        player = self.current_player
        context = self.contexts[player.name]["content"]
        self.log_event("GM", player.name, {"type": "send message", "content": context})
        self.log_event(player.name, "GM", {"type": "get message", "content": response})
        try:
            self._advance_game(player, self._parse_response(player, response))
        except ParseError as error:
            self._on_parse_error(error)
        self.turn += 1
        if done := self.state.outcome != "running":
            self._on_after_game()
        return done, {}


class GameScorer:
    """Scores of an episode."""

    def __init__(self, name, experiment, game_instance):
        self.game_name, self.experiment, self.game_instance = name, experiment, game_instance
        self.scores = {"meta": {}, "episode scores": {}}

    def log_episode_score(self, name, value):
        """A score."""
        self.scores["episode scores"][name] = value
