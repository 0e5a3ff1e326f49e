"""`--environment openenv:URL?reset_argument=value`: the environment of an OpenEnv server, a session an episode.

Rewards are the server's; None is 0, and an episode that ends without any reward has failed. What is shown, and which
replies are actions, is in openenv_texts.py. Servers whose actions are calls of MCP tools need a template with tools.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any, final

from lmgym.apps.interop.openenv_sessions import Hangs, Lost, Refused, Server, Session
from lmgym.apps.interop.openenv_texts import Actions, numbers_of, read_observation, read_result
from lmgym.config import Range
from lmgym.environments.named import NamedEnvironment, Scheme, Settings
from lmgym.environments.protocol import POLICY, EpisodeFailed, NoRoom, Observation, StepResult, Task
from lmgym.errors import MOST_SCORE, MOST_SECONDS, MOST_STEPS, InputError, listed, one_line
from lmgym.messages import from_messages
from lmgym.text import Conversation, Turn
from lmgym.tool_calls import CALLS, FUNCTIONS, RESULTS, called_function, parts_left_out

TIMEOUT = 60.0
"""seconds for an answer: those of the package's own client, for which servers are made"""
MAX_STEPS, ILLEGAL_REWARD = 50, -1.0
WAITS = (2.0, 10.0)
"""seconds before an episode is played again on a server that went away"""
SEEDS = 2**32
"""of random generators that servers may use, such as NumPy's"""
FULL, INVALID = "CAPACITY_REACHED", "VALIDATION_ERROR"
CALL = "call_tool"
INSTALL = "pip install websockets"


@dataclass(frozen=True)
class Source:
    """A server and what its episodes share."""

    server: Server
    actions: Actions
    arguments: Mapping[str, Any]
    """of `reset`"""
    illegal_reward: float = ILLEGAL_REWARD
    max_steps: int = MAX_STEPS
    tools: str = ""
    """the functions that the policy may call, as JSON; empty: actions are no calls"""
    known: Sequence[str] = ()
    """their names"""

    @property
    def needed(self) -> str:
        """An action in words."""
        return f"a call of {listed(self.known)}" if self.tools else self.actions.needed

    @property
    def persona(self) -> str:
        """The sentence on actions that the policy reads; empty if any text is one."""
        return "" if self.tools or self.actions.is_text else f"Answer with {self.actions.needed}"

    def read(self, reply: str) -> dict[str, Any] | None:
        """The action, or None."""
        if not self.tools:
            return self.actions.read(reply)
        name, arguments = called_function(reply) or ("", None)
        known = name in self.known and isinstance(arguments, dict)
        return {"type": CALL, "tool_name": name, "arguments": arguments} if known else None


