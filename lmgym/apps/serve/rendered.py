"""Texts that a policy's chat template has rendered, read back into turns, so that each scorer renders its own template.

The marks are those of the widespread templates; a text with "User:"/"Bot:" or "Human:"/"Assistant:" is a transcript.
"""

import re

from lmgym.data.text_forms import form_of
from lmgym.errors import InputError, shown
from lmgym.messages import from_transcript
from lmgym.text import ROLES, Conversation, Turn

OPENINGS = (
    r"<\|im_start\|>[ \t]*(\w+)\n?",  # ChatML: Qwen, SmolLM2
    r"<\|(?:start_header_id|header_start)\|>(\w+)<\|(?:end_header_id|header_end)\|>",  # Llama 3 and 4
    r"<start_of_turn>(\w+)\n?",  # Gemma
    r"<\|(user|assistant|system|tool|observation)\|>\n?",  # Zephyr, Phi, Tulu, GLM
    r"<｜(User|Assistant)｜>",  # DeepSeek
    r"\[(/?INST|SYSTEM_PROMPT)\]",  # Llama 2, Mistral
)
OPENING = re.compile("|".join(OPENINGS))
"""the mark before a turn; the group of its family names who speaks"""
NAMED = {"inst": "user", "/inst": "assistant", "system_prompt": "system"}
BEGIN = re.compile(
    r"(?:\s+|<s>|<bos>|<\|bos\|>|<\|begin_of_text\|>|<\|startoftext\|>|<\|endoftext\|>|<｜begin▁of▁sentence｜>|\[gMASK\]|<sop>)++"
)
END = re.compile(r"(?:\s+|>\|\w+\|<|>｜\w+(?:▁\w+)*｜<|>s/<|>soe<|>dap<|>nrut_fo_dne<|\]TPMORP_METSYS/\[)++")
"""marks behind a turn (<|im_end|>, <|eot_id|>, <|endoftext|> and the like), backwards: a search for the end of a text
from its beginning takes the square of a run of blanks"""
NO_THOUGHT = re.compile(r"\A\s*<think>\s*</think>\s*")
"""what Qwen3's template writes before a reply without reasoning"""
SYSTEM = re.compile(r"\A\s*<<SYS>>(.*?)<</SYS>>", re.DOTALL)
NEEDED = "needed: a rendered chat that ends in a reply, template=raw to score a text as it is, or messages at /v1/score"


def read_rendered(text: str, prompt: str | None = None) -> tuple[Conversation, str]:
    """(the conversation, the reply to it) of a rendered text; `prompt` is what the policy was given of it, if known.

    A text without marks is the prompt, a turn of the user, and the reply. Raises InputError where there is no reply.
    """
    body = BEGIN.sub("", text, count=1) if BEGIN.match(text) else text
    first = OPENING.search(body)
    before = _without_end(body[: first.start()] if first else body)
    if form_of(before, "chat")[0] == "transcript":  # a reply may hold any marks
        conversation = from_transcript(_without_end(body))
        is_empty = conversation.turns[-1].speaker == "user"  # the reply has no words
        return _split([_system(conversation.persona), *conversation.turns, *[Turn("bot", "")] * is_empty], text)
    if first:
        return _split(_turns(body, next(i for i, group in enumerate(first.groups()) if group is not None)), text)
    if prompt is not None and text.startswith(prompt) and prompt.strip():
        return Conversation((Turn("user", prompt.strip()),)), _without_marks(text[len(prompt) :])
    raise InputError(f"the text {shown(text, 60)} has no marks of a chat template; {NEEDED}")


def _turns(body: str, family: int) -> list[Turn]:
    """The turns of a text with the marks of a family, the first perhaps of a system."""
    marks = list(re.finditer(OPENINGS[family], body))
    speakers = [NAMED.get(mark[1].lower(), mark[1].lower()) for mark in marks]
    ends = [*(mark.start() for mark in marks[1:]), len(body)]
    before = _without_marks(body[: marks[0].start()])  # a system message without a mark, or the rest of a cut turn
    turns = [_system(before) if speakers[0] != "assistant" else Turn("user", before)]
    for mark, speaker, end in zip(marks, speakers, ends, strict=True):
        said = _without_marks(body[mark.end() : end])
        if speaker == "user" and (found := SYSTEM.match(said)):
            turns, said = [*turns, _system(found[1].strip())], said[found.end() :].strip()
        role = ROLES.get(speaker)
        if role is None:
            raise InputError(f"the text has a turn of {shown(speaker, 40)}; needed: user, assistant, system or tool")
        turns.append(Turn("bot" if role == "assistant" else role, NO_THOUGHT.sub("", said)))
    return turns


def _split(turns: list[Turn], text: str) -> tuple[Conversation, str]:
    """Everything before the last turn, which must be the bot's, and its text."""
    persona = "\n".join(turn.text for turn in turns if turn.speaker == "system" and turn.text)
    said = [turn for turn in turns[:-1] if turn.speaker != "system" and (turn.text or turn.speaker == "bot")]
    if turns[-1].speaker != "bot" or not said:
        last = turns[-1].speaker
        found = f"ends in a turn of the {last}" if last != "bot" else "has no turn before the reply"
        raise InputError(f"the rendered text {shown(text, 60)} {found}; {NEEDED}")
    return Conversation(tuple(said), persona), turns[-1].text


def _system(text: str) -> Turn:
    return Turn("system", text)


def _without_marks(text: str) -> str:
    return _without_end(text).strip()


def _without_end(text: str) -> str:
    """A text without the marks and blanks at its end."""
    end = END.match(text[::-1])
    return text[: len(text) - end.end()] if end else text
