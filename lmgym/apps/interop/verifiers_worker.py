"""The other end of from_verifiers.py: plays episodes of one environment of verifiers, where verifiers is installed.

`python verifiers_worker.py NAME SETTINGS` with the settings of the taskset as JSON. Imports nothing of lmgym. Lines of
JSON, a message each:
- in: {"do": "start", "episode", "task", "seed"}, {"do": "reply", "episode", "text"}, {"do": "stop", "episode"}
- out: {"ready": {"version", "tasks", "agents", "tools"}} or {"error"}; {"episode", "agent", "messages", "tools"};
  {"episode", "over": {"rewards", "metrics", "error"}}

verifiers' own contract is kept: an agent is a program whose model calls go through the rollout's interception server,
from there to the run's endpoint. The program here is a loop of this process (`Loop`), and the endpoint a server on
loopback, which hands each request to the other end and waits for the reply.
"""

import asyncio
import itertools
import json
import os
import random
import sys
import threading
import time
import traceback
import types
from contextlib import suppress
from functools import cache
from typing import Any

import httpx
import verifiers
import verifiers.v1 as vf
from aiohttp import web
from verifiers.v1.clients import EvalClientConfig, ModelContext
from verifiers.v1.utils.loaders import load_environment, resolve_env_config

LOOP, MODEL, SESSION = "lmgym_loop", "policy", "X-Session-ID"
MOST_TASKS = 1000
"""of an endless taskset, unless the settings say otherwise"""
TOOLLESS = "it offers the model tools, and replies here are text; needed: an environment without tools"


class Loop(vf.Harness[vf.HarnessConfig]):
    """An agent's program in this process: one model call a turn, without tools."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data) -> vf.ProgramResult:
        """Send the conversation to the rollout's endpoint, which records the reply."""
        if mcp_urls:
            raise vf.ToolsetError(TOOLLESS)
        system, prompt = self.resolve_prompt(data)
        given = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [wire(m) for m in prompt or ()]
        messages = ([{"role": "system", "content": system}] if system else []) + given
        body, headers = {"model": ctx.model, "messages": messages}, {"Authorization": f"Bearer {secret}"}
        answer = await client().post(f"{endpoint}/chat/completions", json=body, headers=headers)
        stopped = answer.status_code >= 400 and trace.stop_condition is not None
        failed = answer.status_code >= 400 and not stopped
        return vf.ProgramResult(exit_code=int(failed), stdout="", stderr=answer.text if failed else "")


@cache
def client() -> httpx.AsyncClient:
    """The one of this process: making one takes four times as long as the rest of a step."""
    return httpx.AsyncClient(timeout=None)


def wire(message: Any) -> dict[str, Any]:
    """A message as OpenAI's interface has it."""
    return message if isinstance(message, dict) else message.model_dump(exclude_none=True)


