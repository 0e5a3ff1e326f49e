"""Rewards from `lmgym serve rewards` for other libraries' trainers: one file, which needs only Python.

Import it (`from lmgym.apps.serve.lmgym_client import trl_reward`), or copy it beside a training script:
`curl -O http://127.0.0.1:8900/lmgym_client.py`.

| trainer | function |
|---|---|
| TRL | `GRPOTrainer(reward_funcs=trl_reward(scorer="helpful"), ...)`; `trl_reward_async` does not block the trainer |
| verl | `custom_reward_function.path=lmgym_client.py custom_reward_function.name=verl_reward` |
| verifiers | `return await verifiers_reward(trace)` in a method with `@vf.reward` |
| others | `Client().rewards(conversations)` |

The environment variables LMGYM_URL and LMGYM_TOKEN say where the server is. A server that is busy, restarting or out of
reach is asked again for `patience` seconds: a step waits, and no reward is made up. LMGYM_RUN names the run that the
server watches: it warns when the run exploits its reward.
"""

import asyncio
import json
import logging
import os
import random
import socket
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Awaitable, Callable, Sequence
from http.client import HTTPException
from typing import Any
from urllib.parse import quote

URL = "http://127.0.0.1:8900"
REPLIES_A_REQUEST = 64
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0
PROMPTS = ("raw_prompt", "messages", "prompt", "question")
"""keys of verl's extra_info under which a prompt may be, as text or messages"""
LONGEST_NAME = 100
SAY_SECONDS = 60.0
"""between warnings that say what a request waits for"""
LOG = logging.getLogger("lmgym")
"""writes to stderr, unless the program sets up its own logs"""
AGAIN = (408, 429, 502, 503, 504)
"""statuses after which the same request may succeed"""


class RewardError(RuntimeError):
    """The server refused a request, or gave no answer for as long as the client was willing to wait."""


class _StaysHere(urllib.request.HTTPRedirectHandler):
    """A redirection is an answer like any other: the address that it names would get the texts and the token."""

    def redirect_request(self, *_: Any) -> None:
        """None."""


