"""The waits of Python for the GPU: not for a token of a reply, nor for a micro-batch of an update."""

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from launching import flags
from transformers import AutoModelForCausalLM, Trainer

from lmgym.config import ModelConfig, OptimizerConfig
from lmgym.environments.episodes import Episode, Step
from lmgym.generation.local_generation import CHECK_EVERY, LocalGenerator
from lmgym.generation.protocol import Completion, Sampling
from lmgym.models.loading import load_tokenizer
from lmgym.runs.flags import override
from ppo.config import MethodConfig, PPOConfig, RolloutConfig
from ppo.rollouts import gather
from ppo.setup import build, make_engine, make_estimator, make_experience, make_learner
from reward_models.experiments import hh_pairwise
from reward_models.train import train_pairwise

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

ROWS, TOKENS = 16, 12


def waits(work: Callable[[], object]) -> list[str]:
    """The calls in some work that make Python wait, by CUDA's own account."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return [f"{w.filename}:{w.lineno} {w.message}" for w in found if "synchronizing" in str(w.message)]


@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.0}, {"top_k": 8}, {"repetition_penalty": 1.2}])
def test_more_tokens_cost_no_more_waits_than_looks(graphs: bool, sampling: dict, small_models: dict[str, Path]) -> None:
    model = AutoModelForCausalLM.from_pretrained(small_models["llama"], dtype=torch.float32).to("cuda").eval()
    model.generation_config.eos_token_id = 511  # which is looked for, and hardly ever said
    generator = LocalGenerator(model, load_tokenizer(str(small_models["llama"])))
    generator.graphs = graphs
    prompts = [list(range(5, 15))] * 4

    def of(tokens: int) -> list[str]:
        return waits(lambda: generator.generate(prompts, 2, Sampling(tokens, **sampling)))

    of(8)  # what is done once a process
    few, many = of(2 * CHECK_EVERY), of(6 * CHECK_EVERY)
    assert few, "a batch's end is waited for"
    assert len(many) - len(few) <= 4, "\n".join(many)


def test_an_updates_waits_do_not_grow_with_its_micro_batches(small_models: dict[str, Path]) -> None:
    device, chance = torch.device("cuda"), np.random.default_rng(0)
    steps = []
    for _ in range(ROWS):
        ids = tuple(chance.integers(5, 500, size=TOKENS).tolist())
        prompt = chance.integers(5, 500, size=9).tolist()
        steps.append(Step(prompt, "", Completion("", "length", ids, (-6.2,) * TOKENS, TOKENS), float(chance.normal())))
    episodes = [Episode(i, "policy", [step], True, False, None, {}) for i, step in enumerate(steps)]

    def of(micro_batch: int) -> list[str]:
        config = PPOConfig(
            "x", ModelConfig(str(small_models["llama"]), precision="bf16"), RolloutConfig(num_rollouts=ROWS),
            method=MethodConfig(ppo_epochs=1),
            optimizer=OptimizerConfig(1e-3, global_batch=ROWS, micro_batch=micro_batch),
        )  # fmt: skip
        actor, reference = build(config, load_tokenizer(config.policy.model))
        actor.to(device)
        assert reference is not None
        reference.model.to(device)
        engine, rollouts = make_engine(config, actor, None), gather(episodes, config.reward)
        learner = make_learner(config, engine, lambda _: 1e-3, device, lambda *said: pytest.fail(str(said)))
        make_experience(config, engine, reference, device).measure(rollouts)
        make_estimator(config)(rollouts, 0.0)
        learner.learn(rollouts, 0, 0)  # an optimizer's state, and what is done once a process
        return waits(lambda: learner.learn(rollouts, 1, 1))

    few, many = of(ROWS // 2), of(1)
    assert few, "an update's end is waited for"
    assert len(many) == len(few), "\n".join(many)


def test_nor_do_those_of_a_reward_models_update(small_models: dict[str, Path], few_pairs: Path, tmp_path: Path) -> None:
    def of(micro_batch: int) -> list[str]:
        config = override(hh_pairwise.CONFIG, [
            str(word) for word in flags(
                model=small_models["llama"], dataset=few_pairs, eval_size=4, max_length=256, precision="fp32",
                global_batch=8, micro_batch=micro_batch, max_updates=1, tracking="none", save_updates=-1,
                output=tmp_path / str(micro_batch),
            )
        ])  # fmt: skip
        with pytest.MonkeyPatch.context() as patch:
            found: list[str] = []
            step = Trainer.training_step

            def counted(*given, **named):
                losses = []
                found.extend(waits(lambda: losses.append(step(*given, **named))))
                return losses[0]

            patch.setattr(Trainer, "training_step", counted)
            train_pairwise(config)
        return found

    of(8)  # what is done once a process
    few, many = of(4), of(1)
    assert few, "an update's end is waited for"
    assert len(many) == len(few), "\n".join(many)
