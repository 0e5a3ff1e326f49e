"""Commands that runs print are run as printed, by bash: odd columns, splits and weights, blanks and quotes in paths."""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path

import pytest
from forked_commands import ForkedCommands
from patience import PATIENCE
from printed_blocks import ROOT

from lmgym.runs.listing import read_run

PRINTED = re.compile(r"(?:^next: |; all edits: |^)(lmgym .+?)(?:; of a policy's own replies: .*)?$", re.MULTILINE)
"""a command, behind `next:` and the like or alone on its line"""
OUTPUT = "out puts/it's"
TINY = "--max_updates 1 --global_batch 4 --micro_batch 4 --tracking none --eval_size 6"
PAIRS = "--prompt_column ask --chosen_column good --rejected_column bad"
REWARDS = """
def length(completions, **columns):
    return [float(len(str(one))) for one in completions]

def of_topic(completions, topic):
    return [float(one) for one in topic]
"""


@dataclass
class Shell:
    """A folder, and the commands that were run in it."""

    folder: Path
    forked: ForkedCommands
    ran: list[str] = field(default_factory=list)

    def run(self, line: str) -> str:
        """The output of a line that bash runs; a chat reads a message. Fails where the command does."""
        paths = os.pathsep.join((str(self.forked.bin), os.environ["PATH"]))
        environment = {**os.environ, "PATH": paths, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "COLUMNS": "300"}
        piped = f"{{ echo hello; }} | {line}" if line.startswith("lmgym chat") else line
        done = self.forked.run(["bash", "-c", piped], self.folder, environment, PATIENCE)
        assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        self.ran.append(line)
        return done.stdout

    def run_printed(self, text: str, expected: int) -> list[str]:
        """Runs each command in a text as it is printed. The commands, of which there must be so many."""
        found = PRINTED.findall(text)
        assert len(found) == expected, text[-3000:]
        for line in found:
            self.run(line)
        return found


@pytest.fixture
def shell(small_models, demo_file: Path, tmp_path: Path) -> Iterator[Shell]:
    folder = tmp_path / "a folder"
    (folder / "split").mkdir(parents=True)
    pairs = [json.loads(line) for line in demo_file.read_text().splitlines()[:60]]
    names = {"ask": "prompt", "good": "chosen", "bad": "rejected"}
    rows = [{ours: row[name][-1]["content"] for ours, name in names.items()} | {"topic": 1} for row in pairs]
    for name, part in {"one.jsonl": rows[:30], "an other.jsonl": rows[30:], "split/mine.jsonl": rows[:30],
                       "split/test.jsonl": rows[30:]}.items():  # fmt: skip
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in part))
    (folder / "rewards.py").write_text(REWARDS)
    (folder / "base model").symlink_to(small_models["llama"])
    with ForkedCommands() as forked:
        yield Shell(folder, forked)


def test_the_command_behind_a_scorer_has_the_columns_weights_and_files_of_its_rows(shell: Shell) -> None:
    said = shell.run(
        f"lmgym train reward 'one.jsonl,an other.jsonl' --dataset_weights 1,2 {PAIRS} --model 'base model' {TINY} "
        f'--audit none --output "{OUTPUT}"'
    )
    [line] = PRINTED.findall(said)
    for part in ("--prompts 'one.jsonl,an other.jsonl'", "--prompt_weights 1,2", PAIRS):
        assert part in line
    shell.run(f"{line} --dry_run")
    record = read_run(shell.folder / OUTPUT).record
    page = unescape((shell.folder / OUTPUT / "report.html").read_text())
    again = f"cd '{shell.folder}' && {record['command']}"
    assert again in page
    shell.run(f"cd / && {again} --dry_run")


@pytest.mark.slow  # a minute: every stage, and what each prints
@pytest.mark.parametrize(
    "rows", ["'one.jsonl,an other.jsonl'", "split --dataset_split mine --eval_dataset split/test.jsonl"]
)
def test_what_a_scorer_prints_runs(shell: Shell, rows: str) -> None:
    said = shell.run(f'lmgym train reward {rows} {PAIRS} --model "base model" {TINY} --output "{OUTPUT}"')
    found = shell.run_printed(said, 2)
    assert {" ".join(line.split()[:2]) for line in found} == {"lmgym audit", "lmgym train"}
    assert set(PRINTED.findall(shell.run(f'lmgym runs "{OUTPUT}"'))) < set(found)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "sft one.jsonl --prompt_column ask --reply_column good --ignore_columns bad",
        f"dpo 'an other.jsonl' {PAIRS} --lora_rank 2",
        f"ppo one.jsonl {PAIRS} --reward rewards.py:length --num_rollouts 4 --max_new_tokens 4",
        f"grpo one.jsonl {PAIRS} --reward a=rewards.py:of_topic,rewards.py:length --num_rollouts 4 "
        "--num_generations 2 --max_new_tokens 4",
    ],
)
def test_what_a_policy_prints_runs(shell: Shell, command: str) -> None:
    said = shell.run(f'lmgym train {command} --model "base model" {TINY} --output "{OUTPUT}"')
    [chat] = shell.run_printed(said, 1)
    assert ("--scorers" in chat) == ("--reward" in command)
    assert "of_topic" not in chat, "it needs a column, which a chat has not"
    shell.run_printed(shell.run("lmgym runs 'out puts'"), 1)
    (shell.folder / "elsewhere").mkdir()
    shell.folder = shell.folder / "elsewhere"  # with the absolute paths of another folder
    shell.run_printed(shell.run('lmgym runs "../out puts"'), 1)
