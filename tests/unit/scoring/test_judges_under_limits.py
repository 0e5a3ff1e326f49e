"""Judges whose servers limit, filter, refuse parameters, hang or charge: the same verdicts, each asked once."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from judge_server import JudgeServer, judge_servers

from lmgym.errors import InputError, ServerError
from lmgym.scoring.judge_models import load_judge_model
from lmgym.scoring.judge_settings import JudgeConfig, known_prices
from lmgym.scoring.llm_judge import GradingJudge
from lmgym.scoring.protocol import NoVerdict
from lmgym.scoring.rubrics import summary
from lmgym.scoring.verdict_cache import VerdictCache
from lmgym.scoring.verdicts import Verdicts
from lmgym.text import Conversation, Turn

ASKED = [Conversation((Turn("user", f"question {i}"),)) for i in range(40)]
REPLIES = [" ".join(["word"] * (1 + i % 8)) for i in range(40)]
GRADES = [float(1 + i % 8) for i in range(40)]
HEADERS = {"Retry-After": "0.2"}


@pytest.fixture
def serve() -> Iterator[Callable[..., JudgeServer]]:
    with judge_servers() as start:
        yield start


@pytest.fixture
def cache(tmp_path: Path) -> VerdictCache:
    return VerdictCache(tmp_path / "verdicts.sqlite")


def words_of(prompt: str, begun: str) -> list[dict[str, float]]:
    """The number of words of the reply as its grade."""
    return [{f"[[{prompt.split('</reply-')[0].rsplit('>', 1)[1].count('word')}]]": 1.0}]


def judge_of(server: JudgeServer, cache: VerdictCache, **settings) -> GradingJudge:
    return GradingJudge(Verdicts(load_judge_model(server.spec, JudgeConfig(**settings)), cache))


def error(status: int, message: str, **more: str) -> tuple[int, dict, dict[str, str]]:
    return status, {"error": {"message": message, **more}}, {}


def test_a_server_that_limits_requests_is_asked_less_and_every_verdict_comes(serve, cache) -> None:
    """Two requests a second are let through; without a fall of the requests at a time most would be refused."""
    taken: list[float] = []

    def limited(number: int, body: dict) -> tuple[int, dict, dict[str, str]] | None:
        now = time.monotonic()
        if len([t for t in taken if now - t < 0.25]) >= 5:
            return 429, {"error": {"message": "Rate limit reached"}}, HEADERS
        taken.append(now)
        return None

    server = serve(words_of, logprobs=False, fault=limited)
    judge = judge_of(server, cache)
    assert judge.score(ASKED, REPLIES).tolist() == GRADES
    assert server.asked == len(ASKED), "none that arrived is asked again"
    assert server.requests < 3 * len(ASKED)


def test_a_limit_that_lasts_longer_than_the_patience_ends_with_the_servers_words(serve, cache) -> None:
    server = serve(words_of, logprobs=False)
    judge = judge_of(server, cache, patience=1.0)
    judge.score(ASKED[:5], REPLIES[:5])
    server.fault = lambda number, body: (429, {"error": {"message": "Limit of the day"}}, {"Retry-After": "3600"})
    with pytest.raises(ServerError, match=r"0 of 10 verdicts were given.*Limit of the day.*exceed a patience of 1 s"):
        judge.score(ASKED[5:15], REPLIES[5:15])
    assert len(cache) == 5


def test_a_spent_quota_ends_at_once_with_the_servers_words(serve, cache) -> None:
    server = serve(words_of, logprobs=False)
    judge = judge_of(server, cache)
    server.fault = lambda number, body: error(429, "You exceeded your current quota", code="insufficient_quota")
    before = time.monotonic()
    with pytest.raises(ServerError, match=r"has no quota left, .*You exceeded your current quota"):
        judge.score(ASKED[:2], REPLIES[:2])
    assert time.monotonic() - before < 10


def test_a_filter_and_a_refusal_are_no_verdict_and_are_counted_apart(serve, cache) -> None:
    def fault(number: int, body: dict) -> tuple[int, dict, dict[str, str]] | None:
        if "question 3" in str(body):
            return error(400, "The prompt was filtered.", code="content_filter")
        return None

    server = serve(lambda p, b: [{"No.": 1.0}] if "question 4" in p else words_of(p, b), logprobs=False, fault=fault)
    judge = judge_of(server, cache)
    for i in (3, 4):
        with pytest.raises(NoVerdict):
            judge.score([ASKED[i]], [REPLIES[i]])
    assert judge.score(ASKED[5:8], REPLIES[5:8]).tolist() == GRADES[5:8]
    said = summary(judge)
    assert "1 withheld by the server (content_filter: The prompt was filtered.)" in said
    assert "1 without a verdict in the asked form" in said


def test_an_answer_that_is_cut_is_no_verdict_and_the_flag_is_named(serve, cache) -> None:
    server = serve(lambda p, b: [{"Well, ": 1.0}, {"[[5]]": 1.0}, {" since": 1.0}], logprobs=False)
    server.finish = lambda body, places: "length" if len(places) > body["max_tokens"] else "stop"
    with pytest.raises(NoVerdict, match=r"1 answers so far were cut at 2 tokens \(--judge_tokens\)"):
        judge_of(server, cache, judge_tokens=2).score(ASKED[:1], REPLIES[:1])
    assert judge_of(server, cache, judge_tokens=3).score(ASKED[:1], REPLIES[:1]).tolist() == [5.0]


def test_a_judge_with_tokens_is_asked_for_reasons_first_on_vllm_too(serve, cache, capsys) -> None:
    server = serve(lambda p, b: [{"It is short, and right. ": 1.0}, {"[[6]]": 1.0}], vllm=True)
    judge = judge_of(server, cache, judge_tokens=64)
    assert judge.score(ASKED[:1], REPLIES[:1]).tolist() == [6.0]
    assert "First give your reasons" in str(server.bodies[-1])
    assert "continue_final_message" not in server.bodies[-1]
    [details] = judge.details(ASKED[:1], REPLIES[:1])
    assert details["quality reasons"] == "It is short, and right. [[6]]"
    assert capsys.readouterr().err.count("gives its reasons first, in at most 64 tokens") == 1


def test_a_cost_is_announced_estimated_and_not_exceeded(serve, cache, capsys) -> None:
    server = serve(words_of, logprobs=False)
    judge = judge_of(server, cache, prices="1000,1000", max_cost=8.0)
    judge.announce(ASKED, [[reply] for reply in REPLIES])
    first = capsys.readouterr().err
    assert "40 questions to ask: at most " in first
    with pytest.raises(ServerError, match=r"of --max_cost 8 are spent; needed: a larger --max_cost"):
        judge.score(ASKED, REPLIES)
    spending = judge.verdicts.model.limits
    assert spending is not None
    assert spending.spending is not None
    assert spending.spending.spent <= 8.0
    kept = len(cache)
    assert 0 < kept < 40
    judge = judge_of(server, cache, prices="0.15,0.6")
    judge.announce(ASKED, [[reply] for reply in REPLIES])
    assert judge.score(ASKED, REPLIES).tolist() == GRADES
    assert server.asked == 40, "those that were paid for are not asked again"
    assert f"{40 - kept} questions to ask" in capsys.readouterr().err


def test_after_twenty_answers_the_cost_of_all_is_estimated_within_a_fifth(serve, cache, capsys) -> None:
    judge = judge_of(serve(words_of, logprobs=False), cache, prices="10,10", concurrency=1)
    judge.announce(ASKED, [[reply] for reply in REPLIES])
    judge.score(ASKED, REPLIES)
    said = capsys.readouterr().err
    estimate = float(said.split("a cost of ")[-1].splitlines()[0])
    limits = judge.verdicts.model.limits
    assert limits is not None
    assert limits.spending is not None
    assert estimate == pytest.approx(limits.spending.spent, rel=0.2)


def test_a_limit_of_cost_needs_prices(serve, cache) -> None:
    with pytest.raises(InputError, match=r"--max_cost 1 without prices of tiny; needed: --prices READ,WRITTEN"):
        judge_of(serve(words_of), cache, max_cost=1.0)
    with pytest.raises(InputError, match=r"--prices '1'; needed: two numbers"):
        JudgeConfig(prices="1")
    assert known_prices("gpt-4o-mini-2024-07-18") == known_prices("gpt-4o-mini") == (0.15, 0.6)
    assert known_prices("gpt-4o-mini-audio") is None


def test_a_flag_that_is_given_overrules_a_rubric_even_with_the_usual_value() -> None:
    rubric = JudgeConfig(patience=60.0, concurrency=2, judge_tokens=64)
    assert JudgeConfig(patience=900.0).over(rubric) == JudgeConfig(patience=900.0, concurrency=2, judge_tokens=64)


def test_the_bound_of_a_model_that_is_read_at_the_next_token_is_one_token_a_question(serve, cache, capsys) -> None:
    judge = judge_of(serve(lambda *_: [{"7": 1.0}], vllm=True), cache)
    judge.announce(ASKED, [[reply] for reply in REPLIES])
    assert "tokens read and 40 written" in capsys.readouterr().err
