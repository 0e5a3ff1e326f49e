"""The simulated world: its language, the utility of replies, and its users' reactions."""

from functools import cache

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from lmgym.apps.world.grammar import BOT_TEMPLATES, USER_TEMPLATES, Grammar
from lmgym.apps.world.utility import FEATURES, SCALE, USUAL, WEIGHTS, features, utility
from lmgym.apps.world.vocabulary import ADJECTIVES, MODERATED_THINGS, TOPICS, Persona, Vocabulary, draw_vocabulary
from lmgym.apps.world.world import Cohort, World, simulate
from lmgym.text import Conversation, Turn

VOCABULARY = Vocabulary(
    {"music": ("violins", "drums", "flutes"), "sea": ("whales", "waves", "sharks")},
    ("great", "old"),
    (Persona("Mira", "whales", "drums"),),
)
GRAMMAR = Grammar(VOCABULARY)
PERSONA = "Mira likes whales, not drums."


@cache
def cohort(seed: int = 0) -> Cohort:
    """A cohort of the world, once for all tests."""
    return simulate(World(seed), 600, 5)


def worth(reply: str, user: str = "let us talk about flutes.", before: tuple[str, ...] = ()) -> dict[str, float]:
    """The features of a reply that are not 0."""
    turns = [Turn("user" if i % 2 == 0 else "bot", text) for i, text in enumerate([*before, user])]
    values = features(GRAMMAR, Conversation(tuple(turns), PERSONA), reply)
    return {name: value for name, value in zip(FEATURES, values.tolist(), strict=True) if value}


def test_no_word_has_two_meanings() -> None:
    things = [thing for group in TOPICS.values() for thing in group] + list(MODERATED_THINGS)
    template_words = {
        word.strip(".?,{}")
        for templates in (BOT_TEMPLATES, USER_TEMPLATES)
        for group in templates.values()
        for template in group
        for word in template.split()
    }
    assert len(things) == len(set(things)) == 200
    assert not set(things) & (template_words | set(ADJECTIVES))
    assert not set(ADJECTIVES) & template_words


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("violins are great. why waves?", ["statement", "question"]),
        ("I  Do Not like   DRUMS.", ["dislike"]),
        ("ok. who cares. that is lovely. time flies.", ["dull", "rude", "warm", "small_talk"]),
        ("violins go well with whales.", ["statement"]),
        ("violins are violins.", ["garbled"]),
        ("are great violins.", ["garbled"]),
        ("violins are great", ["garbled"]),
        ("let us talk about pianos.", ["garbled"]),
        ("", []),
        ("...", ["garbled"] * 3),
    ],
)
def test_a_text_is_read_back_sentence_by_sentence(text: str, kinds: list[str]) -> None:
    assert [sentence.kind for sentence in GRAMMAR.parse(text)] == kinds


@pytest.mark.parametrize(
    ("reply", "user", "before", "found"),
    [
        ("violins are old.", "tell me about flutes.", (), {"on_topic": 1}),
        ("waves are old.", "tell me about flutes.", (), {"off_topic": 1}),
        ("flutes go well with waves.", "tell me about flutes.", (), {"on_topic": 0.5, "off_topic": 0.5, "echo": 1}),
        ("why violins?", "tell me about flutes.", (), {"on_topic": 1, "curious": 1}),
        ("why waves?", "tell me about flutes.", (), {"off_topic": 1}),
        ("i love whales.", "tell me about flutes.", (), {"true_to_persona": 1}),
        ("i hate drums.", "tell me about flutes.", (), {"on_topic": 1, "true_to_persona": 1}),
        ("i hate whales.", "tell me about flutes.", (), {"contradiction": 1}),
        ("i like drums.", "tell me about waves.", (), {"contradiction": 1}),
        ("i like sharks.", "tell me about flutes.", (), {}),
        ("violins are old. violins are old.", "tell me about flutes.", (), {"on_topic": 1, "repetition": 0.5}),
        ("violins are old.", "tell me about flutes.", ("hi.", "violins are old."), {"on_topic": 1, "repetition": 1}),
        ("who cares. ok.", "tell me about flutes.", (), {"rude": 1, "dull": 0.5}),
        ("that is lovely.", "tell me about flutes.", (), {"warm": 1}),
        ("banana banana.", "tell me about flutes.", (), {"garbled": 1}),
        ("", "tell me about flutes.", (), {"garbled": 1}),
        ("it is late. " * 5, "ok.", (), {"repetition": 4 / 5, "too_long": 1}),
        ("it is late. " * 60, "ok.", (), {"repetition": 59 / 60, "too_long": 4}),
    ],
)
def test_each_feature_is_read_from_the_text(reply: str, user: str, before: tuple[str, ...], found: dict) -> None:
    assert worth(reply, user, before) == pytest.approx(found)


