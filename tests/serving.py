"""A server of the tests' own that speaks OpenAI's interface, well or badly: `python serving.py MODE RECORD`.

Prints its port. Every request is a line of RECORD: path, body, authorization, and when it came. A reply's text names
its seed and its place among the choices, and the conversation's last line.
"""

import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODE, RECORD = sys.argv[1:]
FAILS_FIRST = {"busy_then_good": 429, "breaks_then_good": 500}
REFUSES = {"refuses_top_k": (400, "unrecognized request argument: top_k"), "no_such_model": (404, "no such model")}
lock = threading.Lock()
requests = 0


def record(handler: BaseHTTPRequestHandler, body: dict) -> int:
    """Which request this is, from 0; written down."""
    global requests
    row = {"path": handler.path, "body": body, "authorization": handler.headers["Authorization"], "time": time.time()}
    with lock:
        with open(RECORD, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        requests += 1
        return requests - 1


def choices(body: dict) -> list[dict]:
    count = {"ignores_n": 1, "at_most_2": min(2, body["n"]), "gives_more": body["n"] + 2}.get(MODE, body["n"])
    last = body["messages"][-1]["content"] if "messages" in body else body["prompt"].splitlines()[-2]
    rows = []
    for index in range(count):
        text = f"{body['seed']}.{index} to {last}"
        row = {"index": index, "finish_reason": "stop"}
        if MODE == "goes_past_stops":
            text, row["finish_reason"] = text + "\nUser: and so on", "length"
        if MODE == "says_why":
            row["stop_reason"] = body["stop"][0] if index else None
        if MODE == "too_long":
            row["finish_reason"] = "length"
        if MODE == "half_a_surrogate":
            text = "\ud83d and \u001b[2J"
        rows.append(
            row | ({"message": {"role": "assistant", "content": text}} if "messages" in body else {"text": text})
        )
    return rows


class Handler(BaseHTTPRequestHandler):
    """Answers as the mode says."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        number = record(self, body)
        if MODE == "dies" or (MODE == "dies_later" and number == 2):
            self.wfile.write(b'HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"choices": [{"mess')
            self.wfile.flush()
            os._exit(1)
        if MODE == "stalls":
            time.sleep(600)
        if MODE == "trickles":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
            for _ in range(1000):
                self.wfile.write(b" ")
                time.sleep(0.1)
        if number == 0 and MODE in FAILS_FIRST:
            return self.answer(FAILS_FIRST[MODE], {"error": "not now"}, {"Retry-After": "1"})
        if MODE in REFUSES and (MODE != "refuses_top_k" or "top_k" in body):
            status, words = REFUSES[MODE]
            return self.answer(status, {"error": {"message": words}})
        if MODE == "checks_key" and self.headers["Authorization"] != "Bearer sk-right":
            return self.answer(401, f"you sent {self.headers['Authorization']} \x1b[2J\u202e".encode())
        if MODE == "echoes_key_and_breaks":
            return self.answer(503, {"error": "." * 300 + f"you sent {self.headers['Authorization']}"})
        if MODE == "redirects":
            return self.answer(307, {}, {"Location": "http://127.0.0.1:1/v1/chat/completions"})
        return self.answer(200, self.reply(body))

    def reply(self, body: dict) -> object:
        if MODE == "not_json":
            return b"<html>gateway</html>"
        if MODE == "no_choices":
            return {"error": "something else"}
        if MODE == "empty_choices":
            return {"choices": []}
        if MODE == "null_content":
            return {"choices": [{"message": {"content": None}, "text": None, "finish_reason": "length"}]}
        if MODE == "a_list":
            return [1, 2]
        if MODE == "deep":
            return b"[" * 200_000
        found = choices(body)
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
