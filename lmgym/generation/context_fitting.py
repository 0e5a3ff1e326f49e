"""Conversations cut to what a generator reads: where they are too long, the oldest turns go."""

from dataclasses import dataclass, replace
from typing import Any

from lmgym.data.truncation import from_turn, truncate
from lmgym.errors import InputError, TooLong
from lmgym.generation.protocol import Capabilities, Completion, Generator, Progress, Sampling
from lmgym.text import Conversation


@dataclass(frozen=True)
class PersonaGenerator:
    """A generator whose model knows personas in a form of its own: `{persona}` in `form` is the person's text."""

    generator: Generator
    form: str

    @property
    def capabilities(self) -> Capabilities:
        """Of the generator."""
        return self.generator.capabilities

    def shaped(self, conversation: Conversation) -> Conversation:
        """The conversation as the model knows it; one without a persona stays as it is."""
        persona = self.form.replace("{persona}", conversation.persona) if conversation.persona else ""
        return replace(conversation, persona=persona)

    def reply(
        self, conversations: Any, n: int, sampling: Sampling, progress: Progress | None = None
    ) -> list[list[Completion]]:
        """Of the generator, to conversations so shaped."""
        return self.generator.reply([self.shaped(c) for c in conversations], n, sampling, progress)


def fit(generator: Any, conversation: Conversation, sampling: Sampling) -> tuple[Conversation, int, int]:
    """(what fits, how many of the oldest turns are left out, tokens that the last turn lost): lmgym/data/truncation.py.

    All of it for a generator that does not say how much it reads, such as a server or a script. Raises InputError where
    the persona alone is too long.
    """
    shaped = conversation
    while hasattr(generator, "generator"):
        shaped = generator.shaped(shaped) if hasattr(generator, "shaped") else shaped
        generator = generator.generator
    if not (hasattr(generator, "tokenizer") and hasattr(generator, "max_length")):
        return conversation, 0, 0
    [found] = truncate(generator.tokenizer, [shaped], None, generator.max_length - sampling.max_new_tokens)
    if isinstance(found, str):
        raise InputError(f"{found} beside a reply of {sampling.max_new_tokens}; shorten it, or %set max_new_tokens")
    return replace(conversation, turns=found.conversation.turns), found.dropped_turns, found.shortened


def reply_within(
    generator: Generator, conversation: Conversation, n: int, sampling: Sampling, progress: Progress | None = None
) -> tuple[list[Completion], int, int]:
    """(n replies to what fits, how many of the oldest turns were left out, tokens that the last turn lost).

    Only a server knows how much it reads: where it refuses the length, a quarter of the turns goes at a time. Raises
    InputError where the persona alone, or for a server persona and last turn, are too long.
    """
    fitting, dropped, shortened = fit(generator, conversation, sampling)
    while True:
        try:
            [found] = generator.reply([fitting], n, sampling, progress)
            return found, dropped, shortened
        except TooLong:
            left = len(conversation.turns) - dropped
            if left < 2:
                raise
            fitting, dropped = from_turn(conversation, dropped + max(1, left // 4))
