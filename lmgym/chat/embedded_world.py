"""The simulated world as somebody to talk to: its own bots, the demo's scorer, and the utility that it hides."""

import random
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lmgym.console import say
from lmgym.errors import InputError
from lmgym.text import Conversation
from lmgym.world.bots import BOTS, speak
from lmgym.world.vocabulary import Persona
from lmgym.world.world import World

DEMO = Path("outputs/demo")


def persona_of(world: World, text: str) -> Persona:
    """The persona that a text tells of, as far as the world has words for it; else the world's first."""
    names = {persona.text: persona for persona in world.grammar.vocabulary.personas}
    if text in names:
        return names[text]
    first = world.grammar.vocabulary.personas[0]
    things = [word for word in text.lower().replace(".", " ").replace(",", " ").split() if word in _topics(world)]
    return Persona(first.name, *things[:2]) if len(things) >= 2 else first


def bot_reply(world: World, conversation: Conversation, rng: np.random.Generator) -> str:
    """A reply by one of the world's bots, drawn anew: so the candidates of a turn differ in quality."""
    draw = random.Random(int(rng.integers(1 << 60)))
    named = world.grammar.named_things(conversation)
    topics = [_topics(world)[thing] for thing in named] or world.topics
    persona = persona_of(world, conversation.persona)
    said = world.grammar.bot_sentences(conversation)
    return speak(world.grammar, draw, draw.choice(BOTS), persona, draw.choice(topics), named, said)


def _topics(world: World) -> dict[str, str]:
    return world.grammar.topic_of


class LastExchange:
    """A scorer that is shown the persona, the last exchange and the line: what this world logs, and it learned from."""

    def __init__(self, judge: Any) -> None:
        self.judge = judge

    @property
    def model(self) -> Any:
        """Of the scorer, for the record of what judged."""
        return getattr(self.judge, "model", None)

    def score(self, conversations: Sequence[Conversation], replies: Sequence[str]) -> Any:
        """The scorer's scores."""
        return self.judge.score([_logged(c) for c in conversations], replies)

    def seen(self, conversation: Conversation, reply: str, beside: Sequence[str] = ()) -> Any:
        """What the scorer saw."""
        return self.judge.seen(_logged(conversation), reply, beside)


def _logged(conversation: Conversation) -> Conversation:
    return replace(conversation, turns=conversation.turns[-3:])


class HiddenUtility:
    """What a reply is worth in this world, for average tastes: the truth that a scorer is to find."""

    def __init__(self, world: World) -> None:
        self.world = world

    def score(self, conversations: Sequence[Conversation], replies: Sequence[str]) -> np.ndarray:
        """The utility of each reply."""
        return self.world.utility([_logged(c) for c in conversations], replies)


def demo_scorer():
    """The scorer of `make demo`, which is made now where there is none: that takes minutes, and says so."""
    folder = DEMO / "scorer" / "model"
    if not (folder / "config.json").is_file():
        command = [str(Path(sys.executable).parent / "lmgym"), "demo", "--output", str(DEMO)]
        say(
            f"There is no scorer in {folder} yet. Making it now, once, with `{shlex.join(command)}`: about 4 minutes "
            "on 2 cores. (random_baseline starts at once.)",
            error=True,
        )
        try:
            code = subprocess.run(command, check=False, stdout=sys.stderr, stdin=subprocess.DEVNULL).returncode
        except (OSError, KeyboardInterrupt) as error:
            raise InputError(f"the demo did not run: {type(error).__name__} {error}; try `make demo`") from None
        if code:
            raise InputError(f"the demo ended with {code}: its messages are above; try `make demo`")
    from lmgym.scoring.scorers import HFScorer

    return LastExchange(HFScorer.load(folder))


def sample_conversations(world: World, most: int = 20) -> list[Conversation]:
    """Whole chats of the world's users with its bots."""
    from lmgym.world.world import simulate

    chats = simulate(world, 40, seed=1).chats
    return [Conversation(tuple(chat.turns), chat.persona.text) for chat in chats if len(chat.turns) > 4][:most]
