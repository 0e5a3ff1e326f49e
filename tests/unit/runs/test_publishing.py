"""Pushes to the hub, against a stand-in that cuts connections and refuses: once each, whole, and no more."""

import json
import shutil
from pathlib import Path

import pytest
from hub_stub import FINE, READER, WRITER, WRONG, Fault, Hub
from huggingface_hub import HfApi, constants, snapshot_download

from lmgym.errors import InputError
from lmgym.runs import hub as access
from lmgym.runs import publishing
from lmgym.runs.files import write_json
from lmgym.scoring.scorers import HFScorer
from lmgym.text import Conversation, Turn

NAME = "alice/tiny"


@pytest.fixture
def folder(tmp_path: Path, scorer_folders: dict[str, Path]) -> Path:
    """The folder of a run that has trained a scorer, with files that are not for others."""
    run = tmp_path / "secret/run"
    shutil.copytree(scorer_folders["llama"], run / "model")
    settings = {"model": str(tmp_path / "secret/base"), "dataset": str(tmp_path / "secret/rows.jsonl"), "scorers": None}
    write_json(run / "run.json", {"outcome": "finished", "config": settings, "cwd": str(tmp_path)})
    (run / "model/README.md").write_text(
        f"---\nlibrary_name: transformers\ntags:\n- lmgym\n---\n\n# tiny\n\nTrained from `{settings['model']}` on "
        f"`{settings['dataset']}`, with a=/somebody/else/scorer.\n\n"
        '```python\nload("path/to/this/folder")\n```\n'
    )
    for name in ("optimizer.pt", "trainer_state.json", "training_args.bin", "held_out.jsonl"):
        (run / "model" / name).write_text("not for others")
    (run / "model/critic").mkdir()
    (run / "model/critic/model.safetensors").write_bytes(b"0")
    (run / "scorecard.json").write_text('{"accuracy": 0.7}')
    return run


def push(hub: Hub, run: Path, revision: str | None = None, private: bool = False, token: str = WRITER) -> list[str]:
    """Pushes a run's folder as `lmgym push` does; what it says."""
    said = []
    for source, branch in publishing.sources(run):
        files = publishing.read_files(source, NAME, private=publishing.private_paths(publishing.record_of(run)))
        pushed = publishing.push(HfApi(hub.url, token), source, files, NAME, revision or branch, private)
        publishing.record_push(run, pushed)
        said.append(str(pushed))
    return said


def scores(folder: Path) -> list[float]:
    talk = [Conversation((Turn("user", "Hello! How are you?"),))] * 2
    return HFScorer.load(folder).score(talk, ["Fine, thanks.", "No"]).tolist()


def test_a_scorer_that_is_pushed_and_downloaded_scores_the_same(hub: Hub, folder: Path, tmp_path: Path) -> None:
    push(hub, folder)
    copy = Path(snapshot_download(NAME, token=WRITER, local_dir=tmp_path / "copy"))
    assert (copy / "model.safetensors").read_bytes() == (folder / "model/model.safetensors").read_bytes()
    assert scores(copy) == scores(folder / "model")
    assert len(set(scores(copy))) == 2


def test_only_a_models_files_are_pushed_and_no_path_of_this_machine(hub: Hub, folder: Path, tmp_path: Path) -> None:
    config = folder / "model/config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"_name_or_path": str(tmp_path / "secret/base")}))
    push(hub, folder)
    files = hub.files(NAME)
    of_models = {"README.md", "config.json", "model.safetensors", "scorer.json", "tokenizer.json", "scorecard.json"}
    assert of_models <= files.keys() <= of_models | {"tokenizer_config.json", "chat_template.jinja"}
    assert [name for name, data in files.items() if str(tmp_path).encode() in data or b"/somebody" in data] == []
    card = files["README.md"].decode()
    assert "Trained from `base` on `rows.jsonl`, with a=scorer." in card
    assert f'load("{NAME}")' in card
    assert json.loads(files["config.json"])["_name_or_path"] == "base"


def test_paths_in_texts_become_names_also_with_spaces_and_addresses_stay() -> None:
    text = "of `/a/my runs/short/model`, x=/b/c/rows.jsonl and ~/d/e; see https://huggingface.co/docs/hub or a/b, 1/2"
    cleaned = publishing.clean_text(text, ["/a/my runs/short/model"])
    assert cleaned == "of `short/model`, x=rows.jsonl and e; see https://huggingface.co/docs/hub or a/b, 1/2"


