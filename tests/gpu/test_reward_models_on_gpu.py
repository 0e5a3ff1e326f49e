"""Reward models on a GPU: packed scores, bf16, and launches. Every test skips itself without one."""

import json
import subprocess
from pathlib import Path

import pytest
import torch
from launching import launch

from lmgym.models.forward.packed_rows import pad_right
from lmgym.models.forward.scoring_model import ScoringModel
from lmgym.models.loading import load_classifier, load_tokenizer
from lmgym.text import share_prefix

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

ROOT = Path(__file__).parents[2]
ROWS = [share_prefix([[5, 6, 7, 8, 9 + i], [5, 6, 7, 8, 30, 31 + i]]) for i in range(6)]


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3"])
def test_packed_scores_and_gradients_on_the_gpu_equal_the_padded_forward_on_the_cpu(small_models, family):
    tokenizer = load_tokenizer(str(small_models[family]))
    model, _ = load_classifier(str(small_models[family]), tokenizer)
    plain = model(**pad_right(ROWS, tokenizer.pad_token_id)).logits
    plain.square().sum().backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    scoring = ScoringModel(model).cuda()
    packed = scoring(**{k: v.to("cuda") for k, v in scoring.collate(ROWS, tokenizer.pad_token_id).items()})
    packed.square().sum().backward()
    torch.testing.assert_close(packed.cpu(), plain, rtol=0, atol=1e-4)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad.cpu(), expected[name], rtol=1e-3, atol=1e-4, msg=name)


def test_bf16_scores_on_the_gpu_are_close_to_fp32(small_models):
    tokenizer = load_tokenizer(str(small_models["llama"]))
    model, _ = load_classifier(str(small_models["llama"]), tokenizer)
    scoring = ScoringModel(model).cuda().eval()
    inputs = {k: v.to("cuda") for k, v in scoring.collate(ROWS, tokenizer.pad_token_id).items()}
    with torch.inference_mode():
        exact = scoring(**inputs)
        with torch.autocast("cuda", torch.bfloat16):
            rough = scoring(**inputs)
    assert rough.dtype == torch.float32
    torch.testing.assert_close(rough, exact, rtol=0, atol=0.05)


@pytest.mark.parametrize(
    ("zero", "precision"), [("zero2", "bf16"), ("zero3", "bf16"), ("zero2", "fp32"), (None, "bf16")]
)
def test_the_experiment_learns_on_one_gpu(small_models, demo_file, tmp_path, zero, precision):
    flags = [
        *(("--deepspeed", ROOT / f"configs/{zero}.json") if zero else ()),
        *("--model", small_models["llama"], "--dataset", demo_file, "--precision", precision, "--max_length", 256),
        *("--global_batch", 32, "--learning_rate", 3e-3, "--epochs", 3, "--eval_size", 100),
        *("--output", tmp_path, "--tracking", "none"),
    ]
    command = launch("deepspeed" if zero else "python", *flags, ranks=1)
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads((tmp_path / "evaluation.json").read_text())["metrics"]["accuracy"] > 0.6
