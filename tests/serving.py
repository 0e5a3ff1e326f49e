"""A server of the tests' own that speaks OpenAI's interface, well or badly: `python serving.py FOLDER`.

Prints its port. A request to /MODE.NAME/v1/... is answered as the mode says, and the request is a line of
FOLDER/MODE.NAME.jsonl: path, body, headers, authorization, and when it came. A reply's text names its seed
and its place among the choices, and the conversation's last line.
"""

import json
import math
import os
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FOLDER = sys.argv[1]
FAILS_FIRST = {"busy_then_good": 429, "breaks_then_good": 500}
REFUSES = {
    "refuses_top_k": (400, "unrecognized request argument: top_k"),
    "no_such_model": (404, "no such model"),
    "refuses_seed": (400, 'Invalid JSON payload received. Unknown name "seed": Cannot find field.'),
}
NAMED = {"refuses_top_k": "top_k", "refuses_seed": "seed"}  # fmt: skip
"""the field that a mode refuses"""
READS_CHARACTERS = 100
TOO_LONG = f"This model's maximum context length is {READS_CHARACTERS}. However, you requested more"
lock = threading.Lock()
requests: Counter = Counter()


def choices(mode: str, body: dict) -> list[dict]:
    count = {"ignores_n": 1, "at_most_2": min(2, body["n"]), "gives_more": body["n"] + 2}.get(mode, body["n"])
    last = body["messages"][-1]["content"] if "messages" in body else body["prompt"].splitlines()[-2]
    rows = []
    for index in range(count):
        text = f"{body.get('seed')}.{index} to {last}"
        row = {"index": index, "finish_reason": "stop"}
        if mode == "goes_past_stops":
            text, row["finish_reason"] = text + "\nUser: and so on", "length"
        if mode == "says_why":
            row["stop_reason"] = body["stop"][0] if index else None
        if mode == "too_long":
            row["finish_reason"] = "length"
        if mode == "names_a_debater":
            text = "Debater_A"
            row["logprobs"] = likely(body)
        if mode == "echoes_key":
            text = f"you sent {body['authorization']}"
        if mode == "copies":
            text = "the same words, whatever the seed and the temperature are"
        if mode == "vllm":
            row["token_ids"] = list(range(3 + index))
        if mode == "logprobs" and body.get("logprobs"):
            row["logprobs"] = {"content": [{"token": "a", "logprob": -0.5, "top_logprobs": []}] * (2 + index)}
        if mode == "half_a_surrogate":
            text = "\ud83d and \u001b[2J"
        message = {"role": "assistant", "content": text, "reasoning_content": None}
        if mode in ("thinks", "thinks_only"):
            message |= {"reasoning_content": "hm", "content": text if mode == "thinks" else None}
            row["finish_reason"] = "stop" if mode == "thinks" else "length"
        if mode == "calls":
            message["tool_calls"] = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
        if mode == "filters":
            message["content"], row["finish_reason"] = "half of it", "content_filter"
        if mode == "refuses_softly":
            message |= {"content": None, "refusal": "I cannot help with that."}
        rows.append(row | ({"message": message} if "messages" in body else {"text": text}))
    return rows


def likely(body: dict) -> dict:
    """Log-probabilities of a reply Debater_A in two tokens, of which the second is as likely as B to 3 to 1."""
    tops = [{"Debater_": 0.0}, {"A": math.log(0.6), "B": math.log(0.2)}]
    if "prompt" in body:
        return {"tokens": ["Debater_", "A"], "top_logprobs": tops}
    tokens = [{"token": text, "top_logprobs": [{"token": t, "logprob": p} for t, p in top.items()]}
              for text, top in zip(("Debater_", "A"), tops, strict=True)]  # fmt: skip
    return {"content": tokens}


def refused_by_new_models(body: dict) -> tuple[str, str] | None:
    """(the parameter that OpenAI's newer models refuse first, the error's words in its form)."""
    if "max_tokens" in body:
        other = "Use 'max_completion_tokens' instead."
        return "max_tokens", f"Unsupported parameter: 'max_tokens' is not supported with this model. {other}"
    if body.get("temperature", 1) != 1:
        return "temperature", "Unsupported value: 'temperature' does not support this value. Only 1 is supported."
    if "top_p" in body:
        return "top_p", "Unsupported parameter: 'top_p' is not supported with this model."
    return None


