"""A judge behind OpenAI's interface, on loopback: its answer to a prompt is a function, its faults are chosen."""

import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType

from lmgym.generation.model_server import Usage
from lmgym.scoring.comparing_judge import ComparingJudge
from lmgym.scoring.label_probabilities import Reading
from lmgym.scoring.verdict_cache import VerdictCache
from lmgym.scoring.verdicts import Verdicts
from lmgym.text import Conversation

Places = Sequence[Mapping[str, float]]
"""probabilities of tokens at each place of a reply; the likeliest of each are written"""


class JudgeServer:
    """`answer(prompt, begun)` is the reply to a prompt, or how it goes on from what is begun."""

    def __init__(
        self,
        answer: Callable[[str, str], Places],
        logprobs: bool = True,
        most_logprobs: int = 20,
        vllm: bool = False,
        dies_after: int | None = None,
        slow: float = 0.0,
        lie: float | None = None,
        fault: Callable[[int, dict], tuple[int, dict, dict[str, str]] | None] = lambda number, body: None,
    ) -> None:
        self.answer, self.logprobs, self.most_logprobs, self.vllm = answer, logprobs, most_logprobs, vllm
        self.dies_after, self.slow, self.lie, self.fault = dies_after, slow, lie, fault
        self.finish: Callable[[dict, Places], str] = lambda body, places: "stop"
        self.bodies: list[dict] = []
        self.requests = self.answered = self.together = self.most_together = 0
        self.lock = threading.Lock()
        judge = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                row = {"id": "tiny", "owned_by": "vllm" if judge.vllm else "tests", "root": "tests/tiny"}
                self.give(200, {"object": "list", "data": [row]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with judge.lock:
                    judge.together += 1
                    judge.most_together = max(judge.most_together, judge.together)
                time.sleep(judge.slow)
                fault = judge.fault(judge.count(), body)
                if fault is not None:
                    with judge.lock:
                        judge.together -= 1
                    self.give(*fault)
                    return
                status, content = judge.respond(body)
                with judge.lock:
                    judge.together -= 1
                if status:
                    self.give(status, content)
                else:
                    self.close_connection = True

            def give(self, status: int, content: dict, headers: Mapping[str, str] = MappingProxyType({})) -> None:
                data = json.dumps(content).encode()
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                """Silent."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()  # how soon it stops

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    @property
    def spec(self) -> str:
        return f"vllm:{self.url}" if self.vllm else f"openai:{self.url}/v1#tiny"

    @property
    def asked(self) -> int:
        """Requests for verdicts, without the trial of a load."""
        return sum("this number alone: 7" not in str(body) for body in self.bodies)

    def count(self) -> int:
        """The number of this request, from 0; refused ones count too."""
        with self.lock:
            self.requests += 1
            return self.requests - 1

    def respond(self, body: dict) -> tuple[int, dict]:
        with self.lock:
            if self.dies_after is not None and self.answered >= self.dies_after:
                return 0, {}
            self.bodies.append(body)
            if body.get("top_logprobs", 0) > self.most_logprobs:
                return 400, {"error": {"message": f"top_logprobs must be at most {self.most_logprobs}"}}
            self.answered += 1
        begun = body["messages"].pop()["content"] if body.get("continue_final_message") else ""
        prompt = body["messages"][-1]["content"]
        places = [{"7": 1.0}] if "this number alone: 7" in prompt else self.answer(prompt, begun)
        text = "".join(max(place, key=place.__getitem__) for place in places[: body["max_tokens"]])
        usage = {"prompt_tokens": 100, "completion_tokens": 1}
        if "n" not in body:  # as Anthropic's clients ask
            told = {"input_tokens": 100, "output_tokens": 1}
            return 200, {"content": [{"type": "text", "text": text}], "stop_reason": "end_turn", "usage": told}
        finish = self.finish(body, places)
        choice: dict = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": text}}
        if self.logprobs and body.get("logprobs"):
            choice["logprobs"] = {"content": [self.listed(place) for place in places[: body["max_tokens"]]]}
        return 200, {"choices": [choice], "usage": usage}

    def listed(self, place: Mapping[str, float]) -> dict:
        tops = [{"token": t, "logprob": math.log(p) if self.lie is None else self.lie} for t, p in place.items()]
        return {"token": max(place, key=place.__getitem__), "logprob": 0.0, "top_logprobs": tops}

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def fenced(prompt: str, what: str) -> str:
    """The text in the fence of a judge's prompt."""
    match = re.search(rf"<({what}-[0-9a-f]{{8}})>\n(.*)\n</\1>", prompt, re.DOTALL)
    assert match
    return match[2]


class RuleModel:
    """A judge's model without a server: P of A is a function of both replies; None is no verdict."""

    identity, continues, tokens, reasons, limits, by_batch = "tests", False, 16, False, None, False

    def __init__(self, rule: Callable[[str, str], float | None]) -> None:
        self.rule, self.usage, self.asked = rule, Usage(), 0

    def ask(self, conversations: Sequence[Conversation], labels: Sequence[str], each: Callable) -> None:
        for number, conversation in enumerate(conversations):
            prompt = conversation.turns[-1].text
            p = self.rule(fenced(prompt, "reply-A"), fenced(prompt, "reply-B"))
            each(number, Reading("", {} if p is None else {"A": p, "B": 1 - p}))
        self.asked += len(conversations)

    def go_on(self, *_: object) -> None:
        raise AssertionError("does not continue")


def comparing_judge(rule: Callable[[str, str], float | None], cache: Path) -> ComparingJudge:
    """A judge that compares by a rule."""
    return ComparingJudge(Verdicts(RuleModel(rule), VerdictCache(cache / "verdicts.sqlite")))


@contextmanager
def judge_servers() -> Iterator[Callable[..., JudgeServer]]:
    """A function that starts a JudgeServer of its arguments; all of them stop at the end."""
    started: list[JudgeServer] = []

    def start(*words, **settings) -> JudgeServer:
        started.append(JudgeServer(*words, **settings))
        return started[-1]

    try:
        yield start
    finally:
        for server in started:
            server.stop()
