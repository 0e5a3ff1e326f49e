"""Speeches as replies to prompts, for methods that know prompts and scorers: iterative DPO, the best of N, rewards."""

import json
from collections.abc import Sequence
from typing import Any, final

from lmgym.environments.debate.debate import Debate
from lmgym.environments.debate.formats import DEBATERS, FIRST, Format, other
from lmgym.environments.debate.players.protocol import Call, Judge, Player
from lmgym.environments.debate.prompts.wordings import PromptSet
from lmgym.environments.debate.questions import Question
from lmgym.environments.debate.tournament.schedule import hash_seed
from lmgym.errors import InputError
from lmgym.text import Conversation, messages


@final
class ScoredSpeeches:
    """A function of (conversations, replies) for FunctionScorer: P(win) of first speeches against an opponent's.

    Both debaters of each question have a prompt; every second question has its sides exchanged. The opponent's one
    sample for a prompt is the same for all replies to it. Raises InputError for formats whose first speeches are not
    simultaneous.
    """

    def __init__(
        self, questions: Sequence[Question], format: Format, prompts: PromptSet, opponent: Player, judge: Judge
    ) -> None:
        if format.slots[0].speakers != DEBATERS or format.slots[0].kind != "speech":
            raise InputError(f"a {format.name} begins with no two speeches at once; needed: debate(...)")
        self.opponent, self.judge = opponent, judge
        self.known: dict[str, tuple[Debate, str]] = {}
        self.said: dict[str, str] = {}
        """the opponent's speeches by prompt"""
        self.rows: list[dict[str, Any]] = []
        """of the data set of prompts"""
        for number, question in enumerate(questions):
            debate = Debate(format, prompts)
            debate.reset({**question.task, "flipped": number % 2 == 1}, number)
            for agent, seen in debate.observations().items():
                assert isinstance(seen.prompt, Conversation)
                self.known[_key(seen.prompt)] = (debate, agent)
                self.rows.append({"prompt": messages(seen.prompt)})

    def __call__(self, conversations: Sequence[Conversation], replies: Sequence[str]) -> list[float]:
        """P(win) of each reply. Raises InputError for a conversation that is no prompt of ours."""
        keys = [_key(conversation) for conversation in conversations]
        if any(key not in self.known for key in keys):
            raise InputError(
                "a prompt is of no debate that is scored here; needed: the rows of the same ScoredSpeeches"
            )
        self._ask_opponent([key for key in dict.fromkeys(keys) if key not in self.said])
        ends = []
        for key, reply in zip(keys, replies, strict=True):
            debate, agent = self.known[key]
            ends.append(debate.with_speeches({agent: reply, other(agent): self.said[key]}))
        p_first = self.judge.p_first(ends)
        return [p if self.known[key][1] == FIRST else 1 - p for key, p in zip(keys, p_first, strict=True)]

    def _ask_opponent(self, keys: Sequence[str]) -> None:
        calls = []
        for key in keys:
            debate, agent = self.known[key]
            read = debate.observations()[other(agent)].prompt
            assert isinstance(read, Conversation)
            calls.append(Call(debate, other(agent), read, hash_seed(key)))
        if calls:
            self.said |= {key: spoken.text for key, [spoken] in zip(keys, self.opponent.speak(calls), strict=True)}


def _key(conversation: Conversation) -> str:
    return json.dumps(messages(conversation))
