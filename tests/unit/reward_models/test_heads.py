"""Several heads on one trunk: bootstrap weights by hand, the loss of each, and a spread that grows far from data."""

import hashlib
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats

from lmgym.config import ModelConfig, OptimizerConfig, RowsConfig
from lmgym.errors import InputError
from lmgym.models.classifiers import head_name, init_head
from lmgym.models.forward.scoring_model import ScoringModel
from lmgym.models.loading import load_classifier, load_tokenizer
from lmgym.scoring.combinations import spread
from lmgym.text import share_prefix
from reward_models.check import check
from reward_models.config import RewardModelConfig
from reward_models.data import PairExample
from reward_models.heads import PairwiseHeads, bootstrap_weights
from reward_models.kwise import KwiseTask
from reward_models.metrics.member_metrics import member_metrics
from reward_models.objectives import Pairwise
from reward_models.pairwise import PairTask


class FakeModel:
    """Only `collate` of a model is asked for."""

    def collate(self, rows, pad_id: int) -> dict:
        return {"rows": rows}


def pair(number: int) -> PairExample:
    return PairExample(share_prefix([[1, 2, 3], [1, 2, 4]]), 0.1 * number, number, (1, 1), f"pairs.jsonl:{number}")


def batch_of(heads: int, numbers, counts=None, centering: float = 0.0, seed: int = 7) -> tuple[PairwiseHeads, dict]:
    objective = PairwiseHeads(FakeModel(), 0, heads, seed, centering)  # type: ignore[arg-type]
    items = list(zip(map(pair, numbers), counts or [True] * len(numbers), strict=True))
    return objective, objective.collate(items)


def test_a_bootstrap_weight_is_poissons_quantile_of_a_hash() -> None:
    found = bootstrap_weights(3, "pairs.jsonl:17", 4)
    digest = hashlib.shake_128(b"3 pairs.jsonl:17").digest(32)
    uniform = [int.from_bytes(digest[8 * head : 8 * head + 8], "little") / 2**64 for head in range(4)]
    assert found == [int(stats.poisson(1).ppf(u)) for u in uniform]
    assert found == bootstrap_weights(3, "pairs.jsonl:17", 5)[:4], "a head more changes no other"
    assert found != bootstrap_weights(4, "pairs.jsonl:17", 4) or found != bootstrap_weights(5, "pairs.jsonl:17", 4)


def test_bootstrap_weights_are_poisson_and_independent_over_heads_and_rows() -> None:
    drawn = np.array([bootstrap_weights(0, f"a.jsonl:{row}", 3) for row in range(4000)])
    counts = np.bincount(drawn.ravel(), minlength=6)[:6]
    expected = stats.poisson(1).pmf(np.arange(6)) * drawn.size
    assert stats.chisquare(counts, expected * counts.sum() / expected.sum()).pvalue > 1e-3
    between = np.corrcoef(drawn.T)[np.triu_indices(3, 1)]
    assert np.abs(between).max() < 4 / math.sqrt(4000)
    assert abs(np.corrcoef(drawn[:-1, 0], drawn[1:, 0])[0, 1]) < 4 / math.sqrt(4000)


def test_the_loss_is_the_mean_over_heads_of_each_heads_weighted_bradley_terry() -> None:
    objective, batch = batch_of(3, range(4), centering=0.01)
    assert (batch["count"], batch["items"]) == (4, 4)
    scores = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    total, count = objective.loss(scores, batch)
    expected = 0.0
    for number in range(4):
        chosen, rejected = scores[2 * number], scores[2 * number + 1]
        for head, weight in enumerate(bootstrap_weights(7, f"pairs.jsonl:{number}", 3)):
            nll = -F.logsigmoid(chosen[head] - rejected[head] - 0.1 * number)
            expected += weight * (nll + 0.01 * (chosen[head] + rejected[head]) ** 2) / 3
    assert total.item() == pytest.approx(float(expected), rel=1e-6)
    assert count == 4
    mean = scores.mean(1, keepdim=True)
    tallies, alone = objective.tallies(scores, batch), Pairwise(FakeModel(), 0).tallies(mean, batch)  # type: ignore[arg-type]
    assert {k: v.item() for k, v in tallies.items()} == pytest.approx({k: v.item() for k, v in alone.items()})


def test_a_head_learns_nothing_from_a_pair_that_its_bootstrap_lacks() -> None:
    numbers = range(12)
    objective, batch = batch_of(2, numbers)
    scores = torch.zeros(24, 2, requires_grad=True)
    total, _ = objective.loss(scores, batch)
    total.backward()
    assert scores.grad is not None
    absent = torch.tensor([bootstrap_weights(7, f"pairs.jsonl:{n}", 2) for n in numbers]) == 0
    assert absent.any()
    assert not absent.all()
    assert ((scores.grad.view(12, 2, 2) == 0).all(1) == absent).all()


def test_a_filler_counts_for_nothing() -> None:
    objective, batch = batch_of(2, [0, 1], counts=[False, False])
    scores = torch.randn(4, 2, requires_grad=True)
    total, count = objective.loss(scores, batch)
    total.backward()
    assert (total.item(), count.item()) == (0.0, 0)
    assert scores.grad is not None
    assert not scores.grad.any()


