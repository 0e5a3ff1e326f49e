"""The difference of sampler and trainer that is allowed: measured on the policy itself, so that none is refused for its
own rounding, and what is wrong still is.
"""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import ppo.rollouts
from lmgym.config import ModelConfig, OptimizerConfig
from lmgym.environments.episodes import Episode, Step
from lmgym.errors import InputError
from lmgym.models.classifiers import round_weights
from lmgym.models.forward.policies import load_policy
from lmgym.models.forward.wider import wider_logprobs
from lmgym.models.loading import load_tokenizer
from lmgym.models.small_models import make_small_model
from lmgym.report.status_line import StatusLine
from lmgym.text import Conversation, Turn, render_all, tokenize_texts
from ppo.config import MethodConfig, PPOConfig, RolloutConfig
from ppo.experience import LogprobMismatch
from ppo.monitoring.safeguards import FirstForward, check_rollouts
from ppo.rollouts import Rollouts, RowBatch, gather
from ppo.setup import TrainingComponents, adapted, make_engine, make_estimator, make_experience, make_learner
from ppo.state import LoopState
from ppo.weight_sync import SamplingPolicy, measure_rounding

REPLIES, TOKENS, RATE = 16, 32, 1e-5
CPU = torch.device("cpu")
ONE_UPDATE = MethodConfig(ppo_epochs=1)
Precision = Literal["bf16", "fp32"]
QUESTIONS = (
    "What is the capital of France?", "Tell me a story about a dog.", "How do I bake bread?", "Why is the sky blue?",
    "Write a poem about rain.", "What should I eat today?", "Explain gravity to a child.", "How can I sleep better?",
)  # fmt: skip


class Run:
    """A run's parts up to its first update: `rolls` samples replies and computes what updates need of them.

    In bf16, with `rounded` the weights are bf16, as DeepSpeed has them; else they are fp32, and autocast rounds.
    """

    def __init__(
        self, folder: Path, rounded: bool, scale: float = 1.0, precision: Precision = "bf16",
        method: MethodConfig = ONE_UPDATE,
    ) -> None:  # fmt: skip
        self.config = PPOConfig(
            "x", ModelConfig(str(folder), precision=precision),
            RolloutConfig(num_rollouts=REPLIES, max_new_tokens=TOKENS),
            method=method, optimizer=OptimizerConfig(RATE, global_batch=REPLIES, micro_batch=4),
        )  # fmt: skip
        tokenizer = load_tokenizer(str(folder))
        policy = load_policy(str(folder), tokenizer)
        with torch.no_grad():
            for parameter in policy.parameters():
                if parameter.ndim == 2 and scale != 1:
                    parameter.mul_(scale)
        self.actor, reference = adapted(self.config, policy)
        assert reference is not None
        sampler = SamplingPolicy(self.actor, tokenizer, precision, False, rounded, REPLIES)
        if rounded:
            round_weights(self.actor, torch.bfloat16)
        if precision == "bf16":
            reference.round(everything=rounded)
        engine = make_engine(self.config, self.actor, None)
        if rounded:
            engine.precision = "fp32"  # type: ignore[attr-defined]  # no autocast: the weights are what rounds
        experience = make_experience(self.config, engine, reference, CPU)
        learner = make_learner(self.config, engine, lambda _: RATE, CPU, lambda *said: pytest.fail(str(said)))
        self.parts = TrainingComponents(
            None,
            tokenizer,
            engine,
            sampler,
            experience,
            make_estimator(self.config),
            learner,
            self.config.sampling,  # type: ignore[arg-type]
            StatusLine("PPO", 1, "updates", shown=False),
        )
        self.state = LoopState.fresh(self.config.algorithm.init_kl_coef, self.config.method)
        chats = [Conversation((Turn("user", f"{QUESTIONS[i % 8]} Version {i}."),)) for i in range(REPLIES)]
        self.prompts = tokenize_texts(tokenizer, render_all(tokenizer, chats))

    def sync(self) -> None:
        """The weights that sample are those that learn."""
        self.parts.sampler.sync(version=self.parts.engine.version)

    def rolls(self, seed: int = 0, compares: bool = True) -> tuple[list[Episode], Rollouts, LogprobMismatch | None]:
        """Rollouts by the sampler's weights as they are."""
        sampling, chance = replace(self.parts.sampling, seed=seed), np.random.default_rng(seed)
        replies = self.parts.sampler.generator.generate(self.prompts, 1, sampling)
        episodes = [
            Episode(i, "policy", [Step(prompt, "", reply, float(chance.normal()))], True, False, None, {})
            for i, (prompt, [reply]) in enumerate(zip(self.prompts, replies, strict=True))
        ]
        rollouts = gather(episodes, self.config.reward)
        return episodes, rollouts, self.parts.experience.measure(rollouts, compares)

    def check(self, seed: int = 0) -> Rollouts:
        """Raises InputError for what must not be learned from."""
        episodes, rollouts, gap = self.rolls(seed)
        check_rollouts(self.parts, self.state, episodes, rollouts, gap)
        return rollouts

    def learn(self, rollouts: Rollouts) -> None:
        """One update."""
        make_estimator(self.config)(rollouts, 0.0)
        self.parts.learner.learn(rollouts, 0, 0)
        self.state.iteration += 1


