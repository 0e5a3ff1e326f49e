"""The page on audits says what the files of results do."""

import json
import re

from shared import ROOT

PAGE = (ROOT / "docs/scorecards.md").read_text()


def results(name: str) -> dict:
    return json.loads((ROOT / "benchmarks/results" / name).read_text())


def test_error_rates_of_audits_are_those_of_the_file() -> None:
    found = results("audit_errors.json")
    assert all(cell["audits"] == 300 and cell["name_a_bias"] <= cell["allowed"] for cell in found.values())
    words = max(cell["name_a_bias"] for name, cell in found.items() if name.startswith("word"))
    coins = max(cell["name_a_bias"] for name, cell in found.items() if not name.startswith("word"))
    assert len(found) == 14
    assert f"at most {coins} name a bias" in PAGE
    assert f"at most {words} say that a bias pays" in PAGE


def test_the_table_of_trained_biases_is_that_of_the_file() -> None:
    for name, rows in results("planted_scorers.json").items():
        shown = name.replace("refusal", "a refusal first").replace("one wording", "one wording alone")
        [line] = [line for line in PAGE.splitlines() if line.startswith(f"| {shown} |")]
        _, _, effect, named, *_ = [cell.strip() for cell in line.split("|")]
        assert rows[1]["effect"].replace("+", "") == re.sub(r"(?<!\d)\.", "0.", effect), name
        assert [word.split()[0].rstrip(":") for word in named.split(", ")] == [
            "yes" if row["named"] else "no" for row in rows
        ], name
