"""Batch interfaces over loopback: what is sent, waited for across a restart, and read; and batches that fail."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lmgym.errors import InputError, ServerError
from lmgym.generation import batches
from lmgym.scoring.comparing_judge import ComparingJudge
from lmgym.scoring.judge_models import load_judge_model
from lmgym.scoring.judge_settings import JudgeConfig
from lmgym.scoring.llm_judge import GradingJudge
from lmgym.scoring.verdict_cache import VerdictCache
from lmgym.scoring.verdicts import Verdicts
from lmgym.text import Conversation, Turn

ASKED = [Conversation((Turn("user", f"question {i}"),)) for i in range(6)]
REPLIES = ["word " * (1 + i) for i in range(6)]


class BatchServer:
    """Both interfaces; a batch ends at its third look, and answers with the number of words of each reply."""

    def __init__(self) -> None:
        self.batches: dict[str, list[tuple[str, dict]]] = {}
        self.files: dict[str, list[tuple[str, dict]]] = {}
        self.looks = self.direct = 0
        self.status, self.without = "completed", ""
        own = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.give(own.found(self.path))

            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["Content-Length"]))
                self.give(own.sent(self.path, data))

            def give(self, content: bytes) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """Silent."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def sent(self, path: str, data: bytes) -> bytes:
        if path.endswith("/files"):
            lines = [json.loads(line) for line in data.decode().splitlines() if line.startswith('{"custom_id"')]
            self.files["f"] = [(row["custom_id"], row["body"]) for row in lines]
            return b'{"id": "f"}'
        body = json.loads(data)
        if path.endswith("/v1/batches"):
            self.batches[f"b{len(self.batches)}"] = self.files[body["input_file_id"]]
            return json.dumps({"id": f"b{len(self.batches) - 1}"}).encode()
        if path.endswith("/messages/batches"):
            self.batches["b0"] = [(row["custom_id"], row["params"]) for row in body["requests"]]
            return b'{"id": "b0"}'
        self.direct += 1
        return json.dumps(self.answer(body, path)).encode()

    def answer(self, body: dict, path: str = "chat/completions") -> dict:
        prompt = body["messages"][-1]["content"]
        said = (
            "7"
            if "this number alone: 7" in prompt
            else f"[[{prompt.split('</reply-')[0].rsplit('>', 1)[1].count('word')}]]"
        )
        if "chat" not in path:
            usage = {"input_tokens": 100, "output_tokens": 1}
            return {"content": [{"type": "text", "text": said}], "stop_reason": "end_turn", "usage": usage}
        usage = {"prompt_tokens": 100, "completion_tokens": 1}
        return {"choices": [{"index": 0, "finish_reason": "stop", "message": {"content": said}}], "usage": usage}

    def found(self, path: str) -> bytes:
        name = path.split("/")[-1].split("?")[0]
        if path.endswith("/models"):
            return b'{"data": [{"id": "tiny"}]}'
        if path.endswith(("/content", "/results")):
            rows = self.batches[max(self.batches)]
            kept = [(key, body) for key, body in rows if not self.without or self.without not in str(body)]
            if path.endswith("/content"):
                answers = [{"custom_id": k, "response": {"status_code": 200, "body": self.answer(b)}} for k, b in kept]
            else:
                answers = [
                    {"custom_id": k, "result": {"type": "succeeded", "message": self.answer(b, "messages")}}
                    for k, b in kept
                ]
            return "\n".join(map(json.dumps, answers[::-1])).encode()
        self.looks += 1
        ended = self.looks >= 3
        found = {"id": name, "status": self.status if ended else "in_progress"}
        found |= {"processing_status": "ended" if ended else "in_progress"}
        return json.dumps(found | ({"output_file_id": "o"} if ended and self.status == "completed" else {})).encode()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[BatchServer]:
    monkeypatch.setattr(batches, "FIRST_LOOK", 0.02)
    running = BatchServer()
    yield running
    running.server.shutdown()