def test_heads_start_apart_at_weights_of_the_seed(small_models) -> None:
    tokenizer = load_tokenizer(str(small_models["llama"]))
    heads = []
    for seed in (0, 0, 1):
        model, new = load_classifier(str(small_models["llama"]), tokenizer, num_labels=3, seed=seed)
        assert new
        heads.append(getattr(model, head_name(model)).weight.detach())
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])
    assert (torch.corrcoef(heads[0]) - torch.eye(3)).abs().max() < 0.9


def test_the_spread_is_larger_where_no_pair_says_anything() -> None:
    """A trunk of fixed features, of which the pairs vary the first 4: heads agree on these, and not on the others."""
    torch.manual_seed(0)
    known, width, heads, pairs = 4, 16, 6, 400
    utility = torch.randn(known)
    features = torch.zeros(pairs, 2, width)
    features[..., :known] = torch.randn(pairs, 2, known)
    better = features[..., :known] @ utility
    order = better.argsort(1, descending=True)
    features = features.gather(1, order[..., None].expand_as(features))
    model = torch.nn.Module()
    model.score = torch.nn.Linear(width, heads, bias=False)
    init_head(model, seed=0)
    objective, batch = batch_of(heads, range(pairs))
    batch["margins"] = torch.zeros(pairs)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.0)
    for _ in range(200):
        total, count = objective.loss(model.score(features).view(-1, heads), batch)
        optimizer.zero_grad()
        (total / count).backward()
        optimizer.step()
    inside, outside = torch.zeros(500, width), torch.zeros(500, width)
    inside[:, :known], outside[:, known : 2 * known] = torch.randn(500, known), torch.randn(500, known)
    with torch.no_grad():
        seen, unseen = (model.score(x).T for x in (inside, outside))
    assert (seen > 0).float().std(0).mean() < 0.1  # the heads agree on the side
    # relative to the size of the scores: a reply far from the pairs is judged by the priors alone
    assert (spread(unseen) / unseen.mean(0).abs()).median() > 5 * (spread(seen) / seen.mean(0).abs()).median()


def test_figures_of_members_are_those_worked_out_by_hand() -> None:
    # margins of two members: (2, -1, 1) and (0, 1, -1)
    chosen, rejected = np.array([[2.0, 0.0, 1.0], [1.0, 1.0, 0.0]]), np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 1.0]])
    found = member_metrics(chosen, rejected)
    errors = [[1 / (1 + math.exp(m)) for m in margins] for margins in ((2, -1, 1), (0, 1, -1))]
    assert found.metrics["member_accuracy"] == pytest.approx(3 / 6)
    assert found.metrics["member_error_correlation"] == pytest.approx(np.corrcoef(errors)[0, 1])
    # half of the members' distance at each reply: .5, .5, .5 and .5, .5, .5
    assert found.metrics["spread"] == pytest.approx(0.5)
    # deviations 1, 1, 1 of the margins: all alike
    assert found.undefined.keys() == {"spread_error_spearman"}


def config_of(folder: Path, rows: Path, **changes) -> RewardModelConfig:
    settings = RowsConfig(str(rows), max_length=128, eval_size=20, train_size=40)
    decay = changes.pop("weight_decay", 0.0)
    return RewardModelConfig("x", ModelConfig(str(folder)), settings, OptimizerConfig(weight_decay=decay), **changes)


def test_heads_of_what_is_not_pairs_and_heads_that_decay_are_refused(small_models, demo_file, tmp_path: Path) -> None:
    config = config_of(small_models["llama"], demo_file, heads=4)
    with pytest.raises(InputError, match=r"--heads 4 with a task of 1 output.*Plackett-Luce.*needed: pairs"):
        check(config, KwiseTask())
    with pytest.raises(InputError, match="--heads 4 with a task of 1 output"):
        check(config, PairTask())
    config = config_of(small_models["llama"], demo_file, heads=4, weight_decay=0.1)
    with pytest.raises(InputError, match=r"--weight_decay 0\.1, which pulls the heads.*needed: --weight_decay 0"):
        check(config, PairTask(outputs=4))


def test_the_probe_scores_by_the_mean_of_heads_less_their_means(small_models, demo_file) -> None:
    tokenizer = load_tokenizer(str(small_models["llama"]))
    config = config_of(small_models["llama"], demo_file, heads=3)
    task = PairTask(outputs=3)
    model, _ = load_classifier(str(small_models["llama"]), tokenizer, num_labels=3)
    scoring = ScoringModel(model).eval()
    probe = task.probe(task.prepare(config, tokenizer), scoring, tokenizer.pad_token_id, 300)
    found = probe.measure(scoring, torch.device("cpu"))
    logits = probe.forwards.logits(scoring, torch.device("cpu")).numpy()
    np.testing.assert_allclose(probe.means, logits.mean(0))
    np.testing.assert_allclose(probe.scores.ravel(), (logits - logits.mean(0)).mean(1))
    assert abs(probe.scores.mean()) < 1e-12
    assert {"member_accuracy", "member_error_correlation", "spread", "spread_error_spearman"} <= found.keys()
    assert "temperature" in probe.report.undefined  # 20 pairs
