"""An iteration of our PPO from token ids on, by the parts that ppo/train.py calls: texts and reports are left out.

Made of models that are at hand, wherever they come from: `Iteration.of`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lmgym.generation.protocol import Sampling
from lmgym.models.classifiers import round_frozen_layers
from lmgym.models.forward.scoring_model import ScoringModel
from lmgym.text import Replies
from ppo.actor_critic import ActorCritic, Reference
from ppo.config import PPOConfig
from ppo.experience import Experience
from ppo.learner import Learner, Split
from ppo.rollouts import Rollouts, minibatches
from ppo.setup import ADAM_EPSILON, make_engine, make_experience, make_learner
from ppo.weight_sync import SamplingPolicy


@dataclass
class Iteration:
    """The components of an iteration."""

    config: PPOConfig
    device: torch.device
    actor: ActorCritic
    sampler: SamplingPolicy
    scorer: ScoringModel
    experience: Experience
    learner: Learner

    @classmethod
    def of(
        cls, config: PPOConfig, actor: ActorCritic, reference: Reference | None, classifier, tokenizer,
        device: torch.device, adam_epsilon: float = ADAM_EPSILON, split: Split = minibatches,
    ) -> "Iteration":  # fmt: skip
        """In the order of ppo/setup.py; the learning rate is constant."""
        precision = config.policy.precision
        if precision == "bf16":
            round_frozen_layers(actor.policy)
        actor.to(device)
        sampler = SamplingPolicy(actor, tokenizer, precision, False, False, config.rollout.generation_batch_size)
        if reference is not None:
            if precision == "bf16":
                reference.round(everything=False)
            reference.model.to(device)
        engine = make_engine(config, actor, None, adam_epsilon)
        rate = config.optimizer.learning_rate
        learner = make_learner(config, engine, lambda _: rate, device, refuse_non_finite, split=split)
        scorer = ScoringModel(classifier.to(device).eval().requires_grad_(False))
        return cls(config, device, actor, sampler, scorer, make_experience(config, engine, reference, device), learner)

    def sample(self, prompts: Sequence[list[int]], seed: int) -> Rollouts:
        """Replies of one length, by the weights of the last sync."""
        rollout = self.config.rollout
        sampling = Sampling(rollout.max_new_tokens, rollout.temperature, seed=seed, ends_at_eos=False)
        found = [reply for [reply] in self.sampler.generator.generate(prompts, 1, sampling)]
        logprobs = torch.tensor([x for reply in found for x in reply.logprobs])
        return equal_rollouts(prompts, [list(reply.ids) for reply in found], logprobs)

    @torch.inference_mode()
    def score(self, rollouts: Rollouts, exact: bool = False) -> torch.Tensor:
        """[batch], on the CPU: as scoring/scorers.py scores, from the ids on; that one is always exact, in fp32."""
        inputs = self.scorer.collate([Replies([], [row]) for row in rollouts.rows], 0)
        bf16 = self.config.policy.precision == "bf16" and not exact
        with torch.autocast(self.device.type, torch.bfloat16, enabled=bf16):
            found = self.scorer(**{name: value.to(self.device) for name, value in inputs.items()})
        return found[:, 0].float().cpu()


def equal_rollouts(prompts: Sequence[list[int]], replies: Sequence[list[int]], logprobs: torch.Tensor) -> Rollouts:
    """Rollouts of replies of one length, without scores."""
    [length] = {len(reply) for reply in replies}
    return Rollouts(
        rows=[[*prompt, *reply] for prompt, reply in zip(prompts, replies, strict=True)],
        reply_lengths=np.full(len(replies), length),
        episode_of_row=np.arange(len(replies)),
        sampler_logprobs=logprobs,
        scores=torch.zeros(len(logprobs)),
        has_reward=np.ones(len(replies), dtype=bool),
        row_has_loss=np.ones(len(replies), dtype=bool),
        group_of_episode=np.arange(len(replies)),
        values=torch.zeros(len(logprobs)),
        returns=torch.zeros(len(logprobs)),
        correction=torch.ones(len(logprobs)),
    )


def refuse_non_finite(update: int, what: str, names: list[str]) -> None:
    """Ends the run."""
    raise RuntimeError(f"update {update}: {what} in {names}")
