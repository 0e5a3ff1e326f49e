"""Edits of an attack, random edits of the same kind and size, what winners have, and the budget."""

import itertools
import json

import numpy as np
import pytest

from lmgym.apps.audit.attack_edits import BIASES, AttackEdit, Step, candidates, read_edit, vocabulary_of
from lmgym.apps.audit.attack_plan import AttackPlan, fit_budget
from lmgym.apps.audit.attack_pool import ScoreBook, growth, make_pool
from lmgym.apps.audit.attack_training import compare_training
from lmgym.apps.audit.edits import Exchange
from lmgym.apps.audit.recorded import EXAMPLES, Sample, read_samples
from lmgym.apps.audit.winners import Feature, as_written, confirm_features, strongest
from lmgym.errors import InputError
from lmgym.scoring.random_scorer import RandomScorer
from lmgym.scoring.scorers import FunctionScorer
from lmgym.text import Conversation, Turn

SAMPLES = read_samples(EXAMPLES)
ALL = [Exchange(sample.conversation, reply) for sample in SAMPLES for reply in sample.replies]
RANDOM = ("zzz",)
ASKED = Conversation((Turn("user", "Why?"),))


def edited_and_random(edit: AttackEdit, reply: str) -> tuple[str, str]:
    given = Exchange(ASKED, reply)
    edited = edit.apply(given, RANDOM)
    assert edited is not None
    return edited.reply, edit.at_random(given, edited, RANDOM).reply


@pytest.mark.parametrize(
    ("step", "edited", "drawn"),
    [
        (Step("last", "of course"), "One two.\n- Three. of course", "One two.\n- Three. zzz zzz"),
        (Step("first", "Sure"), "Sure One two.\n- Three.", "zzz One two.\n- Three."),
        (Step("repeat", "2"), "One two.\n- Three. - Three. - Three.", "One two.\n- Three. zzz zzz zzz zzz"),
        (Step("audit", "trailing blank"), "One two.\n- Three. \n", "One two.\n- Three."),
        (Step("audit", "copied prompt"), "Why?", "zzz"),
    ],
)
def test_a_random_edit_has_other_words_in_the_same_places(step: Step, edited: str, drawn: str) -> None:
    assert edited_and_random(AttackEdit((step,)), "One two.\n- Three.") == (edited, drawn)


def test_an_edit_of_length_is_held_against_as_many_words_exchanged() -> None:
    edited, drawn = edited_and_random(AttackEdit((Step("longer", "4"), Step("longer", "4"))), "a b c d e f g h i j")
    assert edited == "a b c d e f g h i j" + 8 * " zzz"
    assert (len(drawn.split()), drawn.count("zzz")) == (10, 8)
    edited, drawn = edited_and_random(AttackEdit((Step("shorter", "50"),)), "a b c d e f g h i j")
    assert edited == "a b c d e"
    assert (len(drawn.split()), drawn.count("zzz")) == (10, 5)


def test_random_edits_of_real_replies_have_the_length_of_the_edits_and_are_drawn_anew_for_each() -> None:
    words = vocabulary_of(one.reply for one in ALL)
    for edit in candidates([Feature("opening", "sure"), Feature("phrase", "of course")], [a.reply for a in ALL], 100):
        drawn = []
        for given in ALL[:20]:
            edited = edit.apply(given, words)
            if edited is None:
                continue
            drawn.append(edit.at_random(given, edited, words).reply)
            assert edit.at_random(given, edited, words).reply == drawn[-1], "they follow from the texts"
            if not edit.of_length:
                assert len(drawn[-1].split()) == len(edited.reply.split()), edit.name
        assert len(set(drawn)) >= len(drawn) - 1 or edit.name == "copied prompt"


def test_an_edit_that_is_written_can_be_read_again() -> None:
    edit = AttackEdit((Step("first", "Sure"), Step("audit", "markdown"), Step("longer", "12")))
    assert read_edit(json.loads(json.dumps(edit.row))) == edit
    assert edit.family == "several"
    for bad in (None, [], [{"kind": "first"}], [{"kind": "longer", "text": "x"}], [{"kind": "audit", "text": "x"}]):
        with pytest.raises(InputError, match="is no edit; needed"):
            read_edit(bad)


def test_candidates_are_of_all_kinds_whatever_their_number() -> None:
    found = candidates([Feature("phrase", "of course"), Feature("form", "lines")], [one.reply for one in ALL], 24)
    assert len(found) == 24
    assert {edit.family for edit in found} == {"longer", "shorter", "repeat", "last", "first", "audit"}
    assert "filler" not in BIASES


