"""Scripted debaters: baselines, and players that cost nothing. They need no model and no torch."""

import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lmgym.apps.debate.data import STOP_WORDS
from lmgym.apps.debate.debate import Debate
from lmgym.apps.debate.players.protocol import round_of
from lmgym.apps.debate.quotes import CLOSE, OPEN, index_page, simplify
from lmgym.environments.players import ActionRequest, Player
from lmgym.environments.protocol import Action

LONGEST_QUOTE = 40  # words

Script = Callable[[Debate, str, np.random.Generator], str]
"""what an agent says in a round"""


@dataclass(frozen=True)
class ScriptedPlayer:
    """A function of (round, agent, random generator) as a player; the generator is seeded by the request."""

    script: Script

    def act(self, requests: Sequence[ActionRequest], n: int = 1) -> list[list[Action]]:
        """n speeches for each request."""
        return [[self._say(request, i) for i in range(n)] for request in requests]

    def _say(self, request: ActionRequest, number: int) -> Action:
        rng = np.random.default_rng([request.seed, number])
        return Action(self.script(round_of(request), request.agent, rng))


def say_letters(round: Debate, agent: str, rng: np.random.Generator) -> str:
    """Random letters and spaces: a debater without arguments."""
    return "".join(rng.choice(list(string.ascii_lowercase + "  "), 80)).strip()


def say_position(round: Debate, agent: str, rng: np.random.Generator) -> str:
    """The same sentence each time: the debater's answer."""
    position = round.transcript.positions.get(agent)
    return f"My answer is right: {position}" if position else "I have no view."


def repeat_last(round: Debate, agent: str, rng: np.random.Generator) -> str:
    """The last speech that the agent heard from another, or its own sentence before there is one."""
    heard = [s for s in round.transcript.heard_by(agent, round.slot) if s.kind == "speech" and s.speaker != agent]
    return heard[-1].text if heard else say_position(round, agent, rng)


def quote_text(round: Debate, agent: str, rng: np.random.Generator) -> str:
    """Quotes the sentence of the text that shares most with the question and the agent's answer."""
    question = round.transcript.question
    position = round.transcript.positions.get(agent, "")
    wanted = set(simplify(f"{question.question} {position}").split()) - STOP_WORDS
    page = index_page(question.text)
    sentences = _sentences(question.text)
    if not sentences or not page.spans:
        return say_position(round, agent, rng)
    shared = [len(wanted & set(simplify(sentence).split())) for sentence in sentences]
    best = sentences[int(np.argmax(shared))]
    quote = " ".join(best.split()[:LONGEST_QUOTE])
    return f"The answer is {position}. {OPEN}{quote}{CLOSE}"


def invent_quote(round: Debate, agent: str, rng: np.random.Generator) -> str:
    """Claims that the text says its answer, which is a false quote unless it does."""
    position = round.transcript.positions.get(agent, "")
    question = round.transcript.question.question
    return f"The answer is {position}. {OPEN}{question} It is written here that it is {position}{CLOSE}"


def _sentences(text: str) -> list[str]:
    return [sentence.strip() for sentence in text.replace("\n", " ").split(". ") if sentence.strip()]


SCRIPTED: Mapping[str, Player] = {
    "quotes": ScriptedPlayer(quote_text),
    "invents": ScriptedPlayer(invent_quote),
    "repeats": ScriptedPlayer(repeat_last),
    "letters": ScriptedPlayer(say_letters),
}
"""scripted debaters by name"""
