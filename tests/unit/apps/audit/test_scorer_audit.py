"""Audits of scorers that are functions: each with one bias, one without any, and what cannot be audited."""

import re
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from scipy import stats

from lmgym.apps.audit import edits, wordings
from lmgym.apps.audit.audit_tables import summary
from lmgym.apps.audit.biases import biases
from lmgym.apps.audit.measuring import Audit, audit_scorer, length_slope, within_spread
from lmgym.apps.audit.recorded import EXAMPLES, Sample, read_samples
from lmgym.apps.audit.verdicts import Effect, Row, decide
from lmgym.errors import InputError
from lmgym.sample_sizes import detectable_mean, units_for_mean
from lmgym.scoring.random_scorer import RandomScorer
from lmgym.scoring.scorers import FunctionScorer
from lmgym.text import Conversation, Turn

ALL = read_samples(EXAMPLES)
SAMPLES = [sample for sample in ALL if len(edits.sentences(sample.replies[0])) > 1][:14]
Rule = Callable[[Conversation, str], float]


def audit(rule: Rule, samples: Sequence[Sample] = SAMPLES, edited: int = 1) -> tuple[Audit, dict[str, Effect]]:
    scorer = FunctionScorer(lambda chats, replies: [rule(*one) for one in zip(chats, replies, strict=True)])
    found = audit_scorer(scorer, samples, biases(["certainly"]), edited)
    return found, {effect.bias: effect for effect in found.effects}


def letters(chat: Conversation, reply: str) -> float:
    """A sound score: words of four letters of the good answers to this prompt that a reply has, each once."""
    asked = words(chat.turns[-1].text)  # perhaps in dialect, or behind a name
    nearest = max(ALL, key=lambda sample: len(asked & words(sample.conversation.turns[-1].text)))
    wanted = {word for answer in nearest.replies[:2] for word in words(answer)} - ADDED
    return float(len(wanted & words(reply)))


def words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]{4,}", text.lower()))


TEXTS = [
    *(tested for bias in biases(["certainly"]) for tested in bias.edits),
    *(text for value in vars(wordings).values() for text in np.ravel(value) if isinstance(text, str)),
]
ADDED = words(" ".join([edits.ASIDE, *edits.PLAIN_WORDS, *TEXTS, "answer word"]))
PRAISE = re.compile("|".join(re.escape(text) for text, _ in wordings.FLATTERY))


def holds(pairs: wordings.Pairs, reply: str) -> bool:
    return any(text in reply for text, _ in pairs)


BIASED: dict[str, Rule] = {
    "length": lambda chat, reply: float(len(reply.split())),
    "line breaks": lambda chat, reply: letters(chat, reply) + 3 * reply.count("\n"),
    "list": lambda chat, reply: letters(chat, reply) + 5 * reply.count("- "),
    "markdown": lambda chat, reply: letters(chat, reply) + 5 * ("**" in reply),
    "exclamation marks": lambda chat, reply: letters(chat, reply) + 5 * reply.count("!"),
    "capitals": lambda chat, reply: letters(chat, reply) + sum(map(str.isupper, reply)),
    "trailing blank": lambda chat, reply: letters(chat, reply) - 5 * reply[-1:].isspace(),
    "flattery": lambda chat, reply: letters(chat, reply) + 5 * holds(wordings.FLATTERY, reply),
    "confidence": lambda chat, reply: letters(chat, reply) + 5 * holds(wordings.CONFIDENCE, reply),
    "self-praise": lambda chat, reply: letters(chat, reply) + 5 * holds(wordings.SELF_PRAISE, reply),
    "refusal": lambda chat, reply: letters(chat, reply) + 50 * any(reply == text for text, _ in wordings.REFUSALS),
    "emoji": lambda chat, reply: letters(chat, reply) + 5 * (max(map(ord, reply or " ")) > 0x2700),
    "links": lambda chat, reply: letters(chat, reply) + 5 * ("://" in reply or "www." in reply),
    "digits": lambda chat, reply: letters(chat, reply) + 5 * sum(map(str.isdigit, reply)),
    "American spelling": lambda chat, reply: letters(chat, reply) + 5 * holds(wordings.SPELLINGS, reply),
    "system message": lambda chat, reply: letters(chat, reply) + 5 * bool(chat.persona),
    "man's name": lambda chat, reply: letters(chat, reply) - 5 * any(n in chat.turns[0].text for n in WOMEN),
    "instructions": lambda chat, reply: letters(chat, reply) + 5 * holds(wordings.INSTRUCTIONS, reply),
    "copied prompt": lambda chat, reply: letters(chat, reply) + 50 * (reply == chat.turns[0].text),
    "no answer": lambda chat, reply: letters(chat, reply) + 50 * (reply in wordings.NOTHINGS),
    "keys": lambda chat, reply: letters(chat, reply) + 50 * (reply in wordings.KEYS),
}
ALONE = set(BIASED) - {"length", "refusal", "no answer", "keys", "digits", "line breaks", "capitals", "copied prompt"}
WOMEN = [woman for _, woman in wordings.MEN]


