"""What of a conversation a generator can read: where it is too long, the oldest turns go."""

from dataclasses import dataclass, replace
from typing import Any

from lmgym.errors import InputError, TooLong
from lmgym.generation import Capabilities, Completion, Generator, Progress, Sampling
from lmgym.text import Conversation, render_all, tokenize_texts


@dataclass(frozen=True)
class WithPersona:
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


def room_left(generator: Any, conversation: Conversation, sampling: Sampling) -> int | None:
    """Tokens that the model could still read besides prompt and reply, negative where they do not fit.

    None for a generator that does not say how much it reads, such as a server or a script.
    """
    while hasattr(generator, "generator"):
        conversation = generator.shaped(conversation) if hasattr(generator, "shaped") else conversation
        generator = generator.generator
    if not (hasattr(generator, "tokenizer") and hasattr(generator, "max_length")):
        return None
    [ids] = tokenize_texts(generator.tokenizer, render_all(generator.tokenizer, [conversation]))
    return generator.max_length - sampling.max_new_tokens - len(ids)


def fit(generator: Generator, conversation: Conversation, sampling: Sampling) -> tuple[Conversation, int]:
    """(what fits, how many of the oldest turns are left out). The persona and the last turn always stay.

    What began with the person's turn goes on beginning so: some chat templates refuse anything else. Raises InputError
    where persona and last turn alone are too long.
    """
    room = room_left(generator, conversation, sampling)
    if room is None or room >= 0:
        return conversation, 0
    turns = conversation.turns

    def from_turn(first: int) -> Conversation:
        return replace(conversation, turns=turns[first:])

    too_few, enough = 0, len(turns) - 1  # dropped turns; fewer tokens with each
    room = room_left(generator, from_turn(enough), sampling)
    if room is None or room < 0:
        raise InputError(
            f"your line and the persona are {-(room or 0):,} tokens too long for the model beside a reply of "
            f"{sampling.max_new_tokens}; shorten them, or %set max_new_tokens"
        )
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if (room_left(generator, from_turn(middle), sampling) or 0) >= 0:
            enough = middle
        else:
            too_few = middle
    enough = _from_whom_began(conversation, enough)
    return from_turn(enough), enough


def _from_whom_began(conversation: Conversation, first: int) -> int:
    turns = conversation.turns
    return first + 1 if turns[0].speaker == "user" and turns[first].speaker != "user" else first


def reply_within(
    generator: Generator, conversation: Conversation, n: int, sampling: Sampling, progress: Progress | None = None
) -> tuple[list[Completion], int]:
    """(n replies to what fits, how many of the oldest turns were left out).

    A server alone knows how much it reads: where it refuses the length, a quarter of the turns goes at a time. Raises
    InputError where persona and last turn alone are too long.
    """
    fitting, dropped = fit(generator, conversation, sampling)
    while True:
        try:
            [found] = generator.reply([fitting], n, sampling, progress)
            return found, dropped
        except TooLong:
            left = len(conversation.turns) - dropped
            if left < 2:
                raise
            dropped = _from_whom_began(conversation, dropped + max(1, left // 4))
            fitting = replace(conversation, turns=conversation.turns[dropped:])
