"""Loss and gradient of each recipe on one batch against the library's own rows, collation, forward and loss."""

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import recipes.dpo
import recipes.ppo
import recipes.reward
import recipes.sft
from lmgym.config import ModelConfig, OptimizerConfig
from lmgym.data.pairs import Pair, validate
from lmgym.data.records import read_records
from lmgym.environments.episodes import Episode, Step
from lmgym.generation.protocol import Completion
from lmgym.models.forward.policies import PolicyModel, load_policy
from lmgym.models.forward.scoring_model import ScoringModel
from lmgym.models.loading import load_classifier, load_tokenizer
from ppo.actor_critic import ActorCritic, Reference
from ppo.config import MethodConfig, PPOConfig, RolloutConfig
from ppo.rollouts import Rollouts, gather
from ppo.setup import build, make_engine, make_estimator, make_experience, make_learner
from preferences.config import LossConfig
from preferences.examples import tokenize_pairs as tokenize_preferences
from preferences.objectives import Pairwise as PreferenceLoss
from preferences.objectives import ReplyModel
from reward_models.data import tokenize_pairs
from reward_models.objectives import Pairwise
from sft.conversations import validate_chats
from sft.objectives import NextToken
from sft.tokenization import tokenize_chats

FAMILIES = pytest.mark.parametrize("family", ["llama", "gpt2"])
PRECISIONS = pytest.mark.parametrize("tolerance", [1e-5, 1e-8], ids=["fp32", "float64"])
CPU, PAD, EOS = torch.device("cpu"), 0, 7
REPLIES, LONGEST = 8, 9
CHATS = [
    ("what is red?", "a rose"),
    ("hi", "hello, who is there?", "me", "good to see you again, me"),
    ("count to three please", "1 2"),
    ("tea?", "yes", "or coffee, or anything else?", "tea."),
]
CHOICES = [
    ("what is red?", "a rose", "no idea at all, sorry"),
    ("hi", "hello, who is there?", "bye"),
    ("tea?", "a", "b"),
]

Gradient = dict[str, torch.Tensor]


@pytest.fixture
def compute(monkeypatch) -> Iterator[Callable[[float], None]]:
    """To be called once models are loaded, with the relative tolerance: below 1e-5 all is computed in float64.

    The library computes losses in fp32 whatever it is given, as transformers computes norms: from then on the name of
    fp32 stands for float64.
    """
    single = torch.get_default_dtype()

    def begin(tolerance: float) -> None:
        if tolerance < 1e-5:
            monkeypatch.setattr(torch, "float32", torch.float64)
            monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
            torch.set_default_dtype(torch.float64)

    yield begin
    torch.set_default_dtype(single)


def disturb(model: nn.Module, seed: int = 0, scale: float = 0.15) -> None:
    """Adds noise to all weights, so that every token matters to every other; in the precision of the test."""
    generator = torch.Generator().manual_seed(seed)
    model.to(torch.get_default_dtype())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * scale)


def gradient_of(model: nn.Module) -> Gradient:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_equal(loss: torch.Tensor, wanted: torch.Tensor, own: Gradient, library: Gradient, tolerance: float) -> None:
    """Loss and gradient of a recipe are the library's, every trained weight's."""
    assert loss.dtype == torch.get_default_dtype()
    assert float(loss.detach()) == pytest.approx(float(wanted.detach()), rel=tolerance)
    assert own.keys() == library.keys()
    whole = torch.cat([value.flatten() for value in library.values()]).norm()
    assert whole > 0.01, "there is a gradient"
    for name, value in library.items():
        # a small gradient has the rounding of large terms that cancel in it
        size = value.norm() + 1e-6 * whole if tolerance < 1e-5 else whole
        assert float((own[name] - value).norm()) <= tolerance * float(size), name


