"""A tool-use game of our own: what does an order cost? Prices are looked up, and sums calculated, with tools.

With a tokenizer whose chat template writes tools (lmgym/tool_calls.py), calls and results are messages of that template
and the policy calls in the model's own format, of which the JSON object with `name` and `arguments` is read. Otherwise
the rules describe the tools, and a call is a line of plain text.
"""

import ast
import json
import operator
import re
from collections.abc import Mapping
from typing import Any, final

import numpy as np

from lmgym.apps.games.replies import MAX_STEPS
from lmgym.environments.protocol import POLICY, Observation, StepResult, Task
from lmgym.text import Conversation, Turn
from lmgym.tool_calls import CALLS, FUNCTIONS, RESULTS, called_function, parts_left_out

GOODS = ("apple", "bread", "candle", "drum", "egg", "fork", "glove", "hat")
MOST_PRICE, MOST_PIECES = 20, 9
OPERATORS: dict[type, Any] = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
LONGEST_SUM = 100
RULES = "Find out what the order costs. Then answer with the number alone."
PLAIN_RULES = (
    "Find out what the order costs. Write one line: `look up apple` to see a price, `calculate 2 * 3 + 4` to "
    "calculate, or `answer 10` at the end."
)


def _function(name: str, about: str, argument: str) -> dict[str, Any]:
    properties = {argument: {"type": "string", "description": f"such as {'apple' if argument == 'item' else '2 * 3'}"}}
    parameters = {"type": "object", "properties": properties, "required": [argument]}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}


TOOLS = json.dumps([
    _function("look_up", "The price of an item.", "item"),
    _function("calculate", "The value of a sum with + - *.", "expression"),
])  # fmt: skip


@final
class Shop:
    """An order of two items, whose prices follow from the seed; the task is ignored.

    1 for the right total as the answer, else 0. Each call of a tool is a step; the game is lost after `max_steps` of
    them without an answer. `info`: calls, and those that failed.
    """

    def __init__(self, tokenizer: Any = None, max_steps: int = 8) -> None:
        MAX_STEPS.check("max_steps", max_steps)
        parts = (FUNCTIONS, CALLS, RESULTS)
        self.has_tools = tokenizer is not None and bool(tokenizer.chat_template)
        self.has_tools = self.has_tools and not parts_left_out(tokenizer, parts)
        self.max_steps = max_steps
        self.prices: dict[str, int] = {}
        self.order: list[tuple[int, str]] = []
        self.turns: list[Turn] = []
        self.calls, self.failed = 0, 0

    @property
    def total(self) -> int:
        """The right answer."""
        return sum(pieces * self.prices[item] for pieces, item in self.order)

    def reset(self, task: Task, seed: int) -> Mapping[str, Observation]:
        """Draw prices and an order."""
        rng = np.random.default_rng(seed)
        self.prices = {item: int(rng.integers(1, MOST_PRICE + 1)) for item in GOODS}
        items = rng.choice(len(GOODS), 2, replace=False)
        self.order = [(int(rng.integers(1, MOST_PIECES + 1)), GOODS[i]) for i in items]
        wanted = " and ".join(f"{pieces} x {item}" for pieces, item in self.order)
        self.turns, self.calls, self.failed = [Turn("user", f"What do {wanted} cost?")], 0, 0
        return self._shown()

    def step(self, actions: Mapping[str, str]) -> StepResult:
        """Call a tool, or judge the answer."""
        reply = actions[POLICY].strip()
        call = read_call(reply) if self.has_tools else read_plain_call(reply)
        if call is None:
            numbers = re.findall(r"-?\d+", reply)
            right = bool(numbers) and len(numbers[-1]) < 10 and int(numbers[-1]) == self.total
            return StepResult({}, {POLICY: float(right)}, terminated=True, info=self._info())
        self.calls += 1
        name, argument = call
        result = self._result(name, argument)
        self._add_turns(reply, name, argument, result)
        if self.calls >= self.max_steps:
            return StepResult({}, {POLICY: 0.0}, terminated=True, info=self._info())
        return StepResult(self._shown(), {POLICY: 0.0}, info=self._info())

    def _result(self, name: str, argument: str) -> str:
        """The tool's answer; a failed call says why."""
        if name == "look_up" and argument in self.prices:
            return str(self.prices[argument])
        value = calculated(argument) if name == "calculate" else None
        if value is not None:
            return str(value)
        self.failed += 1
        needed = {"look_up": f"one of {', '.join(GOODS)}", "calculate": "numbers with + - * and brackets"}
        return f"error; needed: {needed.get(name, 'look_up or calculate')}"

    def _add_turns(self, reply: str, name: str, argument: str, result: str) -> None:
        if not self.has_tools:
            self.turns += [Turn("bot", reply), Turn("user", result)]
            return
        key = f"call{self.calls:05d}"
        arguments = {"item" if name == "look_up" else "expression": argument}
        calls = [{"id": key, "type": "function", "function": {"name": name, "arguments": arguments}}]
        self.turns.append(Turn("bot", "", json.dumps({"tool_calls": calls})))
        self.turns.append(Turn("tool", result, json.dumps({"name": name, "tool_call_id": key})))

    def _shown(self) -> dict[str, Observation]:
        rules, tools = (RULES, TOOLS) if self.has_tools else (PLAIN_RULES, "")
        return {POLICY: Observation(Conversation(tuple(self.turns), rules, tools))}

    def _info(self) -> dict[str, float]:
        return {"calls": float(self.calls), "failed_calls": float(self.failed)}


