"""A reward model on a decoder that transformers has no classifier of, as users launch it."""

import json
from pathlib import Path

import pytest
import torch
from launching import ROOT, flags, launch, run, words

from lmgym.messages import from_messages
from lmgym.scoring.scorers import HFScorer


@pytest.fixture(scope="module")
def granite(tmp_path_factory, small_models: dict[str, Path]) -> Path:
    """A small causal model of that family."""
    from lmgym.models.loading import load_tokenizer
    from lmgym.models.small_models import build_model

    folder, tokenizer = tmp_path_factory.mktemp("granite"), load_tokenizer(str(small_models["llama"]))
    model = build_model(
        "granite", tokenizer, "causal", hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=48, max_position_embeddings=256, embedding_multiplier=3.0,
    )  # fmt: skip
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    "kind", [pytest.param("fork"), pytest.param("deepspeed", marks=pytest.mark.slow)], ids=["plain", "zero3"]
)
def test_a_scorer_is_trained_with_adapters_in_bf16_and_loads_with_the_scores_of_its_run(
    kind: str, granite: Path, few_pairs: Path, held_out_pairs: Path, tmp_path: Path
) -> None:
    settings = flags(
        model=granite, dataset=few_pairs, eval_dataset=held_out_pairs, output=tmp_path / "run", max_length=256,
        global_batch=4, micro_batch=1, max_updates=3, learning_rate=1e-2, eval_updates=100, tracking="none",
        lora_rank=4, precision="bf16", **({"deepspeed": ROOT / "configs/zero3.json"} if kind == "deepspeed" else {}),
    )  # fmt: skip
    done = run(launch(kind, *settings))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    folder = tmp_path / "run/model"
    assert json.loads((tmp_path / "run/run.json").read_text())["new_head"] is True
    card = words((folder / "README.md").read_text())
    assert "transformers has no class for classifiers of `granite`" in card
    assert "ordinary `AutoModelForSequenceClassification`" not in card

    pairs = [json.loads(line) for line in held_out_pairs.read_text().splitlines()]
    scorer = HFScorer.load(folder)
    chats = [from_messages(pair["prompt"]) for pair in pairs]
    found = [scorer.score(chats, [pair[key][0]["content"] for pair in pairs]) for key in ("chosen", "rejected")]
    lines = [json.loads(line) for line in (tmp_path / "run/scores.jsonl").read_text().splitlines()]
    wanted = [torch.tensor([line[key] for line in lines]) for key in ("chosen", "rejected")]
    # the run computed in bf16
    spread = torch.cat(wanted).std()
    for ours, theirs in zip(found, wanted, strict=True):
        assert (ours - theirs).abs().max() < 0.1 * spread
    assert spread > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("level", [2, 3])
def test_several_heads_under_zero_on_two_ranks_are_those_of_one_process(
    level: int, small_models: dict[str, Path], few_pairs: Path, held_out_pairs: Path, tmp_path: Path
) -> None:
    given = {
        "model": small_models["llama"], "dataset": few_pairs, "eval_dataset": held_out_pairs, "max_length": 256,
        "global_batch": 4, "micro_batch": 2, "max_updates": 4, "learning_rate": 1e-2, "eval_updates": 100,
        "tracking": "none", "precision": "fp32", "heads": 4,
    }  # fmt: skip
    for kind, further in (("fork", {}), ("deepspeed", {"deepspeed": ROOT / f"configs/zero{level}.json"})):
        done = run(launch(kind, *flags(**given, **further, output=tmp_path / kind)))
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    pairs = [json.loads(line) for line in held_out_pairs.read_text().splitlines()]
    chats, replies = [from_messages(pair["prompt"]) for pair in pairs], [pair["chosen"][0]["content"] for pair in pairs]
    folders = (tmp_path / kind / "model" for kind in ("fork", "deepspeed"))
    one, two = (HFScorer.load(folder).score_members(chats, replies) for folder in folders)
    assert one.shape == (4, len(pairs))
    assert torch.corrcoef(one)[0, 1:].abs().max() < 0.99  # heads of their own
    torch.testing.assert_close(two, one, rtol=1e-3, atol=1e-3)
