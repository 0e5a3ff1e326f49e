"""Folders that people have: saved by the datasets library, snapshots of the hub, files by split. Digests of them."""

import json
import shutil
from pathlib import Path

import datasets
import pyarrow as pa
import pytest

from lmgym.data import sources
from lmgym.data.records import iterate_records, read_records
from lmgym.data.sources import content_digest, find_files
from lmgym.errors import InputError


def saved(path: Path, first: int = 0, rows: int = 3, **settings: int) -> Path:
    datasets.Dataset.from_dict({"n": list(range(first, first + rows))}).save_to_disk(str(path), **settings)
    return path


def saved_dict(path: Path, **splits: int) -> Path:
    """Each split has three rows from its number on."""
    parts = {name: datasets.Dataset.from_dict({"n": [n, n + 1, n + 2]}) for name, n in splits.items()}
    datasets.DatasetDict(parts).save_to_disk(str(path))
    return path


def write(root: Path, files: dict[str, object]) -> Path:
    """Files with one row `{"n": ...}`; text as it is."""
    for name, value in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(value, str):
            path.write_text(value)
        elif name.endswith(".parquet"):
            datasets.Dataset.from_dict({"n": [value]}).to_parquet(str(path))
        elif name.endswith(".arrow"):
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, pa.schema({"n": pa.int64()})) as stream:
                stream.write_table(pa.table({"n": [value]}))
        else:
            path.write_text(json.dumps({"n": value}) + "\n")
    return root


def numbers(source: Path, split: str = "train") -> list[int]:
    return [record.fields["n"] for record in read_records(str(source), split)]


# --- Dataset.save_to_disk and DatasetDict.save_to_disk


def test_a_saved_dataset_gives_its_rows_in_their_order_whatever_the_split(tmp_path: Path) -> None:
    folder = saved(tmp_path / "a", rows=2500, num_shards=3)
    (folder / "cache-0123.arrow").write_bytes((folder / "data-00000-of-00003.arrow").read_bytes())  # of Dataset.map
    assert numbers(folder) == numbers(folder, "test") == list(range(2500))
    records = read_records(str(folder))
    assert [Path(r.file).name for r in (records[0], records[-1])] == [f"data-0000{n}-of-00003.arrow" for n in (0, 2)]
    assert [r.line for r in records] == [n + 1 for size in (834, 833, 833) for n in range(size)]


def test_the_order_of_a_saved_datasets_files_is_that_of_its_state(tmp_path: Path) -> None:
    folder = saved(tmp_path / "a", rows=4, num_shards=2)
    state = json.loads((folder / "state.json").read_text())
    state["_data_files"].reverse()
    (folder / "state.json").write_text(json.dumps(state))
    assert numbers(folder) == [2, 3, 0, 1] == datasets.load_from_disk(str(folder))["n"][:]


def test_a_dataset_that_was_shuffled_and_selected_before_it_was_saved(tmp_path: Path) -> None:
    rows = datasets.Dataset.from_dict({"n": list(range(100))}).shuffle(seed=3).select([5, 99, 0])
    rows.save_to_disk(str(tmp_path / "a"))
    assert numbers(tmp_path / "a") == rows["n"][:]


def test_the_indices_that_old_versions_kept_apart_give_the_order(tmp_path: Path) -> None:
    folder = saved(tmp_path / "a", rows=5, num_shards=2)
    with pa.OSFile(str(folder / "indices.arrow"), "wb") as file:
        with pa.ipc.new_stream(file, pa.schema({"indices": pa.uint64()})) as stream:
            stream.write_table(pa.table({"indices": pa.array([4, 0, 3], pa.uint64())}))
    before = content_digest(str(folder), "train")
    state = json.loads((folder / "state.json").read_text()) | {"_indices_data_files": [{"filename": "indices.arrow"}]}
    (folder / "state.json").write_text(json.dumps(state))
    assert numbers(folder) == [4, 0, 3]
    assert {(r.file, r.line) for r in iterate_records(str(folder))} == {(str(folder), n) for n in (1, 2, 3)}
    assert content_digest(str(folder), "train") != before


