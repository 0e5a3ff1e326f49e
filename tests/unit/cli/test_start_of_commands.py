"""What commands import, in a process of their own: an answer about the command itself, a refusal, a plan, scores."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from patience import PATIENCE

ROOT = Path(__file__).parents[3]
SCRIPT = """
import runpy, sys, json
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit as end:
    code = end.code
else:
    code = 0
print(json.dumps([code, sorted(sys.modules)]))
"""
HELP_NEEDS = {"click", "rich", "huggingface_hub", "psutil"}
"""packages; huggingface_hub for a constant, since it imports nothing by itself, psutil for launchers above a process"""


def modules_after(*words: object, folder: Path, code: int = 0) -> set[str]:
    """Names of the modules that a script has imported at its end."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *map(str, words)], capture_output=True, text=True, cwd=folder, timeout=PATIENCE
    )
    found, modules = json.loads(done.stdout.splitlines()[-1])
    assert found == code, done.stderr
    return set(modules)


def installed(modules: set[str]) -> set[str]:
    """Top-level packages that are neither Python's nor ours."""
    names = {name.partition(".")[0] for name in modules}
    return {name for name in names if name not in sys.stdlib_module_names and not name.startswith(("_", "lmgym"))}


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    lines = [{"prompt": f"what is {n} and 1?", "chosen": f"It is {n + 1}.", "rejected": "No."} for n in range(40)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_help_imports_what_prints_it_and_nothing_of_networks(tmp_path: Path) -> None:
    modules = modules_after(ROOT / "lmgym/__main__.py", "--help", folder=tmp_path)
    assert installed(modules) <= HELP_NEEDS
    assert not {"ssl", "http.client", "importlib.metadata", "concurrent.futures"} & modules


def test_a_model_without_a_head_is_refused_before_torch(rows: Path, small_models, tmp_path: Path) -> None:
    words = ("score", small_models["llama"], rows, "--output", tmp_path / "scores.jsonl")
    modules = modules_after(ROOT / "lmgym/__main__.py", *words, folder=tmp_path, code=2)
    assert not {"torch", "transformers", "datasets", "scipy.stats"} & modules


def test_scores_need_no_adapters_tests_or_data_sets(rows: Path, scorer_folders, tmp_path: Path) -> None:
    words = ("score", scorer_folders["llama"], rows, "--output", tmp_path / "scores.jsonl")
    modules = modules_after(ROOT / "lmgym/__main__.py", *words, folder=tmp_path)
    assert "transformers.models.llama.modeling_llama" in modules
    assert not {"peft", "datasets", "scipy.stats", "transformers.trainer_utils"} & modules


@pytest.mark.parametrize(
    ("experiment", "model"),
    [
        ("preferences/experiments/dpo.py", "llama"),
        pytest.param("reward_models/experiments/hh_pairwise.py", "bert", marks=pytest.mark.slow),
        pytest.param("sft/experiments/hh_chosen.py", "gpt2", marks=pytest.mark.slow),
    ],
)
def test_a_dry_run_loads_no_model_trainer_or_adapter(experiment: str, model: str, rows, small_models, tmp_path) -> None:
    words = ("--dry_run", "--model", small_models[model], "--dataset", rows, "--output", tmp_path / "out")
    modules = modules_after(ROOT / experiment, *words, folder=tmp_path)
    assert "transformers.models.auto" in modules
    assert not {"peft", "datasets", "scipy.stats", "transformers.trainer", "transformers.trainer_utils"} & modules
    assert not [name for name in modules if name.startswith(f"transformers.models.{model}.modeling")]


def test_a_command_that_starts_another_does_so_without_torch(rows: Path, small_models, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nfrom lmgym.runs import launching\nfrom lmgym.cli.main import main\n"
        "launching.become = lambda command, shown=True: sys.exit(0)\nmain(sys.argv[1:])\n"
    )
    words = ("train", "dpo", rows, "--dry_run", "--model", small_models["llama"])
    modules = modules_after(script, *words, folder=tmp_path)
    if torch.version.cuda is None and torch.version.hip is None:  # else torch may have to count the GPUs
        assert "torch" not in modules
