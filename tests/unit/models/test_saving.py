"""A results folder is replaced as a whole: whatever ends the process, a former or a new one is complete.

What is not weights is saved once before step 1.
"""

import json
from pathlib import Path

import pytest
from full_disk import largest_file

from lmgym.errors import RunStopped
from lmgym.models.forward.policies import load_policy, save_policy
from lmgym.models.loading import load_tokenizer
from lmgym.models.lora import add_lora
from lmgym.models.saving import replace_folder, try_saving
from lmgym.runs.run import Run
from lmgym.training.setup import refuse_unsavable


def policy_of(folder: Path):
    tokenizer = load_tokenizer(str(folder))
    return load_policy(str(folder), tokenizer), tokenizer


def write(folder: Path, text: str | None) -> None:
    """Writes one file; of None it is never written, and cannot be read back."""
    with replace_folder(folder) as partial:
        partial.mkdir()
        if text is not None:
            (partial / "weights").write_text(text)
        read(partial)


def read(folder: Path) -> str:
    return (folder / "weights").read_text()


def test_a_new_folder_replaces_the_former_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    for text in ("a", "b"):
        write(tmp_path / "model", text)
        assert read(tmp_path / "model") == text
        assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_an_error_while_writing_leaves_the_former(tmp_path: Path) -> None:
    write(tmp_path / "model", "a")
    with pytest.raises(FileNotFoundError):
        write(tmp_path / "model", None)
    assert read(tmp_path / "model") == "a"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("survived", [0, 1])
def test_a_kill_at_a_rename_leaves_both_whole_and_the_next_writing_succeeds(
    survived: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "model", "a")
    renames = []

    def rename(self: Path, target: Path) -> Path:
        renames.append(target)
        if len(renames) > survived:
            raise KeyboardInterrupt  # nothing after this line is run, as after a kill
        return original(self, target)

    original = Path.rename
    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", rename)
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path / "model", "b")
    assert read(tmp_path / ("model.former" if survived else "model")) == "a"
    assert read(tmp_path / "model.partial") == "b"
    write(tmp_path / "model", "c")
    assert read(tmp_path / "model") == "c"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_disk_without_room_is_found_before_step_1(small_models, tmp_path: Path) -> None:
    model, tokenizer = policy_of(small_models["llama"])
    with Run.start(str(tmp_path / "run"), {}, 0, "none", "data") as run:
        refuse_unsavable(model, tokenizer, run)
        with (
            largest_file(2000),
            pytest.raises(RunStopped, match=r"nothing can be saved in .*/run \(.*free space or rep"),
        ):
            refuse_unsavable(model, tokenizer, run)
        assert [path.name for path in run.folder.iterdir() if path.name.startswith(".try")] == []


@pytest.mark.parametrize("rank", [0, 2])
def test_a_generation_config_that_transformers_refuses_is_kept_and_said(
    rank: int, small_models, tmp_path: Path
) -> None:
    model, tokenizer = policy_of(small_models["llama"])
    model = add_lora(model, rank, 4, 0.0) if rank else model
    assert try_saving(model, tokenizer, tmp_path) == []
    settings = (model.get_base_model() if rank else model).generation_config
    settings.update(do_sample=False, temperature=0.6, top_p=0.9)
    with pytest.raises(ValueError, match="do_sample"):
        settings.save_pretrained(tmp_path / "other")
    [note] = try_saving(model, tokenizer, tmp_path)
    assert note.startswith(f"generation_config.json of {small_models['llama']} is kept as it is")
    saved = save_policy(model, model.state_dict(), tmp_path, tokenizer, merge=True)
    kept = json.loads((saved / "generation_config.json").read_text())
    assert {name: kept[name] for name in ("do_sample", "temperature", "top_p")} == {
        "do_sample": False, "temperature": 0.6, "top_p": 0.9,
    }  # fmt: skip
    again, _ = policy_of(saved)
    assert again.generation_config.temperature == 0.6