def test_a_saved_dict_gives_the_split(tmp_path: Path) -> None:
    folder = saved_dict(tmp_path / "a", train=0, test=10, validation=20, extra=30)
    assert numbers(folder) == [0, 1, 2]
    assert numbers(folder, "test") == [10, 11, 12]
    assert numbers(folder, "extra") == [30, 31, 32]
    with pytest.raises(InputError, match=r"the split dev; found .* \(splits: extra, test, train, validation\); needed"):
        numbers(folder, "dev")


@pytest.mark.parametrize("kind", ["dict", "readme", "folders", "names"])
def test_for_test_a_validation_set_is_taken_if_there_is_no_test_set(kind: str, tmp_path: Path) -> None:
    def make(folder: Path, **splits: int) -> Path:
        if kind == "dict":
            return saved_dict(folder, **splits)
        if kind == "readme":
            header = "".join(f"  - split: {name}\n    path: x{n}.jsonl\n" for name, n in splits.items())
            write(folder, {"README.md": f"---\nconfigs:\n- config_name: a\n  data_files:\n{header}---\n"})
        pattern = {"readme": "x{n}.jsonl", "folders": "{name}/x.parquet", "names": "{name}.jsonl"}[kind]
        return write(folder, {pattern.format(name=name, n=n): n for name, n in splits.items()})

    assert numbers(make(tmp_path / "a", train=0, dev=1, validation=2), "test")[0] == 2
    assert numbers(make(tmp_path / "b", train=0, dev=1), "test")[0] == 1
    assert numbers(make(tmp_path / "c", train=0, dev=1, test=3), "test")[0] == 3
    for wanted, folder in (
        ("validation", make(tmp_path / "d", train=0, test=3)),
        ("train", make(tmp_path / "e", dev=3)),
    ):
        with pytest.raises(InputError, match=rf"no file for the split {wanted}; found"):
            numbers(folder, wanted)


