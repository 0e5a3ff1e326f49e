"""A model of a shape, the way in which PPO trains it, and one timed iteration: what ppo_on_gpu.py measures."""

import argparse
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import model_costs
import numpy as np
import torch
from model_costs import Rows, Shape, Way
from roofs import synchronize
from runners.ours_iteration import Iteration
from shapes import random_model, read_shape

from lmgym.config import ModelConfig, OptimizerConfig, RunConfig
from lmgym.models.classifiers import Float32Head
from lmgym.models.memory import GIB
from ppo.actor_critic import adapted
from ppo.algorithms.learning import advantage_estimator
from ppo.config import MethodConfig, PPOConfig, RolloutConfig
from ppo.rollouts import Rollouts

BATCH, EPOCHS, NEW_TOKENS, PROMPT_TOKENS = 16, 4, 48, (64, 128)
WAYS = {
    "tiny": (Way("shared_head"), Way("hydra", 2), Way("lora", lora_rank=4)),
    "qwen3-0.6b": (Way("shared_head"), Way("hydra", 24), Way("lora", lora_rank=16)),
    "qwen3-8b": (Way("hydra", 32), Way("lora", lora_rank=16)),
}
SCORERS = {"tiny": "tiny", "qwen3-0.6b": "qwen3-0.6b", "qwen3-8b": "qwen3-0.6b"}
LOGIT_STD = 0.64  # of random weights of std .02 at width 1024


@dataclass(frozen=True)
class NoText:
    """A tokenizer for token ids that are never decoded."""

    size: int
    pad_token_id = 0
    eos_token_id = 1

    def __len__(self) -> int:
        return self.size

    def decode(self, ids, **settings) -> str:
        """Nothing."""
        return ""


@dataclass
class Bench:
    """A model trained in one way, and what it is asked."""

    name: str
    way: Way
    device: torch.device
    arguments: argparse.Namespace

    def __post_init__(self) -> None:
        self.shape, self.scorer_shape = (Shape.of(read_shape(name)) for name in (self.name, SCORERS[self.name]))
        low, high = PROMPT_TOKENS
        # every iteration has the same lengths: they differ by the machine alone
        self.lengths = np.random.default_rng(self.arguments.seed).integers(low, high + 1, BATCH).tolist()

    @property
    def precision(self) -> str:
        """A rehearsal is exact."""
        return "bf16" if self.device.type == "cuda" else "fp32"

    @property
    def rows(self) -> Rows:
        """Rows as they run through the policy, without the last token, whose output is not used."""
        return Rows([n + NEW_TOKENS - 1 for n in self.lengths], [NEW_TOKENS] * BATCH)

    def config(self) -> PPOConfig:
        """In our words."""
        unfrozen = self.shape.layers - self.way.frozen_layers if self.way.frozen_layers else -1
        return PPOConfig(
            name="ppo_on_gpu",
            policy=ModelConfig(self.name, precision=self.precision, lora_rank=self.way.lora_rank),
            rollout=RolloutConfig(num_rollouts=BATCH, max_new_tokens=NEW_TOKENS, generation_batch_size=BATCH),
            method=MethodConfig(ppo_epochs=EPOCHS, num_layers_unfrozen=unfrozen),
            optimizer=OptimizerConfig(
                learning_rate=1e-5, global_batch=BATCH, micro_batch=self.arguments.micro_batch, seed=self.arguments.seed
            ),
            run=RunConfig(tracking="none"),
        )

    def build(self) -> Iteration:
        """Random models, made on the device and nowhere else."""
        tokenizer, seed, device = NoText(self.shape.vocabulary), self.arguments.seed, str(self.device)
        policy = random_model(self.name, tokenizer, "causal", seed, device)
        if not self.shape.tied:  # the gap between two roundings grows with the logits, and says nothing of the code
            with torch.no_grad():
                policy.lm_head.weight.mul_(LOGIT_STD / (0.02 * self.shape.width**0.5))
        actor, reference = adapted(self.config(), policy)
        classifier = random_model(SCORERS[self.name], tokenizer, "classifier", seed + 1, device)
        classifier.score.__class__ = Float32Head  # as load_classifier has it
        return Iteration.of(self.config(), actor, reference, classifier, tokenizer, self.device)

    def prompts(self, iteration: int) -> list[list[int]]:
        """Random ids, others each time."""
        rng = np.random.default_rng([self.arguments.seed, iteration])
        return [rng.integers(2, self.shape.vocabulary, length).tolist() for length in self.lengths]

    def check_memory(self) -> str | None:
        """A line where the GPU has no room."""
        if self.device.type != "cuda":
            return None
        rows = Rows(*(part[: self.arguments.micro_batch] for part in (self.rows.lengths, self.rows.reads)))
        needed = model_costs.memory_needed(self.shape, self.scorer_shape, self.way, rows, True)
        torch.cuda.empty_cache()  # what the run before has cached is not free to the driver
        free, _ = torch.cuda.mem_get_info(self.device)
        if sum(needed.values()) <= free:
            return None
        return (
            f"needs about {model_costs.in_words(needed)}, {free / GIB:.1f} GiB are free; needed: a larger GPU, "
            f"fewer layers unfrozen, or a smaller --micro_batch (now {self.arguments.micro_batch})"
        )

    def work(self) -> dict[str, dict[str, float]]:
        """Tokens, and operations or bytes, by phase."""
        shape, way, rows = self.shape, self.way, self.rows
        reused = self.arguments.micro_batch >= BATCH  # ppo/experience.py keeps the first forward
        sampled, through = BATCH * NEW_TOKENS, sum(rows.lengths)
        whole = [n + NEW_TOKENS for n in self.lengths]
        size = 2 if self.precision == "bf16" else 4
        return {
            "generation": {
                "tokens": sampled,
                "bytes": model_costs.generation_bytes(shape, way, self.lengths, NEW_TOKENS, size),
            },
            "scores": {"tokens": sum(whole), "flops": model_costs.scoring_flops(self.scorer_shape, whole)},
            "log-probs, values, reference": {
                "tokens": through,
                "flops": model_costs.experience_flops(shape, way, rows),
            },
            "epochs": {
                "tokens": EPOCHS * through,
                "flops": model_costs.learning_flops(shape, way, rows, EPOCHS, reused),
            },
        }


class Clock:
    """Seconds of each phase, an entry an iteration; a GPU is waited for at both ends."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.found: dict[str, list[float]] = defaultdict(list)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds one."""
        synchronize(self.device)
        began = time.perf_counter()
        yield
        synchronize(self.device)
        self.found[name].append(time.perf_counter() - began)


def iterate(bench: Bench, ours: Iteration, number: int, clock: Clock) -> tuple[Rollouts, list[tuple[float, float]]]:
    """One iteration as ppo/train.py runs it; its rollouts and losses."""
    with clock.phase("weights to sampler"):
        ours.sampler.sync()
    with clock.phase("generation"):
        rollouts = ours.sample(bench.prompts(number), seed=bench.arguments.seed + number)
    with clock.phase("scores"):
        rollouts.scores[rollouts.row_starts[1:] - 1] = ours.score(rollouts)
    with clock.phase("log-probs, values, reference"):
        ours.experience.measure(rollouts)
    with clock.phase("advantages"):
        advantage_estimator(ours.config)(rollouts, ours.config.algorithm.init_kl_coef)
    with clock.phase("epochs"):
        learned = ours.learner.learn(rollouts, number, number * EPOCHS)
    return rollouts, [(update["policy_loss"], update["value_loss"]) for update in learned.curve]
