"""A generator with a real server in another process, which answers well, badly or not at all."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from itertools import pairwise

import pytest
from patience import wait_until

from lmgym.distributed.ports import free_port
from lmgym.errors import InputError, ServerError
from lmgym.generation import model_server
from lmgym.generation.openai_server import SEED_STEP, ServedGenerator
from lmgym.generation.protocol import Sampling
from lmgym.generation.request_limits import RequestLimits
from lmgym.scoring.best_of_n import BestOfN
from lmgym.scoring.scorers import FunctionScorer
from lmgym.text import Conversation, Turn

HELLO = Conversation((Turn("user", "hello"),), persona="You are kind.")
OTHER = Conversation((Turn("user", "a"), Turn("bot", "b"), Turn("user", "other")))
KEY = "sk-never-to-be-seen-0123456789"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries without waiting, and no API key from the environment."""
    monkeypatch.setattr(model_server, "FIRST_WAIT", 0.01)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def texts(replies: list) -> list[list[str]]:
    return [[reply.text for reply in some] for some in replies]


def everything_said(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + repr(error) + repr(error.args)


def test_a_chat_is_sent_as_messages_and_n_replies_come_from_one_request(serve) -> None:
    server = serve("good")
    generator = ServedGenerator(server.url + "/", "tiny")
    replies = generator.reply([HELLO, OTHER], 3, Sampling(max_new_tokens=9, temperature=0.7, top_p=0.9, seed=5))
    assert texts(replies) == [[f"5.{i} to hello" for i in range(3)], [f"6.{i} to other" for i in range(3)]]
    assert {reply.finish_reason for some in replies for reply in some} == {"eos"}
    first, second = sorted(server.requests, key=lambda row: row["body"]["seed"])
    assert first["path"] == second["path"] == "/v1/chat/completions"
    assert first["authorization"] is None
    assert first["body"] == {
        "model": "tiny",
        "messages": [{"role": "system", "content": "You are kind."}, {"role": "user", "content": "hello"}],
        "max_tokens": 9, "temperature": 0.7, "top_p": 0.9, "n": 3, "seed": 5, "stream": False,
    }  # fmt: skip
    assert [row["role"] for row in second["body"]["messages"]] == ["user", "assistant", "user"]


def test_completions_get_the_flat_transcript_and_every_setting(serve) -> None:
    server = serve("good")
    sampling = Sampling(top_k=40, repetition_penalty=1.1, stop=("\n", "Human:"), ends_at_eos=False, seed=1)
    assert texts(ServedGenerator(server.url, "tiny", api="completions").reply([HELLO], 1, sampling)) == [
        ["1.0 to User: hello"]
    ]
    (row,) = server.requests
    assert row["path"] == "/v1/completions"
    assert row["body"]["prompt"] == "You are kind.\nUser: hello\nBot:"
    assert (row["body"]["top_k"], row["body"]["repetition_penalty"]) == (40, 1.1)
    assert row["body"]["stop"] == ["\n", "Human:"]
    assert row["body"]["ignore_eos"] is True


@pytest.mark.parametrize(("mode", "in_one"), [("ignores_n", True), ("at_most_2", True), ("good", False)])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_n_replies_come_back_from_requests_of_different_seeds(serve, mode: str, in_one: bool, n: int) -> None:
    server = serve(mode)
    replies = ServedGenerator(server.url, "tiny", n_in_one_request=in_one).reply([HELLO, OTHER], n, Sampling(seed=7))
    assert [len(set(some)) for some in texts(replies)] == [n, n]
    assert len(set(server.seeds)) == len(server.seeds)
    each = -(-n // 2) if mode == "at_most_2" else n
    assert sorted(server.seeds) == sorted(7 + i + j * SEED_STEP for i in range(2) for j in range(each))


def test_replies_are_in_the_order_of_their_requests_and_surplus_ones_are_left_out(serve) -> None:
    replies = ServedGenerator(serve("ignores_n").url, "tiny").reply([HELLO], 6, Sampling(seed=7))
    assert texts(replies) == [[f"{7 + j * SEED_STEP}.0 to hello" for j in range(6)]]
    replies = ServedGenerator(serve("gives_more").url, "tiny").reply([HELLO], 3, Sampling())
    assert texts(replies) == [[f"0.{j} to hello" for j in range(3)]]


def test_a_conversation_gets_alone_what_it_gets_among_others_and_the_second_time(serve) -> None:
    generator = ServedGenerator(serve("ignores_n").url, "tiny", limits=RequestLimits(3))
    both = generator.reply([HELLO, OTHER], 4, Sampling(seed=7))
    assert generator.reply([OTHER], 4, Sampling(seed=8)) == both[1:]
    assert generator.reply([HELLO, OTHER], 4, Sampling(seed=7)) == both


def test_a_server_that_ignores_n_gets_one_request_a_reply_from_then_on(serve) -> None:
    server = serve("ignores_n")
    generator = ServedGenerator(server.url, "tiny")
    generator.reply([HELLO], 3, Sampling())
    generator.reply([HELLO], 3, Sampling())
    assert [row["body"]["n"] for row in server.requests] == [3, 1, 1, 1, 1, 1]


def test_greedy_replies_are_requested_once(serve) -> None:
    server = serve("good")
    calls: list = []
    generator = ServedGenerator(server.url, "tiny")
    replies = generator.reply([HELLO], 4, Sampling(temperature=0), lambda *p: calls.append(p))
    assert texts(replies) == [["0.0 to hello"] * 4]
    assert [row["body"]["n"] for row in server.requests] == [1]
    assert calls == [(4, 4)]


def test_seeds_stay_within_31_bits(serve) -> None:
    server = serve("good")
    ServedGenerator(server.url, "tiny", n_in_one_request=False).reply([HELLO], 3, Sampling(seed=2**40 - 1))
    ServedGenerator(server.url, "tiny").reply([HELLO], 3, Sampling(seed=2**64 - 1))
    assert all(0 <= seed < 2**31 for seed in server.seeds)
    assert server.seeds[-1] == 2**31 - 1


def test_progress_counts_replies(serve) -> None:
    calls: list = []
    ServedGenerator(serve("ignores_n").url, "tiny").reply([HELLO, OTHER], 3, Sampling(), lambda *p: calls.append(p))
    assert calls == [(done, 6) for done in range(1, 7)]


def test_tokens_are_the_servers_count_for_one_reply(serve) -> None:
    url = serve("good").url
    assert [r.tokens for r in ServedGenerator(url, "m", n_in_one_request=False).reply([HELLO], 2, Sampling())[0]] == [
        7,
        7,
    ]
    assert [r.tokens for r in ServedGenerator(url, "m").reply([HELLO], 2, Sampling())[0]] == [0, 0]


def test_text_ends_before_the_first_stop_string_even_if_the_servers_does_not(serve) -> None:
    sampling = Sampling(stop=("so on", "\nUser:"))
    (reply,) = ServedGenerator(serve("goes_past_stops").url, "tiny").reply([HELLO], 1, sampling)[0]
    assert (reply.text, reply.finish_reason) == ("0.0 to hello", "stop")


def test_finish_reasons_are_translated(serve) -> None:
    def reasons(mode: str, stop: tuple[str, ...]) -> list[str]:
        replies = ServedGenerator(serve(mode).url, "tiny").reply([HELLO], 2, Sampling(stop=stop))
        return [reply.finish_reason for reply in replies[0]]

    assert reasons("too_long", ("\n",)) == ["length", "length"]
    assert reasons("good", ()) == ["eos", "eos"]  # nothing was there to stop at
    assert reasons("good", ("\n",)) == ["stop", "stop"]  # the server's word; it cuts the stop string off
    assert reasons("says_why", ("\n",)) == ["eos", "stop"]


def test_half_a_surrogate_pair_becomes_a_question_mark(serve) -> None:
    (reply,) = ServedGenerator(serve("half_a_surrogate").url, "tiny").reply([HELLO], 1, Sampling())[0]
    assert reply.text == "? and \x1b[2J"  # what is shown is made harmless where it is shown


def test_best_of_n_chooses_among_replies_of_a_server(serve) -> None:
    def places(_: object, replies: Sequence[str]) -> list[float]:
        return [float(reply.split(" ")[0].split(".")[1]) for reply in replies]

    best = BestOfN(ServedGenerator(serve("good").url, "tiny"), FunctionScorer(places), n=4)
    assert texts(best.reply([HELLO, OTHER], 2, Sampling())) == [
        ["0.3 to hello", "0.7 to hello"],
        ["1.3 to other", "1.7 to other"],
    ]


@pytest.mark.parametrize("mode", ["busy_then_good", "breaks_then_good"])
def test_a_busy_or_failing_server_is_retried_after_the_wait_it_asks_for(serve, mode: str) -> None:
    server = serve(mode)
    assert texts(ServedGenerator(server.url, "tiny").reply([HELLO], 1, Sampling())) == [["0.0 to hello"]]
    first, second = server.requests
    assert first["body"] == second["body"]
    assert 0.25 < second["time"] - first["time"] < 10  # Retry-After: 0.3


@pytest.mark.parametrize("api", ["chat", "completions"])
@pytest.mark.parametrize("mode", ["not_json", "no_choices", "empty_choices", "null_content", "a_list", "deep"])
def test_invalid_answers_are_retried_and_then_reported(serve, mode: str, api) -> None:
    server = serve(mode)
    with pytest.raises(ServerError, match=r"no usable answer in 3 tries.*makes no sense.*needed: ") as raised:
        ServedGenerator(server.url, "tiny", api=api, retries=2).reply([HELLO], 2, Sampling())
    assert server.url in str(raised.value)
    assert len(str(raised.value)) < 1000
    assert len(server.requests) == 3


def test_a_server_that_dies_in_the_middle_is_reported_and_the_next_one_answers(serve) -> None:
    server = serve("dies")
    generator = ServedGenerator(server.url, "tiny", retries=2)
    with pytest.raises(ServerError, match=r"in 3 tries.*ConnectionRefused"):
        generator.reply([HELLO], 2, Sampling())
    assert server.process.wait(10) == 1
    assert len(server.requests) == 1
    assert texts(ServedGenerator(serve("good").url, "tiny").reply([HELLO], 1, Sampling())) == [["0.0 to hello"]]


def test_a_server_that_dies_among_many_requests_ends_all_of_them(serve) -> None:
    server = serve("dies_later")
    calls: list = []
    generator = ServedGenerator(server.url, "tiny", n_in_one_request=False, retries=1, limits=RequestLimits(2))
    with pytest.raises(ServerError):
        generator.reply([HELLO], 50, Sampling(), lambda *p: calls.append(p))
    assert calls[:1] == [(1, 50)]
    assert len(server.requests) <= 4
    no_threads_are_left()


def no_threads_are_left() -> None:
    wait_until(lambda: not any(thread.name == "model-server" for thread in threading.enumerate()), seconds=10)


@pytest.mark.parametrize("mode", ["stalls", "trickles"])
def test_a_server_that_stalls_times_out(serve, mode: str) -> None:
    server = serve(mode)
    start = time.monotonic()
    with pytest.raises(ServerError, match=r"in 2 tries.*no answer within timeout=0.2 s"):
        ServedGenerator(server.url, "tiny", timeout=0.2, retries=1).reply([HELLO], 1, Sampling())
    assert 0.4 <= time.monotonic() - start < 8
    while len(server.requests) < 2:  # it may not have had the time to write down what it read
        assert time.monotonic() - start < 8
        time.sleep(0.01)
    assert len(server.requests) == 2


def test_a_server_that_does_not_run_is_reported() -> None:
    url = f"http://127.0.0.1:{free_port()}/v1"
    with pytest.raises(ServerError, match=r"in 1 tries.*ConnectionRefused.*/v1/models"):
        ServedGenerator(url, "tiny", retries=0).reply([HELLO], 1, Sampling())


def test_waits_between_tries_double_up_to_a_bound(serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_server, "FIRST_WAIT", 0.1)
    monkeypatch.setattr(model_server, "LONGEST_WAIT", 0.2)
    server = serve("not_json")
    with pytest.raises(ServerError, match="in 7 tries"):
        ServedGenerator(server.url, "tiny", retries=6).reply([HELLO], 1, Sampling())
    waits = [later["time"] - earlier["time"] for earlier, later in pairwise(server.requests)]
    assert all(wait > least for wait, least in zip(waits, (0.1, *[0.2] * 5), strict=True))
    assert waits[-1] < 2, "3.2 without a bound"


WAITING = """
import signal, sys, threading, time
from lmgym.generation import model_server
from lmgym.generation.openai_server import ServedGenerator
from lmgym.generation.protocol import Sampling
from lmgym.text import Conversation, Turn

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
model_server.FIRST_WAIT = model_server.LONGEST_WAIT = 600
try:
    generator = ServedGenerator(sys.argv[1], "tiny", n_in_one_request=False)
    generator.reply([Conversation((Turn("user", "hello"),))], 20, Sampling())
except KeyboardInterrupt:
    end = time.monotonic() + 10
    while any(thread.name == "model-server" for thread in threading.enumerate()) and time.monotonic() < end:
        time.sleep(0.02)
    print("left", [thread.name for thread in threading.enumerate()])
"""


@pytest.mark.parametrize("mode", ["stalls", "not_json"])
def test_ctrl_c_leaves_at_once_from_an_answer_and_from_a_wait(serve, mode: str) -> None:
    server = serve(mode)
    child = subprocess.Popen([sys.executable, "-c", WAITING, server.url], stdout=subprocess.PIPE, text=True)
    wait_until(lambda: server.record.exists() and server.record.read_text().count("\n") >= 8)
    time.sleep(0.2)
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=20)[0] == "left ['MainThread']\n"
    assert child.returncode == 0
    assert len(server.requests) == 8


def test_a_server_without_top_k_refuses_it_once_and_is_not_asked_again(serve) -> None:
    server = serve("refuses_top_k")
    generator = ServedGenerator(server.url, "tiny")
    for _ in range(2):
        with pytest.raises(InputError, match=r"refused a request.*needed: a sampling without top_k=5"):
            generator.reply([HELLO], 2, Sampling(top_k=5, repetition_penalty=1.2))
    assert len(server.requests) == 1
    assert len(generator.reply([HELLO], 2, Sampling(repetition_penalty=1.2))[0]) == 2


@pytest.mark.parametrize("concurrency", [1, 8])
def test_a_server_that_refuses_seeds_is_asked_without_from_then_on(serve, concurrency: int, capsys) -> None:
    server = serve("refuses_seed")
    generator = ServedGenerator(server.url, "tiny", limits=RequestLimits(concurrency))
    for _ in range(2):
        assert texts(generator.reply([HELLO], 2, Sampling(temperature=0.5))) == [["None.0 to hello", "None.1 to hello"]]
    assert ["seed" in row["body"] for row in server.requests] == [True, False, False]
    assert capsys.readouterr().err.count("takes no seed") == 1


def test_an_organization_goes_with_the_key_and_none_without(serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_ORG_ID", "org-of-the-client")
    server = serve("good")
    for organization in ("", "org-1"):
        ServedGenerator(server.url, "tiny", organization=organization).reply([HELLO], 1, Sampling())
    assert [row["headers"].get("openai-organization") for row in server.requests] == [None, "org-1"]
    with pytest.raises(InputError, match="organization 'a b'; needed: visible ASCII"):
        ServedGenerator(server.url, "tiny", organization="a b")


def test_other_refusals_are_not_retried_and_the_message_says_what_to_do(serve) -> None:
    for mode, words in (("no_such_model", "no such model.*in /v1"), ("redirects", "127.0.0.1:1/v1.*redirects to")):
        server = serve(mode)
        with pytest.raises(InputError, match=f"refused a request for 'tiny'.*{words}"):
            ServedGenerator(server.url, "tiny").reply([HELLO], 1, Sampling())
        assert len(server.requests) == 1


def test_the_key_goes_from_its_variable_into_the_header_alone(serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve("checks_key")
    monkeypatch.setenv("MY_KEY", "sk-right\n")  # as `export MY_KEY=$(cat file)` in some shells leaves it
    generator = ServedGenerator(server.url, "tiny", key_variable="MY_KEY")
    assert texts(generator.reply([HELLO], 1, Sampling())) == [["0.0 to hello"]]
    (row,) = server.requests
    assert row["authorization"] == "Bearer sk-right"
    assert "sk-right" not in json.dumps(row["body"]) + repr(generator) + repr(vars(generator))


@pytest.mark.parametrize(
    ("mode", "kind"), [("checks_key", InputError), ("echoes_key_and_breaks", ServerError), ("dies", ServerError)]
)
def test_no_error_shows_the_key_or_drives_the_terminal(serve, mode: str, kind, monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    generator = ServedGenerator(serve(mode).url, "tiny", retries=1)
    with pytest.raises(kind) as raised:
        generator.reply([HELLO], 1, Sampling())
    said = everything_said(raised.value)
    assert all(KEY[:length] not in said for length in (12, len(KEY)))
    assert str(raised.value).isprintable()
    assert KEY not in repr(generator) + repr(vars(generator))
    if mode != "dies":
        assert "(the key)" in said  # the server did send it back


def test_a_key_with_a_line_break_is_refused_without_showing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY + "\r\nX: y")
    with pytest.raises(InputError, match="OPENAI_API_KEY has characters") as raised:
        ServedGenerator("http://localhost/v1", "tiny")
    assert KEY not in everything_said(raised.value)


@pytest.mark.parametrize(
    "host", ["10.0.0.1", "localhost.evil.example", "0.0.0.0", "127.0.0.1.evil.example", "[fe80::1]"]
)
def test_a_key_is_not_sent_over_http_to_another_machine(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"http://{host}:8000/v1"
    keyless = ServedGenerator(url, "tiny")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    for attempt in (lambda: ServedGenerator(url, "tiny"), lambda: keyless.reply([HELLO], 1, Sampling())):
        with pytest.raises(InputError, match=r"not encrypted.*https") as raised:
            attempt()
        assert KEY not in everything_said(raised.value)
    ServedGenerator(url, "tiny", key_variable="")
    ServedGenerator(url.replace("http:", "https:"), "tiny")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.8.8", "[::1]", "LOCALHOST"])
def test_a_key_may_go_to_this_machine(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert ServedGenerator(f"http://{host}:8000/v1", "tiny")._servers[0].key() == KEY


@pytest.mark.parametrize(
    "url",
    ["localhost:8000", "ftp://localhost", "http://", "http://me:secret@localhost/v1", "http://localhost/v1?k=secret",
     "http://localhost:x/v1", "http://localhost:99999", "http://a b/v1", "http://a..b/v1", "http://localhost/\n", ""],
)  # fmt: skip
def test_an_invalid_address_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(InputError, match="needed: such as http://localhost:8000/v1") as raised:
        ServedGenerator(url, "tiny")
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("wrong", [{"api": "responses"}, {"timeout": 0}, {"timeout": float("nan")}, {"retries": -1}])
def test_invalid_settings_are_refused(wrong: dict) -> None:
    with pytest.raises(InputError, match=f"{next(iter(wrong))}=.*needed"):
        ServedGenerator("http://localhost/v1", "tiny", **wrong)


def test_no_replies_are_refused_and_no_conversations_answered(serve) -> None:
    server = serve("good")
    generator = ServedGenerator(server.url, "tiny")
    with pytest.raises(InputError, match="n=0 replies"):
        generator.reply([HELLO], 0, Sampling())
    assert generator.reply([], 3, Sampling()) == []
    assert server.requests == []
    assert os.environ.get("OPENAI_API_KEY") is None