def truncate(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def test_a_damaged_saved_dataset_is_refused_and_named(tmp_path: Path) -> None:
    lost = saved(tmp_path / "lost", num_shards=3)
    (lost / "data-00001-of-00003.arrow").unlink()
    with pytest.raises(
        InputError, match=r"lost is damaged: it lacks data-00001-of-00003\.arrow, which its state\.json"
    ):
        numbers(lost)
    cut = saved(tmp_path / "cut", rows=5000)
    file = cut / "data-00000-of-00001.arrow"
    whole = file.read_bytes()
    for size in (0, 3, 100, len(whole) // 2, len(whole) - 9, len(whole) - 8):  # the last ones: without its end mark
        file.write_bytes(whole[:size])
        with pytest.raises(
            InputError, match=r"00001\.arrow is not a whole Arrow file: .*; write or fetch it again"
        ) as e:
            numbers(cut)
        assert str(e.value).isprintable()
    state = saved(tmp_path / "state")
    (state / "state.json").write_text("{")
    with pytest.raises(InputError, match=r"is damaged: state\.json is no JSON"):
        numbers(state)
    (state / "state.json").write_text('{"_data_files": [7]}')
    with pytest.raises(InputError, match=r"is damaged: state\.json names no files"):
        numbers(state)
    (state / "state.json").unlink()
    (state / "cache-0123.arrow").write_bytes((state / "data-00000-of-00001.arrow").read_bytes())
    assert numbers(state) == [0, 1, 2], "the names of its files give their order"


def test_rows_before_the_damage_are_given_before_it_is_met(tmp_path: Path) -> None:
    file = saved(tmp_path / "a", rows=5000) / "data-00000-of-00001.arrow"
    truncate(file, file.stat().st_size // 2)
    rows = iterate_records(str(tmp_path / "a"))
    assert [next(rows).fields["n"] for _ in range(1000)] == list(range(1000))
    with pytest.raises(InputError):
        list(rows)


def test_a_damaged_saved_dict_is_refused_and_named(tmp_path: Path) -> None:
    folder = saved_dict(tmp_path / "a", train=0, test=10)
    for path in (folder / "train").iterdir():
        path.unlink()
    assert numbers(folder, "test") == [10, 11, 12]
    with pytest.raises(InputError, match=r"a/train is a folder without data files"):
        numbers(folder)
    (folder / "train").rmdir()
    with pytest.raises(InputError, match=r"is damaged: it lacks the folder train; save or copy it again"):
        numbers(folder)
    (folder / "dataset_dict.json").write_text("[]")
    with pytest.raises(InputError, match=r"is damaged: dataset_dict\.json names no splits"):
        numbers(folder)


# --- snapshots of the hub

BESIDE = {
    ".gitattributes": "*.parquet filter=lfs",
    "README.md": "# Data\n",
    "dataset_infos.json": "{}",
    "LICENSE": "",
    ".cache/huggingface/train.jsonl": 7,
}


SHARDS = (("train", 0), ("train", 1), ("test", 0))


@pytest.mark.parametrize(
    "files",
    [
        {f"data/{split}-0000{n}-of-00002.parquet": i for i, (split, n) in enumerate(SHARDS)},
        {f"data/{split}-0000{n}-of-00002-{9 - i}a.parquet": i for i, (split, n) in enumerate(SHARDS)},
        {"train/a.parquet": 0, "train/b.jsonl": 1, "test/c.arrow": 2},
        {"default/train/0000.parquet": 0, "default/train/0001.parquet": 1, "default/test/0000.parquet": 2},
        {"x/y/train/2023/a.jsonl": 0, "x/y/train/2024/b.jsonl": 1, "x/y/test/c.jsonl": 2},
        {"Train/a.jsonl": 0, "Train/test_cases.jsonl": 1, "TEST/c.jsonl": 2},
        {"default/train/0.parquet": 0, "default/train/1.parquet": 1, "b/train/0.parquet": 9, "default/test/0.json": 2},
        {"train.parquet/part-0.parquet": 0, "train.parquet/part-1.parquet": 1, "test.parquet/part-0.parquet": 2},
        {"gsm8k_train.jsonl": 0, "gsm8k_train_2.jsonl": 1, "gsm8k_test.jsonl": 2},
        {"alpaca-train-00000-of-00002.arrow": 0, "alpaca-train-00001-of-00002.arrow": 1, "alpaca-test.arrow": 2},
    ],
    ids=lambda files: next(iter(files)),
)  # fmt: skip
def test_a_snapshot_of_the_hub_gives_the_split_by_the_names_of_files_and_folders(files: dict, tmp_path: Path) -> None:
    folder = write(tmp_path / "snapshot", BESIDE | files)
    assert numbers(folder) == [0, 1]
    assert numbers(folder, "test") == [2]
    with pytest.raises(InputError, match=r"no file for the split world; found .* \(splits: test, train\)"):
        numbers(folder, "world")


def test_the_splits_of_one_data_set_are_not_mixed(tmp_path: Path) -> None:
    files = {
        f"data/{name}-00000-of-00001.parquet": n for n, name in enumerate(("train_prefs", "train_sft", "test_sft"))
    }
    folder = write(tmp_path, files)
    with pytest.raises(InputError, match=r"the split train; .* \(splits: test_sft, train_prefs, train_sft\)"):
        numbers(folder)
    assert numbers(folder, "train_sft") == [1]


def test_configs_are_not_mixed(tmp_path: Path) -> None:
    files = {f"{config}/{split}-00000-of-00001.parquet": n for n, config in enumerate(("main", "socratic"))
             for split in ("train", "test")}  # fmt: skip
    folder = write(tmp_path, files)
    with pytest.raises(
        InputError, match=r"has the split train of several configs: main, socratic; needed: name the fol"
    ):
        numbers(folder)
    assert numbers(folder / "socratic") == [1]


def test_files_without_a_split_are_all_read(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", {"b/2.jsonl": 2, "a/1.parquet": 1, "b/c/3.csv": "n\n3\n"} | BESIDE)
    assert numbers(folder) == numbers(folder, "test") == [1, 2, "3"]


def test_data_directly_in_a_folder_hide_those_below_but_not_in_a_snapshot(tmp_path: Path) -> None:
    folder = write(tmp_path, {"pairs.jsonl": 1, "train/rows.jsonl": 2, "config.json": 3, "._pairs.jsonl": 4})
    assert numbers(folder) == [1]
    write(folder, {".gitattributes": ""})
    assert numbers(folder) == [2]
    write(folder / "b", {"alpaca.json": 1, "eval/results.jsonl": 2})
    assert numbers(folder / "b") == numbers(folder / "b", "dev") == [1]
    assert numbers(folder / "b", "test") == [2]
    write(folder / "c", {"stats.json": 1, "data/train-00000-of-00001.parquet": 2})
    assert numbers(folder / "c") == [2]
    with pytest.raises(InputError, match="no file for the split dev"):
        numbers(folder / "c", "dev")


def test_a_models_folder_has_no_data(tmp_path: Path) -> None:
    folder = write(
        tmp_path, {"config.json": 1, "tokenizer.json": 2, "generation_config.json": 3, "model.safetensors": "x"}
    )
    with pytest.raises(InputError, match=r"is a folder without data files; needed: \.jsonl .*\.arrow"):
        numbers(folder)


HEADER = """---
license: mit
configs:
- config_name: main
  data_files:
  - split: train
    path: parts/a-*
  - split: test
    path:
    - "held/**/*.jsonl"
    - more.jsonl
{more}---
# Data
"""


def test_the_header_of_a_readme_says_which_files_a_split_has(tmp_path: Path) -> None:
    files = {"parts/a-2.jsonl": 2, "parts/a-1.jsonl": 1, "parts/b-test.jsonl": 9, "held/x/y.jsonl": 3, "more.jsonl": 4}
    folder = write(
        tmp_path, files | {"README.md": HEADER.format(more="")} | BESIDE | {"README.md": HEADER.format(more="")}
    )
    assert numbers(folder) == [1, 2]
    assert numbers(folder, "test") == [3, 4]
    with pytest.raises(InputError, match=r"no file for the split validation; .* \(splits: test, train\)"):
        numbers(folder, "validation")
    (folder / "parts/a-1.jsonl").unlink()
    (folder / "parts/a-2.jsonl").unlink()
    with pytest.raises(InputError, match=r"README\.md names files of the split train that are not there; fetch them"):
        numbers(folder)


def test_of_several_configs_the_default_one_is_read(tmp_path: Path) -> None:
    other = "- config_name: {name}\n  data_files: other.jsonl\n{default}"
    folder = write(tmp_path, {"parts/a-1.jsonl": 1, "more.jsonl": 4})

    def header(name: str, default: str = "") -> None:
        (folder / "README.md").write_text(HEADER.format(more=other.format(name=name, default=default)))

    header("socratic")
    assert numbers(folder) == [1], "the files of the other are not there"
    write(folder, {"other.jsonl": 5})
    with pytest.raises(InputError, match=r"of several configs: main, socratic; needed: name the folder or file of one"):
        numbers(folder)
    header("default")
    assert numbers(folder) == [5]
    header("socratic", "  default: true\n")
    assert numbers(folder) == numbers(folder, "test") == [5]


@pytest.mark.parametrize(
    ("data_files", "train"),
    [
        ('data_files: "*.jsonl"', [1, 2]),
        ("data_files: [b.jsonl, a.jsonl]", [2, 1]),
        ("data_files: {train: b.jsonl, test: a.jsonl}", [2]),
        ("data_files: ../outside.jsonl", [1, 2]),
        ("data_files: hf://datasets/o/n/a.jsonl", [1, 2]),
        ("data_files: 7", [1, 2]),
        ("data_dir: sub", [3]),
        ("data_dir: ../elsewhere", [1, 2]),
        ("data_files: [", [1, 2]),
        ("data_files: '[b.jsonl'", [1, 2]),
    ],
)
def test_every_form_of_a_readmes_data_files(data_files: str, train: list[int], tmp_path: Path) -> None:
    """Without any that is here, the names of files say what they are."""
    write(tmp_path, {"outside.jsonl": 8, "elsewhere/train.jsonl": 9})
    readme = f"---\nconfigs:\n- config_name: x\n  {data_files}\n---\n"
    for name in ("[odd] name", "plain"):
        files = {"a.jsonl": 1, "b.jsonl": 2, "sub/train-1.jsonl": 3, "README.md": readme}
        assert numbers(write(tmp_path / name, files)) == train


def test_a_repository_in_the_hubs_cache_gives_its_snapshot_through_links(tmp_path: Path) -> None:
    write(tmp_path, {"blobs/1": '{"n": 1}\n', "refs/main": "abc", "snapshots/old/data/train.jsonl": 5})
    link = tmp_path / "snapshots/abc/data/train.jsonl"
    link.parent.mkdir(parents=True)
    link.symlink_to("../../../blobs/1")
    assert numbers(tmp_path) == [1]
    (tmp_path / "blobs/1").unlink()
    with pytest.raises(InputError, match=r"train\.jsonl cannot be read: .*No such file"):
        numbers(tmp_path)


# --- inputs that the reader was not written for


def test_a_pointer_of_git_lfs_is_named(tmp_path: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    folder = write(tmp_path, {"data/train-00000-of-00001.parquet": pointer, "x.jsonl": pointer})
    for source in (folder / "data", folder / "x.jsonl"):
        with pytest.raises(InputError, match="but a pointer of Git LFS; needed: the file itself; run git lfs pull"):
            numbers(source)


def test_arrow_files_of_the_file_format_and_a_folder_that_links_to_itself(tmp_path: Path) -> None:
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_file(file, pa.schema({"n": pa.int64()})) as out:
        out.write_table(pa.table({"n": list(range(2500))}), max_chunksize=1100)
    assert numbers(tmp_path / "a.arrow") == list(range(2500))
    truncate(tmp_path / "a.arrow", 5000)
    with pytest.raises(InputError, match="is not a whole Arrow file"):
        numbers(tmp_path / "a.arrow")
    (tmp_path / "a.arrow").unlink()
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    with pytest.raises(InputError, match="folder without data files"):
        numbers(tmp_path)


def test_values_that_datasets_keeps_as_json_are_objects(tmp_path: Path) -> None:
    rows = [{"messages": [{"role": "user", "arguments": value}], "id": value} for value in ({"a": 1}, "s", None, [2])]
    kept = {"messages": datasets.List({"role": datasets.Value("string"), "arguments": datasets.Json()})}
    made = datasets.Dataset.from_list(rows, features=datasets.Features(kept | {"id": datasets.Json()}))
    made.save_to_disk(str(tmp_path / "a"))
    made.to_parquet(str(tmp_path / "a.parquet"))
    for name in ("a", "a.parquet"):
        assert [record.fields for record in read_records(str(tmp_path / name))] == rows == list(made)


# --- digests


def test_a_digest_changes_with_what_is_read_and_with_nothing_else(tmp_path: Path) -> None:
    files = {"data/train-00000-of-00001.parquet": 0, "data/test-00000-of-00001.parquet": 1}
    folder = write(tmp_path / "a", BESIDE | files)
    train, test = (content_digest(str(folder), split) for split in ("train", "test"))
    assert train != test
    assert len(train) == 64 == len(train.encode())
    write(folder, {"README.md": "other words", "data/test-00000-of-00001.parquet": 5})
    shutil.move(folder, tmp_path / "moved")
    folder = tmp_path / "moved"
    assert content_digest(str(folder), "train") == train
    assert content_digest(str(folder), "test") != test
    (folder / "data/train-00000-of-00001.parquet").rename(folder / "data/train.parquet")
    assert content_digest(str(folder), "train") != train


def test_digests_tell_apart_where_one_file_ends_and_the_next_begins(tmp_path: Path) -> None:
    parts = (("ab", "c"), ("a", "bc"))
    digests = {content_digest(str(write(tmp_path / x, {"1.jsonl": x, "2.jsonl": y})), "train") for x, y in parts}
    assert len(digests) == 2
    one = write(tmp_path, {"s.json": '{"train": [{"n": 1}], "test": [{"n": 2}]}'}) / "s.json"
    assert content_digest(str(one), "train") != content_digest(str(one), "test"), "one file may hold both"


def test_digests_of_the_hub_and_of_what_is_absent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = datasets.Dataset.from_dict({"n": [1]})
    monkeypatch.setattr(sources, "load_hub", lambda source, split: rows)
    assert content_digest("owner/name", "train") == rows._fingerprint
    monkeypatch.setattr(sources, "load_hub", lambda source, split: object())
    assert content_digest("owner/name", "train") is None
    with pytest.raises(InputError, match="does not exist"):
        content_digest(str(tmp_path / "none.jsonl"), "train")
    (tmp_path / "gone.jsonl").symlink_to("nowhere")
    with pytest.raises(InputError, match="cannot be read"):
        content_digest(str(tmp_path), "train")


def test_the_files_of_a_source_are_found_without_reading_them(tmp_path: Path) -> None:
    folder = write(tmp_path, {"data/train-00000-of-00001.parquet": "no Parquet", "data/test.csv": ""})
    assert find_files(str(folder), "train") == [folder / "data/train-00000-of-00001.parquet"]
    assert find_files("owner/name", "train") is None