def judge_of(spec: str, folder: Path, **settings: object) -> GradingJudge:
    config = JudgeConfig(batch=True, **settings)  # type: ignore[arg-type]
    return GradingJudge(Verdicts(load_judge_model(spec, config), VerdictCache(folder / "verdicts.sqlite")))


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_all_questions_are_one_batch_whose_verdicts_are_those_of_single_requests(server, tmp_path, kind: str) -> None:
    spec = f"openai:{server.url}/v1#tiny" if kind == "openai" else f"anthropic:{server.url}#tiny"
    judge = judge_of(spec, tmp_path, prices="10,10")
    before = server.direct
    judge.announce(ASKED, [[reply] for reply in REPLIES])
    assert judge.score(ASKED, REPLIES).tolist() == [1, 2, 3, 4, 5, 6]
    assert (len(server.batches), server.direct) == (1, before), "nothing is asked one by one"
    [rows] = server.batches.values()
    assert all("custom_id" not in body and "extra_body" not in body and body["model"] == "tiny" for _, body in rows)
    limits = judge.verdicts.model.limits
    assert limits is not None
    assert limits.spending is not None
    assert limits.spending.spent == pytest.approx(7 * 101 * 10 / 1e6), "the trial and six answers"
    assert json.loads((tmp_path / "batches.json").read_text()) == {}


def test_a_batch_that_was_sent_is_waited_for_by_the_next_process_and_not_sent_again(server, tmp_path, capsys) -> None:
    spec = f"openai:{server.url}/v1#tiny"
    looked = server.found

    def dies(path: str) -> bytes:
        if "/batches/" in path:
            raise ConnectionResetError
        return looked(path)

    server.found = dies
    with pytest.raises(ServerError):
        judge_of(spec, tmp_path).announce(ASKED, [[reply] for reply in REPLIES])
    [kept] = json.loads((tmp_path / "batches.json").read_text()).values()
    assert kept == "b0"
    server.found = looked
    judge = judge_of(spec, tmp_path)
    judge.announce(ASKED, [[reply] for reply in REPLIES])
    assert judge.score(ASKED, REPLIES).tolist() == [1, 2, 3, 4, 5, 6]
    assert len(server.batches) == 1
    assert "batch b0 has these 6 questions already" in capsys.readouterr().err


def test_a_question_without_an_answer_is_asked_by_itself_afterwards(server, tmp_path) -> None:
    server.without = "question 3"
    judge = judge_of(f"openai:{server.url}/v1#tiny", tmp_path)
    before = server.direct
    judge.announce(ASKED, [[reply] for reply in REPLIES])
    assert judge.score(ASKED, REPLIES).tolist() == [1, 2, 3, 4, 5, 6]
    assert server.direct == before + 1


def test_a_batch_that_fails_or_costs_too_much_and_a_server_without_batches_are_refused(server, tmp_path) -> None:
    server.status = "failed"
    spec = f"openai:{server.url}/v1#tiny"
    with pytest.raises(ServerError, match=r"batch b0 has no answer \(.*failed.*\); needed: the same command"):
        judge_of(spec, tmp_path).announce(ASKED, [[reply] for reply in REPLIES])
    judge = judge_of(spec, tmp_path, prices="1000,1000", max_cost=20.0)
    with pytest.raises(ServerError, match="the next request may cost"):
        judge.announce(ASKED, [[reply] for reply in REPLIES])
    assert len(server.batches) == 1
    with pytest.raises(InputError, match="--batch with a model of local"):
        load_judge_model(str(tmp_path), JudgeConfig(batch=True))


def test_a_command_that_asks_as_it_goes_refuses_a_batch_before_it_asks(server, tmp_path) -> None:
    judge = judge_of(f"openai:{server.url}/v1#tiny", tmp_path)
    before = server.direct
    with pytest.raises(InputError, match="this command asks as it goes; needed: lmgym score, judge or agree"):
        judge.score(ASKED, REPLIES)
    assert server.direct == before


def test_replies_that_meet_in_rounds_are_no_batch(server, tmp_path) -> None:
    model = load_judge_model(f"openai:{server.url}/v1#tiny", JudgeConfig(batch=True))
    judge = ComparingJudge(Verdicts(model, VerdictCache(tmp_path / "verdicts.sqlite")))
    with pytest.raises(InputError, match="--batch with 7 replies to a prompt, which meet in rounds"):
        judge.announce(ASKED[:1], [[f"reply {i}" for i in range(7)]])
    assert not server.batches
