"""A person at the terminal as a player."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lmgym.apps.debate.players.protocol import Call, Spoken
from lmgym.console import say
from lmgym.errors import InputError


@dataclass(frozen=True)
class HumanPlayer:
    """Shows what the agent reads and takes lines up to an empty one. `read` is Python's input, or a test's."""

    read: Callable[[], str] = input

    def speak(self, calls: Sequence[Call], n: int = 1) -> list[list[Spoken]]:
        """A speech for each call. Raises InputError for several samples, and at the end of the input."""
        if n > 1:
            raise InputError(f"{n} samples of a person; needed: 1, so no best-of-n")
        return [[Spoken(self._ask(call))] for call in calls]

    def _ask(self, call: Call) -> str:
        say()
        say(f"--- {call.agent}, {call.kind} ---")
        for text in (call.conversation.persona, *(turn.text for turn in call.conversation.turns)):
            for line in text.splitlines():
                say(line)
        say(f"--- at most {call.max_tokens} words; an empty line ends it ---")
        lines: list[str] = []
        while True:
            try:
                line = self.read()
            except EOFError as error:
                raise InputError(f"the input ended before {call.agent} had spoken; needed: a terminal") from error
            if not line.strip() and lines:
                return "\n".join(lines)
            lines += [line] if line.strip() else []
