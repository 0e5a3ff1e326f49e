"""Private and shared information: a player answers a questioner, and is asked aside what that one knows by now."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from lmgym.apps.games.dialogue.dialogue import Dialogue, Drawn
from lmgym.apps.games.dialogue.instances import instance_of, needed_fields
from lmgym.apps.games.dialogue.records import Records
from lmgym.apps.games.dialogue.scoring import RewardKind, abort, check_reward_kind, lose, success
from lmgym.environments.protocol import Observation, StepResult, Task
from lmgym.generation.protocol import ReplyScript
from lmgym.text import Conversation

NAME = "private_shared"
ANSWERER = "answerer"
ROLES = (ANSWERER,)
ANSWER = re.compile(r"answer:\s*(\S.*)", re.I | re.S)
YES_NO = re.compile(r"(yes|no)\b", re.I)


@dataclass(frozen=True)
class Setting:
    """A role that asks, and the slots that a player may know, with the question and the values of each."""

    questioner: str
    slots: Mapping[str, tuple[str, tuple[str, ...]]]


SETTINGS: dict[str, Setting] = {
    "travel": Setting(
        "travel agent",
        {
            "destination": ("Where would you like to go?", ("Lisbon", "Oslo", "Athens", "Dublin", "Prague", "Vienna")),
            "month": ("When would you like to travel?", ("January", "March", "May", "July", "September", "November")),
            "budget": ("How much may it cost?", ("300 euros", "500 euros", "800 euros", "1200 euros", "2000 euros")),
            "transport": ("How would you like to get there?", ("by train", "by bus", "by ferry", "by plane", "by car")),
        },
    ),
    "job": Setting(
        "recruiter",
        {
            "profession": ("What do you work as?", ("baker", "nurse", "welder", "teacher", "gardener", "pilot")),
            "experience": ("How long have you done that?", ("two years", "five years", "nine years", "twelve years")),
            "city": ("Where would you like to work?", ("Hamburg", "Leeds", "Porto", "Ghent", "Turin", "Lyon")),
            "start": ("When could you begin?", ("at once", "next week", "next month", "in autumn", "in spring")),
        },
    ),
    "restaurant": Setting(
        "waiter",
        {
            "starter": ("What would you like to begin with?", ("tomato soup", "olives", "garlic bread", "melon")),
            "main course": ("And then?", ("mushroom risotto", "grilled trout", "bean stew", "onion tart", "lasagne")),
            "drink": ("What will you drink?", ("cider", "lemonade", "mineral water", "red wine", "green tea")),
            "dessert": ("Would you like something sweet afterwards?", ("apple pie", "sorbet", "cheesecake", "figs")),
        },
    ),
}
EXPERIMENTS = tuple(SETTINGS)

RULES = """You talk with a {questioner}, who does not know the following about you yet:
{facts}

Messages that begin with {tag}: are from the {questioner}. Answer them truly with what is asked for and nothing else.
Messages that begin with ME: are from me, and the {questioner} does not hear them. Answer them with yes or no.

