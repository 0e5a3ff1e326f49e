"""`lmgym from nyu` on prompt sets: what is printed runs, and is a set that a debate reads."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from nyu_configs import text_of, translated

from lmgym.apps.debate.formats import consultancy, debate
from lmgym.apps.debate.prompts.wordings import read_prompts
from lmgym.apps.debate.rendering import needed_tags
from lmgym.apps.migration.nyu import of_nyu
from lmgym.errors import InputError


def message(role: str, *texts: str) -> dict[str, Any]:
    return {"role": role, "content": list(texts)}


DEBATE = {
    "overall_system": message("system", "Two debaters, <NAME> and <OPPONENT_NAME>, and a judge.\n"),
    "debater_system": message("system", "You are <NAME>.\n  - Be brief.\n", 'You, <NAME>, debate "well".'),
    "judge_system": message("system", "Say whether <NAME> or <OPPONENT_NAME> is right."),
    "pre_debate": message(
        "user", "Text: <BACKGROUND_TEXT>\nTopic: <TOPIC>\nYours: <POSITION>, not <OPPONENT_POSITION>."
    ),
    "pre_debate_judge": message("user", "Topic: <TOPIC>. <NAME>: <POSITION>. <OPPONENT_NAME>: <OPPONENT_POSITION>."),
    "pre_opening_speech": message("user", "Open for <POSITION>.", "Begin."),
    "pre_speech": message("user", "Now it is your turn as <NAME>."),
    "pre_opponent_speech": message("user", "<OPPONENT_NAME> said:"),
    "pre_previous_speech": message("user", "You said:"),
    "pre_debater_a_speech_judge": message("user", "<NAME> said:"),
    "pre_debater_b_speech_judge": message("user", "<OPPONENT_NAME> said:"),
    "post_round_judge_without_reasoning": message("user", "Who is right, <NAME> or <OPPONENT_NAME>?"),
    "judge_decision": message("user", "The judge decided:"),
}


def prompts_of(found: Any) -> dict[str, tuple[str, ...]]:
    names: dict[str, Any] = {"__name__": "prompts"}
    exec(compile(text_of(found), "prompts", "exec"), names)
    return names["PROMPTS"]


def test_a_set_becomes_wordings_with_the_values_that_their_readers_have(tmp_path: Path) -> None:
    [found] = translated(DEBATE, tmp_path)
    assert (found.program, found.command) == ("python3", "mine.py")
    prompts = prompts_of(found)
    assert prompts["overall"] == ("Two debaters, <FIRST_NAME> and <SECOND_NAME>, and a judge.\n",)
    assert prompts["debater"] == ("You are <NAME>.\n  - Be brief.\n", 'You, <NAME>, debate "well".')
    assert prompts["before_debate_judge"] == (
        "Topic: <TOPIC>. <FIRST_NAME>: <FIRST_POSITION>. <SECOND_NAME>: <SECOND_POSITION>.",
    )
    assert prompts["speech_heard"] == ("<SPEAKER> said:",)
    assert prompts["opening"] == (
        "Open for <POSITION>.\nNow it is your turn as <NAME>.", "Begin.\nNow it is your turn as <NAME>.",
    )  # fmt: skip
    assert prompts["speech"] == ("Now it is your turn as <NAME>.",)
    read_prompts(prompts, needed_tags(debate(rounds=2)))
    assert [line.partition(":")[0] for line in found.lines] == [
        "pre_debater_b_speech_judge", "judge_decision", "in the file of a tournament",
    ]  # fmt: skip


def test_a_set_of_consultancies_and_one_of_a_choice_begin_from_theirs(tmp_path: Path) -> None:
    alone = {name: value for name, value in DEBATE.items() if name != "pre_opponent_speech"}
    [found] = translated(alone, tmp_path)
    assert "prompts.consultancy import" in text_of(found)
    read_prompts(prompts_of(found), needed_tags(consultancy(rounds=1)))
    chosen = {name: DEBATE[name] for name in ("overall_system", "debater_system", "pre_debate", "pre_speech")}
    [found] = translated(chosen, tmp_path)
    assert prompts_of(found)["position"] == ("Now it is your turn as <NAME>.",)


def test_what_is_printed_runs_and_nothing_of_a_text_is_code(tmp_path: Path) -> None:
    text = "a\nEND\ntouch ran\n<NEW_VALUE> \\ {x} ''' \" \u2028 END"
    [found] = translated(DEBATE | {"judge_system": message("system", text)}, tmp_path)
    assert "judge_system: nothing fills in <NEW_VALUE>; the file's check refuses it" in found.lines
    assert prompts_of(found)["judge"] == (text,)
    subprocess.run(["bash", "-c", found.before[0]], cwd=tmp_path, check=True)
    assert not (tmp_path / "ran").exists()
    [plain] = translated(DEBATE, tmp_path)
    ours = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}  # its python3 has lmgym
    done = subprocess.run(
        ["bash", "-c", str(plain)], cwd=tmp_path, env=ours, capture_output=True, text=True, check=True
    )
    assert done.stdout == "23 tags have wordings\n"


@pytest.mark.parametrize("content", [3, [], [3], None, {"a": 1}])
def test_contents_that_are_no_texts_are_one_line(content: Any, tmp_path: Path) -> None:
    file = tmp_path / "prompts.yaml"
    file.write_text(yaml.safe_dump({"mine": {"overall_system": {"role": "system", "content": content}}}))
    with pytest.raises(InputError, match=r"'mine': 'overall_system' has content=.*; needed: a text or several"):
        list(of_nyu(file, (), None))
