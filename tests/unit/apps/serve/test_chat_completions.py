"""`lmgym serve chat` as OpenAI's own client, lmgym's, and careless ones use it."""

import asyncio
import http.client
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from chat_pages import rambling, serve_page
from click.testing import CliRunner
from patience import PATIENCE, wait_until
from reward_servers import RewardServer, start

from lmgym.apps.serve import chat_app
from lmgym.cli.main import main
from lmgym.errors import TooLong
from lmgym.generation.openai_server import ServedGenerator
from lmgym.generation.protocol import Sampling, ScriptedGenerator
from lmgym.scoring.scorers import FunctionScorer
from lmgym.text import Conversation, Turn

HELLO = [{"role": "user", "content": "hello there"}]
COMPLETIONS = "/v1/chat/completions"


@pytest.fixture(scope="module")
def chat_server(talkative_models, scorer_folders, tmp_path_factory) -> Iterator[RewardServer]:
    """Two policies, and two scorers of which a selects."""
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    judges = f"a={scorer_folders['llama']},b={scorer_folders['gpt2']}"
    sessions = tmp_path_factory.mktemp("sessions")
    policies = (f"gpt2={talkative_models['gpt2']}", f"llama={talkative_models['llama']}")
    options = ("--best_of", 8, "--max_best_of", 16, "--max_tokens", 12, "--sessions", sessions)
    running = start(*policies, "--scorers", judges, *options, kind="chat")
    yield running
    assert running.stop() == 0


@pytest.fixture
def client(chat_server: RewardServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{chat_server.url}/v1", api_key="-", max_retries=0, timeout=PATIENCE)


def scored(folder: Path, scorer: Path, replies: list[str]) -> list[float]:
    """Scores of the replies to HELLO by `lmgym score`."""
    rows = folder / "rows.jsonl"
    messages = ([*HELLO, {"role": "assistant", "content": reply}] for reply in replies)
    rows.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in messages))
    done = CliRunner().invoke(main, ["score", str(scorer), str(rows), "--output", str(folder / "scores.jsonl")])
    assert done.exit_code == 0, done.output
    return [json.loads(line)["score"] for line in (folder / "scores.jsonl").read_text().splitlines()]


# --- best of N


def test_choices_come_best_first_with_the_rewards_of_lmgym_score(client, scorer_folders, tmp_path: Path) -> None:
    found = client.chat.completions.create(model="gpt2", messages=HELLO, n=8, seed=3)
    texts = [choice.message.content for choice in found.choices]
    opinions = [choice.model_extra["lmgym"] for choice in found.choices]
    for name, family in (("a", "llama"), ("b", "gpt2")):
        rewards = [opinion["rewards"][name] for opinion in opinions]
        assert rewards == pytest.approx(scored(tmp_path, scorer_folders[family], texts), abs=1e-5)
    by_a = [opinion["rewards"]["a"] for opinion in opinions]
    assert by_a == sorted(by_a, reverse=True)
    assert len(set(by_a)) > 4
    assert [opinion["rank"] for opinion in opinions] == [1 + by_a.index(reward) for reward in by_a]
    assert [opinion["selected"] for opinion in opinions] == [True] + [False] * 7
    assert [choice.index for choice in found.choices] == list(range(8))
    assert {choice.finish_reason for choice in found.choices} == {"stop", "length"}
    assert found.usage.completion_tokens == found.model_extra["lmgym"]["generated_tokens"]
    assert found.usage.total_tokens == found.usage.prompt_tokens + found.usage.completion_tokens > 8


def test_fewer_choices_are_the_best_of_the_same_candidates(client) -> None:
    ask = {"model": "gpt2", "messages": HELLO, "seed": 3}
    best, *_ = every = client.chat.completions.create(**ask, n=8).choices
    [one] = (found := client.chat.completions.create(**ask)).choices
    assert one == best
    assert found.usage.completion_tokens < found.model_extra["lmgym"]["generated_tokens"]
    by_b = client.chat.completions.create(**ask, n=2, extra_body={"lmgym": {"best_of": 8, "select": "b"}})
    assert by_b.model_extra["lmgym"]["selected_by"] == "b"
    rewards = sorted((choice.model_extra["lmgym"]["rewards"]["b"] for choice in every), reverse=True)
    assert [choice.model_extra["lmgym"]["rewards"]["b"] for choice in by_b.choices] == rewards[:2]


