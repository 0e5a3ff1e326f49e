"""The gradient of an update is that of the mean over its pairs, however it is cut into micro-batches and ranks."""

import json
from pathlib import Path

import pytest
import torch
from gradient_script import gradients
from launching import launch, run

from lmgym.models.loading import load_classifier, load_tokenizer

Gradients = list[dict[str, torch.Tensor]]
TOKENS = 260
# 23 pairs, 8 an update: 8, 8 and 7
CUTS = {
    "one batch": {"micro_batch": 8, "accumulation": 1},
    "2 x 4": {"micro_batch": 4, "accumulation": 2},
    "4 x 2": {"micro_batch": 2, "accumulation": 4},  # the last update is cut into 2, 2, 2 and 1
    "8 x 1": {"micro_batch": 1, "accumulation": 8},
    "by tokens": {"tokens_per_micro_batch": TOKENS, "accumulation": 8},
}


@pytest.fixture(scope="module")
def sources(small_models: dict[str, Path], few_pairs: Path, held_out_pairs: Path) -> dict[str, str]:
    """Where every cut finds its model and its pairs."""
    return {
        "model": str(small_models["llama"]),
        "dataset": str(few_pairs),
        "evaluation": str(held_out_pairs),
        "global_batch": 8,
    }


@pytest.fixture(scope="module")
def cuts(tmp_path_factory, sources: dict) -> dict[str, Gradients]:
    """The gradients of each cut on one rank."""
    folder = tmp_path_factory.mktemp("gradients")
    return {name: gradients(folder / name, **sources, **cut)[0] for name, cut in CUTS.items()}


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory, sources: dict) -> Gradients:
    """Mean of -log sigmoid(chosen - rejected) over each update, every text alone through the plain classifier."""
    _, updates, data = gradients(tmp_path_factory.mktemp("rows"), **sources, **CUTS["one batch"])
    tokenizer = load_tokenizer(sources["model"])
    model, _ = load_classifier(sources["model"], tokenizer, seed=0)
    assert [len(rows) for rows in updates] == [8, 8, 7]
    wanted = []
    for rows in updates:
        model.zero_grad()
        losses = []
        for row in rows:
            replies = data.train[row].replies
            chosen, rejected = (
                model(torch.tensor([replies.prefix + suffix])).logits[0, 0] for suffix in replies.suffixes
            )
            losses.append(-torch.log(torch.sigmoid(chosen - rejected)))
        torch.stack(losses).mean().backward()
        wanted.append({f"model.{name}": p.grad.clone() for name, p in model.named_parameters()})
    return wanted


def assert_equal(found: Gradients, wanted: Gradients) -> None:
    assert len(found) == len(wanted)
    for update, (a, b) in enumerate(zip(found, wanted, strict=True)):
        assert a.keys() == b.keys()
        for name in a:
            difference = (a[name] - b[name]).abs().max().item()
            assert difference < 1e-6, f"update {update}, {name}: {difference:.2e} apart"


@pytest.mark.parametrize("cut", CUTS)
def test_any_cut_on_one_rank_gives_the_gradient_worked_out_by_hand(cut: str, cuts: dict, by_hand: Gradients) -> None:
    assert max(float(g.abs().max()) for g in by_hand[-1].values()) > 1e-2
    assert_equal(cuts[cut], by_hand)


@pytest.mark.parametrize("size", [{"micro_batch": 1}, {"tokens_per_micro_batch": TOKENS}])
def test_two_ranks_give_the_gradient_worked_out_by_hand(
    size: dict, sources: dict, by_hand: Gradients, tmp_path: Path
) -> None:
    # 7 pairs in micro-batches of 1 on 2 ranks: the last holds one pair and a filler
    asked = {**sources, "folder": str(tmp_path / "run"), **size, "accumulation": 4}
    (tmp_path / "asked.json").write_text(json.dumps(asked))
    script = Path(__file__).parent / "gradient_script.py"
    done = run(launch("forks", tmp_path / "asked.json", tmp_path / "found.pt", script=script))
    assert done.returncode == 0, done.stdout + done.stderr
    assert_equal(torch.load(tmp_path / "found.pt"), by_hand)