@final
class OpenEnvEpisode:
    """An episode in a session of the server; the task is added to the arguments of its `reset`.

    A reply that is no action earns `illegal_reward`, is not sent, and the policy reads what is needed. Truncated after
    `max_steps` replies. If the server goes away, the episode is played again from its seed and actions so far, and goes
    on if all answers are equal. `info`: the server's numbers, and as `openenv/...` replies, those that were no action
    (illegal), and how often it was played again (resumed).
    """

    blocking = True

    def __init__(self, source: Source) -> None:
        self.source = source
        self.session: Session | None = None
        self.played: list[tuple[str, Mapping[str, Any], Mapping[str, Any]]] = []
        """(kind, data, answer) of all messages"""
        self.turns: list[Turn] = []
        self.persona = ""
        self.actions: Sequence[str] = ()
        self.replies = self.illegal = self.resumed = 0
        self.numbers: dict[str, float] = {}
        self.rewarded = False

    def reset(self, task: Task, seed: int) -> Mapping[str, Observation]:
        """The first observation. Raises NoRoom if the server has no session left, EpisodeFailed if it cannot begin."""
        self.close()
        self.played, self.turns, self.numbers, self.rewarded = [], [], {}, False
        self.replies = self.illegal = self.resumed = 0
        answer = self._ask("reset", {"seed": seed % SEEDS, **self.source.arguments, **task})
        self._show(answer, self.turns)
        if answer.get("done"):
            raise EpisodeFailed("the episode has ended before the policy acted")
        return self._observed()

    def step(self, actions: Mapping[str, str]) -> StepResult:
        """The server's answer to an action. Raises EpisodeFailed if it has none."""
        reply = actions[POLICY]
        self.replies += 1
        action, why = self.source.read(reply), ""
        answer: Mapping[str, Any] = {}
        if action is not None:
            try:
                answer = self._ask("step", action)
            except Refused as error:  # of what the schema cannot say, such as the range of a number
                action, why = None, f" ({error})"
        if action is None:
            self.illegal += 1
            self.turns += [Turn("bot", reply), Turn("user", f"That is no action{why}; needed: {self.source.needed}")]
            return self._result(self.source.illegal_reward, done=False)
        done, reward = bool(answer.get("done")), answer.get("reward")
        self.rewarded |= reward is not None
        if done and not self.rewarded:
            raise EpisodeFailed("the episode has ended without a reward")
        self._read(reply, action, answer, done)
        return self._result(float(reward or 0) if isinstance(reward, bool | None) else reward, done)

    def close(self) -> None:
        """End the session."""
        if self.session is not None:
            self.session.close()
        self.session = None

    __del__ = close

    def _result(self, reward: Any, done: bool) -> StepResult:
        truncated = not done and self.replies >= self.source.max_steps
        if done or truncated:
            self.close()
        own = {"openenv/replies": self.replies, "openenv/illegal": self.illegal, "openenv/resumed": self.resumed}
        observations = {} if done else self._observed()
        return StepResult(observations, {POLICY: reward}, done, truncated, {**self.numbers, **own})

    def _read(self, reply: str, action: Mapping[str, Any], answer: Mapping[str, Any], done: bool) -> None:
        """Take the numbers of an answer, and what it shows as the next turns."""
        fields = answer.get("observation") or {}
        known = ("metadata", "reward", "result") if self.source.tools else ("metadata", "reward")
        self.numbers = numbers_of({name: value for name, value in fields.items() if name not in known})
        self.numbers |= numbers_of(answer.get("metadata") or fields.get("metadata") or {})
        if done:
            return
        if self.source.tools:
            key = f"call{self.replies:05d}"
            called = {"name": action["tool_name"], "arguments": action["arguments"]}
            calls = {"tool_calls": [{"id": key, "type": "function", "function": called}]}
            named = json.dumps({"name": action["tool_name"], "tool_call_id": key})
            self.turns.append(Turn("bot", "", json.dumps(calls)))
            self.turns.append(Turn("tool", self._text_of(fields), named))
            return
        self._show(answer, [*self.turns, Turn("bot", reply)])

    def _show(self, answer: Mapping[str, Any], before: Sequence[Turn]) -> None:
        """Take the whole conversation that an answer shows, or its text behind the turns before it."""
        try:
            shown = read_observation(answer.get("observation") or {})
            read = from_messages(shown.messages)
        except ValueError as error:
            raise InputError(f"openenv:{self.source.server.url}: {error}; needed: observations as text") from error
        self.turns = [*(() if shown.is_whole else before), *read.turns]
        self.persona = "\n".join(filter(None, (read.persona, self.source.persona)))
        self.actions = shown.actions

    def _text_of(self, fields: Mapping[str, Any]) -> str:
        try:
            return read_result(fields)
        except ValueError as error:
            raise InputError(f"openenv:{self.source.server.url}: {error}; needed: results as text") from error

    def _observed(self) -> dict[str, Observation]:
        prompt = Conversation(tuple(self.turns), self.persona, self.source.tools)
        return {POLICY: Observation(prompt, tuple(self.actions))}

    def _ask(self, kind: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """The answer; if the server goes away, after the episode was played again. Raises Refused of actions alone."""
        for wait in (*WAITS, None):
            try:
                if self.session is None:
                    self._open()
                assert self.session is not None
                answer = self.session.ask(kind, data)
                self.played.append((kind, data, answer))
                return answer
            except Refused as error:
                self._refuse(error, kind)
                if wait is None:
                    raise EpisodeFailed(f"{self.source.server.url} has no session left: {error}") from error
            except Hangs as error:
                self.session = None
                raise EpisodeFailed(str(error)) from error
            except Lost as error:
                self.session = None
                if wait is None:
                    raise EpisodeFailed(f"{self.source.server.url} went away ({error})") from error
            time.sleep(wait)
        raise AssertionError("the last try raises")

    def _refuse(self, error: Refused, kind: str) -> None:
        """Raises what an error of the server means; returns if it is worth another try."""
        if error.code == INVALID and kind == "step":
            raise error
        self.close()
        if error.code != FULL:
            raise EpisodeFailed(f"{self.source.server.url} refuses to {kind}: {error}") from error
        if not self.played:
            raise NoRoom(str(error)) from error

    def _open(self) -> None:
        """A new session, in which what was played is played again. Raises EpisodeFailed if an answer is another one."""
        self.session = self.source.server.open()
        for kind, data, answer in self.played:
            try:
                is_equal = _compared(self.session.ask(kind, data)) == _compared(answer)
            except Refused as error:
                if error.code == FULL:
                    raise
                is_equal = False
            if not is_equal:
                self.close()
                url = self.source.server.url
                raise EpisodeFailed(f"{url} went away, and does not answer the same seed and actions as before")
        self.resumed += bool(self.played)


def _compared(answer: Mapping[str, Any]) -> tuple[Any, ...]:
    """The part that is equal when an episode is played again: all but the metadata, which may hold ids and times."""
    fields = {name: value for name, value in (answer.get("observation") or {}).items() if name != "metadata"}
    return fields, answer.get("reward"), answer.get("done")


def load(name: str, settings: Settings, tokenizer: Any = None) -> NamedEnvironment:
    """The environment of a server, which is tried. Settings: illegal_reward (-1), max_steps (50), timeout (60 seconds
    for an answer); all others are arguments of its `reset`.

    Tasks are those of its task API, else one whose episodes differ by their seeds. Raises InputError for a server that
    does not answer, shows images, or has tools that the tokenizer's template does not write.
    """
    if find_spec("websockets") is None:
        raise InputError(f"openenv:{name} needs websockets; needed: {INSTALL}")
    own = {"timeout": TIMEOUT, "max_steps": MAX_STEPS, "illegal_reward": ILLEGAL_REWARD}
    values = {key: settings.get(key, value) for key, value in own.items()}
    Range(0, MOST_SECONDS, above=True, hint="seconds").check("timeout", values["timeout"])
    Range(1, MOST_STEPS).check("max_steps", values["max_steps"])
    Range(-MOST_SCORE, MOST_SCORE).check("illegal_reward", values["illegal_reward"])
    server = Server(name, values["timeout"])
    schema = server.get("/schema")
    if not isinstance(schema, dict) or not isinstance(schema.get("action"), dict):
        raise InputError(f"openenv:{server.url} is no OpenEnv server: it has no /schema; needed: one of version 0.2 on")
    arguments = {key: value for key, value in settings.items() if key not in own}
    limits = float(values["illegal_reward"]), int(values["max_steps"])
    source = Source(server, Actions(schema["action"]), arguments, *limits)
    if "tool_name" in source.actions.fields:
        source = _with_tools(source, tokenizer)
    tasks, eval_tasks = _tasks(server, arguments)
    about = (server.get("/metadata") or {}).get("description") or ""
    notes = _tried(source, tasks)
    words = "; ".join(filter(None, [one_line(str(about), 100).rstrip("."), *notes]))
    return NamedEnvironment(f"openenv:{name}", partial(OpenEnvEpisode, source), tasks, eval_tasks, about=words)


def _with_tools(source: Source, tokenizer: Any) -> Source:
    """With the server's tools. Raises InputError if the tokenizer's template leaves them out."""
    lost = ["tools"]
    if tokenizer is not None and tokenizer.chat_template:
        lost = parts_left_out(tokenizer, (FUNCTIONS, CALLS, RESULTS))
    if lost:
        raise InputError(
            f"actions of openenv:{source.server.url} are calls of tools, and the policy's chat template leaves out "
            f"{listed(lost)}; needed: a policy whose template writes tools, such as Qwen's"
        )
    session = _session(source.server)
    try:
        found = session.ask("step", {"type": "list_tools"})["observation"]["tools"]
        functions: list[dict[str, Any]] = [
            {
                "type": "function",
                "function": {
                    "name": tool["name"],
                    "description": tool.get("description") or "",
                    "parameters": tool.get("input_schema") or {"type": "object", "properties": {}},
                },
            }
            for tool in found
        ]
    except (Refused, Hangs, Lost, LookupError, TypeError) as error:
        raise InputError(
            f"openenv:{source.server.url} does not list its tools ({error}); needed: one that does"
        ) from error
    finally:
        session.close()
    names = [one["function"]["name"] for one in functions]
    limits = source.illegal_reward, source.max_steps
    return Source(source.server, source.actions, source.arguments, *limits, json.dumps(functions), names)


def _session(server: Server) -> Session:
    try:
        return server.open()
    except Lost as error:
        raise InputError(f"openenv:{server.url} takes no session ({error}); needed: an OpenEnv server") from error


def _tasks(server: Server, arguments: Mapping[str, Any]) -> tuple[Sequence[Task], Sequence[Task]]:
    """(tasks to train on, tasks to evaluate on) of the server's task API; a single one if it has none.

    Of splits those of the type train, and of the types validation or else test; only that of a `split` among the
    arguments.
    """
    names = server.get("/list_environments")
    splits = server.get(f"/{names[0]}/splits") if names else None
    if not splits:
        return ({},), ()
    wanted = [split["name"] for split in splits if arguments.get("split") in (None, split["name"])]
    if not wanted:
        known = listed(split["name"] for split in splits)
        raise InputError(f"openenv:{server.url} has no split {arguments['split']}; needed: {known}")
    found: dict[str, list[Task]] = {}
    for split in splits:
        if split["name"] in wanted:
            number = (server.get(f"/{names[0]}/num_tasks", {"split": split["name"]}) or {}).get("num_tasks")
            tasks = [{"split": split["name"]} | ({} if number is None else {"index": i}) for i in range(number or 1)]
            found.setdefault(split.get("type") or "validation", []).extend(tasks)
    if "train" not in found:
        return [task for tasks in found.values() for task in tasks], ()
    return found["train"], found.get("validation") or found.get("test") or ()


def _tried(source: Source, tasks: Sequence[Task]) -> list[str]:
    """Notes on the beginnings of three episodes. Raises InputError if one does not begin."""
    first, same, other = (
        _beginning(source, task, seed) for task, seed in ((tasks[0], 0), (tasks[0], 0), (tasks[-1], 1))
    )
    if first != same:
        return ["episodes of one seed begin differently, so that those of a group are of different tasks"]
    return ["episodes of two seeds begin alike"] if first == other else []


def _beginning(source: Source, task: Task, seed: int) -> Any:
    episode, until = OpenEnvEpisode(source), time.monotonic() + source.server.timeout
    while True:
        try:
            return episode.reset(task, seed)[POLICY]
        except EpisodeFailed as error:
            raise InputError(f"an episode of openenv:{source.server.url} does not begin: {error}") from error
        except NoRoom as error:
            if time.monotonic() > until:
                raise InputError(f"openenv:{source.server.url} has no session left: {error}; needed: one") from error
            time.sleep(1.0)
        finally:
            episode.close()


SCHEME = Scheme(
    "openenv:URL",
    "the environment of an OpenEnv server",
    load,
    missing=lambda: "" if find_spec("websockets") else INSTALL,
)