def test_what_is_there_is_not_sent_again_and_what_is_missing_is(hub: Hub, folder: Path) -> None:
    assert "files)" in push(hub, folder)[0]
    hub.requests.clear()
    assert push(hub, folder)[0].endswith("nothing was missing)")
    assert hub.commits(NAME) == 1
    assert hub.count("PUT|/commit/") == 0
    (folder / "model/README.md").write_text("# another\n")
    assert push(hub, folder)[0].endswith("1 file)")
    assert hub.commits(NAME) == 2
    assert hub.count("PUT") == 0
    assert hub.files(NAME)["README.md"] == b"# another\n"


def test_files_of_another_model_go_and_a_users_own_stay(hub: Hub, folder: Path) -> None:
    there = {"model-00001-of-00002.safetensors": b"1", "adapter_config.json": b"{}", "plot.png": b"2", "LICENSE": b"3"}
    hub.add(NAME, there)
    push(hub, folder)
    assert {"plot.png", "LICENSE", "model.safetensors"} <= hub.files(NAME).keys()
    assert not {"model-00001-of-00002.safetensors", "adapter_config.json"} & hub.files(NAME).keys()


@pytest.mark.parametrize(
    "fault",
    [
        Fault("POST .*/commit/"),
        Fault("POST .*/commit/", served=True),
        Fault("POST .*/commit/", 429, times=2, headers={"Retry-After": "0"}),
        Fault("POST .*/commit/", 503),
        Fault("POST /api/repos/create", 503, times=2),
        Fault("POST /api/repos/create", served=True),
        Fault("GET .*/tree/", 502),
        Fault("PUT "),
        Fault("POST .*/preupload/", 429, headers={"Retry-After": "0"}),
    ],
    ids=lambda fault: f"{fault.match} {fault.status or 'cut'}{' after' * fault.served}",
)
def test_a_push_survives_cuts_and_busy_servers_and_commits_once(fault: Fault, hub: Hub, folder: Path, capsys) -> None:
    hub.faults.append(fault)
    push(hub, folder)
    assert fault.times == 0, "the fault happened"
    assert hub.commits(NAME) == 1
    assert hub.files(NAME)["model.safetensors"] == (folder / "model/model.safetensors").read_bytes()
    said = capsys.readouterr()
    assert WRITER not in said.out + said.err


def test_somebody_elses_commit_meanwhile_is_not_undone(hub: Hub, folder: Path) -> None:
    repository = hub.add(NAME, {"plot.png": b"1"})
    commit = hub.repositories["model", NAME].branches["main"][-1]
    hub.faults.append(Fault("POST .*/commit/", 503))

    class Watching(list):
        """The requests; another's commit comes with the first commit of ours."""

        def append(self, request: tuple[str, str, bool]) -> None:
            if "/commit/" in request[1] and not any("/commit/" in path for _, path, _ in self):
                repository.branches["main"].append(("f" * 40, {**commit[1], "more.png": (hub.keep(b"2"), False)}))
            super().append(request)

    hub.requests = Watching()
    push(hub, folder)
    assert {"plot.png", "more.png", "model.safetensors"} <= hub.files(NAME).keys()


