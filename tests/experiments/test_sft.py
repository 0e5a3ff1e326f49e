"""SFT as a user launches it: the same run under every launcher and ZeRO stage, what it leaves and what it refuses."""

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

from lmgym.generation.local_generation import LocalGenerator
from lmgym.models.forward.policies import load_policy
from lmgym.models.loading import load_tokenizer
from lmgym.models.small_models import build_model, size_settings

SFT = ROOT / "sft/experiments"
UPDATES = 5
# 32 conversations to train on and 8 to judge by; updates of 7 rows, of which the last has 4: a rank runs a filler
TRAIN = {
    "max_length": 128, "eval_size": 8, "global_batch": 8, "micro_batch": 2, "learning_rate": 1e-3, "log_updates": 1,
    "eval_updates": 4, "save_updates": -1, "precision": "fp32", "tracking": "none", "max_updates": UPDATES,
    "sample_prompts": 2, "sample_tokens": 6,
}  # fmt: skip
Go = Callable[..., tuple[CompletedProcess[str], Path]]


@pytest.fixture(scope="module")
def go(tmp_path_factory, small_models: dict[str, Path], chats_file: Path) -> Go:
    """Launches an experiment of sft/ and returns how it ended and its folder."""

    def begin(kind: str, *more: object, name: str = "chat", config: str | None = None, fails: bool = False, **changes):
        folder = tmp_path_factory.mktemp("sft") / "run"
        values = {"model": small_models["llama"], "dataset": chats_file, "output": folder, **TRAIN, **changes}
        if config:
            values["deepspeed"] = ROOT / "configs" / config
        done = run(launch(kind, *flags(**values), *more, script=SFT / f"{name}.py"))
        assert (done.returncode == 0) != fails, done.stdout[-3000:] + done.stderr[-5000:]
        if not fails:
            assert_metrics_are_known(folder)
        return done, folder

    return begin


@pytest.fixture(scope="module")
def plain(go: Go) -> tuple[CompletedProcess[str], Path]:
    return go("fork", "--local_rank=0")


def assert_same_run(found: Path, wanted: Path) -> None:
    """Equal losses, gradient norms, evaluations and final weights; the same answers."""
    a, b = read_metrics(found), read_metrics(wanted)
    for name in (
        "train/learning_rate",
        "train/loss",
        "train/token_accuracy",
        "eval/perplexity",
        "eval/token_accuracy",
        "eval/samples/tokens",
    ):
        assert a[name].keys() == b[name].keys()
        assert a[name] == pytest.approx(b[name], rel=1e-5, abs=1e-5), name
    assert len(a["train/loss"]) == UPDATES
    # Adam's step hides a gradient that is too large throughout: its norm does not
    assert a["train/grad_norm"] == pytest.approx(b["train/grad_norm"], rel=1e-4)
    assert largest_difference(read_weights(found), read_weights(wanted)) < 1e-5
    assert read_lines(found / "samples/000005.jsonl") == read_lines(wanted / "samples/000005.jsonl")


def test_two_ranks_under_zero_2_train_as_plain_python_does(go: Go, plain) -> None:
    _, folder = go("forks", config="zero2.json")
    assert_same_run(folder, plain[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "config"), [("torchrun", None), ("deepspeed", "zero1.json"), ("deepspeed", "zero3.json")]
)
def test_so_do_ddp_and_the_other_stages(kind: str, config: str | None, go: Go, plain) -> None:
    _, folder = go(kind, config=config)
    assert_same_run(folder, plain[1])


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("fork", None),
        ("forks", "zero3.json"),
        pytest.param("torchrun", None, marks=pytest.mark.slow),
        pytest.param("forks", "zero1.json", marks=pytest.mark.slow),
        pytest.param("forks", "zero2.json", marks=pytest.mark.slow),
        pytest.param("forks", "zero2_offload.json", marks=pytest.mark.slow),
    ],
)
def test_micro_batches_by_tokens_train_as_those_by_rows_do(kind: str, config: str | None, go: Go, plain) -> None:
    done, folder = go(kind, config=config, tokens_per_micro_batch=200)
    assert_same_run(folder, plain[1])
    assert "8 rows an update in micro-batches of at most 200 tokens" in words(done.stdout)


def test_a_run_leaves_a_policy_that_talks_its_samples_and_its_figures(plain, chats_file: Path) -> None:
    done, folder = plain
    model = folder / "model"
    tokenizer = load_tokenizer(str(model))
    LocalGenerator(load_policy(str(model), tokenizer), tokenizer)
    assert json.loads((folder / "run.json").read_text())["data"] == {
        "train_rows": 32, "eval_rows": 8, "truncated_rows": 0, "shortened_rows": 0, "rejected_rows": 0,
    }  # fmt: skip
    measured = json.loads((folder / "evaluation.json").read_text())["metrics"]
    over_prompts = {f"{name}{end}" for name in ("perplexity", "token_accuracy") for end in ("", "_low", "_high")}
    assert over_prompts | {"loss", "samples/tokens", "samples/ended"} == set(measured)
    assert [path.name for path in sorted((folder / "samples").iterdir())] == [
        "000000.jsonl",
        "000004.jsonl",
        "000005.jsonl",
    ]
    rows = read_lines(folder / "samples/000005.jsonl")
    assert [set(row) for row in rows] == [{"step", "row", "prompt", "reply", "tokens", "finish", "scores"}] * 2
    assert measured["samples/tokens"] == sum(row["tokens"] for row in rows) / 2
    assert len(read_lines(folder / "held_out.jsonl")) == 8
    said = words(done.stdout)
    assert "32 rows to train on, 8 to evaluate on; 0 truncated to 128 tokens" in said
    assert "0 of 40 rows rejected" in said
    assert "has no chat template but the flat one: turns are written as `User: ...` and `Bot: ...`" in said
    assert "answers to the fixed prompts" in said
    assert "## Measured on held-out data" in (model / "README.md").read_text()


