"""The tests for GPUs, on a pretended one (tests/pretended): where tensors are, what is captured, who launches."""

import json
import re
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch
from launching import BIN, PRETENDED, ROOT, flags, launch, read_lines, read_metrics, run

LAUNCHES = "one_gpu or nothing_beats_the_machine"
# its roofs are measured by products that fill a GPU
BENCHMARK = """
import runpy, sys
sys.path.insert(0, {folder!r})
import gpu_training
gpu_training.measure_roofs = lambda device: dict(bytes_per_second=1e14, flops_per_second=1e16)
sys.argv = [{script!r}, "--models", "tiny", "--parts", "ppo", "--iterations", "2", "--output", {output!r}]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run_gpu_tests(which: str, seconds: float) -> CompletedProcess[str]:
    """Some of tests/gpu, in a process with a pretended GPU."""
    command = [BIN / "python", "-m", "pytest", "-p", "no:cacheprovider", "tests/gpu", "-m", "gpu", "-k", which]
    return run(command, seconds=seconds, **PRETENDED)


def assert_all_passed(done: CompletedProcess[str], least: int) -> None:
    """None skipped itself."""
    assert done.returncode == 0, done.stdout[-5000:]
    said = re.search(r"(\d+) passed", done.stdout)
    assert said, done.stdout[-2000:]
    assert int(said[1]) >= least, done.stdout[-2000:]
    assert "skipped" not in done.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a real GPU")
@pytest.mark.slow
def test_the_tests_for_gpus_are_right_before_one_is_lent() -> None:
    assert_all_passed(run_gpu_tests(f"not ({LAUNCHES})", 400), least=28)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a real GPU")
@pytest.mark.parametrize(("which", "least"), [("ppo", 5), ("reward_models", 4)])
def test_so_are_their_launches(which: str, least: int) -> None:
    assert_all_passed(run_gpu_tests(f"one_gpu and {which}", 1200), least)


@pytest.mark.slow
def test_the_benchmark_for_gpus_runs_all_its_ways(tmp_path: Path) -> None:
    folder, output = ROOT / "benchmarks", tmp_path / "found.json"
    code = BENCHMARK.format(folder=str(folder), script=str(folder / "on_gpu.py"), output=str(output))
    done = run([sys.executable, "-c", code], **PRETENDED)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    record = json.loads(output.read_text())
    assert record["name"] == "Pretended GPU"
    assert record["ppo"]
    for found in record["ppo"].values():
        assert found["precision"] == "bf16"
        assert found["checks"]["failed"] == 0


@pytest.fixture
def pairs_run(small_models: dict[str, Path], few_pairs: Path, held_out_pairs: Path, tmp_path: Path):
    """A short run of a reward model in plain Python: what it said, its folder."""

    def go(name: str, **environment: str) -> tuple[CompletedProcess[str], Path]:
        words = flags(
            model=small_models["llama"], dataset=few_pairs, eval_dataset=held_out_pairs, precision="fp32",
            max_length=256, global_batch=4, micro_batch=2, max_updates=3, learning_rate=1e-3, log_updates=1,
            tracking="none", output=tmp_path / name,
        )  # fmt: skip
        done = run(launch("python" if environment else "fork", *words), **environment)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done, tmp_path / name

    return go


def test_plain_python_beside_eight_gpus_trains_on_one_as_on_the_cpu_and_says_so(pairs_run) -> None:
    (on_gpu, there), (on_cpu, here) = pairs_run("gpu", **PRETENDED), pairs_run("cpu")
    assert "8 GPUs are here, and this process uses one" in on_gpu.stdout
    assert "GPUs are here" not in on_cpu.stdout
    assert "1 x 2 x 2" in on_gpu.stdout.replace("micro-batches of ", "x ")
    found, expected = read_metrics(there), read_metrics(here)
    assert found["train/loss"] == pytest.approx(expected["train/loss"], rel=1e-4)
    assert len(found["train/loss"]) == 3
    assert found["eval/accuracy"] == pytest.approx(expected["eval/accuracy"])


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_ppo_with_a_cached_trunk_learns_from_replies_of_captured_graphs(
    precision: str, small_models: dict[str, Path], chats_file: Path, tmp_path: Path
) -> None:
    words = flags(
        model=small_models["llama"], prompts=chats_file, precision=precision, output=tmp_path / "run",
        num_rollouts=8, max_new_tokens=24, global_batch=4, micro_batch=2, max_updates=4, eval_size=4, tracking="none",
        num_layers_unfrozen=1, save_updates=-1,
    )  # fmt: skip
    done = run(launch("python", *words, script=ROOT / "ppo/experiments/sentiment_words.py"), **PRETENDED)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    gaps = [
        line["rollout/logprob_mismatch"]
        for line in read_lines(tmp_path / "run/metrics.jsonl")
        if "policy/ratio" in line
    ]
    assert gaps
    assert max(gaps) < (1e-4 if precision == "fp32" else 0.02)
