"""A judge's server gets as many requests at a time as its rubric says, unless the command says otherwise."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from judge_server import JudgeServer, judge_servers

from lmgym.cli.main import main

RUBRIC = "concurrency: 3\ncriteria:\n  helpful: Is it helpful?\n"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[JudgeServer]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LMGYM_VERDICTS", str(tmp_path / "verdicts.sqlite"))
    with judge_servers() as start:
        server = start(lambda prompt, _: [{"4": 0.9} if "good" in prompt else {"2": 0.9}], slow=0.02)
        (tmp_path / "r.yaml").write_text(RUBRIC)
        rows = [{"prompt": f"question {i}?", "chosen": f"good {i}", "rejected": f"bad {i}"} for i in range(12)]
        for name, count in (("rows", 12), ("few", 4)):  # an attack needs 12
            (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:count]))
        yield server


@pytest.mark.parametrize(
    "command",
    [
        ["judge", "r.yaml#SPEC", "--suite", "few.jsonl"],
        ["audit", "r.yaml#SPEC", "--prompts", "few.jsonl", "--edited", "1"],
        ["attack", "r.yaml#SPEC", "--prompts", "rows.jsonl", "--edits", "1", "--rounds", "1"],
        ["attack", "length.py:length", "--monitors", "m=r.yaml#SPEC", "--prompts", "rows.jsonl", "--edits", "1"],
    ],
)
@pytest.mark.parametrize(("flags", "most"), [((), 3), (("--concurrency", "2"), 2)])
def test_a_judge_gets_as_many_requests_as_its_rubric_or_the_command_says(
    server: JudgeServer, command: list[str], flags: tuple[str, ...], most: int
) -> None:
    Path("length.py").write_text("def length(conversations, replies):\n    return [float(len(r)) for r in replies]\n")
    words = [word.replace("SPEC", server.spec) for word in command]
    result = CliRunner().invoke(main, [*words, *flags, "--output", "out"])
    assert result.exit_code == 0, result.output
    assert server.most_together == most
