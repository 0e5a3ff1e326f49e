"""Held-out replies as text, of every kind of chat template and tokenizer: where the prompt ends and a reply begins."""

import pytest
from chat_kinds import DECODERS, KINDS, Kind

from lmgym.data.truncation import tokenize_replies
from lmgym.text import Conversation, Turn
from reward_models.report import reply_texts

CHAT = Conversation((Turn("user", "hello there"), Turn("bot", "hi, you"), Turn("user", "how do I boil an egg?")))
REPLIES = ["I can do that", "I can not do that"]


def plain(text: str) -> str:
    """Without blanks and capitals, which some tokenizers do not keep."""
    return "".join(text.split()).lower()


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_replies_that_begin_alike_are_whole_and_apart_from_the_prompt(kind: Kind) -> None:
    [row] = tokenize_replies(kind.tokenizer, [CHAT], [REPLIES], 10_000, may_lose_text=True)
    if isinstance(row, str):
        pytest.skip(row)
    prompt, texts = reply_texts(kind.tokenizer, row)
    thought = "<think></think>" if kind.opens_thought else ""
    assert [plain(text) for text in texts] == [thought + plain(reply) for reply in REPLIES]
    assert plain(prompt).endswith(plain("how do I boil an egg?"))


@pytest.mark.parametrize("kind", DECODERS, ids=str)
def test_a_single_reply_is_not_empty(kind: Kind) -> None:
    [row] = tokenize_replies(kind.tokenizer, [CHAT], [REPLIES[:1]], 10_000, may_lose_text=True)
    if isinstance(row, str):
        pytest.skip(row)
    assert len(row.suffixes[0]) == 1  # all but the last token are the prefix
    prompt, [text] = reply_texts(kind.tokenizer, row)
    assert plain(text) == plain(REPLIES[0])
    assert plain(prompt).endswith(plain("how do I boil an egg?"))