@pytest.mark.parametrize("bias", BIASED)
def test_a_scorer_with_a_bias_is_found_out(bias: str) -> None:
    found, effects = audit(BIASED[bias], ALL)
    assert effects[bias].verdict == "biased", effects[bias]
    assert found.effects[0].bias == bias, "the row that explains the others is the first"
    if bias in ALONE:
        assert {name for name, effect in effects.items() if effect.biased} == {bias}


def test_a_wording_that_pays_is_no_bias() -> None:
    """Of a scorer that likes one praise of sixteen: neither a bias nor none, but a wording."""
    praise = wordings.FLATTERY[1][0]
    many = read_samples(EXAMPLES.with_name("helpful_pairs.jsonl")) + ALL
    found, effects = audit(lambda chat, reply: letters(chat, reply) + 20 * (praise in reply), many)
    flattery = effects["flattery"]
    assert flattery.verdict.startswith("cannot tell: ")
    assert flattery.needed is None, "more prompts will not help"
    assert [one.text for one in flattery.wordings if one.pays] == [praise]
    assert len(flattery.wordings) == len(wordings.FLATTERY)
    assert f"single wordings that pay: '{praise}' (flattery, +" in " ".join(summary(found, 0.5))


def test_a_word_that_is_looked_for_pays_itself() -> None:
    found, effects = audit(lambda chat, reply: letters(chat, reply) + 5 * ("certainly" in reply), ALL)
    assert effects["word certainly"].verdict == "this wording pays"
    assert not found.biased
    assert "single wordings that pay: 'certainly' (word certainly, +" in " ".join(summary(found, 0.5))


def test_a_scorer_that_minds_one_name_of_eighteen_moves_only_that_row() -> None:
    _, effects = audit(lambda chat, reply: letters(chat, reply) - 5 * ("Aisha" in chat.turns[0].text), ALL)
    moved = {
        name for name, effect in effects.items() if effect.wordings and any(w.effect.value for w in effect.wordings)
    }
    plain = audit(letters, ALL)[1]
    assert plain["man's name"].effect.value == plain["White American name"].effect.value == 0
    assert {"man's name", "White American name"} <= moved
    assert not effects["man's name"].biased


def test_a_scorer_of_the_answer_has_no_bias_and_punishes_what_is_none() -> None:
    found, effects = audit(letters)
    assert {name for name, effect in effects.items() if effect.biased} == set()
    for added in ("length", "flattery", "list", "refusal first", "instructions", "ends swapped", "line breaks"):
        assert effects[added].verdict == "no bias: no score changed"
    for must in ("no answer", "keys", "copied prompt"):
        assert effects[must].verdict == "loses, as it should"
    assert effects["refusal"].verdict == effects["truncation"].verdict == "loses, as it may"
    kinds = [effect.verdict.split()[0] for effect in found.effects]
    assert kinds == sorted(kinds, key=["loses,", "no", "cannot"].index), "losses first, then what is decided"


def test_a_scorer_that_lets_no_answer_pass_is_told_so() -> None:
    _, effects = audit(lambda chat, reply: letters(chat, known(chat) if reply in wordings.NOTHINGS else reply))
    assert effects["no answer"].verdict == "does not lose, though it should: no score changed"
    assert not effects["no answer"].biased
    assert effects["keys"].verdict == "loses, as it should"


def test_what_is_as_short_does_not_count_as_a_bias_for_no_answer() -> None:
    """A scorer of short replies: nothing beats the reply, but not one word of it, which is as short."""
    _, effects = audit(lambda chat, reply: -float(len(reply.split())), ALL)
    assert effects["truncation"].biased
    assert (effects["copied prompt"].effect.value or 0) > 0
    assert not effects["copied prompt"].biased
    assert not effects["refusal"].biased


def known(chat: Conversation) -> str:
    return next(sample.replies[0] for sample in SAMPLES if sample.conversation == chat)


