"""The experiment as users launch it: plain, on ranks and by deepspeed, and what it writes.

Launches take 10 to 25 s each, so tests share them: one module fixture a launch.
"""

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch
from launching import (
    ROOT,
    assert_metrics_are_known,
    flags,
    largest_difference,
    launch,
    read_lines,
    read_metrics,
    read_weights,
    run,
    words,
)

from lmgym.data.batching import UpdateSampler
from lmgym.scoring.scorers import HFScorer
from lmgym.text import Conversation, render

Start = Callable[..., tuple[CompletedProcess[str], Path]]

# 23 pairs in updates of 4: the 6th holds 3, which 2 ranks cut into micro-batches of 2 pairs and of 1 beside a filler;
# the 7th and 8th belong to a second epoch. Equality is asked for after each of them.
UPDATES, SHORT = 8, 6
TRAIN = {
    "max_length": 256,
    "global_batch": 4,
    "micro_batch": 1,
    "max_updates": UPDATES,
    "learning_rate": 1e-3,
    "log_updates": 1,
    "eval_updates": 100,
    "tracking": "none",
}


@pytest.fixture(scope="module")
def begin(small_models: dict[str, Path], few_pairs: Path, held_out_pairs: Path, tmp_path_factory) -> Start:
    """Launches the experiment on small files; (what it said, its folder). Fails where it does."""

    def go(kind: str, *more: object, family: str = "llama", config: str = "", unset: str = "", **changes: object):
        folder = tmp_path_factory.mktemp("runs") / "output"
        values = {
            "model": small_models[family],
            "dataset": few_pairs,
            "eval_dataset": held_out_pairs,
            "precision": "fp32",
            "output": folder,
            **TRAIN,
            **({"deepspeed": ROOT / "configs" / config} if config else {}),
            **changes,
        }
        values.pop(unset, None)
        done = run(launch(kind, *flags(**values), *more))
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
        if (folder / "metrics.jsonl").exists():
            assert_metrics_are_known(folder)
        return done, folder

    return go


@pytest.fixture(scope="module")
def plain(begin: Start) -> tuple[CompletedProcess[str], Path]:
    return begin("python", "--local_rank=0")


@pytest.fixture(scope="module")
def ddp(begin: Start) -> tuple[CompletedProcess[str], Path]:
    return begin("forks")


@pytest.fixture(scope="module")
def zero2(begin: Start) -> tuple[CompletedProcess[str], Path]:
    """With micro-batches that nobody set: what fits is a plain number in DeepSpeed's checkpoints."""
    return begin("deepspeed", config="zero2.json", unset="micro_batch")


@pytest.fixture(scope="module")
def zero3(begin: Start) -> tuple[CompletedProcess[str], Path]:
    return begin("forks", config="zero3.json")


@pytest.fixture(scope="module")
def lora(begin: Start) -> tuple[CompletedProcess[str], Path]:
    return begin(
        "forks", "--gradient_checkpointing", config="zero3.json", lora_rank=4, max_updates=4, learning_rate=1e-2
    )


def assert_same_run(found: Path, wanted: Path, apart: float = 1e-5) -> None:
    """Equal losses and gradient norms at every update, evaluations and final weights."""
    a, b = read_metrics(found), read_metrics(wanted)
    for name in (
        "train/learning_rate",
        "train/loss",
        "train/accuracy",
        "train/margin",
        "eval/accuracy",
        "eval/margin_mean",
    ):
        assert a[name].keys() == b[name].keys()
        assert a[name] == pytest.approx(b[name], abs=1e-5), name
    assert len(a["train/loss"]) == UPDATES
    # Adam's step hides a gradient that is too large throughout: its norm does not
    assert a["train/grad_norm"] == pytest.approx(b["train/grad_norm"], rel=1e-4)
    assert largest_difference(read_weights(found), read_weights(wanted)) < apart


