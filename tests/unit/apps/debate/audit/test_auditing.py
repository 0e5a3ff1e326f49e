"""Audits of scripted judges, one with each bias, and one that only looks at evidence."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from lmgym.apps.debate.audit.changes import FLATTERY, PLAIN, copied_speech, longer, stuffed_quotes
from lmgym.apps.debate.audit.judges import WritingJudge, load_judge
from lmgym.apps.debate.audit.measuring import Audit, Effect, audit_judge, rounds_to_audit
from lmgym.apps.debate.formats import DEBATERS, FIRST, SECOND, consultancy, other
from lmgym.apps.debate.players.judges import LetterJudge, RandomJudge
from lmgym.apps.debate.players.scripted import ScriptedPlayer
from lmgym.apps.debate.prompts.debate import PROMPTS
from lmgym.apps.debate.quotes import QUOTED
from lmgym.apps.debate.synthetic import synthetic_questions
from lmgym.apps.debate.transcript import Transcript
from lmgym.errors import InputError, TooLong

Weight = Callable[[Transcript, str], float]
"""how much a judge likes what a side says"""


@dataclass(frozen=True)
class WeighingJudge:
    """P(win) = a / (a + b) of two weights."""

    weight: Weight

    def p_first(self, transcripts: Sequence[Transcript]) -> list[float]:
        weights = [[self.weight(t, side) + 1e-6 for side in DEBATERS] for t in transcripts]
        return [first / (first + second) for first, second in weights]


def said(round: Transcript, side: str) -> str:
    return " ".join(speech.text for speech in round.speeches if speech.speaker == side)


def evidence(round: Transcript, side: str) -> float:
    """1 if a quote has the side's place beside the person and the thing of the question."""
    words = round.question.question.removeprefix("Where does ").removesuffix("?").split()
    wanted = {words[0], words[-1], round.positions[side].split()[-1]}
    return float(any(wanted <= set(quote.strip(".").split()) for quote in QUOTED.findall(said(round, side))))


def words(round: Transcript, side: str) -> float:
    return len(said(round, side).split())


JUDGES: dict[str, Weight] = {
    "name": lambda round, side: 2.0 if side == FIRST else 1.0,
    "name, no speeches": lambda round, side: 2.0 if side == SECOND else 1.0,
    "answer, no speeches": lambda round, side: 2.0 if side == round.correct else 1.0,
    "silence": lambda round, side: 1.0 if said(round, side) else 2.0,
    "longer": words,
    "quotes": lambda round, side: 1.0 + len(QUOTED.findall(said(round, side))),
    "letter z": lambda round, side: 1.0 + said(round, side).count("z"),
    "copy": lambda round, side: 1.0 + (round.positions[other(side)] in said(round, side)),
    "flattery": lambda round, side: 1.0 + ("wise" in said(round, side)),
}
ROUNDS = rounds_to_audit(synthetic_questions(12, difficulty=1.0, seed=3), PROMPTS)


def audit(weight: Weight) -> tuple[Audit, dict[str, Effect]]:
    found = audit_judge(WeighingJudge(weight), ROUNDS, "zq")
    return found, {effect.bias: effect for effect in found.effects}


@pytest.mark.parametrize("bias", JUDGES)
def test_a_judge_with_a_bias_is_found_out(bias: str) -> None:
    _, effects = audit(JUDGES[bias])
    assert effects[bias].verdict == "biased", effects[bias]
    assert effects["letter q"].verdict.startswith("no bias above ")
    if bias in ("longer", "flattery", "letter z"):  # each of these lengths is matched on the other side
        assert {name for name, e in effects.items() if e.verdict == "biased"} == {bias}


def test_a_judge_of_evidence_has_none_and_is_right() -> None:
    found, effects = audit(evidence)
    assert {name for name, effect in effects.items() if effect.verdict == "biased"} == set()
    assert effects["silence"].verdict == "loses, as it may"
    assert found.accuracy.low > 0.2
    assert effects["longer"].effect.value == 0
    # 12 questions of which none has an effect: few others can be expected
    assert effects["longer"].verdict == "no bias above 0.121 found"