@pytest.mark.slow
def test_lora_under_zero_3_in_bf16_is_saved_as_adapter_and_merged_and_scored(
    go: Go, scorer_folders: dict[str, Path], small_models: dict[str, Path]
) -> None:
    _, folder = go(
        "deepspeed", "--merge_adapter", "--gradient_checkpointing", config="zero3.json", precision="bf16", lora_rank=4,
        learning_rate=2e-2,
        scorers=f"a={scorer_folders['llama']},b={scorer_folders['gpt2']}",
    )  # fmt: skip
    from peft import PeftModel

    tokenizer = load_tokenizer(str(folder / "model"))
    merged = load_policy(str(folder / "model"), tokenizer).eval()
    adapted = PeftModel.from_pretrained(load_policy(str(small_models["llama"]), tokenizer), folder / "adapter").eval()
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        # the frozen weights ran in bf16, and are merged so
        torch.testing.assert_close(merged(ids).logits, adapted(ids).logits, rtol=0, atol=5e-3)
        assert (merged(ids).logits - load_policy(str(small_models["llama"]), tokenizer)(ids).logits).abs().max() > 5e-2
    measured = json.loads((folder / "evaluation.json").read_text())["metrics"]
    scores = [row["scores"] for row in read_lines(folder / "samples/000005.jsonl")]
    for name in "ab":
        assert measured[f"samples/score/{name}"] == pytest.approx(sum(s[name] for s in scores) / 2)


@pytest.mark.slow
def test_soft_targets_and_chosen_replies_run_end_to_end(
    go: Go, few_pairs: Path, chats_file: Path, tmp_path: Path
) -> None:
    rows = [json.loads(line)["messages"] for line in chats_file.read_text().splitlines()]
    taught = [
        {"prompt": row[:1], "tokens": [5 + i, 6, 7, 1], "logprobs": [-0.1, -1.0, -3.0, 0.0]}
        for i, row in enumerate(rows)
    ]
    taught[3]["logprobs"] = [-0.1]
    file = tmp_path / "taught.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in taught))
    _, folder = go("python", name="soft_targets", dataset=file)
    losses = list(read_metrics(folder)["train/loss"].values())
    assert losses[-1] < losses[0]
    [rejected] = read_lines(folder / "rejected.jsonl")
    assert rejected == {
        "file": str(file), "line": 4, "field": "logprobs",
        "found": "1 log-probabilities for 4 tokens; needed: one a token", "reason": "of the wrong type",
    }  # fmt: skip
    _, folder = go("python", name="hh_chosen", dataset=few_pairs, eval_size=4, max_length=256)
    assert json.loads((folder / "run.json").read_text())["data"]["train_rows"] >= 16


@pytest.mark.slow
def test_a_judge_learns_reasons_and_its_folder_says_that_it_gives_them(go: Go, tmp_path: Path) -> None:
    file = tmp_path / "reasons.jsonl"
    rows = [{"prompt": f"q{i}", "chosen": "a", "rejected": "b", "reason": "It is right."} for i in range(12)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, folder = go("python", name="judge_rationales", dataset=file, eval_size=4, max_length=2048)
    data = json.loads((folder / "run.json").read_text())["data"]
    assert (data["train_rows"], data["eval_rows"]) == (20, 4)
    assert json.loads((folder / "model/judge.json").read_text())["judge_tokens"] == 64


@pytest.mark.slow
def test_what_cannot_work_is_refused_in_one_line(go: Go, chats_file: Path, tmp_path: Path) -> None:
    done, _ = go("python", fails=True, scorers="a=")
    assert done.returncode == 2
    assert "needed [name=]PATH" in words(done.stderr)
    done, _ = go("deepspeed", config="zero2.json", fails=True, scorers=f"a={tmp_path / 'absent'}")
    assert "does not exist" in words(done.stderr)
    empty = tmp_path / "empty.jsonl"
    empty.write_text(json.dumps({"messages": [{"role": "user", "content": "a"}]}) + "\n")
    done, _ = go("python", fails=True, dataset=empty)
    assert "none of the 1 rows of" in words(done.stderr)
    assert "no turn of the bot that answers something" in words(done.stderr)


@pytest.mark.slow
def test_embeddings_that_train_in_full_beside_adapters_do_so_under_every_engine(
    go: Go, small_models: dict[str, Path], tmp_path: Path
) -> None:
    tokenizer = load_tokenizer(str(small_models["llama"]))
    tied = build_model(
        "llama", tokenizer, "causal", tie_word_embeddings=True,
        **size_settings("llama", layers=2, width=32, heads=4, max_length=256),
    )  # fmt: skip
    tied.save_pretrained(tmp_path / "tied")
    tokenizer.save_pretrained(tmp_path / "tied")
    settings = {"lora_rank": 4, "lora_target_modules": "q_proj,v_proj", "modules_to_save": "embed_tokens"}
    started = {"model": tmp_path / "tied", **settings, "max_updates": 2, "learning_rate": 1e-2}
    _, plain = go("python", "--merge_adapter", **started)
    _, sharded = go("deepspeed", "--merge_adapter", config="zero3.json", **started)
    found, wanted = read_weights(sharded), read_weights(plain)
    assert "lm_head.weight" not in wanted
    assert largest_difference(found, wanted) < 1e-5
    before = tied.state_dict()
    moved = {name for name, value in wanted.items() if (value - before[name]).abs().max() > 1e-4}
    assert moved == {
        "model.embed_tokens.weight", *(f"model.layers.{i}.self_attn.{n}_proj.weight" for i in (0, 1) for n in "qv")
    }  # fmt: skip
