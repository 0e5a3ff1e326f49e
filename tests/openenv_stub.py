"""A small server that speaks OpenEnv's protocol, well or badly: for tests without the package."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, WebSocket, WebSocketDisconnect
from patience import PATIENCE

TEXT = {"properties": {"metadata": {"type": "object"}, "message": {"type": "string"}}, "required": ["message"]}


class Invalid(Exception):
    """Raised by a step whose action does not fit the schema."""


class Guess:
    """Guess the number; the seed is it. Three guesses."""

    def reset(self, seed: int = 0, **_: Any) -> dict[str, Any]:
        self.number, self.guesses = seed % 10, 0
        return answer({"question": f"Guess the number of seed {seed}.", "hint": None})

    def step(self, message: str) -> dict[str, Any]:
        self.guesses += 1
        if not message.strip():
            raise Invalid("message")
        if message == "crash":
            raise RuntimeError("the board is broken")
        if message == "sleep":
            time.sleep(2)
        right = message == str(self.number)
        metadata = {"guesses": self.guesses, "at": time.monotonic(), "illegal": 7}
        return answer({"question": f"Not {message}."}, float(right) if right else None, right, metadata)


def answer(fields: Mapping[str, Any], reward: Any = None, done: bool = False, metadata: Any = None) -> dict[str, Any]:
    """An observation as a server gives it."""
    told = {"observation": {**fields, "metadata": metadata or {}}, "reward": reward, "done": done}
    return told | ({"metadata": metadata} if metadata else {})


class Stub:
    """The server, in a thread of this process; `with Stub() as stub`."""

    def __init__(
        self,
        environment: Callable[[], Any] = Guess,
        action: Mapping[str, Any] = TEXT,
        sessions: int = 64,
        splits: Mapping[str, int] | None = None,
        within: Callable[[FastAPI], Any] = lambda app: app,
        http: Any = "auto",
    ) -> None:
        self.within, self.http = within, http
        self.environment, self.action, self.sessions, self.splits = environment, action, sessions, splits
        self.open: list[WebSocket] = []
        self.most = self.refused = 0
        """sessions at once, and those refused"""
        self.asked: list[tuple[str, Any]] = []
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> "Stub":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", self.port))
        self.port = self.socket.getsockname()[1]
        self.server = uvicorn.Server(
            uvicorn.Config(self.within(self.app()), http=self.http, log_level="critical", timeout_graceful_shutdown=1)
        )
        self.thread = threading.Thread(target=self.server.run, args=([self.socket],))
        self.thread.start()
        until = time.monotonic() + PATIENCE
        while not self.server.started and time.monotonic() < until:
            time.sleep(0.01)

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(PATIENCE)
        self.socket.close()

    def app(self) -> FastAPI:
        app = FastAPI()
        self.open.clear()

        @app.get("/schema")
        def schema() -> Any:
            return {"action": self.action, "observation": {}, "state": {}}

        @app.get("/metadata")
        def metadata() -> Any:
            return {"name": "Stub", "description": "A game of tests."}

        @app.get("/list_environments")
        def environments() -> Any:
            return ["stub"]

        @app.get("/stub/splits")
        def splits() -> Any:
            if self.splits is None:
                raise HTTPException(501)
            return [{"name": name, "type": name} for name in self.splits]

        @app.post("/stub/num_tasks")
        def num_tasks(body: dict) -> Any:
            assert self.splits
            return {"num_tasks": self.splits[body["split"]]}

        app.add_api_websocket_route("/ws", self.session)
        return app

    async def session(self, socket: WebSocket) -> None:
        await socket.accept()
        if len(self.open) >= self.sessions:
            self.refused += 1
            await socket.send_json(error("CAPACITY_REACHED", "Server at capacity"))
            await socket.close()
            return
        self.open.append(socket)
        self.most = max(self.most, len(self.open))
        environment = self.environment()
        try:
            while (message := await socket.receive_json())["type"] != "close":
                self.asked.append((message["type"], message.get("data")))
                try:
                    call = environment.reset if message["type"] == "reset" else environment.step
                    data = await asyncio.to_thread(call, **message["data"])
                    await socket.send_json({"type": "observation", "data": data})
                except (Invalid, TypeError) as invalid:
                    await socket.send_json(error("VALIDATION_ERROR", "Invalid message", errors=[{"msg": str(invalid)}]))
                except RuntimeError as broken:
                    await socket.send_json(error("EXECUTION_ERROR", str(broken)))
            await socket.close()
        except (WebSocketDisconnect, RuntimeError):
            pass
        finally:
            if socket in self.open:
                self.open.remove(socket)


def error(code: str, message: str, **more: Any) -> dict[str, Any]:
    """An error in the server's form."""
    return {"type": "error", "data": {"message": message, "code": code, **more}}