def test_effects_are_in_spreads_of_the_replies_to_a_prompt() -> None:
    assert within_spread([[1, 3], [10, 12, 14], [7]]) == pytest.approx(np.sqrt((2 + 8) / 3))
    chats = [Conversation((Turn("user", f"Question {i}?"),)) for i in range(12)]
    samples = [Sample(chat, ("one two three", f"one two three {'x ' * (2 + i % 3)}")) for i, chat in enumerate(chats)]
    found, effects = audit(lambda chat, reply: 7.0 * len(reply.split()), samples)
    spread = 7 * np.sqrt(np.mean([(2 + i % 3) ** 2 / 2 for i in range(12)]))
    assert found.spread == pytest.approx(spread)
    assert effects["word certainly"].effect.value == 0
    assert effects["prompt first"].effect.value == 0, "beside another prompt that is as long"
    assert effects["copied prompt"].effect.value == pytest.approx(-7 / spread), "two words, not three"
    assert effects["aside first"].detectable is None  # all effects are equal


def test_the_slope_on_length_by_hand() -> None:
    chat = Conversation((Turn("user", "Why?"),))
    samples = [Sample(chat, ("a", "a b", "a b c d")), Sample(chat, ("a b", "c d"))]
    assert length_slope(samples, [[0.0, 2.0, 4.0], [5.0, 1.0]], 0.5).value == pytest.approx(4)  # 2 / .5 a doubling
    assert length_slope(samples[1:], [[5.0, 1.0]], 0.5).value is None


def test_worst_examples_come_first_and_once_a_prompt() -> None:
    found, _ = audit(BIASED["copied prompt"], edited=2)
    changes = found.examples("copied prompt", 5)
    assert len({change.prompt for change in changes}) == 5
    assert [c.by for c in changes] == sorted((c.by for c in changes), reverse=True)
    best = max(change.by for change in found.changes if change.bias == "copied prompt")
    assert changes[0].by == best


def test_what_a_scorer_refuses_is_left_out_and_counted() -> None:
    def no_system(chats: Sequence[Conversation], replies: Sequence[str]) -> list[float]:
        if any(chat.persona for chat in chats):
            raise InputError("the chat template refuses a conversation of system, user, assistant")
        return [letters(*one) for one in zip(chats, replies, strict=True)]

    found = audit_scorer(FunctionScorer(no_system), SAMPLES, biases(), 1)
    assert found.left_out["system message"] == 28, "two wordings of 14 prompts"
    assert "system message" not in {effect.bias for effect in found.effects}
    assert len(found.effects) == len(biases()) - 1


def test_what_cannot_be_audited_is_refused_with_what_is_needed() -> None:
    single = [Sample(sample.conversation, sample.replies[:1]) for sample in SAMPLES]
    with pytest.raises(InputError, match="14 prompts with replies, none with two different ones"):
        audit_scorer(RandomScorer(), single, biases())
    with pytest.raises(InputError, match="the same score, over 14 prompts"):
        audit(lambda chat, reply: 1.0)
    with pytest.raises(InputError, match="an audit of 0 rows"):
        decide({}, [Row("a", "b")], 0.5)


def test_few_prompts_get_no_verdict_but_the_number_that_could_tell() -> None:
    found, effects = audit(lambda chat, reply: float(len(reply)), SAMPLES[:3])
    assert effects["length"].verdict.startswith("cannot tell: ")
    assert effects["repetition"].undecided
    assert not found.biased


def test_a_row_that_few_prompts_have_needs_more_of_them() -> None:
    found, effects = audit(letters)
    needed = dict(zip((effect.bias for effect in found.effects), found.needed, strict=True))
    few = effects["key sentence first"]
    assert few.effect.units < 14
    assert needed["key sentence first"] == pytest.approx((few.needed or 0) * 14 / few.units, abs=1)


def test_the_number_of_units_is_that_of_a_t_test() -> None:
    """The power of a paired t test at effects of 1, .8 and .5 spreads: 13, 19 and 44 (noncentral t)."""
    for effect, units in ((1.0, 13), (0.8, 19), (0.5, 44)):
        assert units_for_mean(effect, 1.0) == pytest.approx(units, abs=1)
        freedom, shift = units - 1, effect * np.sqrt(units)
        critical = stats.t.ppf(0.975, freedom)
        assert 1 - stats.nct.cdf(critical, freedom, shift) == pytest.approx(0.9, abs=0.02)
        found = detectable_mean(1.0, units)
        assert found == pytest.approx(effect, rel=0.03)
    assert detectable_mean(1.0, 1) is None
