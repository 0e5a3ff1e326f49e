"""Environment steps a second of an agent: ours beside LlamaGym's way, on shape S with two games of Gymnasium.

    .venv/bin/python benchmarks/agents.py                   # writes benchmarks/results/agents_fp32.json
    .venv/bin/python benchmarks/agents.py --dtype bf16      # writes benchmarks/results/agents_bf16.json

LlamaGym's way is one environment and one `generate` of transformers a turn. The same agent, model, tokenizer and
sampling everywhere; replies of a random model nearly all have max_new_tokens, and a reply's length chooses the move.
Hands of Blackjack are over after one to four turns, so that most environments soon wait for the last ones; on the
cliff all go on to the last turn. CPU seconds of one thread, pinned to a core (seconds on a GPU), the ways in turn.
"""

import argparse
import datetime
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from shared import ROOT, describe_machine, pin_command, random_model, train_shape_tokenizer, write_result

from lmgym.agents import Agent
from lmgym.apps.agents.environment import AgentEnvironment
from lmgym.apps.games.gym_text import make_gymnasium
from lmgym.environments.rollout_engine import run_episodes
from lmgym.errors import InputError
from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.protocol import Sampling
from lmgym.models.devices import present_device

SAMPLING = {"max_new_tokens": 32, "temperature": 0.9, "top_p": 1.0, "top_k": 0}
GAMES = {"Blackjack-v1": {"sab": False}, "CliffWalking-v1": {}}
ENVIRONMENTS, MOST_TURNS = (1, 8, 64), 4
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Player(Agent):
    """Any reply is a move."""

    def get_system_prompt(self) -> str:
        """The rules."""
        return "You play a game. Every turn you see its state, and answer with the number of your move, as Action: 0."

    def format_observation(self, observation: Any) -> str:
        """The state as it is."""
        return f"State: {observation}. Your move?"

    def extract_action(self, response: str) -> int:
        """0 or 1, for any text."""
        return len(response) % 2


class TimedGame:
    """A game, with the seconds and the steps inside all of its kind."""

    name, seconds, steps = "", 0.0, 0
    clock = staticmethod(time.process_time)

    def __init__(self) -> None:
        self.env = make_gymnasium(self.name, GAMES[self.name])

    def _timed(self, call: Any, *given: Any, **named: Any) -> Any:
        began = self.clock()
        try:
            return call(*given, **named)
        finally:
            TimedGame.seconds += self.clock() - began

    def reset(self, seed: int) -> Any:
        """Begin an episode."""
        return self._timed(self.env.reset, seed=seed)

    def step(self, action: int) -> Any:
        """Move."""
        TimedGame.steps += 1
        return self._timed(self.env.step, action)


def llamagyms_way(model: Any, tokenizer: Any, episodes: int) -> None:
    """One environment, one generate a turn, the whole dialogue read anew each time."""
    agent, env = Player(None, None, "cpu"), TimedGame()
    for number in range(episodes):
        agent.start_episode()
        observation, _ = env.reset(seed=number)
        for _ in range(MOST_TURNS):
            agent.observe(observation)
            text = tokenizer.apply_chat_template(
                agent.current_episode_messages, tokenize=False, add_generation_prompt=True
            )
            given = tokenizer(text, return_tensors="pt", add_special_tokens=False).to(model.device)
            with torch.inference_mode():
                ids = model.generate(**given, do_sample=True, pad_token_id=tokenizer.pad_token_id, **SAMPLING)
            reply = tokenizer.decode(ids[0, given.input_ids.shape[1] :], skip_special_tokens=True)
            observation, reward, terminated, truncated, _ = env.step(agent.respond(reply).action)
            agent.assign_reward(reward)
            if terminated or truncated:
                break


def our_way(model: Any, tokenizer: Any, episodes: int) -> None:
    """All episodes at once."""
    generator, sampling = LocalGenerator(model, tokenizer, episodes), Sampling(**SAMPLING)
    environments = [AgentEnvironment(Player, TimedGame, MOST_TURNS) for _ in range(episodes)]
    run_episodes(environments, [{}] * episodes, range(episodes), generator, tokenizer, sampling, None)


WAYS = (("LlamaGym's way, 1", llamagyms_way, 0), *((f"ours, {count}", our_way, count) for count in ENVIRONMENTS))


def measure(way: Any, model: Any, tokenizer: Any, episodes: int) -> dict[str, float]:
    """Steps a second, and the share of it inside environments."""
    TimedGame.seconds, TimedGame.steps = 0.0, 0
    began = TimedGame.clock()
    way(model, tokenizer, episodes)
    seconds = TimedGame.clock() - began
    return {
        "steps": TimedGame.steps, "seconds": seconds, "steps_per_second": TimedGame.steps / seconds,
        "share_in_environments": TimedGame.seconds / seconds,
    }  # fmt: skip


def make_model(seed: int) -> tuple[Any, Any]:
    """Shape S, random, and a tokenizer of this repository's pages."""
    tokenizer = train_shape_tokenizer(
        "S", [page.read_text(encoding="utf-8") for page in sorted(ROOT.glob("docs/*.md"))]
    )
    return random_model("S", tokenizer, "causal", seed).eval(), tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--episodes", type=int, default=4, help="of LlamaGym's way; ours plays as many as it has")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or mps")
    parser.add_argument("--dtype", default="fp32", choices=DTYPES, help="of the model, whichever way it plays")
    parser.add_argument("--output", type=Path, help="default: benchmarks/results/agents_DTYPE.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if pin_command(arguments.core):
        os.sched_setaffinity(0, {arguments.core})
    if arguments.device != "cpu":
        TimedGame.clock = staticmethod(time.perf_counter)
    model, tokenizer = make_model(arguments.seed)
    try:
        model.to(present_device(arguments.device), DTYPES[arguments.dtype])
    except InputError as error:
        parser.error(str(error))
    found: dict[str, list[dict[str, float]]] = {}
    for repetition in range(arguments.repetitions + 1):
        for TimedGame.name in GAMES:
            for name, way, episodes in WAYS:
                measured = measure(way, model, tokenizer, episodes or arguments.episodes)
                # the first repetition warms up
                found.setdefault(f"{TimedGame.name}, {name}", []).extend([measured] if repetition else [])
    medians = {
        name: {key: statistics.median(one[key] for one in runs) for key in runs[0]} for name, runs in found.items()
    }
    for name, run in medians.items():
        base = medians[f"{name.partition(',')[0]}, {WAYS[0][0]}"]["steps_per_second"]
        print(
            f"{name:34} {run['steps_per_second']:8.2f} steps/s  {run['steps_per_second'] / base:5.1f}x  "
            f"{run['share_in_environments']:.2%} inside environments ({run['steps']:.0f} steps)"
        )
    record = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "machine": describe_machine(),
        "device": arguments.device, "dtype": arguments.dtype, "sampling": SAMPLING, "medians": medians, "runs": found,
    }  # fmt: skip
    output = arguments.output or ROOT / f"benchmarks/results/agents_{arguments.dtype}.json"
    write_result(output, record)


if __name__ == "__main__":
    main()
