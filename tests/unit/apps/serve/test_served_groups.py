"""A judge that compares behind `lmgym serve rewards`: groups that come whole, in parts, one by one, and never."""

import asyncio
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from judge_server import comparing_judge, fenced, judge_servers
from reward_servers import RewardServer, start

from lmgym.apps.serve.lmgym_client import Client, RewardError, trl_reward, verl_reward
from lmgym.text import Conversation, Turn

REPLIES = ["a", "bbb", "cc", "ddddd"]
ASKED = [{"role": "user", "content": "hello"}]


def longer(a: str, b: str) -> float:
    return 1 / (1 + math.exp(len(b) - len(a)))


def rule(prompt: str, begun: str) -> list[dict[str, float]]:
    p = longer(fenced(prompt, "reply-A"), fenced(prompt, "reply-B"))
    return [{"A": p, "B": 1 - p}]


@pytest.fixture(scope="module")
def expected(tmp_path_factory) -> list[float]:
    """The strengths in this process."""
    judge = comparing_judge(longer, tmp_path_factory.mktemp("here"))
    return judge.score_groups([Conversation((Turn("user", "hello"),))], [REPLIES])[0]


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[RewardServer]:
    pytest.importorskip("fastapi")
    kept = tmp_path_factory.mktemp("kept") / "verdicts.sqlite"
    with judge_servers() as serve:
        spec = serve(rule).spec
        running = start(f"pick=compare:{spec}", "--timeout", 3, LMGYM_VERDICTS=str(kept))
        yield running
        assert running.stop() == 0


def chats(replies: list[str]) -> list[dict[str, object]]:
    return [{"prompt": ASKED, "reply": reply} for reply in replies]


def test_trls_function_gets_the_strengths_of_each_group_in_its_order(server, expected) -> None:
    reward = trl_reward(client=Client(server.url, run="trl"), num_generations=4)
    other = [{"role": "user", "content": "another question"}]
    prompts = [ASKED] * 4 + [other] * 4
    completions = [[{"role": "assistant", "content": reply}] for reply in REPLIES + REPLIES[::-1]]
    found = reward(prompts, completions)
    assert found[:4] == pytest.approx(expected, abs=1e-6)
    assert found[4:] == pytest.approx(expected[::-1], abs=1e-6)
    assert sum(found[:4]) == pytest.approx(0, abs=1e-6)


def test_a_group_that_ranks_split_is_joined(server, expected) -> None:
    with ThreadPoolExecutor(2) as pool:
        parts = [chats(REPLIES[:3]), chats(REPLIES[3:])]
        asked = [pool.submit(Client(server.url, run="ranks").rewards, part, None, None, 4) for part in parts]
        assert [score for one in asked for score in one.result()] == pytest.approx(expected, abs=1e-6)


def test_verls_function_sends_single_replies_which_are_joined(server, expected, monkeypatch) -> None:
    monkeypatch.setenv("LMGYM_RUN", "verl")

    async def all_of_them() -> list[float]:
        row = {"raw_prompt": ASKED}
        calls = [verl_reward("x", reply, extra_info=row, url=server.url, num_generations=4) for reply in REPLIES]
        return await asyncio.gather(*calls)

    assert asyncio.run(all_of_them()) == pytest.approx(expected, abs=1e-6)


def test_workers_of_verl_send_single_replies_from_threads_of_their_own_which_are_joined(
    server, expected, monkeypatch
) -> None:
    monkeypatch.setenv("LMGYM_RUN", "verl's workers")
    other = [{"role": "user", "content": "another question"}]
    samples = [(ASKED, reply) for reply in REPLIES] + [(other, reply) for reply in REPLIES[::-1]]
    # as verl binds reward_kwargs
    compute_score = partial(verl_reward, url=server.url, num_generations=4)

    def worker(sample: tuple[list, str]) -> float:
        """A reward worker: a loop of its own, one sample a call, all by name."""
        return asyncio.run(
            compute_score(
                data_source="x",
                solution_str=sample[1],
                ground_truth="",
                extra_info={"raw_prompt": sample[0]},
                reward_router_address=None,
                reward_model_tokenizer=None,
            )
        )

    with ThreadPoolExecutor(len(samples)) as pool:
        found = list(pool.map(worker, samples[::2] + samples[1::2]))
    assert found == pytest.approx((expected + expected[::-1])[::2] + (expected + expected[::-1])[1::2], abs=1e-6)


def test_another_runs_replies_are_not_joined_and_a_group_that_stays_open_is_refused(server) -> None:
    with ThreadPoolExecutor(2) as pool:
        asked = [
            pool.submit(Client(server.url, run=run).rewards, chats(part), None, None, 4)
            for run, part in (("one", REPLIES[:3]), ("other", REPLIES[3:]))
        ]
        for one, count in zip(asked, (3, 1), strict=True):
            with pytest.raises(RewardError, match=rf"{count} of 4 replies to 'hello' came within 3 s \(--timeout\)"):
                one.result()
    found = Client(server.url, run="one").rewards(chats(REPLIES), None, None, 4)
    assert sum(found) == pytest.approx(0, abs=1e-6), "those that were refused do not count"


def test_a_request_without_a_group_is_refused_in_a_sentence(server) -> None:
    with pytest.raises(
        RewardError, match=r"pick compares the replies to a prompt; needed: group_size in POST /v1/score"
    ):
        Client(server.url).rewards(chats(REPLIES))
    status, answer, _ = server.ask("/get_reward", {"query": ["User: a\nBot: b"]})
    assert status == 400
    assert "or a judge that grades" in answer["error"]["message"]
    status, answer, _ = server.ask("/v1/score", {"conversations": chats(["a"]), "group_size": 1})
    assert status == 400


def test_forty_replies_are_one_group(server) -> None:
    replies = ["x" * (1 + i) for i in range(40)]
    found = Client(server.url, run="forty").rewards(chats(replies), None, None, 40)
    assert found.index(max(found)) == 39
    assert sum(found) == pytest.approx(0, abs=1e-4)