def test_a_blend_selects_by_the_weighted_sum_of_standardised_rewards(client) -> None:
    extra = {"lmgym": {"blend": {"a": 1, "b": -2}}}
    found = client.chat.completions.create(model="gpt2", messages=HELLO, n=8, seed=3, extra_body=extra)
    assert found.model_extra["lmgym"]["selected_by"] == "a=1 b=-2"
    columns = {name: [c.model_extra["lmgym"]["rewards"][name] for c in found.choices] for name in "ab"}
    z = {name: (np.array(column) - np.mean(column)) / np.std(column) for name, column in columns.items()}
    sums = (z["a"] - 2 * z["b"]).tolist()
    assert sums == sorted(sums, reverse=True)


def test_fields_that_change_nothing_are_ignored_and_named(client) -> None:
    more = {"user": "me", "store": False, "metadata": {"a": "b"}, "tool_choice": "auto", "presence_penalty": 0}
    found = client.chat.completions.create(model="llama", messages=HELLO, logprobs=False, **more)
    assert found.model_extra["lmgym"]["ignored"] == ["metadata", "store", "tool_choice", "user"]


def test_sampling_is_followed(client) -> None:
    greedy = client.chat.completions.create(model="gpt2", messages=HELLO, n=2, temperature=0, max_tokens=5)
    assert greedy.choices[0].message == greedy.choices[1].message
    assert greedy.model_extra["lmgym"]["best_of"] == 2  # equal ones are not generated eight times
    free = client.chat.completions.create(model="gpt2", messages=HELLO, seed=1, extra_body={"ignore_eos": True})
    assert (free.choices[0].finish_reason, free.usage.completion_tokens) == ("length", 12)
    text = free.choices[0].message.content
    stopped = client.chat.completions.create(
        model="gpt2", messages=HELLO, seed=1, stop=text[5:7], extra_body={"ignore_eos": True, "lmgym": {"best_of": 8}}
    )
    assert all(text[5:7] not in choice.message.content for choice in stopped.choices)
    assert stopped.choices[0].finish_reason == "stop"


def test_a_stream_has_the_chosen_replies_and_then_the_usage(client) -> None:
    ask = {"model": "llama", "messages": HELLO, "seed": 5, "n": 3}
    whole = client.chat.completions.create(**ask)
    chunks = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    for choice in whole.choices:
        own = [one for chunk in chunks for one in chunk.choices if one.index == choice.index]
        assert own[0].delta.role == "assistant"
        assert "".join(one.delta.content or "" for one in own) == choice.message.content
        assert own[-1].finish_reason == choice.finish_reason
        assert own[-1].model_extra["lmgym"] == choice.model_extra["lmgym"]
    assert chunks[-1].usage == whole.usage
    assert chunks[-2].model_extra["lmgym"] == whole.model_extra["lmgym"]
    assert all(chunk.usage is None for chunk in chunks[:-1])
    plain = list(client.chat.completions.create(**ask, stream=True))
    assert len(plain) == len(chunks) - 1


def test_answers_to_many_clients_at_once_are_those_to_each_alone(chat_server: RewardServer, client) -> None:
    async def ask_all() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=f"{chat_server.url}/v1", api_key="-", timeout=PATIENCE) as together:
            create = together.chat.completions.create
            return await asyncio.gather(
                *(create(model=("gpt2", "llama")[i % 2], messages=HELLO, seed=i, stream=False) for i in range(12))
            )

    for i, found in enumerate(asyncio.run(ask_all())):
        alone = client.chat.completions.create(model=("gpt2", "llama")[i % 2], messages=HELLO, seed=i)
        assert found.choices == alone.choices


