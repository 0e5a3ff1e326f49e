"""A conversation rendered by its chat template as pieces of text: in turn the context before an output, and the output.

The template is run a fixed number of times however many turns there are: private-use characters mark the outputs in
its text, and the first and the last prompt show how a reply begins.
"""

import re
from dataclasses import replace

from lmgym.data.truncation import split_reply
from lmgym.errors import InputError
from lmgym.text import Conversation, Turn, as_reply, render_all

MARK = re.compile("\ue000(\\d+)\ue001")

Pieces = list[str]
"""context, output, context, output, ...: the last output ends it"""


def pieces_of(tokenizer, conversation: Conversation, outputs: tuple[int, ...]) -> Pieces | str | None:
    """The pieces of a conversation that ends with the last of its outputs (places of turns).

    None if the template renders a turn differently once others follow it, as some drop earlier thoughts: then each
    output needs a text of its own. A string is the reason why the conversation cannot be learned.
    """
    turns, eos = conversation.turns, tokenizer.eos_token
    if any(eos in turns[i].text + turns[i].extra for i in outputs):
        return f"an output that holds {eos}, which ends a reply; needed: text without it"
    try:
        if len(outputs) == 1:
            return _one_output(tokenizer, conversation)
        if any(turns[i].extra for i in outputs):  # no mark can stand in a call of a tool: the template reads its fields
            render_all(
                tokenizer, [replace(conversation, turns=turns[:-1])], [as_reply(turns[-1])]
            )  # or is refused whole
            return None
        return _several(tokenizer, conversation, outputs)
    except InputError as error:  # the template refuses it
        return str(error)


def _one_output(tokenizer, conversation: Conversation) -> Pieces | str:
    *before, last = conversation.turns
    pieces = split_reply(tokenizer, replace(conversation, turns=tuple(before)), as_reply(last))
    return pieces if isinstance(pieces, str) else list(pieces)


def _several(tokenizer, conversation: Conversation, outputs: tuple[int, ...]) -> Pieces | None:
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
    # the template's text between a prompt and a reply's words, and after them up to an eos
    lead, suffix = written[len(last_prompt) :], gaps[-1].partition(tokenizer.eos_token)[0]
    inner = gaps[1:-1]
    appends = written.startswith(last_prompt) and gaps[0] == first_prompt + lead
    if not appends or any(not _is_between(gap, suffix, lead) for gap in inner):
        return None
    contexts = [first_prompt, *(gap[len(suffix) : len(gap) - len(lead)] for gap in inner)]
    return [text for both in zip(contexts, (lead + t + suffix for t in texts), strict=True) for text in both]


def _is_between(gap: str, suffix: str, lead: str) -> bool:
    return len(gap) >= len(suffix) + len(lead) and gap.startswith(suffix) and gap.endswith(lead)
