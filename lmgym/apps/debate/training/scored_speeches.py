"""Speeches as replies to prompts, for methods that know prompts and scorers: iterative DPO, the best of N, rewards."""

import json
from collections.abc import Sequence
from typing import Any, final

from lmgym.apps.debate.debate import Debate
from lmgym.apps.debate.formats import DEBATERS, FIRST, Format, other
from lmgym.apps.debate.players.judges import won
from lmgym.apps.debate.players.protocol import Judge, request_for, texts_of
from lmgym.apps.debate.prompts.wordings import PromptSet
from lmgym.apps.debate.questions import Question
from lmgym.apps.debate.tournament.schedule import hash_seed
from lmgym.environments.players import Player, ask
from lmgym.errors import InputError
from lmgym.text import Conversation, messages


@final
class ScoredSpeeches:
    """Functions of (conversations, replies) for FunctionScorer: P(win) of first speeches against an opponent's, or won.

    Both debaters of each question have a prompt; every second question has its sides exchanged. The opponent's one
    sample for a prompt is the same for all replies to it. `renew` changes the opponent, except for `evaluations`,
    which are always against the first one. Raises InputError for formats whose first speeches are not simultaneous.
    """

    def __init__(
        self,
        questions: Sequence[Question],
        format: Format,
        prompts: PromptSet,
        opponent: Player,
        judge: Judge,
        evaluations: Sequence[Question] = (),
    ) -> None:
        if format.slots[0].speakers != DEBATERS or format.slots[0].kind != "speech":
            raise InputError(f"a {format.name} begins with no two speeches at once; needed: debate(...)")
        self.opponent, self.first_opponent, self.judge = opponent, opponent, judge
        trained, evaluated = _prompts(questions, format, prompts), _prompts(evaluations, format, prompts)
        self.known: dict[str, tuple[Debate, str]] = trained | evaluated
        self.evaluated = evaluated.keys()
        self.rows: list[dict[str, Any]] = [{"prompt": json.loads(key)} for key in trained]
        """of the data set of prompts"""
        self.eval_rows: list[dict[str, Any]] = [{"prompt": json.loads(key)} for key in evaluated]
        self.said: dict[str, str] = {}
        """the opponent's speeches by prompt"""
        self.judged: dict[tuple[str, str], float] = {}
        """P(win) by prompt and reply"""

    def __call__(self, conversations: Sequence[Conversation], replies: Sequence[str]) -> list[float]:
        """P(win) of each reply. Raises InputError for a conversation that is no prompt of ours."""
        asked = [(_key(conversation), reply) for conversation, reply in zip(conversations, replies, strict=True)]
        if any(key not in self.known for key, _ in asked):
            raise InputError(
                "a prompt is of no debate that is scored here; needed: the rows of the same ScoredSpeeches"
            )
        new = [pair for pair in dict.fromkeys(asked) if pair not in self.judged]
        self._ask_opponents([key for key in dict.fromkeys(key for key, _ in new) if key not in self.said])
        ends = []
        for key, reply in new:
            debate, agent = self.known[key]
            ends.append(debate.with_speeches({agent: reply, other(agent): self.said[key]}))
        for (key, reply), p in zip(new, self.judge.p_first(ends), strict=True):
            self.judged[key, reply] = p if self.known[key][1] == FIRST else 1 - p
        return [self.judged[pair] for pair in asked]

    def won(self, conversations: Sequence[Conversation], replies: Sequence[str]) -> list[float]:
        """1 for each reply that wins its round, 0 for one that loses it, 1/2 at P = 1/2."""
        return [won(p) for p in self(conversations, replies)]

    def renew(self, opponent: Player) -> None:
        """Go on with another opponent, and forget what the former one said."""
        self.opponent = opponent
        self.said = {key: text for key, text in self.said.items() if key in self.evaluated}
        self.judged.clear()

    def _ask_opponents(self, keys: Sequence[str]) -> None:
        asked = {}
        for key in keys:
            debate, agent = self.known[key]
            opponent = self.first_opponent if key in self.evaluated else self.opponent
            asked[key] = opponent, request_for(debate, other(agent), hash_seed(key))
        for key, actions in ask(asked).items():
            [self.said[key]] = texts_of(actions)


def _prompts(questions: Sequence[Question], format: Format, prompts: PromptSet) -> dict[str, tuple[Debate, str]]:
    """(round, debater) by what the debater reads, each once."""
    found: dict[str, tuple[Debate, str]] = {}
    for number, question in enumerate(questions):
        debate = Debate(format, prompts)
        debate.reset({**question.task, "flipped": number % 2 == 1}, number)
        for agent, seen in debate.observations().items():
            found[_key(seen.conversation)] = (debate, agent)
    return found


def _key(conversation: Conversation) -> str:
    return json.dumps(messages(conversation))
