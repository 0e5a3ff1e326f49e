"""Prompt sets: what is missing is named before the first speech; values; variation in training."""

import pytest

from lmgym.apps.debate.debate import Debate
from lmgym.apps.debate.formats import (
    consultancy,
    debate,
    double_consultancy,
    interactive_debate,
    judge_alone,
    moderated_debate,
    open_debate,
)
from lmgym.apps.debate.prompts import consultancy as consultancy_set
from lmgym.apps.debate.prompts import debate as debate_set
from lmgym.apps.debate.prompts import judge as judge_set
from lmgym.apps.debate.prompts import open_debate as open_set
from lmgym.apps.debate.prompts.wordings import TAGS, read_prompts
from lmgym.apps.debate.rendering import needed_tags
from lmgym.errors import InputError


@pytest.mark.parametrize(
    ("format", "prompts"),
    [
        (judge_alone(), judge_set.PROMPTS),
        (debate(2).with_scratchpads().with_reasoning(), debate_set.PROMPTS),
        (debate(2).with_scratchpads(shown=True), debate_set.PROMPTS),
        (consultancy(2).with_scratchpads(shown=True), consultancy_set.PROMPTS),
        (interactive_debate(2), debate_set.PROMPTS),
        (moderated_debate(2), debate_set.PROMPTS),
        (consultancy(2), consultancy_set.PROMPTS),
        (double_consultancy(2), consultancy_set.PROMPTS),
        (open_debate(2), open_set.PROMPTS),
    ],
    ids=lambda part: getattr(part, "name", ""),
)
def test_our_sets_have_what_their_formats_need(format, prompts) -> None:
    assert Debate(format, prompts).prompts.wordings.keys() >= needed_tags(format)


def test_a_missing_tag_is_named_before_the_first_speech() -> None:
    lacking = {tag: text for tag, text in debate_set.PROMPTS.items() if tag not in ("opening", "verdict")}
    with pytest.raises(InputError, match=r"no wording for opening \(asks a debater.*; verdict \(asks the judge"):
        Debate(debate(1), lacking)
    with pytest.raises(InputError, match="no wording for position"):
        Debate(open_debate(1), debate_set.PROMPTS)
    with pytest.raises(InputError, match="no wording for opponent_speech"):
        Debate(debate(1), consultancy_set.PROMPTS)
    with pytest.raises(InputError, match="no wording for verdict"):
        read_prompts({"verdict": ()}, ["verdict"])


def test_unknown_tags_and_values_are_named() -> None:
    with pytest.raises(InputError, match="unknown tags openning; needed: some of overall, "):
        read_prompts(debate_set.PROMPTS | {"openning": "x"}, [])
    with pytest.raises(InputError, match="prompt speech has the unknown value <NAMES>; needed"):
        read_prompts({"speech": ["fine", "<NAMES>"]}, [])
    for tag in ("verdict", "overall", "reasoning_past"):
        with pytest.raises(InputError, match=f"prompt {tag} has <POSITION>, which the judge does not have"):
            read_prompts({tag: "<POSITION>"}, [])


def test_a_value_in_the_place_of_another_is_text() -> None:
    prompts = read_prompts({"speech": "<TOPIC> <quote> <NAME>"}, ["speech"])
    assert prompts.text("speech", {"TOPIC": "<NAME>?", "NAME": "me"}) == "<NAME>? <quote> me"


def test_wordings_vary_by_the_rounds_seed_in_training_only() -> None:
    texts = {"speech": ("one", "two", "three")}
    plain, varied = (read_prompts(texts, ["speech"], varied) for varied in (False, True))
    assert {plain.text("speech", {}, seed) for seed in range(50)} == {"one"}
    assert {varied.text("speech", {}, seed) for seed in range(50)} == {"one", "two", "three"}
    assert [varied.text("speech", {}, 7) for _ in range(2)] == [varied.text("speech", {}, 7)] * 2


def test_every_tag_of_our_sets_has_a_description() -> None:
    for prompts in (debate_set.PROMPTS, consultancy_set.PROMPTS, open_set.PROMPTS, judge_set.PROMPTS):
        assert set(prompts) <= set(TAGS)
