"""PPO and GRPO on Blackjack and FrozenLake, over tokens and over actions.

A small policy from scratch is trained on random legal moves (SFT), then by RL.

    .venv/bin/python benchmarks/games.py                       # all runs; adds to benchmarks/results/games.json
    .venv/bin/python benchmarks/games.py --games blackjack --methods ppo --seeds 0

Each run is launched as a user launches it, on one rank and thread; every seed has a start of its own. Blackjack's
expected return is exact: the probabilities of every reply in each hand, and an enumeration of all hands. FrozenLake's
is the mean of 1,000 sampled episodes. Bars: Blackjack at least -0.10, FrozenLake above 0.95, on all seeds.
"""

import argparse
import datetime
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from shared import ROOT, describe_machine, launch, metrics_of, rewards_of, write_result

sys.path.insert(0, str(ROOT))  # beside this file lies ppo.py, another benchmark

from lmgym.apps.games.ladder import find_game
from lmgym.apps.games.replies import choice_of
from lmgym.apps.games.small_policy import make_start
from lmgym.apps.games.toy_players import expected_return, hands
from lmgym.apps.games.toy_text import BLACKJACK, show_hand
from lmgym.environments.rollout_engine import run_episodes
from lmgym.generation.actions import policy_over
from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.protocol import Sampling
from lmgym.models.forward.policies import load_policy
from lmgym.models.loading import load_tokenizer
from lmgym.text import Conversation, Turn, render_all, tokenize_texts

BARS = {"blackjack": -0.10, "frozen_lake": 0.95}
METHODS = ("ppo", "grpo", "ppo_actions", "grpo_actions")
GROUPS = {"blackjack": "--num_generations 4", "frozen_lake": "--num_generations 16 --init_kl_coef 0"}
SEEDS = (0, 1, 2)
EPISODES, TOGETHER = 1000, 250
LEAST = 1e-4
"""probability of a first token below which it counts as an illegal reply"""


def load(folder: Path) -> LocalGenerator:
    """The policy of a folder."""
    tokenizer = load_tokenizer(str(folder))
    return LocalGenerator(load_policy(str(folder), tokenizer), tokenizer, generation_batch_size=TOGETHER)


@torch.inference_mode()
def move_probabilities(policy: LocalGenerator, prompts: list[list[int]]) -> list[dict[object, float]]:
    """For each prompt, the probability of each of Blackjack's actions (None: no action) among replies of two tokens."""
    model, tokenizer, read = policy.model, policy.tokenizer, choice_of(BLACKJACK)
    found = []
    for prompt in prompts:
        first = model(torch.tensor([prompt])).logits[0, -1].float().softmax(-1)
        likely = torch.nonzero(first > LEAST).flatten().tolist()
        rows = torch.tensor([[*prompt, token] for token in likely])
        second = model(rows).logits[:, -1].float().softmax(-1)
        moves: dict[object, float] = {}
        for token, after in zip(likely, second, strict=True):
            ended = token == tokenizer.eos_token_id
            texts = [""] if ended else texts_after(policy, token)
            chances = [1.0] if ended else after.tolist()
            for text, chance in zip(texts, chances, strict=False):
                action = read(text)
                moves[action] = moves.get(action, 0.0) + float(first[token]) * chance
        found.append(moves)
    return found


_TEXTS: dict[tuple[int, int], list[str]] = {}


def texts_after(policy: LocalGenerator, token: int) -> list[str]:
    """The texts of the replies (token, t), by t."""
    key = (id(policy), token)
    if key not in _TEXTS:
        pairs = [[token, t] for t in range(len(policy.tokenizer))]
        _TEXTS[key] = policy.tokenizer.batch_decode(pairs, skip_special_tokens=True)
    return _TEXTS[key]


@torch.inference_mode()
def action_probabilities(policy: LocalGenerator, prompts: list[list[int]]) -> list[dict[object, float]]:
    """For each prompt, the softmax over Blackjack's moves of their log-probabilities, each with its end."""
    ends = {
        word: [*tokenize_texts(policy.tokenizer, [f" {word}"])[0], policy.tokenizer.eos_token_id] for word in BLACKJACK
    }
    found = []
    for prompt in prompts:
        scores = []
        for ids in ends.values():
            logprobs = policy.model(torch.tensor([[*prompt, *ids]])).logits[0].float().log_softmax(-1)
            scores.append(sum(logprobs[len(prompt) - 1 + i, token] for i, token in enumerate(ids)))
        chances = torch.stack(scores).softmax(-1).tolist()
        found.append(dict(zip(BLACKJACK.values(), chances, strict=True)))
    return found


