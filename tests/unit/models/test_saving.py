"""A results folder is replaced as a whole: whatever ends the process, a former or a new one is complete."""

from pathlib import Path

import pytest

from lmgym.models.saving import replace_folder


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
