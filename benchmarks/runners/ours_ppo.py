"""lmgym's own PPO as ppo/train.py runs it, from token ids on: its sampler, experience, learner and engine, unchanged.

Variants: `own_critic` (a critic started from a reward model), `shared_head` (a value head on the policy's trunk) and
`hydra` (the same with the lower layers frozen and run once an iteration).
"""

from ppo_interface import Clock, Memory, PPOSpec, Rollout, parse_paths, read_rollouts, read_spec, write_result  # isort: skip

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from ours_iteration import Iteration, equal_rollouts
from safetensors.torch import load_file
from transformers.utils import logging

from lmgym.config import ModelConfig, OptimizerConfig, RunConfig
from lmgym.models.critics import ValueHead
from lmgym.models.loading import load_classifier, load_tokenizer
from ppo.config import CriticConfig, MethodConfig, PPOConfig, RolloutConfig
from ppo.rollouts import Rollouts
from ppo.setup import build, make_estimator

CPU = torch.device("cpu")


def read_config(spec: PPOSpec) -> PPOConfig:
    """The spec in our words."""
    return PPOConfig(
        name="benchmark",
        policy=ModelConfig(spec.policy, precision=spec.precision),
        rollout=RolloutConfig(
            num_rollouts=spec.batch,
            max_new_tokens=spec.new_tokens,
            temperature=spec.temperature,
            generation_batch_size=spec.batch,
        ),
        method=MethodConfig(
            ppo_epochs=spec.epochs,
            init_kl_coef=spec.kl_coef,
            cliprange=spec.clip,
            num_layers_unfrozen=spec.num_layers_unfrozen if spec.variant == "hydra" else -1,
        ),
        critic=CriticConfig(
            spec.critic if spec.variant == "own_critic" else "head",
            gamma=spec.gamma,
            lam=spec.lam,
            cliprange_value=spec.value_clip,
            vf_coef=spec.value_coef,
        ),
        optimizer=OptimizerConfig(
            learning_rate=spec.learning_rate,
            global_batch=spec.minibatch,
            micro_batch=spec.micro_batch,
            max_grad_norm=float("inf"),
            seed=spec.seed,
        ),
        run=RunConfig(tracking="none"),
    )


def load_value_head(head: ValueHead, path: str) -> None:
    """The weights that all contenders start from."""
    weights = load_file(path)
    for layer, name in ((head.inner, "0"), (head.outer, "2")):
        layer.load_state_dict({part: weights[f"{name}.{part}"] for part in ("weight", "bias")})


@dataclass
class Contender:
    """The components of our PPO in the benchmark."""

    spec: PPOSpec
    ours: Iteration

    @classmethod
    def load(cls, spec: PPOSpec, memory: Memory) -> "Contender":
        """All models, each as the library loads it."""
        config, tokenizer = read_config(spec), load_tokenizer(spec.policy)
        actor, reference = build(config, tokenizer)
        assert reference is not None
        if actor.value_head is not None:
            load_value_head(actor.value_head, spec.value_head)
        classifier, _ = load_classifier(spec.reward_model, tokenizer, num_labels=1, fresh_head=False)
        memory.loaded((actor, reference.model, classifier))
        order = InOrder(spec)
        ours = Iteration.of(config, actor, reference, classifier, tokenizer, CPU, spec.adam_epsilon, order)
        return cls(spec, ours)

    def sample(self, rows: Sequence[Rollout], iteration: int) -> Rollouts:
        """Replies of the length that all contenders train, or those of the file."""
        prompts = [row.prompt_ids for row in rows]
        if self.spec.replay:
            return equal_rollouts(
                prompts, [row.reply_ids for row in rows], torch.zeros(len(rows) * self.spec.new_tokens)
            )
        self.ours.sampler.sync()
        return self.ours.sample(prompts, self.spec.seed + iteration)

    def advance(self, rollouts: Rollouts) -> None:
        """Rewards and advantages, whitened by the variance of a sample, as TRL does: ours is the population's."""
        make_estimator(self.ours.config)(rollouts, self.spec.kl_coef)
        count = len(rollouts.advantages)
        rollouts.advantages *= ((count - 1) / count) ** 0.5


@dataclass(frozen=True)
class InOrder:
    """The spec's permutations instead of the seed's."""

    spec: PPOSpec

    def __call__(self, episodes: int, batch: int, rank: int, ranks: int, chance: Sequence[int]) -> list[np.ndarray]:
        """Consecutive slices."""
        _, iteration, epoch = chance
        order = np.array(self.spec.orders[iteration][epoch])
        return np.split(order, episodes // batch)


def main() -> None:
    paths = parse_paths()
    spec = read_spec(paths.spec)
    if spec.variant not in ("own_critic", "shared_head", "hydra"):
        raise ValueError(f"variant={spec.variant!r} must be own_critic, shared_head or hydra")
    logging.disable_progress_bar()
    torch.manual_seed(spec.seed)
    clock, memory = Clock(spec, paths.profile, paths.count), Memory()
    contender = Contender.load(spec, memory)
    ours = contender.ours
    for iteration, rows in enumerate(read_rollouts(spec)):
        rollouts = clock.timed("generation", contender.sample)(rows, iteration)
        given = torch.tensor([row.score for row in rows])
        scores = given if spec.replay else clock.timed("scores", ours.score)(rollouts)
        rollouts.scores[rollouts.row_starts[1:] - 1] = scores
        clock.timed("log-probs, values, reference", ours.experience.measure)(rollouts)
        contender.advance(rollouts)
        learned = clock.timed("epochs", ours.learner.learn)(rollouts, iteration, iteration * spec.epochs)
        for policy, value in ((u["policy_loss"], u["value_loss"]) for u in learned.curve):
            clock.add_losses(torch.tensor(policy), torch.tensor(value))
            clock.end_update()
        clock.end_iteration()
    write_result(paths.result, "ours_ppo", spec, clock, memory, ())


if __name__ == "__main__":
    main()