class Worker:
    """The environment, its tasks, and the episodes that are played."""

    def __init__(self, name: str, settings: dict[str, Any]) -> None:
        module = types.ModuleType(LOOP)
        module.Loop, module.__all__ = Loop, ["Loop"]  # type: ignore[attr-defined]
        sys.modules[LOOP] = module
        most = settings.pop("tasks", MOST_TASKS)
        raw = {"taskset": {"id": name, **settings}}
        self.agents = list(seats(resolve_env_config(raw)))
        own = {"harness": {"id": LOOP}, "runtime": {"type": "subprocess"}}
        self.environment = load_environment(resolve_env_config({**raw, **dict.fromkeys(self.agents, own)}))
        taskset = self.environment.taskset
        self.tasks = list(taskset if taskset.bounded else itertools.islice(taskset, most))
        self.lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)  # whatever an environment prints goes to stderr
        self.replies: dict[int, asyncio.Future[str]] = {}
        self.playing: dict[int, asyncio.Task[None]] = {}
        self.sessions: dict[str, tuple[int, Any]] = {}
        """(episode, trace) by id of the trace"""

    def send(self, message: dict[str, Any]) -> None:
        """Write a message."""
        self.lines.write(json.dumps(message) + "\n")
        self.lines.flush()

    def described(self) -> dict[str, Any]:
        """The facts on the environment that the other end reads."""
        taskset = self.environment.taskset
        tools = [*taskset.toolsets(taskset.config), *type(taskset).task_type().toolsets(taskset.config.task)]
        found = {"version": verifiers.__version__, "tasks": len(self.tasks), "agents": self.agents}
        return {**found, "tools": bool(tools)}

    async def run(self) -> None:
        """Serve until the other end closes its pipe."""
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/v1/chat/completions", self.complete)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        client = EvalClientConfig(base_url=f"http://127.0.0.1:{port}/v1", api_key_var="LMGYM_NO_KEY")
        self.context = ModelContext(model=MODEL, client=client)
        orders: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        threading.Thread(target=read_lines, args=(asyncio.get_running_loop(), orders), daemon=True).start()
        async with self.environment.serving():
            self.send({"ready": self.described()})
            while (order := await orders.get()) is not None:
                number = order["episode"]
                if order["do"] == "start":
                    self.playing[number] = asyncio.create_task(self.play(number, order["task"], order["seed"]))
                elif order["do"] == "reply":
                    self.replies.pop(number).set_result(order["text"])
                elif number in self.playing:
                    self.playing[number].cancel()
        os._exit(0)  # threads of environments may wait for something

    async def play(self, number: int, task: int, seed: int) -> None:
        """One episode, with its rewards and metrics by agent at the end."""
        random.seed(seed)
        over: dict[str, Any] = {"rewards": {}, "metrics": {}, "error": ""}
        traces: list[Any] = []

        def minted(trace: Any) -> None:
            traces.append(trace)
            self.sessions[trace.id] = number, trace

        try:
            [slot] = self.environment.slots(self.tasks[task])
            episode = await self.environment.run_slot(slot, self.context, on_trace=minted)
            over |= outcome(episode)
        except Exception as error:
            over["error"] = described(error)
        finally:
            for trace in traces:
                self.sessions.pop(trace.id, None)
            self.playing.pop(number, None)
            self.replies.pop(number, None)
        self.send({"episode": number, "over": over})

    async def complete(self, request: web.Request) -> web.Response:
        """A model call: the reply of the other end, as OpenAI's interface has it."""
        body = await request.json()
        number, trace = self.sessions[request.headers[SESSION]]
        reply = asyncio.get_running_loop().create_future()
        self.replies[number] = reply
        given = {"messages": body["messages"], "tools": body.get("tools") or []}
        self.send({"episode": number, "agent": trace.agent.name, **given})
        message = {"role": "assistant", "content": await reply}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        said = {"id": f"reply-{time.monotonic_ns()}", "object": "chat.completion", "created": int(time.time())}
        return web.json_response({**said, "model": MODEL, "choices": [choice], "usage": usage})


def seats(config: Any) -> list[str]:
    """The names of an environment's agents."""
    return [name for name, value in config if isinstance(value, vf.AgentConfig)]


def outcome(episode: Any) -> dict[str, Any]:
    """Rewards and numeric metrics by agent, and why the episode or one of its traces failed."""
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    failed = [] if episode.ok else [f"{error.type}: {error.message}" for error in errors] or ["it did not end well"]
    unscored = [name for trace in episode.traces for name, reward in trace.rewards.items() if reward is None]
    failed += [f"{name} gave no reward" for name in unscored]
    rewards: dict[str, list[float]] = {}
    metrics: dict[str, float] = {}
    for trace in episode.traces:
        rewards.setdefault(trace.agent.name, []).append(trace.reward)
        found = {name: one.value for name, one in trace.rewards.items() if one is not None} | dict(trace.metrics)
        metrics |= {f"{trace.agent.name}/{name}": value for name, value in found.items() if value is not None}
    several = [name for name, own in rewards.items() if len(own) > 1]
    failed += [f"agent {name!r} plays {len(rewards[name])} times in an episode" for name in several]
    return {"rewards": {name: own[0] for name, own in rewards.items()}, "metrics": metrics, "error": "; ".join(failed)}


def described(error: BaseException) -> str:
    """The type, the message and the place."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"


def read_lines(loop: asyncio.AbstractEventLoop, orders: asyncio.Queue) -> None:
    """Hand the lines of stdin over; None at their end."""
    with suppress(RuntimeError):  # the loop has ended
        for line in sys.stdin:
            loop.call_soon_threadsafe(orders.put_nowait, json.loads(line))
        loop.call_soon_threadsafe(orders.put_nowait, None)


async def main() -> None:
    """Load the environment and serve."""
    try:
        worker = Worker(sys.argv[1], json.loads(sys.argv[2]))
    except Exception as error:
        os.write(1, f"{json.dumps({'error': described(error)})}\n".encode())
        return
    await worker.run()


if __name__ == "__main__":
    asyncio.run(main())
