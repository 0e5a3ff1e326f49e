"""Epochs of minibatches: every epoch in an order of its own, and all of them over once the policy has moved enough."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lmgym.config import ModelConfig, OptimizerConfig
from lmgym.distributed.plain_engine import PlainEngine
from lmgym.environments.episodes import Episode, Step
from lmgym.generation.protocol import Completion
from lmgym.models.loading import load_tokenizer
from ppo.config import MethodConfig, PPOConfig, RewardConfig, RolloutConfig
from ppo.learner import Learned
from ppo.rollouts import Rollouts, gather, minibatches
from ppo.setup import build, make_engine, make_estimator, make_experience, make_learner

EPISODES, EPOCHS, TOKENS = 16, 3, 6


def played() -> Rollouts:
    """Replies of six tokens each, worth what chance says."""
    chance = np.random.default_rng(3)
    found = []
    for i in range(EPISODES):
        ids = tuple(chance.integers(5, 500, size=TOKENS).tolist())
        said = Completion("", "length", ids, (-6.2,) * TOKENS, TOKENS)
        step = Step(chance.integers(5, 500, size=9).tolist(), "", said, float(chance.normal()))
        found.append(Episode(i, "policy", [step], True, False, None, {}))
    return gather(found, RewardConfig())


def learned(folder: Path, batch: int, iterations: int = 1, **method) -> tuple[list[Learned], list[list[np.ndarray]]]:
    """The outcome of each iteration on the same rollouts at a rate of 1e-3, and every epoch's minibatches."""
    config = PPOConfig(
        "x", ModelConfig(str(folder), precision="fp32"), RolloutConfig(num_rollouts=EPISODES),
        method=MethodConfig(ppo_epochs=EPOCHS, **method),
        optimizer=OptimizerConfig(1e-3, global_batch=batch, micro_batch=8),
    )  # fmt: skip
    actor, reference = build(config, load_tokenizer(str(folder)))
    engine, device = make_engine(config, actor, None), torch.device("cpu")
    experience, epochs = make_experience(config, engine, reference, device), []

    def split(*given) -> list[np.ndarray]:
        epochs.append(minibatches(*given))
        return epochs[-1]

    learner = make_learner(
        config,
        engine,
        lambda update: 1e-3,
        device,
        lambda *said: pytest.fail(str(said)),
        split=split,
    )
    found = []
    for iteration in range(iterations):
        rollouts = played()
        experience.measure(rollouts)
        make_estimator(config)(rollouts, 0.0)
        found.append(learner.learn(rollouts, iteration, iteration * EPOCHS * EPISODES // batch))
    return found, epochs


def test_each_epoch_of_each_iteration_has_an_order_of_its_own(small_models: dict[str, Path]) -> None:
    _, epochs = learned(small_models["gpt2"], batch=4, iterations=2)
    assert len(epochs) == 2 * EPOCHS
    for epoch in epochs:
        assert [len(one) for one in epoch] == [4] * 4
        assert sorted(np.concatenate(epoch).tolist()) == list(range(EPISODES)), "each episode once"
    orders = {tuple(np.concatenate(epoch).tolist()) for epoch in epochs}
    assert len(orders) == 2 * EPOCHS
    shared = {frozenset(one.tolist()) for one in epochs[0]} & {frozenset(one.tolist()) for one in epochs[1]}
    assert len(shared) < 4, "other episodes together, and not only in another order"
    _, again = learned(small_models["gpt2"], batch=4)
    assert all(
        np.array_equal(a, b) for x, y in zip(epochs[:EPOCHS], again, strict=True) for a, b in zip(x, y, strict=True)
    )


def test_stop_kl_is_nats_a_token(small_models: dict[str, Path]) -> None:
    [free], _ = learned(small_models["gpt2"], batch=EPISODES)
    a_token = free.means["approx_kl"]  # of three updates: the largest is more than this, and at most three times it
    assert a_token > 0
    assert len(free.curve) == EPOCHS
    assert not free.stopped_early
    # summed over the 96 tokens of an update it would be far beyond
    [within], _ = learned(small_models["gpt2"], batch=EPISODES, stop_kl=4 * a_token)
    assert (len(within.curve), within.stopped_early) == (EPOCHS, False)
    [beyond], _ = learned(small_models["gpt2"], batch=EPISODES, stop_kl=0.9 * a_token)
    assert beyond.stopped_early


def test_stop_kl_ends_all_epochs_of_the_iteration_and_not_those_of_the_next(small_models: dict[str, Path]) -> None:
    # no update has moved the policy before the first minibatch; the second one sees what it did
    found, epochs = learned(small_models["gpt2"], batch=4, iterations=2, stop_kl=1e-9)
    assert [one.stopped_early for one in found] == [True, True]
    assert [len(one.curve) for one in found] == [2, 2]
    assert len(epochs) == 2


class Overflows:
    """An engine that skips its first update, as DeepSpeed does where a gradient is not finite."""

    def __init__(self, engine: PlainEngine) -> None:
        self.engine, self.steps = engine, 0

    def __call__(self, *args, **kwargs):
        return self.engine(*args, **kwargs)

    def __getattr__(self, name: str):
        return getattr(self.engine, name)

    def step(self) -> bool:
        self.steps += 1
        return self.steps > 1 and self.engine.step()


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_skipped_update_ends_a_run_but_for_fp16_which_counts_it(
    precision: str, small_models: dict[str, Path]
) -> None:
    folder = str(small_models["gpt2"])
    config = PPOConfig(
        "x", ModelConfig(folder, precision="fp32"), RolloutConfig(num_rollouts=EPISODES),
        method=MethodConfig(ppo_epochs=EPOCHS), optimizer=OptimizerConfig(1e-3, global_batch=EPISODES, micro_batch=8),
    )  # fmt: skip
    actor, reference = build(config, load_tokenizer(folder))
    engine, device = Overflows(make_engine(config, actor, None)), torch.device("cpu")
    rollouts = played()
    make_experience(config, engine, reference, device).measure(rollouts)
    make_estimator(config)(rollouts, 0.0)

    def leave(update: int, what: str, names: list[str]) -> None:
        raise ArithmeticError(f"update {update}: {what}, {len(names)} episodes")

    said = replace(config, policy=replace(config.policy, precision=precision))
    learner = make_learner(said, engine, lambda update: 1e-3, device, leave)
    if precision != "fp16":
        with pytest.raises(ArithmeticError, match="update 0: a gradient that is not finite, 16 episodes"):
            learner.learn(rollouts, 0, 0)
        return
    assert learner.learn(rollouts, 0, 0).skipped == 1
    assert engine.steps == EPOCHS
    assert learner.learn(rollouts, 1, EPOCHS).skipped == 0


def test_a_loss_that_is_not_finite_names_its_micro_batch_and_changes_no_weight(small_models: dict[str, Path]) -> None:
    folder = str(small_models["gpt2"])
    config = PPOConfig(
        "x", ModelConfig(folder, precision="fp32"), RolloutConfig(num_rollouts=EPISODES),
        method=MethodConfig(ppo_epochs=EPOCHS), optimizer=OptimizerConfig(1e-3, global_batch=EPISODES, micro_batch=4),
    )  # fmt: skip
    actor, reference = build(config, load_tokenizer(folder))
    engine, device, rollouts = make_engine(config, actor, None), torch.device("cpu"), played()
    make_experience(config, engine, reference, device).measure(rollouts)
    make_estimator(config)(rollouts, 0.0)
    before = [p.detach().clone() for p in actor.parameters()]
    shown: list[torch.Tensor] = []
    rollouts.advantages[int(rollouts.row_starts[9])] = torch.nan

    def leave(update: int, what: str, names: list[str]) -> None:
        raise ArithmeticError(f"update {update}: {what}: {'; '.join(names)}")

    learner = make_learner(config, engine, lambda update: 1e-3, device, leave)
    with pytest.raises(
        ArithmeticError, match=r"update 0: a loss of nan: (episode \d+ of this rank, 15 tokens(; )?){4}$"
    ) as caught:
        learner.learn(rollouts, 0, 0, lambda places, _: shown.append(places))
    assert "episode 9 of this rank" in str(caught.value)
    assert sorted(torch.cat(shown).tolist()) == list(range(EPISODES * TOKENS)), "all ran: they are looked at once"
    assert all(torch.equal(a, b) for a, b in zip(before, actor.parameters(), strict=True))