class Handler(BaseHTTPRequestHandler):
    """Answers as the mode says."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        _, name, path = self.path.split("/", 2)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        number = self.record(name, {"path": f"/{path}", "body": body})
        self.respond(name.partition(".")[0], number, body)

    def do_GET(self) -> None:
        """The list of models, which is no request to a model, and is not written down."""
        mode = self.path.split("/", 2)[1].partition(".")[0]
        if mode == "no_list" or not self.path.endswith("/v1/models"):
            return self.answer(404, {"detail": "Not Found"})
        if mode == "checks_key" and self.headers["Authorization"] != "Bearer sk-right":
            return self.answer(401, f"you sent {self.headers['Authorization']}".encode())
        names = ["tiny", "other"] if mode == "serves_two" else ["tiny"]
        owner = "vllm" if mode == "vllm" else "tests"
        return self.answer(200, {"object": "list", "data": [{"id": name, "owned_by": owner} for name in names]})

    def record(self, name: str, row: dict) -> int:
        """The number of this request of that name, from 0; written down."""
        headers = {name.lower(): value for name, value in self.headers.items()}
        row |= {"headers": headers, "authorization": self.headers["Authorization"], "time": time.time()}
        with lock:
            with open(f"{FOLDER}/{name}.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            requests[name] += 1
            return requests[name] - 1

    def respond(self, mode: str, number: int, body: dict) -> None:
        if mode == "dies" or (mode == "dies_later" and number >= 2):
            self.wfile.write(b'HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"choices": [{"mess')
            self.wfile.flush()
            os._exit(1)
        if mode == "stalls":
            time.sleep(600)
        if mode == "trickles":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
            for _ in range(1000):
                self.wfile.write(b" ")
                time.sleep(0.05)
        if number == 0 and mode in FAILS_FIRST:
            return self.answer(FAILS_FIRST[mode], {"error": "not now"}, {"Retry-After": "0.3"})
        if mode in REFUSES and (mode not in NAMED or NAMED[mode] in body):
            status, words = REFUSES[mode]
            return self.answer(status, {"error": {"message": words}})
        if mode == "reads_little" and sum(len(row["content"]) for row in body["messages"]) > READS_CHARACTERS:
            return self.answer(400, {"error": {"message": TOO_LONG, "code": "context_length_exceeded"}})
        if mode == "refuses_one" and body["seed"] % 4 == 0:
            return self.answer(400, {"error": {"message": "this prompt is not allowed"}})
        if mode == "filters_prompts":
            words = {"message": "The prompt was filtered.", "code": "content_filter"}
            return self.answer(400, {"error": words})
        if mode == "new_openai" and (refused := refused_by_new_models(body)):
            name, words = refused
            return self.answer(400, {"error": {"message": words, "param": name, "code": "unsupported_parameter"}})
        if mode == "checks_key" and self.headers["Authorization"] != "Bearer sk-right":
            return self.answer(401, f"you sent {self.headers['Authorization']} \x1b[2J\u202e".encode())
        if mode == "echoes_key_and_breaks":
            return self.answer(503, {"error": "." * 300 + f"you sent {self.headers['Authorization']}"})
        if mode == "redirects":
            return self.answer(307, {}, {"Location": "http://127.0.0.1:1/v1/chat/completions"})
        return self.answer(200, self.content(mode, body))

    def content(self, mode: str, body: dict) -> object:
        if mode == "not_json":
            return b"<html>gateway</html>"
        if mode == "no_choices":
            return {"error": "something else"}
        if mode == "empty_choices":
            return {"choices": []}
        if mode == "null_content":
            return {"choices": [{"message": {"content": None}, "text": None, "finish_reason": "length"}]}
        if mode == "speaks_anthropic":
            return {"content": [{"type": "text", "text": "hi"}], "stop_reason": "end_turn"}
        if mode == "a_list":
            return [1, 2]
        if mode == "deep":
            return b"[" * 200_000
        found = choices(mode, body | {"authorization": self.headers["Authorization"]})
        return {"choices": found, "usage": {"completion_tokens": 7 * len(found)}}

    def answer(self, status: int, content: object, headers: dict[str, str] | None = None) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Silent: a client that leaves is no news."""


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()