def test_a_hub_that_stays_away_ends_the_push_which_then_continues(
    hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub.errors import HfHubHTTPError

    monkeypatch.setattr(access, "LONGEST_WAIT", 0.02)
    hub.faults.append(Fault("POST .*/commit/", 503, times=access.TRIES))
    with pytest.raises(HfHubHTTPError) as caught:
        push(hub, folder)
    assert publishing.reason(caught.value) == "the hub answered 503"
    assert hub.count("POST .*/commit/") == access.TRIES
    hub.requests.clear()
    push(hub, folder)
    assert hub.count("PUT") == 0, "the weights had arrived"
    assert hub.commits(NAME) == 1


def test_the_best_is_on_main_the_last_on_its_branch_and_the_record_says_where(hub: Hub, folder: Path) -> None:
    shutil.copytree(folder / "model", folder / "last")
    (folder / "last/model.safetensors").write_bytes(b"the last")
    push(hub, folder)
    assert hub.files(NAME, "last")["model.safetensors"] == b"the last"
    assert hub.files(NAME)["model.safetensors"] != b"the last"
    push(hub, folder, revision="v1")
    assert set(hub.repositories["model", NAME].branches) == {"main", "last", "v1"}
    record = json.loads((folder / "run.json").read_text())["pushed"]
    assert [(one["revision"], one["folder"]) for one in record] == [("main", "model"), ("last", "last"), ("v1", "last")]
    assert record[0]["commit"] == hub.repositories["model", NAME].branches["main"][-1][0]
    assert record[0]["repository"] == NAME


def test_a_private_repository_is_made_and_a_public_one_is_not_taken_for_it(hub: Hub, folder: Path) -> None:
    push(hub, folder, private=True)
    assert hub.repositories["model", NAME].private
    hub.repositories["model", NAME].private = False
    with pytest.raises(InputError, match="is there already, and public; needed: another name, or no --private"):
        push(hub, folder, private=True)


def test_an_adapter_needs_a_base_that_others_have(hub: Hub, folder: Path, tmp_path: Path) -> None:
    adapter = folder / "adapter"
    shutil.move(folder / "model", adapter)
    (adapter / "config.json").unlink()
    base = str(tmp_path / "secret/base")
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base, "r": 4}))
    with pytest.raises(InputError, match=r"a folder that others do not have; needed: --base OWNER/NAME"):
        push(hub, folder)
    files = publishing.read_files(adapter, NAME, "alice/base")
    assert json.loads(bytes(files["adapter_config.json"])) == {"base_model_name_or_path": "alice/base", "r": 4}  # type: ignore[arg-type]
    card = bytes(files["README.md"]).decode()  # type: ignore[arg-type]
    assert card.startswith("---\nlibrary_name: transformers\nbase_model: alice/base\ntags:\n")
    assert "Trained from `alice/base`" in card


@pytest.mark.parametrize("name", ["tiny", "a/b/c", "alice/", "/tiny", "alice/ti ny", "-a/b", "alice/x--y", "true", ""])
def test_a_name_that_no_repository_has_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="is no name of a repository; needed: OWNER/NAME"):
        access.check_name(name)
    access.check_name(NAME)


@pytest.mark.parametrize(
    ("token", "repository", "refusal"),
    [
        (WRITER, NAME, ""),
        (WRITER, "team/tiny", ""),
        (FINE, NAME, ""),
        (FINE, "team/tiny", "is fine-grained and may not write to team/tiny"),
        (READER, "bob/tiny", "may only read from bob; needed: one with the role write, in HF_TOKEN"),
        (WRITER, "carol/tiny", "the token in HF_TOKEN is of alice, team, which is not 'carol'"),
        (WRONG, NAME, "the hub answered 401 for alice/tiny: the token in HF_TOKEN is not valid; needed: HF_TOKEN"),
    ],
)
def test_what_a_token_may_not_do_is_said_before_training(
    token: str, repository: str, refusal: str, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    if not refusal:
        access.refuse_unfit_push(repository)
        return
    with pytest.raises(InputError) as caught:
        access.refuse_unfit_push(repository)
    assert refusal in str(caught.value)
    assert token not in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_without_a_token_a_push_says_what_to_set(hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_TOKEN", "")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(InputError, match="found no token of the hub; needed: HF_TOKEN, set to a token that may write"):
        access.refuse_unfit_push(NAME)
    (tmp_path / "none").write_text(WRITER)
    access.refuse_unfit_push(NAME)  # the hub's own login
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "nowhere"))
    monkeypatch.setenv("HUGGINGFACE_TOKEN", WRITER)
    access.refuse_unfit_push(NAME)  # the original name


def test_a_hub_that_does_not_answer_is_a_line_alone(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    hub.faults.append(Fault("GET /api/whoami-v2", times=9))
    access.refuse_unfit_push(NAME)
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("warning: asking the hub whether alice/tiny may be pushed to failed (")
    assert hub.count("whoami") == 2


@pytest.mark.parametrize(("status", "token"), [(403, WRITER), (401, WRONG)])
def test_a_refusal_is_not_tried_again(status: int, token: str, hub: Hub, folder: Path) -> None:
    hub.add(NAME, {})
    if status == 403:
        hub.faults.append(Fault("POST .*/commit/", 403))
    with pytest.raises(InputError, match=f"the hub answered {status} for alice/tiny: .*may write to it") as caught:
        push(hub, folder, token=token)
    assert hub.count("POST .*/commit/") == (status == 403)
    assert token not in str(caught.value)
