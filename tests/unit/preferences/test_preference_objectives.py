"""Batches of pairs and thumbs against one reply at a time; z0 over an update; rewards and figures of held-out rows."""

import dataclasses
import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from ranks import on_two_ranks
from sklearn.metrics import roc_auc_score

from lmgym.data.pairs import Pair
from lmgym.models.forward.policies import PolicyModel, load_policy
from lmgym.models.loading import load_tokenizer
from lmgym.models.lora import add_lora
from lmgym.text import Conversation, Replies, Turn
from lmgym.training.length_rule import LengthRule
from preferences.config import LossConfig
from preferences.examples import (
    PairExample,
    ThumbExample,
    others,
    reply_lengths,
    tokenize_pairs,
    tokenize_thumbs,
    with_mismatched,
)
from preferences.objectives import Pairwise, ReplyModel, Thumbs
from preferences.probes import PairProbe, ThumbProbe
from preferences.thumbs import Thumb

CPU, RULE = torch.device("cpu"), LengthRule(shorter_wins=True)
TEXTS = [("yes.", "no, not at all."), ("it is red and", "b"), ("we like stars.", "stars"), ("a b c d", "e f g h i")]
LOSSES = [
    LossConfig("dpo", label_smoothing=0.1, sft_weight=0.5),
    *(LossConfig(name) for name in ("ipo", "simpo", "orpo", "bon")),  # type: ignore[arg-type]
]


def ask(i: int) -> Conversation:
    return Conversation((Turn("user", f"what of {'tea ' * i} {i}?"),))


def load(folder: str) -> ReplyModel:
    tokenizer = load_tokenizer(folder)
    return ReplyModel(PolicyModel(load_policy(folder, tokenizer)).eval(), tokenizer.eos_token_id)


@pytest.fixture(scope="module")
def model(small_models: dict[str, Path]) -> ReplyModel:
    return load(str(small_models["llama"]))


@pytest.fixture(scope="module")
def tokenizer(small_models: dict[str, Path]):
    return load_tokenizer(str(small_models["llama"]))


@pytest.fixture(scope="module")
def pairs(tokenizer) -> list[PairExample]:
    rows = [Pair(ask(i), *both, file="d/f", line=i, preference=1 - i / 10) for i, both in enumerate(TEXTS)]
    examples, _ = tokenize_pairs(rows, tokenizer, 120)
    return [dataclasses.replace(e, reference=(-20.0 - i, -25.0 + i)) for i, e in enumerate(examples)]


def make_thumbs(tokenizer) -> list[ThumbExample]:
    rows = [Thumb(ask(i), reply, liked, "d/f", i) for i, both in enumerate(TEXTS)
            for reply, liked in zip(both, (True, False), strict=True)]  # fmt: skip
    examples = list(with_mismatched(tokenize_thumbs(rows, tokenizer, 120)[0], 0, 120))
    return [dataclasses.replace(e, reference=(-20.0 - i, -60.0)) for i, e in enumerate(examples)]


@pytest.fixture(scope="module")
def thumbs(tokenizer) -> list[ThumbExample]:
    return make_thumbs(tokenizer)


def alone(model: ReplyModel, row: Replies) -> list[float]:
    """Summed log-probabilities of each reply by transformers' own forward, a row at a time."""
    found = []
    for suffix in row.suffixes:
        ids = torch.tensor([[*row.prefix, *suffix, model.end]])
        with torch.no_grad():
            logprobs = model.policy.causal(ids).logits[0, :-1].log_softmax(-1)
        found.append(logprobs.gather(1, ids[0, 1:, None])[-len(suffix) :].sum().item())
    return found


def update(objective, micro_batches, count: int | None = None):
    """(loss a row, gradient) of an update in micro-batches of (example, counts) items."""
    policy = objective.model.policy
    policy.zero_grad()
    batches = [objective.collate(items) for items in micro_batches]
    objective.before_update(policy, batches, CPU)
    total = torch.zeros(())
    for batch in batches:
        loss, _ = objective.loss(policy(**batch["inputs"]), batch)
        (loss / sum(b["count"] for b in batches)).backward()
        total += loss.detach()
    gradient = torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])
    return total / sum(batch["count"] for batch in batches), gradient


def counted(examples) -> list:
    return [(example, True) for example in examples]


