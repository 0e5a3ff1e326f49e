"""Judges by their specs: models, rubric files in YAML and JSON, what is refused, and what a judge says at the exit."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from judge_server import JudgeServer

from lmgym.cli.main import main
from lmgym.errors import InputError, ServerError
from lmgym.scoring.comparing_judge import ComparingJudge
from lmgym.scoring.judge_settings import JudgeConfig
from lmgym.scoring.llm_judge import GradingJudge
from lmgym.scoring.named_scorers import load_scorer
from lmgym.scoring.rubrics import read_rubric, read_spec, summary
from lmgym.text import Conversation, Turn

RUBRIC = """
model: {model}
scale: [0, 5]
prices: [2, 10]
criteria:
  helpful: Does the reply do what the user asked for?
  short:
    text: Is the reply as short as it can be?
    weight: 3
"""


@pytest.fixture(autouse=True)
def verdicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LMGYM_VERDICTS", str(tmp_path / "verdicts.sqlite"))
    return tmp_path / "verdicts.sqlite"


@pytest.fixture
def server() -> Iterator[JudgeServer]:
    """5 for helpfulness, 1 for shortness."""
    started = JudgeServer(lambda prompt, _: [{"5": 1.0}] if "asked for?" in prompt else [{"1": 0.5, "3": 0.5}])
    yield started
    started.stop()


def test_a_rubric_is_read_from_yaml_and_from_json_in_both_forms(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "r.yaml").write_text(RUBRIC.format(model="outputs/judge"))
    rows = [
        {"name": "helpful", "text": "Does the reply do what the user asked for?"},
        {"name": "short", "text": "Is the reply as short as it can be?", "weight": 3},
    ]
    written = {"model": "outputs/judge", "scale": [0, 5], "prices": [2, 10], "criteria": rows}
    (tmp_path / "r.json").write_text(json.dumps(written))
    found = read_rubric(str(tmp_path / "r.yaml"))
    assert found == read_rubric(str(tmp_path / "r.json"))
    assert [(one.name, one.weight) for one in found.criteria] == [("helpful", 1.0), ("short", 3.0)]
    (tmp_path / "own.yaml").write_text(RUBRIC.format(model="openai:gpt-5"))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-environment")
    assert read_spec(f"{tmp_path}/own.yaml").model == "openai:gpt-5", "which is asked at the provider's own address"
    other = read_spec(f"{tmp_path}/r.yaml#openai:http://127.0.0.1:1/v1#tiny")
    assert (other.model, other.criteria) == ("openai:http://127.0.0.1:1/v1#tiny", found.criteria)


def test_a_spec_of_a_model_grades_or_compares_by_the_default_criterion() -> None:
    assert read_spec("judge:vllm:http://a:1,http://b:2").model == "vllm:http://a:1,http://b:2"
    assert [read_spec(f"{kind}:owner/name").compare for kind in ("judge", "compare")] == [False, True]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("criteria: [", "is not YAML: while parsing"),
        ("- a", "found a list of 1 item; needed: criteria"),
        ("criterias: {a: b}", "unknown key 'criterias'; did you mean criteria?"),
        ("criteria: {}", "criteria is a list of 0 items; needed"),
        ("criteria: {a: ''}", "has the name 'a' and the text ''; needed: words for both"),
        ("criteria: {a: {text: b, wieght: 2}}", "has the key 'wieght'; did you mean weight?"),
        ("criteria: {a: {text: b, weight: -1}}", "the weight of 'a' is -1; needed: a number, 0 or more"),
        ("criteria: {a: {text: b, weight: 0}}", "no criterion has a weight above 0"),
        ("criteria: [{name: a, text: b}, {name: a, text: c}]", "two criteria have the name 'a'"),
        ("criteria: {a: b}\nscale: [10, 1]", r"scale \[10, 1\]; needed: the lowest and the highest grade"),
        ("criteria: {a: b}\nscale: 10", "scale is 10; needed: two whole numbers"),
        ("criteria: {a: b}\nscale: [1, 9.5]", "scale is a list of 2 items; needed: two whole numbers"),
        ("criteria: {a: b}\nprices: [1]", "prices is a list of 1 item; needed: two numbers"),
        ("criteria: {a: b}\ncompare: 1", "compare is 1; needed: true or false"),
        ("criteria: {a: b}\nconcurrency: 0", "concurrency"),
        ("criteria: {a: b}\nmodel: [x]", "model is a list of 1 item; needed: text"),
        ("criteria: {a: b}", "names no model; needed: model: SPEC in the file, or .*r.yaml#SPEC"),
    ],
)
def test_a_rubric_with_a_fault_is_refused_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "r.yaml").write_text(text)
    with pytest.raises(InputError, match=rf"r\.yaml.*{words}") as caught:
        load_scorer(f"{tmp_path}/r.yaml")
    assert "\n" not in str(caught.value)


def test_a_rubric_that_is_not_there_and_a_spec_without_a_model_are_refused() -> None:
    with pytest.raises(InputError, match=r"there is no rubric nowhere\.yaml"):
        load_scorer("nowhere.yaml")
    with pytest.raises(InputError, match="'judge:' names no model; needed: judge:MODEL"):
        load_scorer("judge:")
    with pytest.raises(InputError, match=r"is a served model; needed: judge:vllm:http://127.0.0.1:1, which grades"):
        load_scorer("vllm:http://127.0.0.1:1")
    with pytest.raises(InputError, match=r"127\.0\.0\.1:1/v1 cannot be reached"):
        load_scorer("judge:vllm:http://127.0.0.1:1")


def test_lmgym_score_writes_each_criterions_grade_and_says_the_cost(tmp_path: Path, server: JudgeServer) -> None:
    (tmp_path / "r.yaml").write_text(RUBRIC.format(model=server.spec))
    with pytest.raises(InputError, match=rf"r.yaml names the address of .*; needed, to ask it: .*r.yaml#{server.spec}"):
        load_scorer(f"{tmp_path}/r.yaml")
    assert not server.bodies
    rubric = f"{tmp_path}/r.yaml#{server.spec}"
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "reply": "b"}\n{"prompt": "c", "reply": "d"}\n')
    command = ["score", rubric, f"{tmp_path}/rows.jsonl", "--output", f"{tmp_path}/out.jsonl"]
    result = CliRunner().invoke(main, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    row = json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])
    assert row["score"] == pytest.approx((5 + 3 * 2) / 4)
    assert row["grades"] == pytest.approx(
        {"helpful": 5, "short": 2, "helpful entropy": 0, "short entropy": 0.6931472}, abs=1e-6
    )
    judge = load_scorer(rubric, asking=JudgeConfig(concurrency=2))
    assert isinstance(judge, GradingJudge)
    assert judge.verdicts.model.generator.concurrency == 2  # type: ignore[attr-defined]
    assert server.asked == 4


def test_a_judges_summary_has_verdicts_cache_order_bias_tokens_and_cost(server: JudgeServer) -> None:
    server.answer = lambda *_: [{"A": 0.9, "B": 0.1}]
    judge = load_scorer(f"compare:{server.spec}", asking=JudgeConfig(prices="2,10"))
    assert isinstance(judge, ComparingJudge)

    asked = Conversation((Turn("user", "x"),))
    assert judge.score([asked] * 2, ["a", "b"]).tolist() == [0.0, 0.0]
    said = summary(judge)
    assert said.startswith("2 verdicts, 0 of them from ")
    assert "the winner changes with the order in 100.0%, P of the reply that is shown first is 0.900" in said
    assert said.endswith("3 requests, 300 tokens read, 3 written, cost 0.0006")
    again = load_scorer(f"compare:{server.spec}")
    again.score([asked] * 2, ["b", "a"])
    assert "2 verdicts, 2 of them from" in summary(again)  # type: ignore[arg-type]


def test_a_summary_says_nothing_of_probabilities_that_nobody_gave(server: JudgeServer) -> None:
    server.logprobs = False
    judge = load_scorer(f"judge:{server.spec}")
    assert isinstance(judge, GradingJudge)
    asked = Conversation((Turn("user", "x"),))
    judge.score([asked], ["a"])
    said = summary(judge)
    assert said.startswith("1 verdicts, 0 of them from ")
    assert "1 without log-probabilities" in said
    assert "of the probability" not in said


def test_verdicts_that_were_kept_before_a_server_died_are_counted(server: JudgeServer) -> None:
    judge = load_scorer(f"compare:{server.spec}", asking=JudgeConfig(concurrency=1))
    assert isinstance(judge, ComparingJudge)
    server.dies_after = server.answered + 3
    asked = [Conversation((Turn("user", f"x{i}"),)) for i in range(4)]
    with pytest.raises(ServerError, match="3 of 8 verdicts were given and are kept"):
        judge.compare(asked, ["a"] * 4, ["b"] * 4)
    said = summary(judge)
    assert said.startswith("3 verdicts, 0 of them from ")
    assert "comparisons" not in said, "none is whole in both orders"