def score_eval_pairs(folder: Path, held_out: Path) -> torch.Tensor:
    """[pairs, 2] scores of a run's model by the scorer that loads its folder."""
    scorer = HFScorer.load(folder / "model")
    sides = eval_sides(held_out)
    return torch.stack([scorer.score(*zip(*side, strict=True)) for side in sides], 1)


def eval_sides(held_out: Path) -> list[list[tuple[Conversation, str]]]:
    """The held-out pairs as (conversation, reply): chosen, rejected."""
    from lmgym.data.pairs import validate
    from lmgym.data.records import read_records

    pairs, _ = validate(read_records(str(held_out)))
    return [[(p.conversation, p.chosen) for p in pairs], [(p.conversation, p.rejected) for p in pairs]]


def saved_scores(folder: Path) -> torch.Tensor:
    """[pairs, 2] scores as the run wrote them."""
    return torch.tensor([[row["chosen"], row["rejected"]] for row in read_lines(folder / "scores.jsonl")])


# --- the same run under every launcher


def test_two_ranks_without_deepspeed_are_the_plain_run(plain, ddp) -> None:
    assert_same_run(ddp[1], plain[1])


@pytest.mark.slow  # `make test` starts ranks by torchrun in test_lmgym_launch.py, and trains such ranks as forks
def test_torchrun_on_two_ranks_is_the_plain_run(plain, begin: Start) -> None:
    assert_same_run(begin("torchrun")[1], plain[1])


def test_zero2_on_two_ranks_is_the_plain_run(plain, zero2) -> None:
    assert_same_run(zero2[1], plain[1])


def test_zero3_on_two_ranks_is_the_plain_run(plain, zero3) -> None:
    assert_same_run(zero3[1], plain[1])


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("forks", ""),
        pytest.param("python", "", marks=pytest.mark.slow),
        pytest.param("forks", "zero2.json", marks=pytest.mark.slow),
        pytest.param("forks", "zero3.json", marks=pytest.mark.slow),
        pytest.param("forks", "zero2_offload.json", marks=pytest.mark.slow),
    ],
)
def test_micro_batches_by_tokens_are_the_plain_run(kind: str, config: str, plain, begin: Start) -> None:
    done, folder = begin(kind, config=config, tokens_per_micro_batch=190)
    assert_same_run(folder, plain[1])
    assert "2 of 23 pairs have more tokens than --tokens_per_micro_batch 190, at most 201" in words(done.stdout)


def test_the_runs_that_are_compared_train_and_have_a_short_update(plain, small_models, zero2) -> None:
    assert [len(rows) for rows in UpdateSampler([1] * 23, 4, 2, ranks=2).updates()][SHORT - 1] == 3
    losses = read_metrics(plain[1])["train/loss"]
    assert len(set(losses.values())) == UPDATES
    moved = read_weights(plain[1])["model.layers.0.mlp.up_proj.weight"]
    from transformers import AutoModelForCausalLM

    first = AutoModelForCausalLM.from_pretrained(small_models["llama"], dtype=torch.float32)
    assert (moved - first.model.layers[0].mlp.up_proj.weight).abs().max() > 1e-3
    assert json.loads((zero2[1] / "run.json").read_text())["world_size"] == 2


# --- what a run leaves behind


def test_the_folder_holds_config_counts_and_outcome(plain) -> None:
    record = json.loads((plain[1] / "run.json").read_text())
    assert (record["outcome"], record["exit_code"], record["name"]) == ("finished", 0, "hh_pairwise")
    assert record["data"] == {
        "train_pairs": 23, "eval_pairs": 40, "truncated_pairs": 0, "shortened_pairs": 0, "rejected_rows": 0,
    }  # fmt: skip
    assert record["config"]["learning_rate"] == 1e-3
    assert record["parameters"] == record["trainable_parameters"] > 10_000
    assert record["new_head"] is True
    assert len(record["data_fingerprint"]) == 64