def test_growth_is_the_mean_over_all_subsets() -> None:
    scores = {"a": 3.0, "b": 1.0, "c": 4.0, "d": 1.0, "e": 5.0}
    other = {"a": 2.0, "b": 7.0, "c": 1.0, "d": 8.0, "e": 2.0}
    scorers = {
        name: FunctionScorer(lambda _, replies, t=t: [t[r] for r in replies])
        for name, t in [("score", scores), ("m", other)]
    }
    chats = [Conversation((Turn("user", text),)) for text in "xy"]
    pool = make_pool(ScoreBook(scorers), [Sample(chat, tuple("abcde")) for chat in chats])
    two = growth(pool)[1]
    pairs = list(itertools.combinations("abcde", 2))
    best = [max(pair, key=lambda r: scores[r]) for pair in pairs if set(pair) != {"b", "d"}]
    score = (sum(scores[r] for r in best) + 1.0) / len(pairs)
    monitor = (sum(other[r] for r in best) + 7.5) / len(pairs)  # of a tie the mean
    spread = {name: np.std(list(t.values()), ddof=1) for name, t in [("score", scores), ("m", other)]}
    assert two.gains["score"].value == pytest.approx((score - 2.8) / spread["score"])
    assert two.gains["m"].value == pytest.approx((monitor - 4.0) / spread["m"])
    assert two.kl == pytest.approx(np.log(2) - 0.5)


def test_winners_of_a_scorer_of_one_word_have_it_and_those_of_a_random_one_have_nothing() -> None:
    halves = range(0, 40, 2), range(1, 40, 2)
    liked = FunctionScorer(lambda _, replies: [float("you" in reply) + 0.001 * len(reply) for reply in replies])
    pool = make_pool(ScoreBook({"score": liked}), SAMPLES)
    found = confirm_features(pool, strongest(pool, halves[0]), halves[1])
    assert "you" in {more.feature.text for more in found if more.confirmed}
    named = 0
    for seed in range(20):
        pool = make_pool(ScoreBook({"score": RandomScorer(seed)}), SAMPLES)
        named += any(more.confirmed for more in confirm_features(pool, strongest(pool, halves[0]), halves[1]))
    assert named <= 4


def test_the_best_replies_of_a_trained_policy_join_those_of_the_first() -> None:
    book = ScoreBook({"score": FunctionScorer(lambda _, replies: [float(len(reply)) for reply in replies])})
    pool = make_pool(book, SAMPLES[:4])
    trained = [Sample(sample.conversation, tuple("x" * size for size in range(1, 13))) for sample in SAMPLES[:4]]
    joined, training = compare_training(book, pool, trained, [1, 3], 5)
    for before, after in zip(pool.samples, joined.samples, strict=True):
        assert after.replies[: len(before.replies)] == before.replies
        assert [len(reply) for reply in after.replies[len(before.replies) :]] == list(range(12, 4, -1))
    first = [np.mean([len(reply) for reply in SAMPLES[i].replies]) for i in (1, 3)]
    assert training.updates == 5
    assert training.change["score"].value == pytest.approx((6.5 - np.mean(first)) / pool.spreads["score"])
    assert training.change["words"].units == 2


def test_a_word_that_is_liked_on_the_first_half_only_is_not_confirmed() -> None:
    halves = range(0, 40, 2), range(1, 40, 2)
    known, errors = {SAMPLES[i].conversation for i in halves[0]}, RandomScorer(0)

    def score(chats, replies):
        drawn = np.asarray(errors.score(chats, replies))
        return drawn + [float(c in known and "you" in reply) for c, reply in zip(chats, replies, strict=True)]

    pool = make_pool(ScoreBook({"score": FunctionScorer(score)}), SAMPLES)
    found = strongest(pool, halves[0])
    assert "you" in {feature.text for feature in found}
    assert "you" not in {more.feature.text for more in confirm_features(pool, found, halves[1]) if more.confirmed}


def test_a_phrase_is_put_as_the_replies_write_it() -> None:
    assert as_written(Feature("phrase", "of course"), ["Of course, yes. Of Course.", "Of course"]).text == "Of course"
    assert as_written(Feature("opening", "i see"), ["I see it", "I, see"]).text == "I see"


def test_a_budget_takes_replies_first_then_edits_and_then_refuses() -> None:
    plan = AttackPlan(prompts=100, replies=6400, edits=72, rounds=2, edited=2)
    assert plan.total == 6400 + (72 + 24) * 50 * 2 + 2 * 8 * 50 * 2
    assert fit_budget(plan, 20_000, True) == plan
    smaller = fit_budget(plan, 14_000, True)
    assert smaller.total <= 14_000
    assert (smaller.edits, smaller.replies % 100) == (72, 0)
    least = fit_budget(plan, 7200, True)
    assert (least.replies, least.edits) == (800, 24)
    with pytest.raises(InputError, match="needed: --budget 7,200, fewer --max_prompts"):
        fit_budget(plan, 7000, True)
    with pytest.raises(InputError, match="scores 12,800 replies or more"):
        fit_budget(plan, 7200, False)
