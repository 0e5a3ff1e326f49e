"""Rewards of tokens: of the sampled ids, or of the tokens that a function makes of the text again."""

import copy
from collections.abc import Sequence
from typing import Any

from acting import TOKENIZER as BYTES
from tokenizers import processors

from lmgym.environments.function_reward import FunctionReward
from lmgym.environments.protocol import POLICY, Sample, SampleReward, ScoreRequest
from lmgym.generation.protocol import Completion
from lmgym.text import tokenize_texts


def dense(ids: Sequence[int], text: str, rewards: Sequence[float], tokenizer: Any = BYTES) -> SampleReward:
    """The reward of a reply of these ids and this text by a function that returns these rewards."""
    reply = Completion(text, "length", tuple(ids), (-1.0,) * len(ids), len(ids))
    given = Sample(ScoreRequest(POLICY, "", text), "", reply)
    [found] = FunctionReward(lambda samples, **_: [list(rewards)], tokenizer, None, retries=0).rewards([given])
    return found


def pieces(*texts: str) -> list[int]:
    return [id_ for text in texts for id_ in tokenize_texts(BYTES, [text])[0]]


def test_rewards_of_the_functions_own_tokens_lie_on_the_sampled_ids_of_the_same_characters() -> None:
    text = "hello fine thanks"
    assert BYTES.tokenize(text) == ["hello", "Ġfine", "Ġthanks"]
    eos = BYTES.eos_token_id
    whole = pieces("hello", " fine", " thanks")
    assert dense([*whole, eos], text, [1, 2, 3]).reward == (1.0, 2.0, 3.0, 0.0), "the same tokens, and an eos"
    letters = dense([*pieces(*text), eos], text, [1, 2, 3]).reward
    assert letters == (0, 0, 0, 0, 1, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 3, 0)
    assert dense(pieces("hello", " ", "f", "ine", " thanks"), text, [1, 2, 3]).reward[-1] == 3


def test_rewards_that_land_on_one_id_add_up_and_bytes_of_a_character_wait_for_its_last() -> None:
    emoji = pieces("\U0001f600")
    assert len(emoji) == 4
    assert dense([*emoji, BYTES.eos_token_id], "\U0001f600", [1, 2, 4, 8]).reward == (0, 0, 0, 15, 0)
    word = pieces(" thanks")
    assert len(word) == 1
    own = BYTES("thanks").input_ids
    assert len(own) > 1
    tokenizer = Renamed(" thanks", "thanks")
    assert dense([*word, BYTES.eos_token_id], "thanks", [1.0] * len(own), tokenizer).reward == (float(len(own)), 0.0)


class Renamed:
    """A tokenizer whose decoder strips the first blank, as those of SentencePiece do; without offsets."""

    is_fast = False

    def __init__(self, written: str, read: str) -> None:
        self.written, self.read = written, read

    def __call__(self, text: str, **_: Any) -> Any:
        return BYTES(text, add_special_tokens=False)

    def decode(self, ids: list[int], **settings: Any) -> str:
        return BYTES.decode(ids, **settings).replace(self.written, self.read)


def test_special_tokens_of_a_functions_tokens_count_for_the_first_and_the_last_sampled_id() -> None:
    tokenizer = copy.deepcopy(BYTES)
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    ends = [("<s>", tokenizer.bos_token_id), (tokenizer.eos_token, tokenizer.eos_token_id)]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        f"<s> $A {tokenizer.eos_token}", special_tokens=ends
    )
    assert len(tokenizer("hello fine").input_ids) == 4
    ids = [*pieces(*"hello"), *pieces(" fine"), tokenizer.eos_token_id]
    assert dense(ids, "hello fine", [1, 2, 3, 4], tokenizer).reward == (1, 0, 0, 0, 2, 3, 4)
    assert dense(ids, "hello fine", [2, 3], tokenizer).reward == (0, 0, 0, 0, 2, 3, 0)
    assert dense([tokenizer.eos_token_id], "", [], tokenizer).reward == (0.0,), "of a text without tokens"


def test_a_list_of_no_tokens_is_refused_with_the_lengths_that_are_accepted() -> None:
    found = dense([*pieces(*"hello"), BYTES.eos_token_id], "hello", [1.0] * 4)
    assert found.reward is None
    assert "4 numbers for 6 sampled tokens; needed: one a sample, or one a token: 6, for a parameter" in found.error
    assert "or 1 as in tokenizer(output)" in found.error