def write_rows(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def chats_of(tmp_path: Path) -> str:
    """Chats of one and two exchanges."""
    roles = ("user", "assistant") * 2
    talks = [[{"role": r, "content": text} for r, text in zip(roles, chat, strict=False)] for chat in CHATS]
    return write_rows(tmp_path / "chats.jsonl", [{"messages": talk} for talk in talks])


@pytest.fixture
def pairs_of(tmp_path: Path) -> str:
    """Pairs whose prompts and replies are texts or messages."""
    rows: list[dict[str, Any]] = [dict(zip(("prompt", "chosen", "rejected"), row, strict=True)) for row in CHOICES]
    roles = {"prompt": "user", "chosen": "assistant", "rejected": "assistant"}
    rows[1] = {name: [{"role": roles[name], "content": text}] for name, text in rows[1].items()}
    return write_rows(tmp_path / "pairs.jsonl", rows)


def read_pairs(file: str) -> list[Pair]:
    pairs, rejections = validate(read_records(file))
    assert rejections == []
    return pairs


# --- SFT


@PRECISIONS
@FAMILIES
def test_sft_has_the_librarys_loss_and_gradient(
    family: str, small_models: dict[str, Path], chats_of: str, tolerance: float, compute
) -> None:
    tokenizer = load_tokenizer(str(small_models[family]))
    policy = PolicyModel(load_policy(str(small_models[family]), tokenizer))
    compute(tolerance)
    disturb(policy)
    own = copy.deepcopy(policy.causal)

    chats, rejections = validate_chats(read_records(chats_of))
    examples, _ = tokenize_chats(chats, tokenizer, 512)
    assert (len(examples), rejections) == (len(CHATS), [])
    objective = NextToken(policy, PAD)
    batch = objective.collate([(example, True) for example in examples])
    total, count = objective.loss(policy(**batch["inputs"]), batch)
    (total / count).backward()

    encoded = [recipes.sft.encode(tokenizer, row["messages"]) for row in recipes.sft.read_rows(chats_of)]
    loss = recipes.sft.loss_of(own, recipes.sft.collate(encoded, PAD))
    loss.backward()
    assert_equal(loss, total / count, gradient_of(own), gradient_of(policy.causal), tolerance)


# --- reward models


@PRECISIONS
@FAMILIES
def test_the_reward_model_has_the_librarys_loss_and_gradient(
    family: str, small_models: dict[str, Path], pairs_of: str, tolerance: float, compute
) -> None:
    tokenizer = load_tokenizer(str(small_models[family]))
    scorer = ScoringModel(load_classifier(str(small_models[family]), tokenizer)[0])
    compute(tolerance)
    disturb(scorer)
    own = copy.deepcopy(scorer.classifier)

    examples, _ = tokenize_pairs(read_pairs(pairs_of), tokenizer, 512)
    objective = Pairwise(scorer, PAD)
    batch = objective.collate([(example, True) for example in examples])
    total, count = objective.loss(scorer(**batch["inputs"]), batch)
    (total / count).backward()

    encoded = [recipes.reward.encode(tokenizer, row) for row in recipes.reward.read_rows(pairs_of)]
    loss, _ = recipes.reward.loss_of(own, recipes.reward.collate(encoded, PAD))
    loss.backward()
    assert_equal(loss, total / count, gradient_of(own), gradient_of(scorer.classifier), tolerance)


def test_its_head_begins_as_the_librarys(small_models: dict[str, Path]) -> None:
    folder = str(small_models["llama"])
    library, is_new = load_classifier(folder, load_tokenizer(folder), seed=3)
    assert is_new
    assert torch.equal(recipes.reward.load_scorer(folder, seed=3).score.weight, library.score.weight)


# --- DPO


@PRECISIONS
@FAMILIES
def test_dpo_has_the_librarys_loss_and_gradient(
    family: str, small_models: dict[str, Path], pairs_of: str, tolerance: float, compute
) -> None:
    tokenizer, settings = load_tokenizer(str(small_models[family])), LossConfig("dpo")
    reference = PolicyModel(load_policy(str(small_models[family]), tokenizer))
    compute(tolerance)
    disturb(reference)
    policy = PolicyModel(copy.deepcopy(reference.causal))
    disturb(policy, seed=1, scale=0.03)
    own = copy.deepcopy(policy.causal)

    examples, _ = tokenize_preferences(read_pairs(pairs_of), tokenizer, 512)
    objective = PreferenceLoss(ReplyModel(policy, tokenizer.eos_token_id), settings)
    batch = objective.collate([(example, True) for example in examples])
    of_reference = ReplyModel(reference, tokenizer.eos_token_id).sums(reference, batch, CPU)
    batch["reference"] = of_reference.view(-1, 2)
    total, count = objective.loss(policy(**batch["inputs"]), batch)
    (total / count).backward()
    assert abs(float(total.detach() / count) - 0.693) > 0.01, "the policy has left the reference"

    encoded = [recipes.dpo.encode(tokenizer, row) for row in recipes.dpo.read_rows(pairs_of)]
    beta = recipes.dpo.parse([]).beta
    assert beta == settings.strength
    loss, rewards = recipes.dpo.loss_of(own, reference.causal, recipes.dpo.collate(encoded, PAD), beta)
    loss.backward()
    assert_equal(loss, total / count, gradient_of(own), gradient_of(policy.causal), tolerance)
    tallies = objective.tallies(policy(**batch["inputs"]).detach(), batch)
    margin = pytest.approx(float(tallies["margin"]), rel=tolerance, abs=10 * tolerance)
    assert float((rewards[0] - rewards[1]).sum()) == margin


# --- PPO and GRPO


def configured(folder: Path, args) -> PPOConfig:
    """The library's defaults, one update over all replies."""
    return PPOConfig(
        "recipe",
        ModelConfig(str(folder), precision="fp32"),
        RolloutConfig(num_rollouts=REPLIES, num_generations=args.group, max_new_tokens=LONGEST),
        method=MethodConfig(args.method, ppo_epochs=1),
        optimizer=OptimizerConfig(global_batch=REPLIES, micro_batch=3),
    )


def same_weights(actor: ActorCritic) -> recipes.ppo.Actor:
    """The recipe's actor with the library's weights."""
    own = recipes.ppo.Actor(copy.deepcopy(actor.causal)).eval()
    if actor.value_head is not None:
        for mine, theirs in zip((own.value_head[0], own.value_head[2]), actor.value_head.children(), strict=True):
            mine.load_state_dict(theirs.state_dict())
    return own


def sampled_by_the_recipe(own, group: int):
    """Prompts of several lengths, some sampled replies, which end in an eos at several lengths, and their scores."""
    chance = np.random.default_rng(5)
    prompts = [chance.integers(5, 500, size=n).tolist() for n in range(2, 2 + REPLIES // group) for _ in range(group)]
    torch.manual_seed(0)
    boost = 4.0 * (torch.arange(own.policy.config.vocab_size) == EOS)
    often = own.policy.lm_head.register_forward_hook(lambda layer, states, logits: logits + boost)
    ids, attention, mask = recipes.ppo.sample(own.policy, prompts, LONGEST, EOS)
    often.remove()
    assert len(set(mask.sum(1).tolist())) > 2
    for row, keep in zip(ids[:, -mask.shape[1] :].tolist(), mask.tolist(), strict=True):
        end = row.index(EOS) + 1 if EOS in row else len(row)
        assert keep == [i < end for i in range(len(row))], "the eos is the last token of a reply"
    return prompts, ids, attention, mask, torch.from_numpy(chance.normal(size=REPLIES)).to(torch.get_default_dtype())


def as_rollouts(prompts, ids: torch.Tensor, mask: torch.Tensor, scores: torch.Tensor, config: PPOConfig) -> Rollouts:
    """The same replies as the library's."""
    episodes = []
    for i, (prompt, row, keep, score) in enumerate(zip(prompts, ids[:, -mask.shape[1] :], mask, scores, strict=True)):
        reply = tuple(row[keep].tolist())
        said = Completion("", "eos", reply, (0.0,) * len(reply), len(reply))
        episodes.append(Episode(i, "policy", [Step(prompt, "", said, score.item())], True, False, None, {}))
    return gather(episodes, config.reward, groups=np.arange(REPLIES) // config.algorithm.num_generations)


def update_by_the_library(actor: ActorCritic, engine, config: PPOConfig, rollouts: Rollouts) -> dict[str, float]:
    """The means of one update by the library's learner, whose gradient stays in the actor."""
    engine.step = lambda: True
    learner = make_learner(config, engine, lambda _: 0.0, CPU, lambda *said: pytest.fail(str(said)))
    [means] = learner.learn(rollouts, 0, 0).curve
    return means


@PRECISIONS
@FAMILIES
@pytest.mark.parametrize("method", ["ppo", "grpo"])
def test_ppo_and_grpo_have_the_librarys_advantages_losses_and_gradient(
    method: str, family: str, small_models: dict[str, Path], tolerance: float, compute
) -> None:
    args = recipes.ppo.parse(["--method", method, *(["--group", "4"] if method == "grpo" else [])])
    config = configured(small_models[family], args)
    actor, _ = build(config, load_tokenizer(config.policy.model))
    compute(tolerance)
    disturb(actor)
    reference = Reference.of(actor)
    assert reference is not None
    disturb(actor, seed=1, scale=0.02)  # the policy has left the reference
    engine = make_engine(config, actor, None)
    own, own_reference = same_weights(actor), recipes.ppo.Actor(copy.deepcopy(reference.model)).eval()

    prompts, ids, attention, mask, scores = sampled_by_the_recipe(own, args.group)
    rollouts = as_rollouts(prompts, ids, mask, scores, config)
    make_experience(config, engine, reference, CPU).measure(rollouts)
    make_estimator(config)(rollouts, config.algorithm.init_kl_coef)
    r = recipes.ppo.measure(own, own_reference, ids, attention, mask, scores, args)
    close = {"rtol": 10 * tolerance, "atol": 10 * tolerance}
    torch.testing.assert_close(r.advantages[mask], rollouts.advantages, **close)
    if method == "ppo":
        torch.testing.assert_close(r.returns[mask], rollouts.returns, **close)

    disturb(actor, seed=2, scale=0.02)  # as by earlier updates: ratios are not 1, and some are clipped
    own.load_state_dict(same_weights(actor).state_dict())
    means = update_by_the_library(actor, engine, config, rollouts)
    assert 0.1 < means["clip_fraction"] < 0.9
    policy_loss, value_loss = recipes.ppo.losses_of(own, r, args)
    (policy_loss + value_loss).backward()
    assert float(value_loss.detach()) == pytest.approx(means.get("value_loss", 0.0), rel=tolerance)
    layers = {"inner": "0", "outer": "2"}
    parts = {name: name.split(".") for name in gradient_of(actor)}
    library = {".".join(layers.get(part, part) for part in parts[name]): g for name, g in gradient_of(actor).items()}
    wanted = torch.tensor(means["policy_loss"])
    assert_equal(policy_loss, wanted, gradient_of(own), library, tolerance)


@pytest.mark.parametrize("method", ["ppo", "grpo"])
def test_the_settings_of_ppo_and_grpo_are_the_librarys(method: str, small_models: dict[str, Path]) -> None:
    args = recipes.ppo.parse([f"--method={method}"])
    algorithm = PPOConfig("recipe", method=MethodConfig(method)).algorithm  # type: ignore[arg-type]
    assert (args.group, args.beta) == (algorithm.num_generations, algorithm.init_kl_coef)
    assert (args.epsilon, args.epsilon) == (algorithm.epsilon_low, algorithm.epsilon_high)
