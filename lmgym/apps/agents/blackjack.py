"""An agent for Gymnasium's Blackjack-v1: the example to copy."""

from typing import Any, final

from lmgym.apps.agents.agent import Agent
from lmgym.apps.games.replies import choice_of
from lmgym.apps.games.toy_text import BLACKJACK, show_hand


@final
class BlackjackAgent(Agent):
    """Plays a hand with the words hit and stick."""

    def get_system_prompt(self) -> str:
        """The rules."""
        return (
            "You play blackjack: come closer to 21 than the dealer, and not above it. Answer hit for another card, or "
            "stick to end."
        )

    def format_observation(self, observation: Any) -> str:
        """(own sum, the dealer's card, whether an ace counts 11) in words."""
        return show_hand(observation)

    def extract_action(self, response: str) -> int | None:
        """The one of the two words that the reply has; None for neither or both."""
        return choice_of(BLACKJACK)(response)