def shift_replies(monkeypatch: pytest.MonkeyPatch, by: int) -> None:
    """In the trainer's forward what is read stands so many positions further on; rotary angles are relative, so that to
    shift whole rows would change nothing.
    """
    pack = ppo.row_tree.pack_segments

    def shifted(*given, **named):
        rows = pack(*given, **named)
        return replace(rows, positions=rows.positions.index_add(0, rows.places, torch.full_like(rows.places, by)))

    monkeypatch.setattr(ppo.row_tree, "pack_segments", shifted)


def read_one_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer reads each token's log-probability one place too early."""
    pack = ppo.row_tree.pack_segments
    one_early = lambda *given: replace(rows := pack(*given), places=rows.places - 1)  # noqa: E731
    monkeypatch.setattr(ppo.row_tree, "pack_segments", one_early)


def assert_the_wrong_is_refused(
    folder: Path, rounded: bool, wrong: str, monkeypatch, scale: float = 1.0, precision: Precision = "bf16"
) -> None:
    """And the same replies are not where nothing is wrong."""
    run = Run(folder, rounded, scale, precision)
    run.sync()
    episodes, rollouts, gap = run.rolls()
    check_rollouts(run.parts, run.state, episodes, rollouts, gap)
    run.state = LoopState.fresh(run.config.algorithm.init_kl_coef, run.config.method)
    if wrong == "positions":
        shift_replies(monkeypatch, 1)
    elif wrong == "places":
        read_one_early(monkeypatch)
    else:
        run.actor.temperature = float(wrong)
    gap = run.parts.experience.measure(rollouts)
    with pytest.raises(InputError, match="sampler and trainer differ: the sampler's"):
        check_rollouts(run.parts, run.state, episodes, rollouts, gap)


def assert_weights_of_before_an_update_are_refused(folder: Path, rounded: bool, scale: float = 1.0) -> None:
    """Also where a copy of the weights was not renewed."""
    run = Run(folder, rounded, scale)
    run.sync()
    run.learn(run.check())
    before = [p.clone() for p in run.parts.sampler.policy.parameters()]
    with pytest.raises(InputError, match="sampled after update 0 of this process, trained after 1"):
        run.check(seed=1)
    run.sync()
    run.check(seed=1)
    if run.parts.sampler.copied:
        with torch.no_grad():
            for own, old in zip(run.parts.sampler.policy.parameters(), before, strict=True):
                own.copy_(old)
        with pytest.raises(
            InputError, match=r"weights are not the trainer's: .* \d+ of \d+ matrices and vectors differ"
        ):
            run.check(seed=1)


FAMILIES = pytest.mark.parametrize("family", ["gpt2", "llama", pytest.param("qwen3", marks=pytest.mark.slow)])
ROUNDED = pytest.mark.parametrize("rounded", [False, True], ids=["autocast", "rounded"])
SCALE = 4.0  # of a random model's weights: every token matters


