"""Episodes on disk: a line a game with all that was seen, said and earned; played again, and as rows for SFT.

episodes/rollouts-00000016.jsonl     a sample of the iteration that ends with update 16
episodes/evaluation-00000016.jsonl   all of the evaluation after it
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from lmgym.aids import aid
from lmgym.environments.bounds import read_result
from lmgym.environments.episodes import Episode
from lmgym.environments.protocol import Environment, Observation, Task
from lmgym.errors import InputError, listed, one_line, shown
from lmgym.messages import from_messages
from lmgym.report.run_files import is_game
from lmgym.text import Conversation, messages

FOLDER = "episodes"
Row = dict[str, Any]


@aid("the record of games", list)
def record_games(episodes: Sequence[Episode], tasks: Sequence[Task], advantages: Iterable[float] = ()) -> list[Row]:
    """A row for each game, of the episodes of its trained agents; games are in the order of their numbers.

    `advantages` are those of the turns, in the order of episodes: they may end early.
    """
    of_turn = iter(advantages)
    turns = {(e.index, e.agent): [_turn(step, next(of_turn, None)) for step in e.steps] for e in episodes}
    rows = []
    for index, group in groupby(episodes, key=lambda episode: episode.index):
        game = list(group)
        first = game[0]
        rows.append(
            {
                "episode": index,
                "task": {name: _to_json(value) for name, value in tasks[index].items()},
                "seed": first.seed,
                "actions": [dict(actions) for actions in first.actions],
                "agents": {episode.agent: turns[index, episode.agent] for episode in game if episode.acted},
                "returns": {episode.agent: episode.total_reward for episode in game if episode.acted},
                "terminated": first.terminated,
                "truncated": first.truncated,
                "info": dict(first.info),
            }
            | ({"error": first.error} if first.error else {})
        )
    return rows


def _turn(step: Any, advantage: float | None) -> Row:
    """An agent's observation, reply and reward."""
    completion, seen = step.completion, step.observed
    turn = {
        **({"messages": messages(seen)} if isinstance(seen, Conversation) else {"prompt": seen}),
        "reply": completion.text,
        "finish": completion.finish_reason,
        "prompt_ids": list(step.prompt),
        "ids": list(completion.ids),
        "logprobs": list(completion.logprobs),
        "reward": list(step.reward) if isinstance(step.reward, tuple) else step.reward,
        "scores": dict(step.scores),
    }
    return (
        turn | ({} if advantage is None else {"advantage": advantage}) | ({"error": step.error} if step.error else {})
    )


def _to_json(value: Any) -> Any:
    return {"messages": messages(value), "tools": value.tools} if isinstance(value, Conversation) else value


def _from_json(value: Any) -> Any:
    if isinstance(value, Mapping) and value.keys() == {"messages", "tools"}:
        chat = from_messages(value["messages"])
        return Conversation(chat.turns, chat.persona, value["tools"])
    return value


@dataclass(frozen=True)
class Replayed:
    """A reply of an agent in a game that was played again."""

    step: int
    agent: str
    seen: str
    """its observation, as text"""
    reply: str
    reward: float | None = None
    """of the environment, this time; None for an agent that is not trained, and until it is known"""
    recorded: float | None = None
    scored: bool = False
    """a reward function's score, which is not asked for again, is part of the recorded reward"""
    other_observation: str = ""
    """the recorded one, if it differs"""

    @property
    def same(self) -> bool:
        """True if observation and reward are those of the record."""
        known = self.reward is None or self.scored or self.recorded is None
        return not self.other_observation and (
            known or math.isclose(self.reward or 0, self.recorded or 0, abs_tol=1e-9)
        )