def test_effects_by_hand() -> None:
    _, effects = audit(JUDGES["name"])
    assert effects["name"].effect.value == pytest.approx(2 / 3 - 0.5, abs=1e-5)
    assert effects["longer"].effect.value == pytest.approx(0)  # over both sides the name cancels
    _, effects = audit(JUDGES["flattery"])
    assert effects["flattery"].effect.value == pytest.approx(2 / 3 - 0.5, abs=1e-5)
    assert effects["flattery"].effect.units == 12


def test_chance_and_letters() -> None:
    letters = {e.bias: e for e in audit_judge(LetterJudge("l"), ROUNDS, "el").effects}
    assert (letters["letter l"].verdict, letters["letter e"].effect.value) == ("biased", 0)
    random = audit_judge(RandomJudge(), ROUNDS).effects
    assert not [effect.bias for effect in random if effect.verdict == "biased"]


def test_changes_are_what_they_say() -> None:
    [round] = ROUNDS[:1]
    padded = longer(round, FIRST)
    assert words(padded, FIRST) > words(round, FIRST) + 40
    assert said(padded, SECOND) == said(round, SECOND)
    copied = copied_speech(round, SECOND)
    assert said(copied, SECOND) == said(round, FIRST) == said(copied, FIRST)
    stuffed = stuffed_quotes(round, FIRST)
    assert stuffed is not None
    assert len(QUOTED.findall(said(stuffed, FIRST))) == 5
    assert words(stuffed, FIRST) == words(stuffed, SECOND)
    assert all(quote.valid for speech in stuffed.speeches for quote in speech.quotes)
    assert stuffed_quotes(replace(round, question=replace(round.question, text="")), FIRST) is None
    assert len(FLATTERY.split()) == len(PLAIN.split())


def test_a_judge_that_writes_is_audited_too() -> None:
    judge = WritingJudge(ScriptedPlayer(lambda round, agent, rng: "Debater_B | 80%"), PROMPTS)
    effects = {e.bias: e for e in audit_judge(judge, ROUNDS[:3]).effects}
    assert effects["name"].effect.value == pytest.approx(-0.3)


def test_judges_by_name(tmp_path: Path) -> None:
    assert load_judge("letter:q")[0] == LetterJudge("q")
    assert load_judge("random")[0] == RandomJudge()
    scripted = Path(__file__).parents[5] / "lmgym/apps/debate/experiments/scripted.py"
    assert load_judge(str(scripted))[0] == LetterJudge("e")
    mine = tmp_path / "mine.py"
    mine.write_text("x = 1\n")
    with pytest.raises(InputError, match=r"has no setup\(\) and CONFIG; needed: the file of a tournament"):
        load_judge(str(mine))
    with pytest.raises(InputError, match="there is no file"):
        load_judge("absent.py")


def test_rounds_without_two_debaters_are_refused() -> None:
    alone = replace(ROUNDS[0], format=consultancy(1), speeches=ROUNDS[0].speeches[:1])
    with pytest.raises(InputError, match="needed: rounds of debates"):
        audit_judge(RandomJudge(), [alone])


def test_without_known_answers_the_judges_accuracy_is_unknown() -> None:
    unknown = [replace(round, question=replace(round.question, correct=None)) for round in ROUNDS[:2]]
    found = audit_judge(LetterJudge("e"), unknown)
    assert (found.accuracy.value, found.accuracy.units) == (None, 0)
    assert "answer, no speeches" not in {effect.bias for effect in found.effects}


def test_texts_that_are_longer_than_a_models_context_are_refused_or_cut(small_models) -> None:
    name = str(small_models["gpt2"])
    judge, _ = load_judge(name)
    with pytest.raises(TooLong, match=r"longer than its context of 256 tokens; .* or on_long='cut'"):
        audit_judge(judge, ROUNDS[:1])
    judge, _ = load_judge(name, on_long="cut")
    assert len(audit_judge(judge, ROUNDS[:1]).effects) == 10
