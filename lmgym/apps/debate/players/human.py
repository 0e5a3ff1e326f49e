"""A person at the terminal as a player."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lmgym.apps.debate.players.protocol import slot_of
from lmgym.console import say
from lmgym.environments.players import ActionRequest
from lmgym.environments.protocol import Action
from lmgym.errors import InputError


@dataclass(frozen=True)
class HumanPlayer:
    """Shows what the agent reads and takes lines up to an empty one. `read` is Python's input, or a test's."""

    read: Callable[[], str] = input

    def act(self, requests: Sequence[ActionRequest], n: int = 1) -> list[list[Action]]:
        """A speech for each request. Raises InputError for several samples, and at the end of the input."""
        if n > 1:
            raise InputError(f"{n} samples of a person; needed: 1, so no best-of-n")
        return [[Action(self._ask(request))] for request in requests]

    def _ask(self, request: ActionRequest) -> str:
        slot, read = slot_of(request), request.observation.conversation
        say()
        say(f"--- {request.agent}, {slot.kind} ---")
        for text in (read.persona, *(turn.text for turn in read.turns)):
            for line in text.splitlines():
                say(line)
        say(f"--- at most {slot.max_tokens} words; an empty line ends it ---")
        lines: list[str] = []
        while True:
            try:
                line = self.read()
            except EOFError as error:
                raise InputError(f"the input ended before {request.agent} had spoken; needed: a terminal") from error
            if not line.strip() and lines:
                return "\n".join(lines)
            lines += [line] if line.strip() else []
