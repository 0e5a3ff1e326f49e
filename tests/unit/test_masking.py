"""Secrets do not reach the terminal or a file, wherever they stand."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE

from lmgym.console import CleanConsole, printed_line
from lmgym.masking import looks_secret, mask_keys, masked
from lmgym.runs.files import write_json, write_lines, write_text
from lmgym.runs.record import describe_run

KEY = "sk-never-to-be-seen-0123"


@pytest.fixture(autouse=True)
def key(monkeypatch) -> None:
    monkeypatch.setenv("SOMEBODYS_API_KEY", f" {KEY}\n")


def test_the_value_of_a_key_is_masked_wherever_it_stands_and_a_word_is_not(monkeypatch) -> None:
    assert mask_keys(f"Bearer {KEY}, {KEY}{KEY}") == "Bearer ***, ******"
    for name, value in (("OPENAI_API_KEY", "EMPTY"), ("HF_TOKEN", "changeme"), ("PG_PASSWORD", "postgres"),
                        ("X_CREDENTIALS", "/path/to/1.json"), ("TOKENIZERS_PARALLELISM", "no-1234567")):  # fmt: skip
        monkeypatch.setenv(name, value)
        assert mask_keys(f"the {value} there") == f"the {value} there"
    monkeypatch.setenv("LONGER_API_KEY", KEY + "-and-more")
    assert mask_keys(KEY + "-and-more") == "***"
    assert looks_secret("api_key")
    assert not looks_secret("pad_token")


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("https://me:word@host:8/v1 down", "https://***@host:8/v1 down"),
        ('{"url":"postgres://a:b@h/db"}', '{"url":"postgres://***@h/db"}'),
        ("https://ghp_0123456789@github.com/a", "https://***@github.com/a"),
        ("http://h/v1?api_key=abc&n=2", "http://h/v1?api_key=***&n=2"),
        ("http://h/v1?n=2&access-token=abc", "http://h/v1?n=2&access-token=***"),
        ("http://medium.com/@me at 10:20, a@b.org", "http://medium.com/@me at 10:20, a@b.org"),
        ("x" * 9 + ".a" * 50_000 + "://" + "?" * 50_000, None),
    ],
)
def test_names_passwords_and_keys_in_addresses_are_masked(text: str, kept: str | None) -> None:
    assert masked(text) == (text if kept is None else kept)


def test_what_is_printed_is_masked_before_it_is_laid_out_or_cut(capsys) -> None:
    assert printed_line(f"a {KEY}") == "a ***"
    assert KEY[:4] not in printed_line("." * 1995 + KEY)
    CleanConsole(width=20).print(f"it is {KEY} and http://a:b@c")
    out = capsys.readouterr().out.replace("\n", " ")
    assert "it is *** and" in out
    assert "a:b" not in out


def test_files_are_masked_and_rows_keep_their_addresses(tmp_path: Path) -> None:
    row = {"reply": f"you sent {KEY}; see postgres://user:pass@host"}
    write_lines(tmp_path / "rows.jsonl", [row])
    assert json.loads((tmp_path / "rows.jsonl").read_text()) == {"reply": "you sent ***; see postgres://user:pass@host"}
    write_text(tmp_path / "text", KEY)
    assert (tmp_path / "text").read_text() == "***"
    write_json(tmp_path / "record.json", row)
    assert json.loads((tmp_path / "record.json").read_text()) == {"reply": "you sent ***; see postgres://***@host"}


def test_the_record_of_a_run_has_no_secret_of_its_command_or_config(monkeypatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "a.py", "--engine", "vllm:http://me:word@h/v1", "--hf_token", "x"])
    record = describe_run("a", {}, 0, None)
    assert record["command"] == "python a.py --engine 'vllm:http://***@h/v1' --hf_token '(redacted)'"


def test_an_uncaught_error_of_a_launch_shows_no_key(tmp_path: Path) -> None:
    code = f"from lmgym.runs.launch import launch\ndef main(): raise KeyError({KEY!r})\nlaunch(main)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 1
    assert "KeyError: '***'" in done.stderr
    assert KEY not in done.stderr