def exact_blackjack(policy: LocalGenerator, over: str) -> float:
    """Expected return of a policy over tokens or actions in Blackjack at temperature 1."""
    every = hands()
    shown = [Conversation((Turn("user", show_hand(hand)),)) for hand in every]
    prompts = tokenize_texts(policy.tokenizer, render_all(policy.tokenizer, shown))
    probabilities = action_probabilities if over == "actions" else move_probabilities
    moves = dict(zip(every, probabilities(policy, prompts), strict=True))
    stick, hit = BLACKJACK.values()
    return expected_return(lambda hand: (moves[hand].get(stick, 0.0), moves[hand].get(hit, 0.0)))


def returns_of(policy: LocalGenerator, name: str, over: str, seeds: Sequence[int]) -> list[float]:
    """The returns of a policy over tokens or actions in the episodes of some seeds, at temperature 1."""
    game, returns = find_game(name), []
    acting = policy_over(over, policy)
    for first in range(0, len(seeds), TOGETHER):
        now = list(seeds[first : first + TOGETHER])
        environments, sampling = [game.environment() for _ in now], Sampling(2, seed=1)
        episodes = run_episodes(environments, [{}] * len(now), now, acting, policy.tokenizer, sampling, None)
        returns += [episode.total_reward for episode in episodes]
    return returns


def value(name: str, folder: Path, method: str) -> float:
    """The return that a bar is for."""
    policy, over = load(folder), "actions" if method.endswith("actions") else "tokens"
    if name == "blackjack":
        return exact_blackjack(policy, over)
    return float(np.mean(returns_of(policy, name, over, range(10**6, 10**6 + EPISODES))))


def flags_of(name: str, method: str) -> list[str]:
    """The flags that a method adds to the experiment of a game."""
    groups = f"--method grpo {GROUPS[name]}" if method.startswith("grpo") else ""
    return [*groups.split(), *(["--policy_over", "actions"] if method.endswith("actions") else [])]


def run(name: str, method: str, seed: int, folder: Path, flags: Sequence[object]) -> dict:
    """A whole run, and what came of it."""
    start, output = make_start(name, folder / f"{name}_start_{seed}", seed), folder / f"{name}_{method}_{seed}"
    flags = ["--seed", seed, *flags_of(name, method), *flags]
    seconds, lines = launch(f"ppo/experiments/{name}.py", start, output, flags), metrics_of(output)
    ended = value(name, output / "model", method)
    return {
        "game": name, "method": method, "seed": seed, "start": value(name, start, method), "return": ended,
        "reached": ended >= BARS[name], "updates": lines[-1]["step"],
        "cpu_seconds": seconds, "rollouts_before_update": rewards_of(lines),
    }  # fmt: skip


def main() -> None:
    """Runs all, prints and writes what was measured; a run replaces the one of the same game, method and seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--games", nargs="+", default=list(BARS), choices=list(BARS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/games.json")
    arguments, flags = parser.parse_known_args()  # flags of the experiment, to try others
    torch.set_num_threads(1)
    found = json.loads(arguments.output.read_text()) if arguments.output.exists() else {"runs": []}
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.games:
            for method in arguments.methods:
                for seed in arguments.seeds:
                    one = run(name, method, seed, Path(folder), flags)
                    print({k: v for k, v in one.items() if k != "rollouts_before_update"}, flush=True)
                    key = (name, method, seed)
                    others = [r for r in found["runs"] if (r["game"], r["method"], r["seed"]) != key]
                    found = {
                        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                        "machine": describe_machine(), "bars": BARS,
                        "runs": sorted([*others, one], key=lambda r: (r["game"], r["method"], r["seed"])),
                    }  # fmt: skip
                    write_result(arguments.output, found, "method", "sampler")


if __name__ == "__main__":
    main()