@pytest.mark.parametrize("settings", LOSSES, ids=lambda s: s.loss)
def test_a_pair_costs_as_much_in_a_batch_as_alone_and_a_filler_nothing(
    settings: LossConfig, pairs: list[PairExample], model: ReplyModel
) -> None:
    objective = Pairwise(model, settings)
    whole, gradient = update(objective, [counted(pairs)])
    single, summed = update(objective, [[item] for item in counted(pairs)] + [[(pairs[0], False)]])
    assert float(whole) == pytest.approx(float(single), rel=1e-5)
    torch.testing.assert_close(summed, gradient, rtol=1e-4, atol=1e-6)
    padded = Pairwise(ReplyModel(PolicyModel(model.policy.model, packed=False).eval(), model.end), settings)
    also, of_padded = update(padded, [counted(pairs)])
    assert float(also) == pytest.approx(float(whole), rel=1e-5)
    torch.testing.assert_close(of_padded, gradient, rtol=1e-4, atol=1e-6)


def test_the_loss_is_that_of_summed_log_probabilities_with_the_eos(pairs: list[PairExample], model: ReplyModel) -> None:
    found, _ = update(Pairwise(model, LossConfig("dpo")), [counted(pairs)])
    wanted = 0.0
    for example in pairs:
        chosen, rejected = alone(model, example.replies)
        margin = 0.1 * (chosen - example.reference[0] - rejected + example.reference[1])
        wanted += math.log1p(math.exp(-margin)) / len(pairs)
    assert float(found) == pytest.approx(wanted, rel=1e-5)
    means, _ = update(Pairwise(model, LossConfig("simpo")), [counted(pairs)])
    wanted = 0.0
    for example in pairs:
        a, b = (x / len(s) for x, s in zip(alone(model, example.replies), example.replies.suffixes, strict=True))
        wanted += math.log1p(math.exp(-(2 * (a - b) - 1))) / len(pairs)
    assert float(means) == pytest.approx(wanted, rel=1e-5)


def test_bon_of_three_pairs_is_a_plain_loop_over_them(pairs: list[PairExample], model: ReplyModel) -> None:
    found, _ = update(Pairwise(model, LossConfig("bon", beta=0.5, sft_share=0.2)), [counted(pairs[:3])])
    wanted = 0.0
    for example, preference in zip(pairs[:3], (1.0, 0.9, 0.8), strict=True):
        lengths = [len(suffix) for suffix in example.replies.suffixes]
        chosen, rejected = (total / n for total, n in zip(alone(model, example.replies), lengths, strict=True))
        of_chosen, of_rejected = (total / n for total, n in zip(example.reference, lengths, strict=True))
        margin = 0.5 * (chosen - of_chosen - rejected + of_rejected)
        soft = preference * math.log1p(math.exp(-margin)) + (1 - preference) * math.log1p(math.exp(margin))
        wanted += (-0.2 * chosen + 0.8 * soft) / 3
    assert float(found) == pytest.approx(wanted, rel=1e-5)


def test_kto_compares_with_the_baseline_of_the_whole_update_however_it_is_cut(
    thumbs: list[ThumbExample], model: ReplyModel
) -> None:
    objective = Thumbs(model, LossConfig("kto", liked_weight=2.0))
    whole, gradient = update(objective, [counted(thumbs)])
    cut, summed = update(
        objective, [counted(thumbs[:3]), counted(thumbs[3:4]), counted(thumbs[4:]), [(thumbs[0], False)]]
    )
    assert float(cut) == pytest.approx(float(whole), rel=1e-5)
    torch.testing.assert_close(summed, gradient, rtol=1e-4, atol=1e-6)
    ratios = [alone(model, example.mismatched)[0] - example.reference[1] for example in thumbs]
    baseline = max(0.0, sum(ratios) / len(ratios))
    assert baseline > 0
    wanted = 0.0
    for example in thumbs:
        x = 0.1 * (alone(model, example.replies)[0] - example.reference[0] - baseline)
        wanted += 2 / (1 + math.exp(x)) if example.liked else 1 / (1 + math.exp(-x))
    assert float(whole) == pytest.approx(wanted / len(thumbs), rel=1e-5)


def baseline(rank: int, folder: str) -> float:
    """KTO's, of an update of which a rank has three replies, and the other five and a filler."""
    model = load(folder)
    thumbs = make_thumbs(load_tokenizer(folder))
    items = counted(thumbs[:3]) if rank == 0 else [*counted(thumbs[3:]), (thumbs[0], False)]
    objective = Thumbs(model, LossConfig("kto"))
    batches = [objective.collate(items[i : i + 1]) for i in range(len(items))]
    objective.before_update(model.policy, batches, CPU)
    return float(batches[0]["baseline"])