def read_call(reply: str) -> tuple[str, str] | None:
    """(name, argument) of the first JSON object with a name and arguments in a reply; None if there is none."""
    call = called_function(reply)
    if call is None:
        return None
    name, arguments = call
    values = list(arguments.values()) if isinstance(arguments, dict) else [arguments]
    return name, str(values[0]) if values else ""


def read_plain_call(reply: str) -> tuple[str, str] | None:
    """(name, argument) of `look up X` or `calculate X` at the beginning of a reply."""
    found = re.match(r"(look up|calculate)\b:?\s*(.*)", reply, re.IGNORECASE)
    return (found[1].lower().replace(" ", "_"), found[2].strip()) if found else None


def calculated(expression: str) -> int | None:
    """The value of a sum of integers with + - * and brackets; None for anything else."""
    if len(expression) > LONGEST_SUM:
        return None
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _value(node: ast.AST) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    raise ValueError("neither a number nor a sum")


def guess_the_total(game: Shop, seen: Observation, rng: np.random.Generator) -> str:
    """A random total, without a tool."""
    return f"answer {rng.integers(2, 2 * MOST_PIECES * MOST_PRICE + 1)}"


def without_prices(game: Shop, seen: Observation, rng: np.random.Generator) -> str:
    """The likeliest total of this order if prices are unknown: each is the mean."""
    return f"answer {round(sum(pieces for pieces, _ in game.order) * (1 + MOST_PRICE) / 2)}"


def use_the_tools(game: Shop, seen: Observation, rng: np.random.Generator) -> str:
    """Look both prices up, calculate, answer."""
    results = [turn.text for turn in game.turns[1:] if turn.speaker != "bot"]
    if len(results) < len(game.order):
        return _call(game, "look_up", "item", game.order[len(results)][1])
    if len(results) == len(game.order):
        parts = [f"{pieces} * {price}" for (pieces, _), price in zip(game.order, results, strict=True)]
        return _call(game, "calculate", "expression", " + ".join(parts))
    return f"answer {results[-1]}"


def _call(game: Shop, name: str, argument: str, value: str) -> str:
    if game.has_tools:
        return json.dumps({"name": name, "arguments": {argument: value}})
    return f"{name.replace('_', ' ')} {value}"
