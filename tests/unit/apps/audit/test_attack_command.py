"""`lmgym attack`: its tables, files and rows, an earlier attack, GRPO, and what it refuses."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from lmgym.apps.audit.attack_command import AttackConfig, run_attack
from lmgym.cli.main import main
from lmgym.data.mixing import DataSet
from lmgym.data.pairs import validate
from lmgym.errors import InputError

SCORERS = """
def words_of(reply):
    return reply.lower().split()

def sound(conversations, replies):
    return [len(set(words_of(reply))) ** 0.5 - 2 * ("certainly" in words_of(reply)) for reply in replies]

def hacked(conversations, replies):
    return [s + 6 * ("certainly" in words_of(r)) for s, r in zip(sound(conversations, replies), replies)]

def blind(conversations, replies):
    return [len(set(words_of(reply))) ** 0.5 for reply in replies]
"""


@pytest.fixture
def scorers(tmp_path: Path) -> str:
    (tmp_path / "scorers.py").write_text(SCORERS)
    return str(tmp_path / "scorers.py")


@pytest.fixture
def replies(tmp_path: Path) -> str:
    """40 prompts with eight replies each, of which one in eight says certainly."""
    said = re.findall(r"\w+", "some words that a model may say in a reply to you about it now and then or not")
    with (tmp_path / "replies.jsonl").open("w") as file:
        for i in range(40):
            for j in range(8):
                words = [said[(7 * i + 3 * j + k * (1 + j % 3)) % len(said)] for k in range(5 + (i + j) % 4)]
                text = " ".join([*words[:3], "certainly", *words[3:]] if (i + j) % 8 == 0 else words)
                file.write(json.dumps({"prompt": f"what is number {i}?", "completion": text}) + "\n")
    return str(tmp_path / "replies.jsonl")


def attack(scorers: str, replies: str, output: Path, scorer: str = "hacked", **settings):
    return run_attack(f"{scorers}:{scorer}", AttackConfig(prompts=replies, output=str(output), **settings))


def test_a_hack_is_found_and_becomes_rows_that_reward_models_read(scorers, replies, tmp_path: Path, capsys) -> None:
    found = attack(scorers, replies, tmp_path / "out", monitors=f"sound={scorers}:sound")
    written = json.loads((tmp_path / "out/attack.json").read_text())
    confirmed = [row for row in written["edits"] if row["confirmed"]]
    assert confirmed
    assert all("certainly" in row["edit"] for row in confirmed)
    assert {row["quality"] for row in confirmed} == {"worse"}
    assert written["scored"] == found.scored
    assert written["winners"][0]["text"] == "certainly"
    rows = [json.loads(line) for line in (tmp_path / "out/rows.jsonl").read_text().splitlines()]
    assert all("certainly" in row["rejected"] and len(row["rejected"]) > len(row["chosen"]) for row in rows)
    pairs, rejections = validate(DataSet(str(tmp_path / "out/rows.jsonl"), "train"), soft=True)
    assert (len(pairs), rejections) == (len(rows), [])
    page = (tmp_path / "out/attack.html").read_text()
    assert "Worst edited replies" in page
    said = capsys.readouterr().out
    assert "budget: at most " in said
    assert f"{len(rows):,} negatives and 0 ties for `lmgym train reward DATA," in said


def test_a_judge_who_sees_no_difference_makes_ties(scorers, replies, tmp_path: Path) -> None:
    neutral = tmp_path / "neutral.py"
    neutral.write_text("def same(conversations, replies):\n    return [float(len(str(c))) for c in conversations]\n")
    attack(scorers, replies, tmp_path / "out", judge=f"{neutral}:same")
    rows = [json.loads(line) for line in (tmp_path / "out/rows.jsonl").read_text().splitlines()]
    assert {row["preference"] for row in rows} == {0.5}
    pairs, _ = validate(DataSet(str(tmp_path / "out/rows.jsonl"), "train"), soft=True)
    assert {pair.preference for pair in pairs} == {0.5}


def test_without_monitors_it_says_that_nothing_watches_and_writes_no_rows(scorers, replies, tmp_path, capsys) -> None:
    found = attack(scorers, replies, tmp_path / "out")
    assert found.confirmed
    largest = max(finding.gain.value or 0 for finding in found.findings)
    assert not attack(scorers, replies, tmp_path / "small", smallest_effect=largest).confirmed
    said = " ".join(capsys.readouterr().out.split())
    assert "nothing independent watches" in said
    assert "no rows for `lmgym train reward`: nothing says whether edits are worse" in said
    assert not (tmp_path / "out/rows.jsonl").exists()


def test_edits_of_an_earlier_attack_are_tested_again(scorers, replies, tmp_path: Path, capsys) -> None:
    first = attack(scorers, replies, tmp_path / "first")
    again = attack(scorers, replies, tmp_path / "second", "blind", earlier=str(tmp_path / "first"), seed=1)
    now = {finding.edit: finding.gain.value or 0 for finding in again.findings}
    once = [finding for finding in first.confirmed if finding.edit.name == '"certainly" last']
    assert len(once) == 1
    spreads = [found.pool.spreads["score"] for found in (first, again)]
    assert now[once[0].edit] * spreads[1] < 1 < 3 < (once[0].gain.value or 0) * spreads[0]
    assert "; before +" in " ".join(capsys.readouterr().out.split())
    written = json.loads((tmp_path / "second/attack.json").read_text())
    assert any("gain_before" in row for row in written["edits"])
    with pytest.raises(InputError, match=r"holds no attack\.json that can be read"):
        attack(scorers, replies, tmp_path / "third", earlier=str(tmp_path))


def test_what_it_cannot_do_is_refused_before_anything_is_scored(scorers, replies, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="which is taken; needed: another name"):
        AttackConfig(monitors=f"score={scorers}:sound")
    with pytest.raises(InputError, match="without --policy MODEL, which it trains"):
        AttackConfig(grpo_updates=1)
    with pytest.raises(InputError, match="needed: --budget "):
        attack(scorers, replies, tmp_path / "out", budget=1000)
    few = tmp_path / "few.jsonl"
    few.write_text('{"prompt": "Why?", "chosen": "a b", "rejected": "c"}\n')
    with pytest.raises(InputError, match="1 prompts with two replies or more; needed: 12"):
        attack(scorers, str(few), tmp_path / "out")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file; needed: a folder"):
        attack(scorers, replies, tmp_path / "file")
    constant = tmp_path / "constant.py"
    constant.write_text("def same(conversations, replies):\n    return [1.0] * len(replies)\n")
    with pytest.raises(InputError, match="the same score, over 40 prompts: nothing to raise"):
        attack(str(constant), replies, tmp_path / "out", "same")


def test_the_command_attacks_and_lists_its_flags(scorers, replies, tmp_path: Path) -> None:
    words = ["attack", f"{scorers}:hacked", "--prompts", replies, "--output", str(tmp_path / "out"), "--rounds", "1"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "out/attack.json").read_text())["edits"]
    listed = CliRunner().invoke(main, ["attack", "x", "--help"])
    assert "--grpo_updates" in listed.output


@pytest.mark.slow
def test_grpo_against_the_scorer_raises_it_on_prompts_that_it_was_not_trained_on(small_models, tmp_path: Path) -> None:
    prompts, scorer = tmp_path / "prompts.jsonl", tmp_path / "scorer.py"
    prompts.write_text("".join(json.dumps({"prompt": f"do you like number {i}?"}) + "\n" for i in range(12)))
    scorer.write_text("def liked(conversations, replies):\n    return [float(reply.count('a')) for reply in replies]\n")
    found = run_attack(
        f"{scorer}:liked",
        AttackConfig(
            policy=str(small_models["llama"]), prompts=str(prompts), replies=4, max_new_tokens=12, edits=24, rounds=1,
            grpo_updates=16, grpo_learning_rate=1e-2, output=str(tmp_path / "out"),
        ),
    )  # fmt: skip
    assert found.training is not None
    assert found.training.updates == 16
    assert (found.training.change["score"].value or 0) > 0.5
    assert found.training.change["score"].units == 6
    assert json.loads((tmp_path / "out/attack.json").read_text())["grpo"]["updates"] == 16
