"""Small preference pairs for tests: a templated chat world with a known utility.

Design decisions:
- The utility is a function of the text alone, so anything that a demo's policy says can be judged by it too.
- What makes a reply good (its topic, a question, manners) is drawn apart from what makes it long (small talk).
- People disagree: the chosen reply is drawn from Bradley-Terry, so that no scorer can reach an accuracy of 1.
- The standard library's generator alone: the same rows on every machine.
"""

import json
import math
import random
import re
from pathlib import Path

TEMPERATURE = 0.65
WEIGHTS = {"on_topic": 1.4, "curious": 1.5, "polite": 0.7, "dull": -2.0, "rude": -3.0, "repeats": -2.5}

# what one does with them, and the words that tell a topic; no word belongs to two topics
TOPICS: dict[str, tuple[str, ...]] = {
    "make": ("soup", "bread", "noodles", "pancakes", "curry", "dumplings"),
    "listen to": ("jazz", "opera", "drums", "guitars", "songs", "violins"),
    "dream of": ("beaches", "islands", "mountains", "castles", "deserts", "harbours"),
    "talk about": ("football", "goals", "referees", "penalties", "stadiums", "strikers"),
    "grow": ("roses", "tomatoes", "tulips", "herbs", "carrots", "pumpkins"),
    "watch": ("films", "comedies", "thrillers", "westerns", "cartoons", "sequels"),
    "look at": ("stars", "planets", "comets", "galaxies", "moons", "eclipses"),
    "play with": ("cats", "kittens", "whiskers", "paws", "tails", "yarn"),
}
PEOPLE = ("sister", "brother", "mother", "father", "friend", "neighbour", "teacher", "cousin")

FIRST_TURNS = (
    "hello! i want to talk about {thing}.",
    "hi, do you like {thing} or {other}?",
    "i would love to {verb} {thing} this weekend.",
    "my {person} told me about {thing} and {other}.",
    "i cannot decide between {thing} and {other}.",
    "what is so special about {thing}?",
    "i had a long day, so tonight i will {verb} {thing}.",
    "my {person} says that {thing} and {other} go well together.",
    "can you tell me something about {thing}?",
    "every sunday my {person} and i {verb} {thing}.",
)
LATER_TURNS = (
    "yes, and i also {verb} {thing}.",
    "good point. my {person} would rather {verb} {thing}.",
    "maybe. but what about {thing} and {other}?",
    "i never thought of that. do you {verb} {thing}?",
    "right, {thing} came up yesterday when i met my {person}.",
    "let us stay with {thing} for a while.",
)
STATEMENTS = (
    "i could talk about {thing} for hours.",
    "there is nothing like {thing} on a quiet evening.",
    "many people {verb} {thing} these days.",
    "{thing} and {other} are a fine pair.",
    "i learned a lot about {thing} last year.",
    "{thing}, always.",
)
QUESTIONS = (
    "do you {verb} {thing} with your {person}?",
    "when did you first {verb} {thing}?",
    "why {thing}?",
    "what do you think of {thing}?",
    "how did that begin?",
    "what about you?",
)
POLITE = ("thank you for telling me.", "that sounds lovely.", "i am glad you asked.", "lovely!", "thank you.")
RUDE = ("that is a stupid thing to say.", "nobody cares what you think.", "go away and stop it.", "how stupid.")
DULL = ("ok.", "i see.", "hmm.", "i do not know what to say, so we can just leave it there for now.", "sure, fine.")
SMALL_TALK = (
    "it is raining here today.",
    "i was up early this morning and the house was still very quiet.",
    "the week went by so fast that i hardly saw the sun.",
    "let me think for a moment before i go on, as it is late and i am a little tired.",
)
POLITE_WORDS = frozenset({"thank", "lovely", "glad"})
RUDE_WORDS = frozenset({"stupid", "nobody", "away"})
TOPIC_OF = {word: verb for verb, things in TOPICS.items() for word in things}