class Client:
    """Asks one server. Threads may share it."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        timeout: float = 120.0,
        patience: float = 900.0,
        run: str | None = None,
    ) -> None:
        """`timeout`: seconds that one answer may take; `patience`: seconds in which a request is tried again.

        `run`: the name under which the server watches these replies; without it that of LMGYM_RUN, or of this process.
        """
        self.url = (url or os.environ.get("LMGYM_URL") or URL).rstrip("/")
        self.token = token if token is not None else os.environ.get("LMGYM_TOKEN", "")
        self.timeout, self.patience = timeout, patience
        self.warnings: list[str] = []
        """of the server, that the run exploits its reward"""
        self.versions: dict[str, Any] = {}
        """of the scorers that gave rewards: the fingerprint of the weights, and how they are read"""
        self.run = (run or os.environ.get("LMGYM_RUN") or this_run())[:LONGEST_NAME]
        # a proxy of the environment would get the texts and the token
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _StaysHere)

    def rewards(
        self,
        conversations: Sequence[Any],
        scorer: str | None = None,
        step: int | None = None,
        group_size: int | None = None,
    ) -> list[float]:
        """Raw scores of the last message of each conversation, by the named scorer or the server's first."""
        return [_first(opinions)["score"] for opinions in self.opinions(conversations, scorer, step, group_size)]

    def opinions(
        self,
        conversations: Sequence[Any],
        scorer: str | None = None,
        step: int | None = None,
        group_size: int | None = None,
    ) -> list[dict[str, dict[str, Any]]]:
        """By scorer score, z, quantile, spread and truncation of each conversation; of all scorers if none is named.

        `step`: the trainer's, by which the server watches the run; the time, if it is not known. `group_size`: replies
        to each prompt, which a judge that compares scores together; those that other processes of the run send are
        waited for.
        """
        found: list[dict[str, dict[str, Any]]] = []
        named: dict[str, Any] = {"scorers": [scorer]} if scorer else {}
        named |= {"group_size": group_size} if group_size else {}
        at_once = len(conversations) if group_size else REPLIES_A_REQUEST  # a part would wait for the next one
        for first in range(0, len(conversations), max(1, at_once)):
            some = list(conversations[first : first + at_once])
            answer = self.post("/v1/score", {"conversations": some} | named, step)
            found += answer["scores"]
            self.check_version(answer["scorers"], scorer)
            self.warn(answer.get("warnings", ()))
        if len(found) != len(conversations):
            raise RewardError(f"{self.url} gave {len(found)} scores for {len(conversations)} conversations")
        return found

    def check_version(self, scorers: dict[str, Any], scorer: str | None = None) -> None:
        """Raises RewardError if the scorer that gives the rewards (the first, or `scorer`) is another than before."""
        name = scorer if scorer in scorers else next(iter(scorers))
        before = self.versions.setdefault(name, scorers[name])
        if before != scorers[name]:
            raise RewardError(
                f"the scorer {name} of {self.url} changed in mid-run: it was {before} and is {scorers[name]}, whose "
                "rewards do not compare; load the former one again, or start another run"
            )

    def warn(self, words: Sequence[str]) -> None:
        """Warns of each alarm of the run once."""
        for new in words:
            if new not in self.warnings:
                self.warnings.append(new)
                warnings.warn(f"lmgym: {new}", RuntimeWarning, stacklevel=2)

    def post(self, path: str, body: Any, step: int | None = None) -> Any:
        """The answer to a request. Raises RewardError with the server's words."""
        headers = {"Content-Type": "application/json", "X-LMGym-Run": quote(self.run)}
        if step is not None:
            headers["X-LMGym-Step"] = str(step)
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        began = said = time.monotonic()
        wait = FIRST_WAIT
        while True:
            asked = 0.0
            try:
                with self._opener.open(request, timeout=self.timeout) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                words, kind = _words(error)
                why = f"status {error.code}: {words}"
                if error.code not in AGAIN or kind == "run_stopped":
                    raise RewardError(f"{self.url}{path} refused a request, {why}") from None
                asked = _seconds(error.headers.get("Retry-After"))
            except (OSError, HTTPException, ValueError) as error:  # no connection, a timeout, half an answer
                why = str(getattr(error, "reason", error)) or type(error).__name__
            # each client waits for another time, or all would come back at once
            pause = max(asked, wait) * random.uniform(0.75, 1.25)
            now = time.monotonic()
            if now - said >= SAY_SECONDS:
                said = now
                spent = now - began
                words = "%s%s has given no answer for %.0f s, and is asked for %.0f s more; the last time: %s"
                LOG.warning(words, self.url, path, spent, self.patience - spent, why)
            if now + pause - began > self.patience:
                raise RewardError(f"{self.url}{path} gave no answer within {self.patience:g} s, the last time: {why}")
            time.sleep(pause)
            wait = min(2 * wait, LONGEST_WAIT)


def this_run() -> str:
    """A name that the ranks of a launch on one machine share."""
    of_launcher = "LOCAL_RANK" in os.environ
    return f"{socket.gethostname()}-{os.getppid() if of_launcher else os.getpid()}"


