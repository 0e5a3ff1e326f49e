"""Where the outputs stand in the text of a conversation, if its chat template only ever appends.

The template is run a fixed number of times however many turns there are: private-use characters mark the outputs in
its text, and the first and the last prompt show how a reply begins.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from lmgym.errors import InputError
from lmgym.text import Conversation, Turn, render_all
from lmgym.turn_ends import turn_ends

MARK = re.compile("\ue000(\\d+)\ue001")


def borders_of(tokenizer, conversation: Conversation, outputs: Sequence[int]) -> list[tuple[str, str]] | None:
    """(text of the prompt, text up to the end of the output) of each output but the last, which ends the conversation.

    Each is a beginning of the text of the whole conversation. None if the template renders a turn differently once
    others follow it, as some drop earlier thoughts: then each output needs a text of its own.
    """
    turns = conversation.turns
    # no mark can stand in a call of a tool: the template reads its fields; an output with an end of a turn is refused
    if any(turns[i].extra or turn_ends(tokenizer).token_in(turns[i].text) for i in outputs):
        return None
    try:
        pieces = _pieces(tokenizer, conversation, outputs)
    except InputError:  # the template refuses a beginning of the conversation
        return None
    if pieces is None:
        return None
    return [("".join(pieces[: i + 1]), "".join(pieces[: i + 2])) for i in range(0, len(pieces) - 2, 2)]


def _pieces(tokenizer, conversation: Conversation, outputs: Sequence[int]) -> list[str] | None:
    """Context, output, context, output, ...: the last output ends it; None as above."""
    turns = conversation.turns
    texts = [turns[i].text for i in outputs]
    marked = list(turns)
    for number, i in enumerate(outputs):
        marked[i] = Turn(turns[i].speaker, f"\ue000{number}\ue001")
    before = replace(conversation, turns=turns[:-1])
    whole, gapped = render_all(
        tokenizer, [before, replace(conversation, turns=tuple(marked[:-1]))], [turns[-1].text, marked[-1].text]
    )
    first_prompt, last_prompt = render_all(tokenizer, [replace(conversation, turns=turns[: outputs[0]]), before])
    # alternately gaps and numbers
    parts = MARK.split(gapped)
    gaps = parts[::2]
    if parts[1::2] != [str(number) for number in range(len(outputs))]:
        return None
    if whole != "".join(text for both in zip(gaps, [*texts, ""], strict=True) for text in both):
        return None
    written = whole[: len(whole) - len(gaps[-1]) - len(texts[-1])]
    # the template's text between a prompt and a reply's words, and after them up to the end of the turn
    lead, suffix = written[len(last_prompt) :], turn_ends(tokenizer).text_before(gaps[-1])
    inner = gaps[1:-1]
    appends = written.startswith(last_prompt) and gaps[0] == first_prompt + lead
    if not appends or any(not _is_between(gap, suffix, lead) for gap in inner):
        return None
    contexts = [first_prompt, *(gap[len(suffix) : len(gap) - len(lead)] for gap in inner)]
    return [text for both in zip(contexts, (lead + t + suffix for t in texts), strict=True) for text in both]


def _is_between(gap: str, suffix: str, lead: str) -> bool:
    return len(gap) >= len(suffix) + len(lead) and gap.startswith(suffix) and gap.endswith(lead)
