"""The thread that scores: requests that wait become one call, and none changes or fails another."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from patience import PATIENCE
from reward_servers import RewardServer

from lmgym.apps.serve.batcher import Batcher, Busy, Job, Unscored
from lmgym.apps.serve.metrics import Metrics
from lmgym.apps.serve.served_scorers import Member, Sample, ServedScorer
from lmgym.errors import InputError
from lmgym.scoring.scorers import FunctionScorer
from lmgym.text import Conversation, Turn

HELLO = Conversation((Turn("user", "hello"),))


class Gate:
    """A scorer of reply lengths that waits until it may go on, notes its calls, and refuses a reply `bad`."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.opened = threading.Event()

    def score(self, conversations, replies) -> list[float]:
        self.calls.append(list(replies))
        assert self.opened.wait(PATIENCE)
        if "bad" in replies:
            raise InputError("a text cannot be scored")
        return [float("nan") if reply == "nan" else float(len(reply)) for reply in replies]


def batcher(gate: Gate, capacity: int = 100) -> Batcher:
    member = Member(FunctionScorer(gate.score), None, "", False, "", None)
    return Batcher(ServedScorer("a", "", (member,)), Metrics(), capacity)


def submit(to: Batcher, *replies: str) -> Future:
    job = Job([Sample(HELLO, reply) for reply in replies])
    to.submit(job)
    return job.answer


def scores(answer: Future) -> list[float]:
    return [opinion.score for opinion in answer.result(PATIENCE).opinions]


def test_requests_that_wait_are_scored_in_one_call() -> None:
    gate = Gate()
    running = batcher(gate)
    first = submit(running, "x")
    while not gate.calls:
        pass
    others = [submit(running, "y" * i, "z") for i in range(1, 33)]
    gate.opened.set()
    assert scores(first) == [1.0]
    assert [scores(answer) for answer in others] == [[float(i), 1.0] for i in range(1, 33)]
    assert [len(call) for call in gate.calls] == [1, 64]
    running.stop()
    assert running.waiting == 0


def test_a_request_that_fails_fails_no_other() -> None:
    gate = Gate()
    running = batcher(gate)
    answers = [submit(running, reply) for reply in ("first", "good", "bad", "nan", "fine")]
    gate.opened.set()
    assert [scores(answers[i]) for i in (0, 1, 4)] == [[5.0], [4.0], [4.0]]
    with pytest.raises(InputError, match="cannot be scored"):
        answers[2].result(PATIENCE)
    with pytest.raises(Unscored, match="scorer a failed on reply 0 of 1, each time: the scorer gave nan"):
        answers[3].result(PATIENCE)
    running.stop()


def test_a_request_that_nobody_waits_for_is_not_scored() -> None:
    gate = Gate()
    running = batcher(gate)
    submit(running, "first")
    while not gate.calls:
        pass
    left = submit(running, "left")
    assert left.cancel()
    gate.opened.set()
    running.stop()
    assert gate.calls == [["first"]]
    assert running.waiting == 0


def test_a_full_queue_refuses_a_request_and_says_when_to_come_back() -> None:
    gate = Gate()
    running = batcher(gate, capacity=2)
    answers = [submit(running, "x"), submit(running, "y")]
    with pytest.raises(Busy, match="2 replies wait") as refused:
        submit(running, "z")
    assert 1 <= refused.value.seconds <= 30
    gate.opened.set()
    assert [scores(answer) for answer in answers] == [[1.0], [1.0]]
    assert scores(submit(running, "zz")) == [2.0]
    running.stop()


def test_another_client_s_long_reply_does_not_cut_the_context_of_mine(calibrated: Path) -> None:
    turns = tuple(Turn(("user", "bot")[i % 2], f"turn {i} of some") for i in range(15))
    conversation = Conversation(turns)  # with a short reply it fits
    scorer = ServedScorer.load("a", str(calibrated))
    [alone] = scorer.judge([Sample(conversation, "yes")])
    assert not alone.is_truncated
    jobs = [Job([Sample(conversation, reply)]) for reply in ("yes", "a long reply " * 12)]
    together = scorer.judge([sample for job in jobs for sample in job.samples])
    assert together[0].is_truncated, "the replies to one conversation are truncated together"
    running = Batcher(scorer, Metrics(), 10)
    [mine], [other] = running.judge(scorer, jobs)  # as when both wait
    assert not mine.is_truncated
    assert mine.score == pytest.approx(alone.score, abs=1e-5)
    assert other.is_truncated
    running.stop()


def test_64_clients_at_once_share_forward_passes(server: RewardServer) -> None:
    before = server.counted("lmgym_batches_total")

    def ask(number: int) -> tuple[float, float]:
        body = {"conversations": [{"prompt": f"hello {number % 8}", "reply": f"hi {number}"}], "scorers": ["a"]}
        status, answer, _ = server.ask("/v1/score", body)
        assert status == 200
        return number, answer["scores"][0]["a"]["score"]

    with ThreadPoolExecutor(64) as pool:
        found = dict(pool.map(ask, range(256)))
    assert len(found) == 256
    assert server.counted("lmgym_batches_total") - before < 128
    assert ask(7)[1] == pytest.approx(found[7], abs=1e-5)


def test_an_ensemble_has_a_path_on_each_side_of_the_plus() -> None:
    both = ServedScorer.load("both", "world:0+world:1")
    [opinion] = both.judge([Sample(HELLO, "hi there")])
    assert len(opinion.scores) == 2
    assert opinion.spread == pytest.approx(abs(opinion.scores[0] - opinion.scores[1]) / 2)
    assert both.probability(opinion, opinion) is None  # nobody trained them on comparisons
    with pytest.raises(InputError, match=r"an ensemble is PATH\+PATH"):
        ServedScorer.load("one", "world:0+")
