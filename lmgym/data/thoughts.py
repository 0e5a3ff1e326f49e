"""Chat templates whose generation prompt opens a thought (DeepSeek-R1, Qwen3's thinking models), and replies behind it.

Design decisions:
- A reply goes on from the generation prompt: the thought, its closing mark, the answer. Templates that drop thoughts
  (R1's) write the answer alone, so the thought is put before it here; others write both.
- A reply without a thought is no such text. It is refused, unless an empty thought is asked for (`--thoughts empty`).
"""

import json
import re
from dataclasses import dataclass, replace
from functools import cache

from lmgym.templates import apply_template, once_a_template
from lmgym.text import REASONING, Reply, as_reply, as_turn

MARK = re.compile(r"(?P<open>[<\[])(?P<name>\w[\w:]*)(?P<close>[>\]])\s*\Z")
QUESTION, ANSWER = "probed question", "probed answer"


@dataclass(frozen=True)
class Opening:
    """The beginning of a thought in a generation prompt."""

    mark: str
    """<think>"""
    closing: str
    """</think>"""
    added: str
    """what the prompt has and the text of a whole chat has not, as "<think>\\n"; empty where the template writes it"""

    def split(self, reply: Reply) -> tuple[str | None, Reply]:
        """(the thought, the reply without it); None where there is no thought."""
        turn = as_turn(reply)
        extra = json.loads(turn.extra) if turn.extra else {}
        thought = next((extra[name] for name in REASONING if name in extra), None)
        text = turn.text
        if thought is None and (found := _thought_before(self.mark, self.closing).match(text)):
            thought, text = found["thought"], text[found.end() :]
        kept = {name: value for name, value in extra.items() if name not in REASONING}
        return thought, as_reply(replace(turn, text=text, extra=json.dumps(kept, ensure_ascii=False) if kept else ""))

    def filled(self, reply: Reply) -> Reply:
        """The reply with an empty thought if it has none."""
        if self.split(reply)[0] is not None:
            return reply
        turn = as_turn(reply)
        extra = json.loads(turn.extra) if turn.extra else {}
        return replace(turn, extra=json.dumps(extra | {REASONING[0]: ""}, ensure_ascii=False))

    def written(self, thought: str) -> str:
        """A thought and its end, behind the generation prompt."""
        return f"{thought.strip(chr(10))}\n{self.closing}\n\n"


def missing_thought(opening: Opening) -> str:
    """Why training refuses a reply without a thought."""
    return (
        f"a reply without a thought, where the chat template's generation prompt ends in {opening.mark}; needed: "
        "reasoning_content of the reply, or --thoughts empty, of each lmgym train that learns replies"
    )


@cache
def _thought_before(mark: str, closing: str) -> re.Pattern[str]:
    """A thought at the beginning of a reply, with or without its opening mark: a policy samples what follows it."""
    opens, closes = re.escape(mark), re.escape(closing)
    return re.compile(rf"\s*(?:{opens})?(?P<thought>(?:(?!{opens}).)*?){closes}\s*", re.DOTALL)


def filled(tokenizer, reply: Reply) -> Reply:
    """The reply with an empty thought, if the tokenizer's template opens one and the reply has none."""
    opened = opening(tokenizer)
    return opened.filled(reply) if opened else reply


@once_a_template
def opening(tokenizer) -> Opening | None:
    """The thought that the generation prompt opens; None if it opens none.

    A mark that the template closes behind the reply, as some do with roles, is none.
    """
    asked = {"role": "user", "content": QUESTION}
    try:
        prompt = apply_template(tokenizer, [asked], prompt=True)
        whole = apply_template(tokenizer, [asked, {"role": "assistant", "content": ANSWER}])
    except Exception:  # the template refuses a plain chat
        return None
    found = MARK.search(prompt)
    if found is None or ANSWER not in whole:
        return None
    both = zip(prompt, whole, strict=False)
    shared = next((i for i, (a, b) in enumerate(both) if a != b), min(len(prompt), len(whole)))
    closing = f"{found['open']}/{found['name']}{found['close']}"
    if shared == len(prompt):
        writes_it = closing in whole[shared : whole.index(ANSWER)]
        return Opening(found[0].strip(), closing, "") if writes_it else None
    added = prompt[shared:]
    return Opening(found[0].strip(), closing, added) if added.lstrip().startswith(found[0].strip()) else None
