"""Rotary frequencies stay exact where weights are rounded to bf16: what is served is what was trained."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from launching import launch, run

STAGES = ("ppo", "reward_models", "sft")
CONFIGS = ("zero2.json", "zero3.json")

Found = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def found(tmp_path_factory, small_models: dict[str, Path], few_pairs: Path, chats_file: Path) -> Found:
    """The frequencies that each stage trained with under each level of ZeRO, all in one launch."""
    return look(tmp_path_factory.mktemp("exact"), small_models["llama"], few_pairs, chats_file, CONFIGS)


def look(folder: Path, model: Path, pairs: Path, chats: Path, configs: Sequence[str], **added: object) -> Found:
    paths = {"model": model, "pairs": pairs, "chats": chats, "folder": folder}
    given = {name: str(path) for name, path in paths.items()} | {"configs": configs, "added": added}
    file, out = folder / "given.json", folder / "found.json"
    file.write_text(json.dumps(given))
    # one rank: whatever is rounded is rounded on each
    done = run(launch("forks", file, out, ranks=1, script=Path(__file__).parent / "frequencies_script.py"))
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(out.read_text())


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("stage", STAGES)
def test_in_bf16_weights_are_rounded_and_frequencies_are_not(stage: str, name: str, found: Found) -> None:
    looks = found[f"{stage} {name}"]
    assert len(looks) == 2
    for one in looks:
        assert one["weights"] == ["torch.bfloat16"]
        assert one["sharded"] is (name == "zero3.json")
        assert one["off"] == 0.0


@pytest.mark.slow  # DeepSpeed casts a model in one place for stages 1 and 2
def test_so_it_is_under_zero_1(
    small_models: dict[str, Path], few_pairs: Path, chats_file: Path, tmp_path: Path
) -> None:
    for looks in look(tmp_path, small_models["llama"], few_pairs, chats_file, ["zero1.json"]).values():
        assert [(one["weights"], one["off"]) for one in looks] == [(["torch.bfloat16"], 0.0)] * 2


@pytest.mark.slow
def test_a_config_that_asks_for_rounded_frequencies_is_seen(
    small_models: dict[str, Path], few_pairs: Path, chats_file: Path, tmp_path: Path
) -> None:
    """A cast that DeepSpeed did before 0.19.2 unasked; so the test above can fail."""
    asked = {"data_types": {"buffer_dtype": "bf16"}}
    rounded = look(tmp_path, small_models["llama"], few_pairs, chats_file, ["zero2.json"], **asked)
    assert len(rounded) == len(STAGES)
    for looks in rounded.values():
        assert min(one["off"] for one in looks) > 0.05  # radians at position 1000
