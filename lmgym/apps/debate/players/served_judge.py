"""A served model as judge: P of a debater's name from the server's likeliest tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lmgym.apps.debate.formats import DEBATERS
from lmgym.errors import InputError, shown
from lmgym.generation.openai_server import ServedGenerator
from lmgym.generation.protocol import Completion, LikelyTokens, Sampling
from lmgym.scoring.label_probabilities import read_likely
from lmgym.text import Conversation, Turn

VERDICT = Sampling(max_new_tokens=16, temperature=0)


@dataclass(frozen=True)
class ServedNameJudge:
    """P(name) where a reply names a debater (lmgym/scoring/label_probabilities.py); .5 if it names none.

    `server` is a ServedGenerator with `top_logprobs`, of which OpenAI gives up to 20. Raises InputError for a server
    that gives no log-probabilities.
    """

    server: ServedGenerator

    def __post_init__(self) -> None:
        if not self.server.top_logprobs:
            raise InputError(
                "a judge by log-probabilities has a server with top_logprobs=0; needed: 1 to 20, such as 20"
            )

    def score(self, conversations: Sequence[Conversation], replies: Sequence[str]) -> np.ndarray:
        """float32 [replies]: P(name) in [0, 1]; one request for each conversation."""
        if wrong := next((reply for reply in replies if reply not in DEBATERS), None):
            raise InputError(f"a reply {shown(wrong)} is scored by a judge of names; needed: {' or '.join(DEBATERS)}")
        distinct = list(dict.fromkeys(conversations))
        completions = self._replies(distinct)
        p_first = {c: p_first_of(completion.likely) for c, completion in zip(distinct, completions, strict=True)}
        return np.array(
            [p_first[c] if r == DEBATERS[0] else 1 - p_first[c] for c, r in zip(conversations, replies, strict=True)],
            dtype=np.float32,
        )

    def check(self) -> None:
        """Asks for a short reply. Raises InputError for one without log-probabilities, or with thoughts before it."""
        [reply] = self._replies([Conversation((Turn("user", f"Write this name: {DEBATERS[0]}"),))])
        if reply.thought:
            raise InputError(
                f"{self.server.base_url} serves a model that thinks before it answers, so that no probability of its "
                "next token is its verdict; needed: a judge that writes (SpeechPlayer), or a server with thinking off"
            )

    def _replies(self, conversations: Sequence[Conversation]) -> list[Completion]:
        completions = [reply for [reply] in self.server.reply(conversations, 1, VERDICT)]
        if any(completion.text and not completion.likely for completion in completions):
            raise InputError(
                f"{self.server.base_url} gives no log-probabilities, which a judge needs; needed: a server with "
                "logprobs and top_logprobs, such as vLLM, a folder, a hub id, or a judge that writes (SpeechPlayer)"
            )
        return completions


def p_first_of(likely: Sequence[LikelyTokens]) -> float:
    """P(Debater_A) against P(Debater_B) where a reply names one of them; .5 where it does not."""
    masses = read_likely("", likely, DEBATERS).masses
    total = sum(masses.values())
    return masses.get(DEBATERS[0], 0.0) / total if total else 0.5