def test_ktos_baseline_is_that_of_the_replies_of_all_ranks(thumbs, model, small_models, tmp_path: Path) -> None:
    ratios = [alone(model, example.mismatched)[0] - example.reference[1] for example in thumbs]
    wanted = sum(ratios) / len(ratios)
    assert wanted > 0
    assert sum(ratios[:3]) / 3 != pytest.approx(wanted, rel=1e-3)
    assert on_two_ranks(baseline, tmp_path, str(small_models["llama"])) == pytest.approx([wanted] * 2, rel=1e-5)


def test_the_first_loss_of_dpo_is_the_logarithm_of_two_also_where_the_model_has_dropout(small_models, pairs) -> None:
    model = load(str(small_models["gpt2"]))
    for module in model.policy.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    objective = Pairwise(model, LossConfig("dpo", beta=2.0))
    batch = objective.collate(counted(pairs))
    batch["reference"] = model.sums(model.policy, batch, CPU).view(-1, 2)

    def first_loss() -> float:
        loss, count = objective.loss(model.policy.train()(**batch["inputs"]), batch)
        return float(loss.detach() / count)

    assert first_loss() == pytest.approx(math.log(2), abs=1e-6)
    model.policy.dropout = True
    torch.manual_seed(0)
    assert first_loss() != pytest.approx(math.log(2), abs=1e-3)


def test_the_figures_of_an_update_count_right_pairs_and_a_tie_as_half(pairs: list[PairExample], model) -> None:
    objective = Pairwise(model, LossConfig("dpo", beta=0.5))
    batch = objective.collate(counted(pairs[:3]))
    lengths = batch["lengths"].tolist()
    # log-probabilities above the reference's: 3 and 1, 2 and 2, 5 and 4
    above = torch.tensor([3.0, 1.0, 2.0, 2.0, 5.0, 4.0])
    sums = batch["reference"].flatten() + above
    logprobs = torch.zeros(sum(lengths))
    logprobs[torch.tensor(lengths).cumsum(0) - 1] = sums  # on the last token of each: sums are exact
    found = {name: float(value) for name, value in objective.tallies(logprobs, batch).items()}
    assert found == pytest.approx({"accuracy": 2.5, "margin": 1.5, "reward_chosen": 5.0, "reward_rejected": 3.5})
    filler = objective.collate([(pairs[0], False)])
    assert float(objective.tallies(torch.zeros(sum(filler["lengths"].tolist())), filler)["accuracy"]) == 0


def test_no_gradient_goes_through_the_baseline(thumbs: list[ThumbExample], model: ReplyModel) -> None:
    objective = Thumbs(model, LossConfig("kto"))
    batch = objective.collate(counted(thumbs))
    objective.before_update(model.policy, [batch], CPU)
    assert not batch["baseline"].requires_grad
    logprobs = model.policy(**batch["inputs"]).detach().requires_grad_()
    objective.loss(logprobs, batch)[0].backward()
    lengths = batch["lengths"].tolist()
    for example, slope in zip(thumbs, [part[0].item() for part in logprobs.grad.split(lengths)], strict=True):
        assert (slope < 0) == example.liked  # each reply's own tokens, up where it is liked


def test_a_mismatched_reply_is_of_another_prompt_and_fits(thumbs: list[ThumbExample], tokenizer) -> None:
    assert all(e.mismatched.prefix == e.replies.prefix for e in thumbs)
    bodies = {tuple(e.replies.suffixes[0][1:]): e.prompt for e in thumbs}
    assert all(bodies[tuple(e.mismatched.suffixes[0][1:])] != e.prompt for e in thumbs)
    prompts = [0, 0, 1, 1, 2]
    for seed in range(9):
        assert all(prompts[other] != own for own, other in zip(prompts, others(prompts, seed), strict=True))
    assert others([0], seed=0) == [0]
    assert others([7, 7], seed=0) == [1, 0]  # one prompt: the next row
    long = Thumb(ask(0), "word " * 40, True, "f", 9)
    short = Thumb(ask(12), "no", False, "f", 10)
    limit = 60
    found, _ = tokenize_thumbs([long, short], tokenizer, limit)
    [of_short] = [e for e in with_mismatched(found, 0, limit) if not e.liked]
    assert len(of_short.mismatched.prefix) + len(of_short.mismatched.suffixes[0]) <= limit