Begin every reply with ANSWER:, as in
ANSWER: no"""
PROBE = "ME: Has the {questioner} been told your {slot}?"


@final
class PrivateShared:
    """Four facts and a questioner who asks for each; the agent is "answerer".

    Before the first question and after each answer the player is asked of every fact if the questioner knows it, which
    is so once an answer had it. Main Score is 100 times the harmonic mean of the share of questions answered with the
    fact and of Cohen's kappa of those judgements, 0 if negative; only 100 is a success. A reply without ANSWER:, or a
    judgement that is neither yes nor no, aborts. `reward`: see scoring.py.
    """

    def __init__(self, reward: RewardKind = "main_score") -> None:
        check_reward_kind(reward)
        self.reward: RewardKind = reward

    def reset(self, task: Task, seed: int) -> Mapping[str, Observation]:
        """Tell the player the facts, and ask what the questioner knows."""
        instance = instance_of(task, seed, draw, EXPERIMENTS)
        names = ("questioner", "facts", "questions")
        self.questioner, self.facts, self.questions = needed_fields(instance, NAME, names)
        self.tag = self.questioner.upper()
        self.order = list(self.questions)
        self.asked, self.probes = "", list(self.facts)
        self.told: set[str] = set()
        self.answered: list[bool] = []
        self.judgements: list[tuple[bool, bool]] = []
        self.dialogue = Dialogue.begin(NAME, ROLES, task, instance, self.reward)
        facts = "\n".join(f"{slot}: {value}" for slot, value in self.facts.items())
        self.dialogue.tell(ANSWERER, RULES.format(questioner=self.questioner, facts=facts, tag=self.tag))
        return self._ask().observations

    def step(self, actions: Mapping[str, str]) -> StepResult:
        """Take an answer or a judgement, and ask on."""
        said = self.dialogue.hear(ANSWERER, actions[ANSWERER])
        if not (found := ANSWER.fullmatch(said)):
            return self.dialogue.end(abort(ANSWERER), "invalid format", "no ANSWER:")
        if self.asked:
            self._take_answer(found[1])
        elif yes_no := YES_NO.match(found[1]):
            self.judgements.append((yes_no[1].lower() == "yes", self.probes.pop(0) in self.told))
        else:
            return self.dialogue.end(abort(ANSWERER), "invalid format", "neither yes nor no")
        return self._ask()

    def _take_answer(self, answer: str) -> None:
        given = {slot for slot, value in self.facts.items() if mentions(answer, value)}
        self.answered.append(self.asked in given)
        self.told |= given
        self.dialogue.note("told", ", ".join(sorted(given)) or "nothing")
        self.asked, self.probes = "", list(self.facts)

    def _ask(self) -> StepResult:
        """The next judgement or question, or the end."""
        if self.probes:
            self.dialogue.tell(ANSWERER, PROBE.format(questioner=self.questioner, slot=self.probes[0]))
        elif self.order:
            self.asked = self.order.pop(0)
            self.dialogue.recorder.next_turn()
            self.dialogue.tell(ANSWERER, f"{self.tag}: {self.questions[self.asked]}")
        else:
            return self._score()
        return self.dialogue.waiting_for(ANSWERER)

    def _score(self) -> StepResult:
        accuracy, kappa = sum(self.answered) / len(self.answered), cohens_kappa(self.judgements)
        both = accuracy, max(0.0, kappa)
        score = 200 * both[0] * both[1] / sum(both) if sum(both) else 0.0
        more = {"Slot-Filling-Accuracy": accuracy, "Kappa": kappa, "Truncated Kappa": both[1]}
        result = success(100.0, **more) if both == (1.0, 1.0) else lose(score, **more)
        return self.dialogue.end(result, "end of dialogue")

    def records(self) -> Records:
        """clembench's records and scores, once the episode has ended."""
        return self.dialogue.records()


def draw(rng: np.random.Generator, experiment: str) -> Drawn:
    """Facts of one of SETTINGS, and the questions in random order."""
    setting = SETTINGS[experiment]
    facts = {slot: values[int(rng.integers(len(values)))] for slot, (_, values) in setting.slots.items()}
    order = [list(facts)[i] for i in rng.permutation(len(facts))]
    questions = {slot: setting.slots[slot][0] for slot in order}
    instance = {"questioner": setting.questioner, "facts": facts, "questions": questions}
    return Drawn(" ".join(facts.values()), instance)


def mentions(answer: str, value: str) -> bool:
    """True if an answer has the words of a value next to each other, in any case."""
    words = [" ".join(re.findall(r"\w+", text.lower())) for text in (answer, value)]
    return f" {words[1]} " in f" {words[0]} "


def cohens_kappa(pairs: Sequence[tuple[bool, bool]]) -> float:
    """Agreement of two raters beyond chance, at most 1 (Cohen 1960); 0 where one answer alone was given by both."""
    number = len(pairs)
    agreement = sum(one == other for one, other in pairs) / number
    first, second = sum(one for one, _ in pairs) / number, sum(other for _, other in pairs) / number
    chance = first * second + (1 - first) * (1 - second)
    return (agreement - chance) / (1 - chance) if chance < 1 else 0.0


def answer(conversation: Conversation, rng: np.random.Generator) -> str:
    """The fact that is asked for; yes for a fact that an own answer had."""
    rules, asked = conversation.turns[0].text, conversation.turns[-1].text.split("\n\n")[-1]
    facts = dict(line.split(": ", 1) for line in rules.split("yet:\n")[1].split("\n\n")[0].splitlines())
    if asked.startswith("ME: "):
        value = facts[re.search(r"your ([a-z ]+)\?", asked)[1]]  # type: ignore[index]  # every probe has one
        own = [turn.text for turn in conversation.turns if turn.speaker == "bot"]
        return f"ANSWER: {'yes' if any(mentions(text, value) for text in own) else 'no'}"
    question = asked.split(": ", 1)[1]
    slots = {words: slot for setting in SETTINGS.values() for slot, (words, _) in setting.slots.items()}
    return f"ANSWER: {facts[slots[question]]}"


SCRIPTS: dict[str, dict[str, ReplyScript]] = {
    "winner": {ANSWERER: answer},
    "loser": {ANSWERER: lambda conversation, rng: "ANSWER: yes"},
    "rule_breaker": {ANSWERER: lambda conversation, rng: "I would rather not say."},
}
