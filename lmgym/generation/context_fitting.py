"""Conversations truncated to the context of a generator: the oldest turns are left out first."""

from dataclasses import dataclass, replace
from typing import Any

from lmgym.data.truncation import OverLong, start_at_turn, truncate
from lmgym.errors import InputError, TooLong
from lmgym.generation.protocol import Completion, Generator, Progress, Sampling
from lmgym.text import Conversation


@dataclass(frozen=True)
class PersonaGenerator:
    """A generator that writes personas in the form its model was trained on: `{persona}` in `form` is the persona."""

    generator: Generator
    form: str

    def with_form(self, conversation: Conversation) -> Conversation:
        """The conversation with its persona in the form; one without a persona is unchanged."""
        persona = self.form.replace("{persona}", conversation.persona) if conversation.persona else ""
        return replace(conversation, persona=persona)

    def reply(
        self, conversations: Any, n: int, sampling: Sampling, progress: Progress | None = None
    ) -> list[list[Completion]]:
        """The generator's replies to the conversations with their persona in the form."""
        return self.generator.reply([self.with_form(c) for c in conversations], n, sampling, progress)


def fit(generator: Any, conversation: Conversation, sampling: Sampling) -> tuple[Conversation, int, int]:
    """(truncated conversation, oldest turns left out, tokens cut from the last turn); see lmgym/data/truncation.py.

    Unchanged for a generator of unknown context, such as a server or a script. Raises TooLong if the persona alone
    is too long, InputError for a conversation that the chat template refuses.
    """
    formed = conversation
    while hasattr(generator, "generator"):
        formed = generator.with_form(formed) if hasattr(generator, "with_form") else formed
        generator = generator.generator
    if not (hasattr(generator, "tokenizer") and hasattr(generator, "max_length")):
        return conversation, 0, 0
    [row] = truncate(generator.tokenizer, [formed], None, generator.max_length - sampling.max_new_tokens)
    if isinstance(row, OverLong):
        room = f"beside a reply of {sampling.max_new_tokens} tokens"
        raise TooLong(f"{row} {room}; needed: shorter texts, or a smaller max_new_tokens")
    if isinstance(row, str):
        raise InputError(row)
    return replace(conversation, turns=row.conversation.turns), row.dropped_turns, row.shortened


def reply_within(
    generator: Generator, conversation: Conversation, n: int, sampling: Sampling, progress: Progress | None = None
) -> tuple[list[Completion], int, int]:
    """(n replies to the truncated conversation, oldest turns left out, tokens cut from the last turn).

    Only a server knows its own context: if it refuses the length, a quarter of the turns is left out, and again. Raises
    InputError if the persona alone, or for a server persona and last turn, are too long.
    """
    fitted, dropped, shortened = fit(generator, conversation, sampling)
    while True:
        try:
            [replies] = generator.reply([fitted], n, sampling, progress)
            return replies, dropped, shortened
        except TooLong:
            left = len(conversation.turns) - dropped
            if left < 2:
                raise
            fitted, dropped = start_at_turn(conversation, dropped + max(1, left // 4))