def test_models_are_listed_with_their_weights_and_found_by_path(client, talkative_models) -> None:
    listed = client.models.list().data
    assert [model.id for model in listed] == ["gpt2", "llama"]
    assert client.models.retrieve("llama") == listed[1]
    about = listed[1].model_extra["lmgym"]
    assert (about["best_of"], about["scorers"]) == (8, ["a", "b"])
    assert about["models"]["generator"]["weights"]
    found = client.chat.completions.create(model=str(talkative_models["llama"]), messages=HELLO)
    assert found.model == "llama"
    assert found.model_extra["lmgym"]["models"] == about["models"]


def test_our_own_generator_talks_to_it(chat_server: RewardServer) -> None:
    generator = ServedGenerator(f"{chat_server.url}/v1", "llama", timeout=PATIENCE)
    conversations = [Conversation((Turn("user", f"hello {i}"),), "A friend.") for i in range(3)]
    replies = generator.reply(conversations, 4, Sampling(max_new_tokens=6, top_k=50, repetition_penalty=1.1, seed=2))
    assert [len(row) for row in replies] == [4, 4, 4]
    assert generator.reply(conversations, 4, Sampling(6, top_k=50, repetition_penalty=1.1, seed=2)) == replies
    assert generator.usage.requests == 6
    with pytest.raises(TooLong, match=r"the last message is at least [0-9,]+ tokens too long"):
        generator.reply([Conversation((Turn("user", "hello " * 300),))], 1, Sampling(6))


# --- messages


@pytest.mark.parametrize("messages", [
    [{"role": "developer", "content": "A friend."}, *HELLO],
    [{"role": "system", "content": [{"type": "text", "text": "A friend."}]}, *HELLO],
    [{"role": "system", "content": "A friend."}, {"role": "user", "content": "  hello there\n", "name": "x"}],
    [{"role": "system", "content": "A friend."},
     {"role": "user", "content": [{"type": "text", "text": "hello "}, {"type": "text", "text": "there"}]}],
])  # fmt: skip
def test_messages_in_other_forms_are_read(chat_server: RewardServer, messages: list) -> None:
    plain = [{"role": "system", "content": "A friend."}, *HELLO]
    answers = [chat_server.ask(COMPLETIONS, {"model": "gpt2", "messages": one, "seed": 1}) for one in (plain, messages)]
    assert [status for status, _, _ in answers] == [200, 200]
    (_, first, _), (_, second, _) = answers
    assert first["choices"] == second["choices"]
    assert first["usage"] == second["usage"]


def test_the_oldest_turns_of_a_long_conversation_are_left_out_and_that_is_said(chat_server: RewardServer) -> None:
    turns = [{"role": role, "content": f"turn {i}"} for i in range(5000) for role in ("user", "assistant")]
    status, answer, _ = chat_server.ask(COMPLETIONS, {"messages": [*turns, *HELLO], "seed": 1})
    assert status == 200, answer
    dropped = answer["lmgym"]["dropped_turns"]
    assert answer["lmgym"]["notes"][0].startswith(f"the {dropped:,} oldest turns were left out")
    assert 9000 < dropped < 10_001
    _, short, _ = chat_server.ask(COMPLETIONS, {"messages": [*turns[dropped:], *HELLO], "seed": 1})
    assert short["lmgym"]["dropped_turns"] == 0
    assert short["usage"]["prompt_tokens"] == answer["usage"]["prompt_tokens"]


CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
WRONG: dict[str, tuple[Any, int, str]] = {
    "not JSON": (b"{", 400, "not JSON"),
    "not UTF-8": (b'{"messages": [{"role": "user", "content": "\xff"}]}', 400, "not UTF-8"),
    "half a surrogate pair": (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', 400, "not UTF-8"),
    "NaN": (b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}', 400, "temperature=nan"),
    "a list": ([], 400, "the body"),
    "no messages": ({"model": "gpt2"}, 400, "messages: Field required"),
    "empty messages": ({"messages": []}, 400, "messages are empty"),
    "null content": ({"messages": [{"role": "user", "content": None}]}, 400, "message 1 has no content"),
    "an empty message": ({"messages": [{"role": "user", "content": " "}]}, 400, "the last message is empty"),
    "an image": ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "'image_url'"),
    "an unknown role": ({"messages": [{"role": "wizard", "content": "x"}]}, 400, "the role 'wizard'"),
    "a system message alone": ({"messages": [{"role": "system", "content": "x"}]}, 400, "is a system message"),
    "the assistant last": ({"messages": [*HELLO, {"role": "assistant", "content": "x"}]}, 400, "is the assistant's"),
    "a tool first": ({"messages": [{"role": "tool", "content": "3"}]}, 400, "the result of a tool"),
    "calls that the template leaves out": (
        {"messages": [*HELLO, {"role": "assistant", "content": None, "tool_calls": [CALL]}, *HELLO]},
        400,
        "leaves out calls of tools",
    ),
    "tools": ({"messages": HELLO, "tools": [CALL]}, 400, "tools is not supported"),
    "JSON mode": ({"messages": HELLO, "response_format": {"type": "json_object"}}, 400, "response_format is not"),
    "log-probabilities": ({"messages": HELLO, "logprobs": True}, 400, "logprobs is not supported"),
    "an unknown model": ({"messages": HELLO, "model": "gpt-4"}, 404, "no model 'gpt-4' is served; did you mean gpt2?"),
    "no replies": ({"messages": HELLO, "n": 0}, 400, "n=0; needed: 1 to 16"),
    "n above best_of": ({"messages": HELLO, "n": 9}, 400, "n=9 is above best_of=8; needed: lmgym.best_of of 9"),
    "n above the limit": ({"messages": HELLO, "n": 17}, 400, "n=17; needed: 1 to 16; the server's --max_best_of"),
    "best_of above the limit": ({"messages": HELLO, "lmgym": {"best_of": 17}}, 400, "best_of=17; needed: 1 to 16"),
    "an unknown scorer": (
        {"messages": HELLO, "lmgym": {"select": "c"}},
        400,
        "no scorer 'c' is served; needed: one of a, b",
    ),
    "an unknown weight": ({"messages": HELLO, "lmgym": {"blend": {"": 1}}}, 400, "no scorer '' is served"),
    "both": ({"messages": HELLO, "lmgym": {"select": "a", "blend": {"a": 1}}}, 400, "both select and blend"),
    "a misspelt setting": ({"messages": HELLO, "lmgym": {"bestof": 2}}, 400, "lmgym.bestof: Extra inputs"),
    "no tokens": ({"messages": HELLO, "max_tokens": 0}, 400, "max_tokens=0"),
    "more tokens than the context": ({"messages": HELLO, "max_tokens": 4096}, 400, "too long for the context of 256"),
    "a long message": ({"messages": [{"role": "user", "content": "word " * 500}]}, 400, "tokens too long beside"),
    "a long system message": (
        {"messages": [{"role": "system", "content": "word " * 500}, *HELLO]},
        400,
        "the system message is too long",
    ),
    "a negative seed": ({"messages": HELLO, "seed": -1}, 400, "seed=-1"),
    "an empty stop string": ({"messages": HELLO, "stop": [""]}, 400, "strings that are not empty"),
    "many stop strings": ({"messages": HELLO, "stop": ["x"] * 100}, 400, "at most 64"),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("stream", [False, True])
def test_a_wrong_request_is_refused_in_words(chat_server: RewardServer, case: str, stream: bool) -> None:
    body, expected, words = WRONG[case]
    if stream and not isinstance(body, dict):
        return
    status, answer, _ = chat_server.ask(COMPLETIONS, body | {"stream": True} if stream else body)
    assert status == expected, answer
    assert words in answer["error"]["message"]
    assert "\n" not in answer["error"]["message"]
    assert len(answer["error"]["message"]) < 300


def test_the_client_raises_its_own_errors_with_these_words(client) -> None:
    with pytest.raises(openai.NotFoundError, match="did you mean llama"):
        client.chat.completions.create(model="lama", messages=HELLO)
    with pytest.raises(openai.BadRequestError, match="messages are empty"):
        client.chat.completions.create(model="llama", messages=[], stream=True)
    with pytest.raises(openai.NotFoundError, match="no model 'x' is served"):
        client.models.retrieve("x")


# --- the server


def test_the_own_page_is_answered_and_health_readiness_and_metrics_are_told(chat_server: RewardServer) -> None:
    status, _, headers = chat_server.ask(COMPLETIONS, {"messages": HELLO}, Origin=chat_server.url)
    assert (status, "Access-Control-Allow-Origin" in headers) == (200, False)
    assert chat_server.ask("/health")[1]["status"] == "ok"
    assert chat_server.ask("/ready")[1] == {"status": "ready", "policies": ["gpt2", "llama"], "scorers": ["a", "b"]}
    assert chat_server.counted("lmgym_generated_tokens_total") > 0


@contextmanager
def waiting_clients(running: RewardServer, clients: int, replies: int) -> Iterator[list[Any]]:
    """Clients whose requests wait when the block begins, and when it has ended their answers: (status, JSON)."""
    body = {"messages": HELLO, "max_tokens": 200, "ignore_eos": True, "n": replies, "lmgym": {"best_of": replies}}
    answers: list[Any] = []
    ask = lambda: answers.append(running.ask(COMPLETIONS, body, Authorization="Bearer sesame")[:2])  # noqa: E731
    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    wait_until(lambda: queued(running) == clients)
    yield answers
    for thread in threads:
        thread.join(PATIENCE)


def queued(running: RewardServer) -> int:
    _, text, _ = running.ask("/metrics", Authorization="Bearer sesame")
    return int(text.partition("\nlmgym_queue_requests ")[2].partition("\n")[0])


def test_another_address_needs_a_token_and_ctrl_c_answers_what_waits(talkative_models, tmp_path: Path) -> None:
    policy = f"p={talkative_models['gpt2']}"
    options = ("--host", "0.0.0.0", "--sessions", tmp_path)
    running = start(policy, *options, kind="chat", launcher="python", LMGYM_TOKEN="sesame")
    try:
        running.url = f"http://127.0.0.1:{running.port}"
        with pytest.raises(openai.AuthenticationError, match="Authorization: Bearer TOKEN"):
            openai.OpenAI(base_url=f"{running.url}/v1", api_key="x", max_retries=0).models.list()
        known = openai.OpenAI(base_url=f"{running.url}/v1", api_key="sesame", max_retries=0)
        # without scorers every candidate is returned, in the order in which they came
        found = known.chat.completions.create(model="p", messages=HELLO, n=3, max_tokens=4)
        assert [c.model_extra["lmgym"]["rank"] for c in found.choices] == [None, None, None]
        assert [c.model_extra["lmgym"]["selected"] for c in found.choices] == [True, False, False]
        with waiting_clients(running, 1, 32) as answers:
            running.send(signal.SIGINT)
        assert [(status, len(answer["choices"])) for status, answer in answers] == [(200, 32)]
        assert running.wait() == 0
    finally:
        running.stop(signal.SIGKILL)


def test_a_second_ctrl_c_tells_every_client_and_ends(talkative_models, tmp_path: Path) -> None:
    running = start(f"p={talkative_models['gpt2']}", "--sessions", tmp_path, kind="chat")
    try:
        with waiting_clients(running, 8, 64) as answers:
            for _ in range(2):
                running.send(signal.SIGINT)
                time.sleep(0.5)  # two signals at once would be one
        assert len(answers) == 8
        stopped = [answer for status, answer in answers if status == 503]
        assert len(stopped) > 4
        assert {answer["error"]["message"] for answer in stopped} == {"the server stops; try again"}
        assert running.wait() == 0
    finally:
        running.stop(signal.SIGKILL)


def test_a_server_that_cannot_start_says_why(talkative_models, scorer_folders, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("LMGYM_TOKEN", "")

    def refused(*words: object) -> str:
        done = CliRunner().invoke(main, ["serve", "chat", *map(str, words), "--port", "0"])
        assert done.exit_code == 2, done.output
        return done.stderr.splitlines()[-1]

    policy, scorer = talkative_models["gpt2"], scorer_folders["gpt2"]
    assert "there is no token" in refused(policy, "--host", "0.0.0.0")
    assert "best_of=65: needed 1 to 64" in refused(policy, "--best_of", 65)
    assert "is not a model folder" in refused(tmp_path)
    said = refused(policy, "--scorers", f"a={scorer}", "--select_model", "b")
    assert "there is no scorer 'b' in --scorers; available: a" in said
    assert "max_tokens=0; needed: 1 to" in refused(policy, "--max_tokens", 0)
    assert "needed [name=]PATH" in refused(policy, "--scorers", "a=")


# --- while replies are generated


@pytest.fixture
def slow() -> tuple[ScriptedGenerator, Callable[[], None]]:
    """A policy whose replies wait until they are let go, and what lets them go."""
    free = threading.Event()

    def script(conversation, rng) -> str:
        assert free.wait(PATIENCE)
        return f"reply {rng.integers(10**6)}"

    return ScriptedGenerator(script), free.set


def test_a_stream_has_comments_until_the_reply_is_chosen(slow, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(chat_app, "KEEP_ALIVE_SECONDS", 0.05)
    policy, let_go = slow
    judges = {"length": FunctionScorer(lambda c, r: [float(len(x)) for x in r])}
    with serve_page({"slow": policy}, judges, tmp_path) as url:
        connection = http.client.HTTPConnection(url.partition("//")[2], timeout=PATIENCE)
        connection.request("POST", COMPLETIONS, json.dumps({"messages": HELLO, "stream": True}))
        answer = connection.getresponse()
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        lines = [answer.readline() for _ in range(6)]
        assert lines == [b": the replies are being generated and scored\n", b"\n"] * 3
        let_go()
        text = answer.read().decode()
        connection.close()
    assert text.endswith("data: [DONE]\n\n")
    rows = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    assert rows[1]["choices"][0]["delta"]["content"].startswith("reply ")


def test_a_thought_is_reasoning_content_beside_the_answer_whole_and_in_a_stream(tmp_path: Path) -> None:
    thinking = ScriptedGenerator(lambda conversation, rng: "<think>of a sea</think>\n\nThe Baltic.")
    with serve_page({"thinking": thinking}, {}, tmp_path) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0, timeout=PATIENCE)
        message = client.chat.completions.create(model="thinking", messages=HELLO).choices[0].message
        assert (message.content, message.model_extra["reasoning_content"]) == ("The Baltic.", "of a sea")
        stream = client.chat.completions.create(model="thinking", messages=HELLO, stream=True)
        deltas = [chunk.choices[0].delta for chunk in stream]
    assert [d.model_extra["reasoning_content"] for d in deltas if d.model_extra] == ["of a sea"]
    assert "".join(d.content or "" for d in deltas) == "The Baltic."


def test_a_failure_in_a_stream_is_an_error_of_the_client(tmp_path: Path, monkeypatch, slow) -> None:
    monkeypatch.setattr(chat_app, "KEEP_ALIVE_SECONDS", 0.05)

    def fail(conversations, replies):
        raise RuntimeError("out of memory")

    policy, let_go = slow
    with serve_page({"slow": policy, "fast": rambling("fast")}, {"broken": FunctionScorer(fail)}, tmp_path) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0, timeout=PATIENCE)
        stream = client.chat.completions.create(model="slow", messages=HELLO, stream=True)  # it has begun
        let_go()
        with pytest.raises(openai.APIError, match="the model failed: broken failed: RuntimeError: out of memory"):
            list(stream)
        with pytest.raises(openai.InternalServerError, match="out of memory") as raised:
            client.chat.completions.create(model="fast", messages=HELLO)
        assert raised.value.status_code == 503
        assert raised.value.response.headers["Retry-After"] == "5"


def test_what_a_client_that_left_had_asked_for_is_ended(chat_server: RewardServer) -> None:
    body = {"messages": HELLO, "max_tokens": 200, "ignore_eos": True, "lmgym": {"best_of": 16}}
    before = chat_server.counted("lmgym_abandoned_total")
    for stream in (False, True):
        client = openai.OpenAI(base_url=f"{chat_server.url}/v1", api_key="-", max_retries=0, timeout=0.2)
        extra = {name: body[name] for name in ("ignore_eos", "lmgym")}
        with pytest.raises(openai.APITimeoutError):
            client.chat.completions.create(
                model="llama", messages=HELLO, max_tokens=200, stream=stream, extra_body=extra
            )
    wait_until(lambda: chat_server.counted("lmgym_abandoned_total") == before + 2)
    wait_until(lambda: chat_server.counted("lmgym_queue_requests") == 0)