def replay(environment: Environment, row: Row) -> tuple[list[Replayed], list[str]]:
    """(all replies of a recorded game, played again; what differs from the record).

    The replies are those of the record: nothing is sampled. Raises InputError for a line that is no record of a game.
    """
    try:
        if not is_game(row):
            raise ValueError("agents, actions or returns")
        task = {name: _from_json(value) for name, value in row["task"].items()}
        left = {agent: iter(turns) for agent, turns in row["agents"].items()}
        actions, seed, ended = row["actions"], int(row["seed"]), (bool(row["terminated"]), bool(row["truncated"]))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InputError(
            f"not a recorded episode ({one_line(str(error), 80)}); needed: a line of episodes/*.jsonl of a PPO run"
        ) from error
    try:
        shown_now: Mapping[str, Observation] = environment.reset(task, seed)
    except Exception as error:  # of anybody's environment, given the task of a file
        raise InputError(
            f"the environment does not begin with the recorded task and seed: {type(error).__name__}: "
            f"{one_line(str(error), 80)}; needed: a record of this experiment"
        ) from error
    turns: list[dict[str, Any]] = []
    latest: dict[str, dict[str, Any]] = {}
    found = (False, False)
    for number, said in enumerate(actions):
        if found[0] or found[1] or shown_now.keys() != said.keys():
            waiting = "has ended" if any(found) else f"waits for {listed(sorted(shown_now))}"
            return _finish(turns), [f"step {number}: the game {waiting}, and in the record {listed(said)} acted"]
        for agent, reply in said.items():
            turn = {"step": number, "agent": agent, "seen": _text(shown_now[agent].prompt), "reply": reply}
            recorded = next(left.get(agent, iter(())), None)
            if recorded is not None:
                before = recorded["prompt"] if "prompt" in recorded else _lines(recorded["messages"])
                turn |= {"reward": 0.0, "recorded": _total(recorded["reward"])}
                turn["other_observation"] = before if before != turn["seen"] else ""
                latest[agent] = turn
            turns.append(turn)
        try:
            result = read_result(environment.step(said))
        except Exception as error:
            fault = one_line(f"{type(error).__name__}: {error}", 80)
            recorded_too = bool(row.get("error"))
            return _finish(turns), [] if recorded_too else [f"step {number}: the environment fails: {fault}"]
        for agent, reward in result.rewards.items():
            if agent in latest:
                latest[agent]["reward"] += float(reward)
        for request in result.score_requests:
            if request.agent in latest:
                latest[request.agent]["scored"] = True
        shown_now, found = result.observations, (result.terminated, result.truncated)
    replayed = _finish(turns)
    different = [_difference(turn) for turn in replayed if not turn.same]
    if found != ended:
        different.append(f"the end: terminated, truncated are {found}, in the record {ended}")
    return replayed, different


def _finish(turns: Sequence[Mapping[str, Any]]) -> list[Replayed]:
    return [Replayed(**turn) for turn in turns]


def _difference(turn: Replayed) -> str:
    if turn.other_observation:
        return f"step {turn.step}: {turn.agent} sees {shown(turn.seen)}, in the record {shown(turn.other_observation)}"
    return f"step {turn.step}: {turn.agent} earns {turn.reward:g}, in the record {turn.recorded:g}"


def _text(prompt: Conversation | str) -> str:
    return prompt if isinstance(prompt, str) else _lines(messages(prompt))


def _lines(chat: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(f"{message['role']}: {message['content']}" for message in chat)


def _total(reward: Any) -> float | None:
    return None if reward is None else float(sum(reward)) if isinstance(reward, list) else float(reward)


@dataclass(frozen=True)
class Selection:
    """The choice of turns that become rows for SFT."""

    min_return: float
    agent: str = ""
    """only of this one; empty: of all"""


def _left_out(chosen: Selection, agent: str, total: float | None) -> str:
    """Why turns of an agent with this return become no rows; empty if they do."""
    if chosen.agent not in ("", agent):
        return "another agent"
    if total is None:
        return "a failed reward"
    return f"a return below {chosen.min_return:g}" if total < chosen.min_return else ""


def training_rows(games: Iterable[Row], chosen: Selection, refused: Counter[str]) -> Iterator[Row]:
    """TRL's `prompt` and `completion` for each turn of the agents whose return is at least `min_return`.

    Turns that are left out are counted in `refused` by reason.
    """
    seen: set[str] = set()
    for game in games:
        for agent, turns in game["agents"].items():
            total = game["returns"].get(agent)
            if reason := _left_out(chosen, agent, total):
                refused[reason] += len(turns)
                continue
            for turn in turns:
                prompt = turn["messages"] if "messages" in turn else turn["prompt"]
                key = repr((prompt, turn["reply"]))
                if turn.get("finish") == "length":
                    refused["a reply cut at the limit"] += 1
                elif key in seen:
                    refused["a duplicate"] += 1
                else:
                    seen.add(key)
                    reply = turn["reply"]
                    completion = [{"role": "assistant", "content": reply}] if "messages" in turn else reply
                    yield {"prompt": prompt, "completion": completion, "return": total, "agent": agent}