def trl_reward(
    scorer: str | None = None, client: Client | None = None, num_generations: int | None = None
) -> Callable[..., list[float]]:
    """A function for TRL's `reward_funcs`: a number a completion, of conversations and of plain text.

    `num_generations`, as TRL has it, is needed by a judge that compares the replies to a prompt. Without `scorer` the
    reward is the server's first scorer, and TRL logs the means of the others beside it.
    """
    asked = client or Client()

    def reward(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
        chats = [_chat(prompt, completion) for prompt, completion in zip(prompts, completions)]  # noqa: B905
        step = getattr(columns.get("trainer_state"), "global_step", None)
        opinions = asked.opinions(chats, scorer, step, num_generations)
        _log(columns, opinions, reward.__name__, bool(asked.warnings))
        return [_first(by_scorer)["score"] for by_scorer in opinions]

    reward.__name__ = f"lmgym_{scorer}" if scorer else "lmgym"  # TRL logs it under this name
    return reward


def trl_reward_async(
    scorer: str | None = None, client: Client | None = None, num_generations: int | None = None
) -> Callable[..., Awaitable[list[float]]]:
    """`trl_reward` as a coroutine function: TRL awaits several such rewards at once."""
    plain = trl_reward(scorer, client, num_generations)

    async def reward(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
        return await asyncio.to_thread(plain, prompts, completions, **columns)

    reward.__name__ = plain.__name__
    return reward


async def verl_reward(
    data_source: str,
    solution_str: str,
    ground_truth: Any = None,
    extra_info: dict[str, Any] | None = None,
    scorer: str | None = None,
    url: str | None = None,
    num_generations: int | None = None,
    **kwargs: Any,
) -> float:
    """verl's custom reward function; `scorer`, `url` and `num_generations` (rollout.n, which a judge that compares the
    replies to a prompt needs) come from `custom_reward_function.reward_kwargs`.

    verl hands it no prompt: it is read from the row's `extra_info`, under one of PROMPTS.
    """
    row = dict(extra_info or {}) | kwargs
    prompt = next((row[key] for key in PROMPTS if row.get(key) is not None), None)
    if prompt is None:
        found = ", ".join(map(str, row)) or "nothing"
        raise RewardError(f"no prompt in extra_info (found: {found}); needed: one of {', '.join(PROMPTS)}")
    prompt = prompt if isinstance(prompt, str) else [dict(message) for message in prompt]
    chat = _chat(prompt, solution_str)
    [reward] = await asyncio.to_thread(_shared(url).rewards, [chat], scorer, None, num_generations)
    return reward


async def verifiers_reward(trace: Any, scorer: str | None = None, client: Client | None = None) -> float:
    """The score of a trace's final branch, which ends in the agent's reply."""
    chat = [_message(message) for message in trace.messages]
    [reward] = await asyncio.to_thread((client or _shared()).rewards, [chat], scorer)
    return reward


def _shared(url: str | None = None) -> Client:
    """One client of each server in this process, which knows the scorers of the calls before."""
    made = Client(url)
    return _CLIENTS.setdefault(f"{made.url} {made.run} {made.token}", made)


_CLIENTS: dict[str, Client] = {}


def _chat(prompt: Any, completion: Any) -> Any:
    """A conversation as the server reads it, of a prompt and a completion that each are text or messages."""
    if isinstance(prompt, str) and isinstance(completion, str):
        return {"prompt": prompt, "reply": completion}
    asked = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    said = [{"role": "assistant", "content": completion}] if isinstance(completion, str) else list(completion)
    return [*asked, *said]


def _message(message: Any) -> dict[str, Any]:
    """A message of verifiers, whose calls of tools are flat, as OpenAI writes it."""
    row = message if isinstance(message, dict) else message.model_dump(exclude_none=True)
    found = {key: row[key] for key in ("role", "content", "reasoning_content", "tool_call_id", "name") if key in row}
    calls = [
        {"id": call.get("id"), "type": "function", "function": {key: call.get(key) for key in ("name", "arguments")}}
        for call in row.get("tool_calls") or ()
    ]
    return found | ({"tool_calls": calls} if calls else {})


def _first(opinions: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The opinion that is the reward."""
    return next(iter(opinions.values()))


def _log(columns: dict[str, Any], opinions: Sequence[dict[str, dict[str, Any]]], name: str, alarm: bool) -> None:
    """Gives TRL the means of what came with the rewards, and of the other scorers' scores."""
    log = columns.get("log_metric")  # newer versions of TRL have it
    if not callable(log) or not opinions:
        return
    log(f"{name}/alarm", float(alarm))
    for place, scorer in enumerate(opinions[0]):
        keys = ("z", "spread", "truncated") if place == 0 else ("score",)
        for key in keys:
            values = [float(by_scorer[scorer][key]) for by_scorer in opinions if key in by_scorer[scorer]]
            if values:
                log(f"{name}/{key if place == 0 else scorer}", sum(values) / len(values))


def _words(error: urllib.error.HTTPError) -> tuple[str, str]:
    """The server's own words and its kind of error, or those of HTTP."""
    try:
        said = json.loads(error.read().decode(errors="replace"))["error"]
        return str(said["message"]), str(said.get("type", ""))
    except (OSError, HTTPException, ValueError, LookupError, TypeError, AttributeError):
        return str(error.reason), ""


def _seconds(header: str | None) -> float:
    """Of a Retry-After header; 0 if it is missing or no number."""
    try:
        return min(max(float(header or 0), 0.0), LONGEST_WAIT)
    except ValueError:
        return 0.0