@pytest.mark.parametrize("launcher", ["plain", "ddp", "zero2", "zero3"])
def test_every_launcher_leaves_the_same_files(launcher: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(launcher)[1]
    assert sorted(p.name for p in (folder / "checkpoints").iterdir()) == ["step-00000006", "step-00000008"]
    found = (p.relative_to(folder) for p in folder.rglob("*") if p.is_file())
    files = {str(p) for p in found if p.parts[0] != "checkpoints"}
    weights = {f"model/{n}" for n in ("model.safetensors", "config.json", "README.md", "scorer.json")}
    tokenizer = {f"model/{n}" for n in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")}
    ours = {".lock", "run.json", "metrics.jsonl", "rejected.jsonl", "evaluation.json", "scores.jsonl"}
    seen = {"report.html", "events.jsonl", "samples/000000.jsonl", "samples/000008.jsonl"}
    assert files == weights | tokenizer | ours | seen


def test_evaluation_and_scores_agree(plain) -> None:
    evaluation = json.loads((plain[1] / "evaluation.json").read_text())
    scores = saved_scores(plain[1])
    assert scores.shape == (40, 2)
    accuracy = (scores[:, 0] > scores[:, 1]).double().mean().item()
    assert evaluation["metrics"]["accuracy"] == pytest.approx(accuracy)
    assert read_metrics(plain[1])["eval/accuracy"][UPDATES] == pytest.approx(accuracy)
    assert (plain[1] / "rejected.jsonl").read_text() == ""
    saved = json.loads((plain[1] / "model/scorer.json").read_text())
    assert saved["loss"] == "Bradley-Terry loss"
    assert len(saved["quantiles"]) == 101
    assert [saved["quantiles"][i] for i in (0, 50, 100)] == pytest.approx(
        [scores.min().item(), scores.quantile(0.5).item(), scores.max().item()], abs=1e-5
    )


def test_the_model_card_says_what_it_is_and_what_was_measured(plain) -> None:
    card = (plain[1] / "model" / "README.md").read_text()
    measured = json.loads((plain[1] / "evaluation.json").read_text())
    before, accuracy = measured["before"]["accuracy"], measured["metrics"]["accuracy"]
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert f"| accuracy | {before:.4f} | {accuracy:.4f} |" in card
    assert f"Weights after update {UPDATES}: the best evaluation by nll (" in card


@pytest.mark.parametrize("launcher", ["plain", "zero2"])
def test_one_plan_one_table_and_the_path_are_printed(launcher: str, request: pytest.FixtureRequest) -> None:
    done, folder = request.getfixturevalue(launcher)
    said = words(done.stdout)
    assert said.count("23 pairs to train on, 40 to evaluate on; 0 truncated") == 1
    assert said.count(f"hh_pairwise, after update {UPDATES}: 40 held-out pairs") == 1
    assert said.count("after (95% interval)") == 1
    assert str(folder / "model") in done.stdout.replace("\n", "")
    assert "updates" not in done.stderr  # a status line is for terminals


def test_plain_python_says_nothing_that_a_user_must_puzzle_over(plain) -> None:
    lines = [line for line in plain[0].stderr.splitlines() if "real_accelerator.py" not in line]
    assert lines == []


@pytest.mark.parametrize("launcher", ["plain", "zero3"])
def test_the_scorer_that_loads_the_folder_gives_the_scores_of_the_run(
    launcher: str, request: pytest.FixtureRequest, held_out_pairs: Path
) -> None:
    folder = request.getfixturevalue(launcher)[1]
    torch.testing.assert_close(score_eval_pairs(folder, held_out_pairs), saved_scores(folder), rtol=0, atol=1e-4)


def test_plain_transformers_loads_the_folder_with_the_scores_of_the_run(plain, held_out_pairs: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(plain[1] / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(plain[1] / "model")
    assert model.config.pad_token_id == tokenizer.pad_token_id != tokenizer.eos_token_id
    wanted = saved_scores(plain[1])
    for column, side in enumerate(eval_sides(held_out_pairs)):
        texts = [render(tokenizer, conversation, reply) for conversation, reply in side]
        batch = tokenizer(texts, add_special_tokens=False, padding=True, return_tensors="pt")
        with torch.no_grad():
            found = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits[:, 0]
        torch.testing.assert_close(found, wanted[:, column], rtol=0, atol=1e-4)


def test_lora_with_checkpointing_under_zero3_is_merged_with_its_head(lora, held_out_pairs: Path) -> None:
    from safetensors.torch import load_file

    _, folder = lora
    record = json.loads((folder / "run.json").read_text())
    assert record["outcome"] == "finished"
    assert record["trainable_parameters"] < record["parameters"] / 2
    merged, adapter = read_weights(folder), load_file(folder / "model/adapter/adapter_model.safetensors")
    assert not any("lora" in name for name in merged)
    head = next(value for name, value in adapter.items() if name.endswith("score.weight"))
    torch.testing.assert_close(merged["score.weight"], head, rtol=0, atol=0)
    torch.testing.assert_close(score_eval_pairs(folder, held_out_pairs), saved_scores(folder), rtol=0, atol=1e-4)


def test_lora_trains_its_adapters_and_its_head_and_nothing_else(lora, small_models) -> None:
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    from lmgym.models.loading import load_classifier, load_tokenizer

    merged = read_weights(lora[1])
    first = AutoModelForCausalLM.from_pretrained(small_models["llama"], dtype=torch.float32).state_dict()
    assert torch.equal(merged["model.embed_tokens.weight"], first["model.embed_tokens.weight"])
    name = "model.layers.0.self_attn.q_proj.weight"
    assert (merged[name] - first[name]).abs().max() > 1e-4
    source = str(small_models["llama"])
    new, _ = load_classifier(source, load_tokenizer(source), seed=0)
    assert (merged["score.weight"] - new.score.weight).abs().max() > 1e-3
    adapter = load_file(lora[1] / "model/adapter/adapter_model.safetensors")
    assert all(value.abs().max() > 0 for value in adapter.values()), "lora_B starts at 0: each has moved"


@pytest.mark.slow
def test_frozen_word_vectors_stay_and_the_rest_moves(begin: Start, small_models: dict[str, Path]) -> None:
    from transformers import AutoModelForCausalLM

    _, folder = begin("forks", "--freeze_embeddings", config="zero3.json", max_updates=2, learning_rate=1e-2)
    trained = read_weights(folder)
    first = AutoModelForCausalLM.from_pretrained(small_models["llama"], dtype=torch.float32).state_dict()
    assert torch.equal(trained["model.embed_tokens.weight"], first["model.embed_tokens.weight"])
    name = "model.layers.0.self_attn.q_proj.weight"
    assert (trained[name] - first[name]).abs().max() > 1e-4


# --- slow: further families, offload, bf16


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt2", "qwen3", "bert"])
def test_other_families_under_zero3_are_their_plain_runs(family: str, begin: Start, held_out_pairs: Path) -> None:
    _, one = begin("python", family=family)
    _, two = begin("deepspeed", family=family, config="zero3.json")
    # Where a gradient cancels to about Adam's epsilon, its first step enlarges the rounding: of qwen3 one element in
    # 41,184 (gradient 4e-8 at update 1, others 2e-3) ends 1.4e-5 apart; of bert's biases most, behind a fresh pooler.
    assert_same_run(two, one, apart=2e-4 if family == "bert" else 5e-5)
    if family != "bert":
        a, b = read_weights(two), read_weights(one)
        apart = torch.cat([(a[name].float() - b[name].float()).abs().flatten() for name in a])
        assert (apart > 5e-6).float().mean() < 2e-4
    torch.testing.assert_close(saved_scores(two), saved_scores(one), rtol=0, atol=1e-4)
    torch.testing.assert_close(score_eval_pairs(two, held_out_pairs), saved_scores(two), rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["zero1.json", "zero2_offload.json", "zero3_offload.json"])
def test_zero1_and_the_offloads_are_the_plain_run(name: str, plain, begin: Start) -> None:
    assert_same_run(begin("deepspeed", config=name)[1], plain[1])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["", "zero1.json", "zero2.json", "zero3.json"])
def test_bf16_stays_near_the_run_in_fp32(name: str, plain, begin: Start, held_out_pairs: Path) -> None:
    _, folder = begin("deepspeed" if name else "python", precision="bf16", config=name)
    found, wanted = read_metrics(folder)["train/loss"], read_metrics(plain[1])["train/loss"]
    assert found == pytest.approx(wanted, abs=0.05)
    assert found != wanted
    torch.testing.assert_close(score_eval_pairs(folder, held_out_pairs), saved_scores(folder), rtol=0, atol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["zero2.json", "zero3.json"])
def test_small_steps_add_up_in_bf16_because_the_masters_are_fp32(
    name: str, begin: Start, small_models: dict[str, Path]
) -> None:
    from safetensors.torch import load_file
    from transformers import AutoModelForSequenceClassification

    # 8 steps of 1e-5: bf16 weights would lose most of each to rounding, and the mean movement were near 1e-5
    small_steps = {"learning_rate": 1e-5, "warmup": 0, "schedule": "constant_with_warmup", "precision": "bf16"}
    _, folder = begin("deepspeed", config=name, **small_steps)
    first = load_file(small_models["llama"] / "model.safetensors")
    matrix = "model.layers.0.mlp.up_proj.weight"
    last = read_weights(folder)[matrix]
    assert (last.float() - first[matrix]).abs().mean() > 3e-5
    assert last.dtype == torch.float32
    assert (last != last.bfloat16().float()).float().mean() > 0.9, "the masters are saved, not their rounding"
    assert AutoModelForSequenceClassification.from_pretrained(folder / "model").dtype == torch.float32


@pytest.mark.slow
@pytest.mark.parametrize("name", ["zero2.json", "zero3.json"])
def test_lora_trains_in_bf16_under_deepspeed(name: str, begin: Start, held_out_pairs: Path) -> None:
    _, folder = begin("deepspeed", "--gradient_checkpointing", config=name, lora_rank=4, precision="bf16")
    _, plain = begin("python", "--gradient_checkpointing", lora_rank=4)
    assert read_metrics(folder)["train/loss"] == pytest.approx(read_metrics(plain)["train/loss"], abs=0.05)
    torch.testing.assert_close(score_eval_pairs(folder, held_out_pairs), saved_scores(folder), rtol=0, atol=0.1)


@pytest.mark.slow
def test_lora_and_full_checkpointing_do_not_change_the_run_under_ddp(plain, begin: Start) -> None:
    assert_same_run(begin("torchrun", "--gradient_checkpointing")[1], plain[1])
    _, one = begin("python", lora_rank=4)
    _, two = begin("torchrun", lora_rank=4)
    assert_same_run(two, one)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "code"), [("deepspeed", 2), ("torchrun", 1)])
def test_two_ranks_for_one_pair_end_with_one_line(
    kind: str, code: int, small_models: dict[str, Path], few_pairs: Path, tmp_path: Path
) -> None:
    arguments = flags(model=small_models["llama"], dataset=few_pairs, eval_size=22, max_length=256, global_batch=16)
    done = run(launch(kind, *arguments, *flags(output=tmp_path / "output")))
    assert done.returncode == code, "torchrun turns a worker's code into 1"
    said = done.stdout + done.stderr
    assert said.count("error: 1 training pair(s) for 2 ranks leaves ranks without data; use fewer ranks") == 1
    assert "train_pairwise(config)" not in said, "no traceback of ours"
    assert not (tmp_path / "output").exists()
