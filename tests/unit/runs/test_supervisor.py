"""The results of a run: complete, or absent with a message."""

import json
from pathlib import Path

import pytest
from full_disk import largest_file

from lmgym.errors import RunStopped
from lmgym.models.forward.policies import load_policy, save_policy
from lmgym.models.loading import load_classifier, load_tokenizer
from lmgym.models.saving import save_classifier
from lmgym.runs.resuming import Start
from lmgym.runs.run import Run
from lmgym.runs.supervisor import Supervisor


@pytest.mark.parametrize("size", [16, 20_000])  # the config finds no room; the weights do not
@pytest.mark.parametrize("kind", ["policy", "scorer"])
def test_a_disk_that_is_full_when_the_model_is_saved_ends_the_run_with_its_code_and_leaves_no_half_of_it(
    kind: str, size: int, small_models: dict[str, Path], tmp_path: Path
) -> None:
    source = str(small_models["llama"])
    tokenizer = load_tokenizer(source)
    model = load_policy(source, tokenizer) if kind == "policy" else load_classifier(source, tokenizer)[0]
    run = Run.start(tmp_path / "run", {}, seed=0, tracking="none", start=Start("mine"))
    supervisor = Supervisor(run, Start("mine"), {"ranks": 1}, limit=2, stall_timeout=0)

    def save() -> None:
        with largest_file(size), supervisor.saving_results(model):
            if kind == "policy":
                save_policy(model, model.state_dict(), run.folder, tokenizer, merge=True)
            else:
                save_classifier(model, model.state_dict(), run.folder / "model", tokenizer, {})

    with pytest.raises(RunStopped) as caught, run:
        save()
    said = str(caught.value)
    assert caught.value.exit_code == 74
    assert f"{run.folder}/its results could not be written (" in said
    assert "there is no checkpoint yet; free space or repair the folder, then run the same command again" in said
    assert len(said.splitlines()) == 1
    assert {path.name for path in run.folder.iterdir()} == {".lock", "run.json", "metrics.jsonl"}
    if size > 16:
        assert json.loads((run.folder / "run.json").read_text())["exit_code"] == 74
