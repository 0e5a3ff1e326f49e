"""An agent for Gymnasium's Blackjack-v1: the example to copy."""

import re
from typing import Any, final

from lmgym.agents.agent import Agent

MOVES = {"stick": 0, "hit": 1}


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
        total, dealer, ace = observation
        held = f"{total} with an ace that counts 11" if ace else f"{total}"
        return f"You hold {held}. The dealer shows {'an ace' if dealer == 1 else dealer}. Hit or stick?"

    def extract_action(self, response: str) -> int | None:
        """The one of the two words that the reply has; None for neither or both."""
        found = MOVES.keys() & set(re.findall("[a-z]+", response.lower()))
        return MOVES[found.pop()] if len(found) == 1 else None
