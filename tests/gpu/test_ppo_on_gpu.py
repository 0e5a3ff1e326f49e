"""PPO on a GPU: launches, and the weights that sample beside those that learn. Every test skips itself without one."""

import json
import subprocess
from pathlib import Path

import pytest
import torch
from launching import launch

from lmgym.environments.random_walks_model import make_start
from lmgym.models.forward.decoder import Decoder
from lmgym.models.forward.logprobs import token_logprobs
from lmgym.models.forward.packed_rows import pack_rows
from lmgym.models.forward.policies import load_policy
from lmgym.models.loading import load_tokenizer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy that copies random walks."""
    return make_start(tmp_path_factory.mktemp("start"))


@pytest.mark.parametrize("head_learns", [True, False])
@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3"])
def test_logprobs_and_gradients_are_those_of_the_cpu(
    family: str, head_learns: bool, small_models: dict[str, Path]
) -> None:
    folder = str(small_models[family])
    rows = [[5 + (7 * i + j) % 300 for j in range(20 + 9 * i)] for i in range(6)]
    counts = [3, 8, 1, 12, 20, 5]
    targets = torch.tensor([id_ for row, n in zip(rows, counts, strict=True) for id_ in row[len(row) - n :]])
    found = {}
    for device in ("cpu", "cuda"):
        model = load_policy(folder, load_tokenizer(folder)).to(device)
        model.get_output_embeddings().requires_grad_(head_learns)
        decoder = Decoder(model)
        states = decoder.hidden(pack_rows(rows, counts).to(device))
        logprobs = token_logprobs(decoder, states, targets.to(device), 0.8)
        logprobs.sum().backward()
        found[device] = (
            logprobs.detach().cpu(),
            {name: weight.grad.cpu() for name, weight in model.named_parameters() if weight.requires_grad},
        )
    torch.testing.assert_close(found["cuda"][0], found["cpu"][0], rtol=0, atol=1e-4)
    for name, gradient in found["cpu"][1].items():
        torch.testing.assert_close(found["cuda"][1][name], gradient, rtol=1e-3, atol=1e-3, msg=name)


@pytest.mark.parametrize(
    ("zero", "precision", "most_gap"),
    [
        (None, "fp32", 1e-4), (None, "bf16", 0.02), ("zero2", "bf16", 0.02), ("zero3", "bf16", 0.02),
        ("zero2", "fp16", 0.01),
    ],
)  # fmt: skip
def test_random_walks_are_learned_on_one_gpu(
    zero: str | None, precision: str, most_gap: float, start: Path, tmp_path: Path
) -> None:
    flags = [
        *("--model", start, "--output", tmp_path / "run", "--max_updates", 40, "--precision", precision),
        *("--tracking", "none", *(("--deepspeed", tmp_path / "deepspeed.json") if zero else ())),
    ]
    script = ROOT / "ppo/experiments/randomwalks.py"
    command = launch("deepspeed" if zero else "python", *flags, ranks=1, script=script)
    if zero:
        deepspeed = json.loads((ROOT / f"configs/{zero}.json").read_text())
        deepspeed["fp16"]["initial_scale_power"] = 24  # that gradients overflow at first
        (tmp_path / "deepspeed.json").write_text(json.dumps(deepspeed))
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, cwd=tmp_path, check=False, timeout=560)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    trained = [line for line in lines if "reward/mean" in line]  # the first line is of an evaluation alone
    assert max(line["rollout/logprob_mismatch"] for line in trained) < most_gap
    assert trained[0]["reward/mean"] < 0.45
    assert trained[-1]["reward/mean"] > 0.65
    skipped = sum(line["policy/skipped_updates"] for line in trained)
    assert 1 <= skipped < 20 if precision == "fp16" else skipped == 0