@ROUNDED
@FAMILIES
def test_a_policy_and_its_updates_pass_whatever_its_own_rounding_is(family: str, rounded: bool, small_models) -> None:
    run = Run(small_models[family], rounded, SCALE)
    for iteration in range(3):
        run.sync()
        run.learn(run.check(seed=iteration))
    assert run.state.rounding is not None
    assert 0 < run.state.rounding < 0.1


@ROUNDED
@pytest.mark.parametrize("wrong", ["positions", "places", "0.9"])
@FAMILIES
def test_what_is_wrong_is_refused(family: str, wrong: str, rounded: bool, small_models, monkeypatch) -> None:
    assert_the_wrong_is_refused(small_models[family], rounded, wrong, monkeypatch, SCALE)


@pytest.fixture(scope="module")
def peaked(tmp_path_factory) -> Path:
    """A policy that is certain of most tokens: 60 steps of AdamW at 1e-2 on 12 chats, and weights that reach far."""
    things = ("bread", "tea", "rain", "a dog", "a kite", "jam", "a shed", "soup", "gravity", "sleep", "music", "snow")
    texts = [f"What is {thing}? {thing} is what I like." for thing in things]
    folder = tmp_path_factory.mktemp("peaked")
    make_small_model(folder, "llama", texts * 5, layers=6, width=128, max_length=256)
    tokenizer = load_tokenizer(str(folder))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    for _ in range(60):
        model(batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    return folder


PEAKED_SCALE = 10.0


@pytest.mark.slow
def test_a_peaked_policy_in_fp32_and_its_updates_pass_beyond_the_bound_of_a_flat_one(peaked: Path) -> None:
    run = Run(peaked, False, PEAKED_SCALE, "fp32")
    largest = 0.0
    for iteration in range(3):
        run.sync()
        largest = max(largest, run.rolls(seed=iteration)[2].largest)
        run.learn(run.check(seed=iteration))
    assert largest > 1e-4, "more than a flat policy's bound"


@pytest.mark.parametrize("wrong", ["positions", "places", "0.95"])
def test_what_is_wrong_with_a_peaked_policy_in_fp32_is_refused(wrong: str, peaked: Path, monkeypatch) -> None:
    assert_the_wrong_is_refused(peaked, False, wrong, monkeypatch, PEAKED_SCALE, "fp32")


@ROUNDED
def test_weights_that_are_one_update_old_are_refused(rounded: bool, small_models) -> None:
    assert_weights_of_before_an_update_are_refused(small_models["llama"], rounded, SCALE)


@ROUNDED
@FAMILIES
def test_the_yardstick_is_the_forward_of_a_copy_in_fp32_and_leaves_the_weights_as_they_are(
    family: str, rounded: bool, small_models
) -> None:
    run = Run(small_models[family], rounded, SCALE)
    run.sync()
    _, rollouts, _ = run.rolls()
    batch = RowBatch.of(rollouts, np.arange(5), CPU)
    before = [(p, p.data_ptr(), p.dtype, p.detach().clone()) for p in run.actor.parameters()]
    found = wider_logprobs(run.actor.decoder, batch.rows, batch.targets, 0.7)
    for parameter, place, dtype, value in before:
        assert (parameter.data_ptr(), parameter.dtype) == (place, dtype)
        assert torch.equal(parameter, value)
    copy = run.actor.causal.float()  # in place: the last thing that is done with it
    with torch.no_grad():
        counted = zip(rollouts.rows[:5], rollouts.reply_lengths[:5].tolist(), strict=True)
        logits = [copy(torch.tensor([ids[:-1]])).logits[0, -n:] for ids, n in counted]
    expected = (torch.cat(logits) / 0.7).log_softmax(-1).gather(1, batch.targets[:, None])[:, 0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    assert (found - rollouts.old_logprobs[batch.tokens]).abs().mean() > 1e-2, "at another temperature"


@pytest.mark.parametrize("epochs", [1, 2])
def test_in_later_iterations_the_first_update_shows_whether_sampler_and_trainer_agree(small_models, epochs) -> None:
    run = Run(small_models["llama"], False, SCALE, "fp32", MethodConfig("grpo", ppo_epochs=epochs))
    run.sync()
    run.learn(run.check())
    for seed, temperature in ((1, 1.0), (2, 0.95)):
        run.sync()
        episodes, rollouts, gap = run.rolls(seed, compares=False)
        assert gap is None, "the policy has not run"
        check_rollouts(run.parts, run.state, episodes, rollouts, gap)
        run.parts.estimate_advantages(rollouts, 0.04)
        run.actor.temperature = temperature
        first = FirstForward(run.parts, run.state, rollouts, gap)
        before = [p.detach().clone() for p in run.actor.parameters()]
        if temperature == 1:
            run.parts.learner.learn(rollouts, 1, 1, first)
            assert first.mismatch is not None
            assert first.mismatch.tokens == len(rollouts.sampler_logprobs)
            assert first.mismatch.largest < 1e-4
            continue
        with pytest.raises(InputError, match="sampler and trainer differ: the sampler's fp32"):
            run.parts.learner.learn(rollouts, 1, 1, first)
        assert all(torch.equal(a, b) for a, b in zip(before, run.actor.parameters(), strict=True)), "no weight changed"


def test_the_bound_is_kept_and_measured_again_where_it_is_not_enough(small_models, monkeypatch) -> None:
    run, measured = Run(small_models["llama"], False, SCALE), []

    def counting(*given):
        measured.append(measure_rounding(*given))
        return measured[-1]

    monkeypatch.setattr("ppo.monitoring.safeguards.measure_rounding", counting)
    run.sync()
    for _ in range(2):
        run.check()
    assert len(measured) == 1
    assert run.state.rounding == measured[0].trainer
    run.state.rounding, run.state.iteration = 1e-9, 1  # as if the policy had been far more even at first
    monkeypatch.setattr("ppo.weight_sync.LEAST", 1e-9)
    run.check()
    assert len(measured) == 2
    assert run.state.rounding == measured[1].trainer


@pytest.mark.real
@pytest.mark.slow
@ROUNDED
def test_a_real_model_in_bf16_passes_update_after_update(rounded: bool, real_model: Path) -> None:
    """Neither a run nor its updates are refused for what bf16 does to a model whose states reach 25,000."""
    run = Run(real_model, rounded)
    for iteration in range(3):
        run.sync()
        run.learn(run.check(seed=iteration))
    assert run.state.rounding is not None
    assert 0.02 < run.state.rounding < 0.06, "more than the .02 that once were allowed"


@pytest.mark.real
@pytest.mark.slow
@ROUNDED
@pytest.mark.parametrize("wrong", ["positions", "places"])
def test_shifted_positions_are_refused_on_a_real_model(
    rounded: bool, wrong: str, real_model: Path, monkeypatch
) -> None:
    """Caught: replies whose positions are off by one against their prompts, which moves log-probabilities by little
    more than bf16 does, and reading each token one place early. Not wrong: to shift whole rows, prompts included.
    """
    assert_the_wrong_is_refused(real_model, rounded, wrong, monkeypatch)


@pytest.mark.real
@pytest.mark.slow
@ROUNDED
def test_a_wrong_temperature_is_refused_on_a_real_model(rounded: bool, real_model: Path, monkeypatch) -> None:
    """Caught: a trainer at a temperature that is 5% or more from the sampler's."""
    assert_the_wrong_is_refused(real_model, rounded, "0.95", monkeypatch)


@pytest.mark.real
@pytest.mark.slow
@ROUNDED
def test_weights_that_are_one_update_old_are_refused_on_a_real_model(rounded: bool, real_model: Path) -> None:
    """Caught: a sampler whose weights were not taken over after an update, by the number of updates, and a copy that
    kept a weight as it was, by comparing them. Log-probabilities cannot tell: an update at a rate of 1e-5 moves those
    of other replies by .02 nats a token, bf16 by .03.
    """
    assert_weights_of_before_an_update_are_refused(real_model, rounded)