def test_the_model_below_the_adapter_is_the_reference(
    small_models: dict[str, Path], tokenizer, pairs: list[PairExample], thumbs: list[ThumbExample], model: ReplyModel
) -> None:
    adapted = add_lora(load_policy(str(small_models["llama"]), tokenizer), 4, 8, 0.0)
    torch.manual_seed(0)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    policy = PolicyModel(adapted).eval()
    for kind, settings, examples in ((Pairwise, "dpo", pairs), (Thumbs, "kto", thumbs)):
        computed = [
            dataclasses.replace(e, reference=tuple(x for row in e.rows for x in alone(model, row))) for e in examples
        ]
        losses = []
        for uses_adapter, rows in ((True, examples), (False, computed)):
            objective = kind(ReplyModel(policy, tokenizer.eos_token_id, uses_adapter), LossConfig(settings))
            losses.append(update(objective, [counted(rows[:2]), counted(rows[2:])]))
        assert float(losses[0][0]) == pytest.approx(float(losses[1][0]), rel=1e-5)
        torch.testing.assert_close(losses[0][1], losses[1][1], rtol=1e-4, atol=1e-6)
        probe = partial(PairProbe, rule=RULE) if kind is Pairwise else ThumbProbe
        figures = [
            probe(rows, ReplyModel(policy, tokenizer.eos_token_id, uses), LossConfig(settings), 64).measure(policy, CPU)
            for uses, rows in ((True, examples), (False, computed))
        ]
        assert figures[0] == pytest.approx(figures[1], rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("batch_tokens", [10, 100_000])
def test_held_out_pairs_are_measured_whatever_the_batches(
    batch_tokens: int, pairs: list[PairExample], model: ReplyModel
) -> None:
    probe = PairProbe(pairs, model, LossConfig("dpo"), batch_tokens, RULE)
    found = probe.measure(model.policy, CPU)
    sums = np.array([alone(model, example.replies) for example in pairs])
    rewards = 0.1 * (sums - np.array([example.reference for example in pairs]))
    margins = rewards[:, 0] - rewards[:, 1]
    assert found["loss"] == pytest.approx(np.log1p(np.exp(-margins)).mean(), rel=1e-5)
    assert found["accuracy"] == (margins > 0).mean()
    assert found["accuracy_low"] <= found["accuracy"] <= found["accuracy_high"]
    assert found["margin"] == pytest.approx(margins.mean(), rel=1e-4)
    assert found["reward_chosen"] == pytest.approx(rewards[:, 0].mean(), rel=1e-4)
    lengths = [len(example.replies.suffixes[0]) for example in pairs]
    assert found["logprob_chosen"] == pytest.approx((sums[:, 0] / lengths).mean(), rel=1e-5)
    assert found["length_accuracy"] == RULE.right(reply_lengths(pairs)).mean()
    assert found["accuracy_above_length"] == pytest.approx(found["accuracy"] - found["length_accuracy"])
    line = next(probe.lines())
    assert (line["row"], line["prompt"]) == ("f:0", 0)
    assert line["chosen"] == pytest.approx(rewards[0, 0], rel=1e-4)
    assert line["lengths"] == [len(suffix) - 1 for suffix in pairs[0].replies.suffixes]


def test_a_policy_that_is_its_reference_is_right_by_half(pairs: list[PairExample], model: ReplyModel) -> None:
    own = PairProbe(pairs, model, LossConfig("dpo"), 100, RULE).measured.forwards.sums(model.policy, CPU).view(-1, 2)
    same = [dataclasses.replace(e, reference=tuple(sums)) for e, sums in zip(pairs, own.tolist(), strict=True)]
    found = PairProbe(same, model, LossConfig("dpo"), 100, RULE).measure(model.policy, CPU)
    assert found["loss"] == pytest.approx(math.log(2))
    assert found["accuracy"] == 0.5


def test_held_out_thumbs_are_measured_and_one_label_leaves_no_auc(
    thumbs: list[ThumbExample], model: ReplyModel
) -> None:
    probe = ThumbProbe(thumbs, model, LossConfig("kto"), 100)
    found = probe.measure(model.policy, CPU)
    rewards = [0.1 * (alone(model, e.replies)[0] - e.reference[0]) for e in thumbs]
    liked = [e.liked for e in thumbs]
    assert found["auc"] == roc_auc_score(liked, rewards)
    sides = [np.mean([r for r, up in zip(rewards, liked, strict=True) if up == side]) for side in (True, False)]
    assert found["margin"] == pytest.approx(sides[0] - sides[1], rel=1e-4)
    assert [line["liked"] for line in probe.lines()] == [int(up) for up in liked]
    alike = ThumbProbe(thumbs[::2], model, LossConfig("kto"), 100)
    assert "auc" not in alike.measure(model.policy, CPU)
    assert alike.report.undefined["auc"] == "all 4 held-out replies are liked"