def test_a_usual_reply_has_utility_0_for_every_taste() -> None:
    tastes = np.random.default_rng(0).lognormal(size=(5, len(FEATURES)))
    assert utility(np.tile(USUAL, (5, 1)), tastes) == pytest.approx(np.zeros(5))


def test_the_utility_is_the_weighted_difference_from_the_usual() -> None:
    row = USUAL.copy()
    row[FEATURES.index("contradiction")] += 1
    assert utility(row[None], np.ones((1, len(FEATURES)))) == pytest.approx([WEIGHTS["contradiction"] / SCALE])
    assert utility(row[None], np.full((1, len(FEATURES)), 2.0)) == pytest.approx([2 * WEIGHTS["contradiction"] / SCALE])


def test_bots_speak_the_language_of_their_world_except_where_they_garble() -> None:
    world, logs = World(0), cohort().logs
    kinds = [sentence.kind for reply in logs.reply for sentence in world.grammar.parse(reply)]
    assert 0 < kinds.count("garbled") < 0.04 * len(kinds)
    users = [s.kind for c in logs.conversation for s in world.grammar.parse(c.turns[-1].text)]
    assert "garbled" not in users


def test_the_same_seed_gives_the_same_world_and_another_seed_another() -> None:
    first, again, other = simulate(World(3), 60, 1).logs, simulate(World(3), 60, 1).logs, simulate(World(3), 60, 2).logs
    assert (first.reply, first.utility, first.remaining) == (again.reply, again.utility, again.remaining)
    assert first.reply != other.reply
    assert draw_vocabulary(3) == draw_vocabulary(3) != draw_vocabulary(4)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_utility_tells_retries_as_well_as_was_promised(seed: int) -> None:
    logs = cohort(seed).logs
    assert 0.60 <= roc_auc_score(~np.array(logs.retried), logs.utility) <= 0.75
    assert abs(np.mean(logs.utility)) < 0.1
    assert 0.9 < np.std(logs.utility) < 1.1


def test_habit_decides_who_comes_back_more_than_the_reply_does() -> None:
    logs, users, messages = cohort().logs, cohort().users, cohort().messages
    user, day = np.array(logs.user), np.array(logs.day)
    came = messages[user, day + 1] > 0
    by_habit, by_reply = roc_auc_score(came, users.habit[user]), roc_auc_score(came, logs.utility)
    assert by_reply > 0.51
    assert by_habit > by_reply + 0.1


def test_impatient_users_retry_good_replies_too() -> None:
    logs, users = cohort().logs, cohort().users
    user, good = np.array(logs.user), np.array(logs.utility) > 1
    impatient = users.random_retries[user] > 0.1
    retried = np.array(logs.retried)
    assert retried[good & impatient].mean() > 2 * retried[good & ~impatient].mean()


def test_the_columns_of_a_log_are_consistent() -> None:
    logs = cohort().logs
    retried, ended, seconds = np.array(logs.retried), np.array(logs.ended), np.array(logs.seconds)
    accepted, remaining, unseen = np.array(logs.accepted), np.array(logs.remaining), np.isnan(seconds)
    assert not (accepted & retried).any()
    assert (seconds[(retried | ended) & ~unseen] == -1).all()
    assert (seconds[~retried & ~ended & ~unseen] > 0).all()
    assert (remaining[ended] == 0).all()
    assert (remaining[~ended & accepted] > 0).all()
    assert 0.03 < unseen.mean() < 0.09
    last = {}
    for row, chat in enumerate(logs.chat):
        last[chat] = row
    assert ended[list(last.values())].all()
    assert ended.sum() == len(last)