def demo_pairs(rows: int, seed: int) -> list[dict]:
    """Distinct preference rows in the conversational format: {"prompt", "chosen", "rejected"}, lists of messages.

    A prompt ends in a user's turn; the chosen one of two replies a, b is a with probability
    sigmoid((utility(a) - utility(b)) / TEMPERATURE) (Bradley and Terry 1952). Fewer rows are a prefix of more rows.
    """
    rng = random.Random(seed)
    found: dict[str, dict] = {}
    while len(found) < rows:
        verb = rng.choice(list(TOPICS))
        prompt = _prompt(rng, verb)
        chosen, rejected = _reply(rng, verb, prompt), _reply(rng, verb, prompt)
        if rng.random() >= _sigmoid((utility(prompt, chosen) - utility(prompt, rejected)) / TEMPERATURE):
            chosen, rejected = rejected, chosen
        if chosen != rejected:
            row = {"prompt": prompt, "chosen": [_bot(chosen)], "rejected": [_bot(rejected)]}
            found.setdefault(json.dumps(row), row)
    return list(found.values())


def write_demo_pairs(path: str | Path, rows: int, seed: int) -> None:
    """Writes `demo_pairs(rows, seed)` as JSONL, over what is there."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in demo_pairs(rows, seed)), encoding="utf-8")


def features(prompt: list[dict[str, str]], reply: str) -> dict[str, bool]:
    """The features of a reply that the utility reads, by the names of WEIGHTS.

    On topic: a word of the topic that the last user's turn names. Curious: a question that names no other topic.
    Dull: neither any topic's word nor a question. Repeats: a sentence of four words or
    more that the bot has said before; courtesies do not count.
    """
    topic = _topics(prompt[-1]["content"])
    said = {s for turn in prompt if turn["role"] == "assistant" for s in _sentences(turn["content"])}
    sentences, words = _sentences(reply), _words(reply)
    return {
        "on_topic": bool(_topics(reply) & topic),
        "curious": any(s.endswith("?") and _topics(s) <= topic for s in sentences),
        "polite": bool(words & POLITE_WORDS),
        "dull": not _topics(reply) and "?" not in reply,
        "rude": bool(words & RUDE_WORDS),
        "repeats": any(s in said and len(s.split()) > 3 for s in sentences),
    }


def utility(prompt: list[dict[str, str]], reply: str) -> float:
    """The hidden worth of a reply, the sum of WEIGHTS over its features; divided by TEMPERATURE it is in nats."""
    return sum(WEIGHTS[name] for name, present in features(prompt, reply).items() if present)


def _prompt(rng: random.Random, verb: str) -> list[dict[str, str]]:
    """One to three user's turns on a topic with good replies between them."""
    prompt = [_user(_fill(rng, rng.choice(FIRST_TURNS), verb))]
    for _ in range(rng.randrange(3)):
        prompt += [_bot(_good(rng, verb)), _user(_fill(rng, rng.choice(LATER_TURNS), verb))]
    return prompt


def _reply(rng: random.Random, verb: str, prompt: list[dict[str, str]]) -> str:
    """A reply of random quality and, apart from that, random length."""
    manner = rng.choices(("good", "off topic", "dull", "rude", "repeat"), (9, 4, 4, 4, 3))[0]
    if manner == "repeat" and len(prompt) > 1:
        return prompt[-2]["content"]
    if manner == "dull":
        return _with_small_talk(rng, [rng.choice(DULL)], 0.7)
    if manner == "rude":
        statement = [_fill(rng, rng.choice(STATEMENTS), verb)] if rng.random() < 0.5 else []
        return _with_small_talk(rng, [*statement, rng.choice(RUDE)], 0.6)
    if manner == "good":
        return _good(rng, verb)
    return _good(rng, rng.choice([other for other in TOPICS if other != verb]))


def _good(rng: random.Random, verb: str) -> str:
    parts = [_fill(rng, rng.choice(STATEMENTS), verb)]
    if rng.random() < 0.5:
        parts.insert(0, rng.choice(POLITE))
    if rng.random() < 0.6:
        parts.append(_fill(rng, rng.choice(QUESTIONS), verb))
    return _with_small_talk(rng, parts, 0.2)


def _with_small_talk(rng: random.Random, parts: list[str], share: float) -> str:
    if rng.random() < share:
        parts.insert(rng.randint(0, len(parts)), rng.choice(SMALL_TALK))
    return " ".join(parts)


def _fill(rng: random.Random, template: str, verb: str) -> str:
    thing, other = rng.sample(TOPICS[verb], 2)
    return template.format(verb=verb, thing=thing, other=other, person=rng.choice(PEOPLE))


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _bot(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def _sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.!?])\s+", text.lower().strip())


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]+", text.lower()))


def _topics(text: str) -> set[str]:
    return {TOPIC_OF[word] for word in _words(text) & TOPIC_OF.keys()}


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))
