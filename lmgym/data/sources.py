"""Where the rows of a data set are: the files that hold a split, or a dataset of the hub.

Besides files: folders of files, of `save_to_disk` (of a Dataset and of a DatasetDict), and snapshots of the hub.
"""

import glob
import hashlib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, TypeVar

from lmgym.errors import InputError, found_from, listed, one_line, regular
from lmgym.runs.files import read_object
from lmgym.runs.hub import explain, find_token, refusal_of

JSON_KINDS, TABLE_KINDS, PACKED = (".jsonl", ".ndjson", ".json"), (".csv", ".tsv"), ("", ".gz", ".zst")
SUFFIXES = (*(kind + packed for kind in (*JSON_KINDS, *TABLE_KINDS) for packed in PACKED), ".parquet", ".arrow")
KINDS = f"{' '.join((*JSON_KINDS, *TABLE_KINDS))} (also {' '.join(PACKED[1:])}) .parquet .arrow"
NO_DATA = {
    *("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json", "config.json", "tokenizer.json"),
    *("generation_config.json", "adapter_config.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("added_tokens.json", "vocab.json", "model.safetensors.index.json", "trainer_state.json"),
}
"""files that lie beside data, or in a model's folder"""
INSTEAD_OF_TEST = ("validation", "valid", "val", "eval", "dev")
SPLITS = ("train", "test", *INSTEAD_OF_TEST)
DEEPEST = 4  # levels of folders below a source

BEGINS = re.compile(r"train|test|valid|eval|dev|val(?![a-z])")
"""names of files of a split"""
WHOLE = re.compile(rf"(?:{'|'.join(SPLITS)})(?:[-_.].*)?")
"""names of folders of a split"""
ENDS = re.compile(rf".+[-_. ]({'|'.join(SPLITS)})(?:[-_. ]?\d+)?")
"""`gsm8k_train`; counts if there is a split train: a stress-test is no split"""
SHARD = re.compile(r"(.+?)-\d{5}-of-\d{5}.*")

Value = TypeVar("Value")


def find_files(source: str, split: str, config: str = "") -> list[Path] | None:
    """The files that hold a split of a source, in order; None for a hub id.

    A folder without any split gives all of its data files, and a file is given whichever the split. One of the paths
    is a folder if its rows are in an order of their own (`read_state`). Of several configs the one of that name is
    read, or the default one. Raises InputError if there is nothing to read.
    """
    path, name = Path(source).expanduser(), one_line(source)
    if _exists(path) and path.is_dir():
        try:
            return _files_of_folder(_snapshot(path), split, config)
        except OSError as error:
            raise InputError(f"dataset {name} cannot be read: {one_line(str(error))}") from error
    if _exists(path):
        if not path.name.endswith(SUFFIXES):
            raise InputError(f"dataset {name} is of no known kind; needed: {KINDS}, a folder or a hub id")
        return [path]
    if source.startswith((".", "/", "~")) or source.endswith(SUFFIXES) or source.count("/") != 1:
        needed = f"a file, a folder, or a hub id such as owner/name{found_from(source)}"
        raise InputError(f"dataset {name} does not exist; needed: {needed}")
    return None


def load_hub(source: str, split: str, config: str = "") -> Any:
    """A split of a dataset on the hub, of one of its configs. Raises InputError if it does not load."""
    import datasets

    try:
        return datasets.load_dataset(source, config or None, split=split, token=find_token())
    except Exception as error:  # the hub raises many kinds: each means that nothing could be read
        refusal = explain(error, source)
        if isinstance(error, datasets.exceptions.DatasetNotFoundError):  # it comes without the hub's answer
            refusal = refusal or refusal_of(source, "dataset")
        first = refusal or one_line((str(error).strip().splitlines() or [type(error).__name__])[0])
        found = f"dataset {one_line(source)} (split {one_line(split)})"
        raise InputError(f"{found} is not a local path and did not load from the hub: {first}") from error


def content_digest(source: str, split: str) -> str | None:
    """A hex digest of what a source and split hold: of the split's name, and of the names and bytes of the files.

    It is the same where the folder is moved. Of a hub id it is the fingerprint of its split, None if it has none.
    Raises InputError as `find_files` and `load_hub` do.
    """
    found = find_files(source, split)
    if found is None:
        return getattr(load_hub(source, split), "_fingerprint", None)
    root = Path(source).expanduser()
    digest = hashlib.blake2b(split.encode(errors="surrogatepass"), digest_size=32)
    try:
        for path in (file for one in found for file in (_all_of(one) if one.is_dir() else [one])):
            name = os.path.relpath(path, root) if root.is_dir() else path.name
            digest.update(b"\0%s\0%d\0" % (os.fsencode(name), path.stat().st_size))
            with regular(path).open("rb") as file:
                hashlib.file_digest(file, lambda: digest)
    except OSError as error:
        raise InputError(f"dataset {one_line(source)} cannot be read: {one_line(str(error))}") from error
    return digest.hexdigest()


def read_state(folder: Path) -> dict[str, list[Path]] | None:
    """The files of a folder that `Dataset.save_to_disk` made: `data`, and `indices` if its rows are not in their order.

    Only datasets before 2.0 wrote indices, of a dataset that was shuffled or selected. None for any other folder;
    raises InputError if it is damaged.
    """
    state = read_object(folder / "state.json")
    if not state and (folder / "dataset_info.json").is_file() and (folder / "state.json").is_file():
        raise InputError(f"{_damaged(folder)}: state.json is no JSON object; save or copy it again")
    if not isinstance(state.get("_data_files"), list):
        return None
    found = {}
    for kind in ("data", "indices"):
        entries = state.get(f"_{kind}_files" if kind == "data" else "_indices_data_files") or []
        names = [entry.get("filename") if isinstance(entry, dict) else None for entry in entries]
        if not all(isinstance(name, str) for name in names):
            raise InputError(f"{_damaged(folder)}: state.json names no files; save or copy it again")
        found[kind] = [folder / PurePath(str(name)).name for name in names]
        if lost := [path.name for path in found[kind] if not path.is_file()]:
            raise InputError(
                f"{_damaged(folder)}: it lacks {listed(lost, 4)}, which its state.json names; save or copy it again"
            )
    return found


def kind_of(name: str) -> str:
    """The suffix of a file's name, also if the file is packed: `.csv` of `a.csv.gz`."""
    return PurePath(_unpacked(name)).suffix


def _unpacked(name: str) -> str:
    return name.removesuffix(".gz").removesuffix(".zst")


def choose_split(split: str, found: Mapping[Any, Value]) -> Value | None:
    """The rows found for a split; for `test`, a validation set if there is none."""
    return next((found[name] for name in _names(split) if name in found), None)


def _names(split: str) -> tuple[str, ...]:
    return (split, *INSTEAD_OF_TEST) if split == "test" else (split,)


def _exists(path: Path) -> bool:
    """True if the path exists; False also for one that is too long or holds a NUL."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _damaged(folder: Path) -> str:
    return f"dataset {one_line(str(folder))} is damaged"


def _all_of(folder: Path) -> list[Path]:
    state = read_state(folder) or {}
    return [path for paths in state.values() for path in paths]


def _snapshot(folder: Path) -> Path:
    """The folder itself; of a repository in the hub's cache, its snapshot."""
    if (main := folder / "refs/main").is_file() and (folder / "snapshots").is_dir():
        return folder / "snapshots" / main.read_text(encoding="utf-8", errors="replace").strip()
    return folder


def _files_of_folder(folder: Path, split: str, config: str = "") -> list[Path]:
    if config and (folder / config).is_dir():
        return _files_of_folder(folder / config, split)
    if (folder / "dataset_dict.json").is_file():
        return _files_of_dataset_dict(folder, split)
    if saved := _saved_files(folder):
        return saved
    found = _by_readme(folder, split, config) or _by_names(folder, split)
    if not any(found.values()):
        raise InputError(f"dataset {one_line(str(folder))} is a folder without data files; needed: {KINDS}")
    splits = {name: files for name, files in found.items() if name is not None}
    if not splits:
        return found[None]
    chosen = choose_split(split, splits)
    if chosen is None:
        names = [path.relative_to(folder).as_posix() for files in splits.values() for path in files]
        raise _no_split(folder, split, listed(names, 6), splits)
    if not chosen:
        raise InputError(
            f"dataset {one_line(str(folder))}: its README.md names files of the split {one_line(split)} that are not "
            "there; fetch them, or name a file"
        )
    return chosen


def _no_split(folder: Path, split: str, found: str, splits: Iterable[str]) -> InputError:
    return InputError(
        f"dataset {one_line(str(folder))} has no file for the split {one_line(split)}; found {found} (splits: "
        f"{listed(sorted(splits))}); needed: one of these splits, or name a file"
    )


def _files_of_dataset_dict(folder: Path, split: str) -> list[Path]:
    names = read_object(folder / "dataset_dict.json").get("splits")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(f"{_damaged(folder)}: dataset_dict.json names no splits; name the folder of one")
    chosen = choose_split(split, {name: folder / name for name in names})
    if chosen is None:
        raise _no_split(folder, split, "a saved DatasetDict", names)
    if not chosen.is_dir():
        raise InputError(f"{_damaged(folder)}: it lacks the folder {one_line(chosen.name)}; save or copy it again")
    return _files_of_folder(chosen, split)


def _saved_files(folder: Path) -> list[Path]:
    state = read_state(folder)
    if state is None:
        return []
    return [folder] if state["indices"] else state["data"]


def _is_data(path: Path) -> bool:
    name = path.name
    # cache-*.arrow: what Dataset.map left in the folder of a saved dataset
    unwanted = name.startswith(".") or name in NO_DATA or (name.startswith("cache-") and name.endswith(".arrow"))
    return name.endswith(SUFFIXES) and not unwanted and not path.is_dir()


def _files_below(folder: Path, levels: int) -> Iterator[Path]:
    """Data files of the folders in a folder; the files of a saved dataset in the order of its rows."""
    below = [path for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith((".", "__"))]
    for path in below:
        saved = _saved_files(path)
        yield from saved or sorted(filter(_is_data, path.iterdir()))
        if levels > 1 and not saved:
            yield from _files_below(path, levels - 1)


def _by_names(folder: Path, split: str) -> dict[str | None, list[Path]]:
    """The data files by their splits, as their names and those of their folders say; None: without a split.

    Those directly in the folder, if any. Those below if there are none, or only ones that say no split and may be no
    data (JSON files, and any in a snapshot of the hub) where those below have the split, or train.
    """
    direct = sorted(filter(_is_data, folder.iterdir()))
    own = _labelled(folder, direct, split)
    beside = all(kind_of(path.name) == ".json" for path in direct) or (folder / ".gitattributes").is_file()
    if own.keys() - {None} or not beside:
        return own
    below = _labelled(folder, list(_files_below(folder, DEEPEST)), split)
    return below if not direct or "train" in below or choose_split(split, below) is not None else own


def _labelled(folder: Path, files: Sequence[Path], split: str) -> dict[str | None, list[Path]]:
    """Raises InputError if files of the split are in several folders that are not the split's: those of configs."""
    labels, ends = [], []
    for path in files:
        label, parents = _label(path.relative_to(folder), _names(split))
        labels.append((label, parents))
        ends.append((end[1], parents) if not label and (end := ENDS.fullmatch(_bare(path.name))) else (label, parents))
    if "train" in {label for label, _ in ends}:
        labels = ends
    found: dict[str | None, list[Path]] = {}
    for path, (label, _) in zip(files, labels, strict=True):
        found.setdefault(label, []).append(path)
    wanted = choose_split(split, {label: label for label in found if label})
    configs: dict[str, list[Path]] = {}
    for path, (label, parents) in zip(files, labels, strict=True):
        if label is not None and label == wanted:
            configs.setdefault("/".join(parents), []).append(path)
    if len(configs) > 1:
        default = [name for name in configs if PurePath(name).name == "default"]
        if len(default) != 1:
            raise _several(folder, (name or "the folder itself" for name in configs), split)
        found[wanted] = configs[default[0]]
    return found


def _several(folder: Path, names: Iterable[str], split: str) -> InputError:
    return InputError(
        f"dataset {one_line(str(folder))} has the split {one_line(split)} of several configs: {listed(sorted(names))}; "
        "needed: name the folder or file of one"
    )


def _bare(name: str) -> str:
    """The name of a file in small letters, without suffixes and the numbers of shards."""
    bare = _unpacked(name).removesuffix(kind_of(name)).lower() if name.endswith(SUFFIXES) else name.lower()
    return shard[1] if (shard := SHARD.fullmatch(bare)) else bare


def _label(path: PurePath, names: Collection[str]) -> tuple[str | None, tuple[str, ...]]:
    """(split of a file or None, folders above it, or above the folder of the split)."""
    *folders, name = path.parts
    given = {one.lower(): one for one in names}
    for i in reversed(range(len(folders))):
        bare = _bare(folders[i])
        if bare in given or WHOLE.fullmatch(bare):
            return given.get(bare, bare), tuple(folders[:i])
    bare, word = _bare(name), BEGINS.match(_bare(name))
    if SHARD.fullmatch(name.lower()):  # the whole name of a split: train_prefs is not train
        return given.get(bare, bare if word else None), tuple(folders)
    begins = (given[one] for one in given if bare.startswith(one) and (one != "val" or word))
    return next(begins, word.group() if word else None), tuple(folders)


def _by_readme(folder: Path, split: str, chosen: str = "") -> dict[str | None, list[Path]] | None:
    """The data files by split of the config that README.md's header describes; None if it describes none that is here.

    Raises InputError for several configs of which none is the chosen or the default one.
    """
    found: dict[str, dict[str | None, list[Path]]] = {}
    default = []
    for config in _configs(folder / "README.md"):
        name = str(config.get("config_name", "default"))
        files: dict[str | None, list[Path]] = {}
        for of_split, pattern in _patterns(config.get("data_files")):
            files.setdefault(of_split, []).extend(_matching(folder, pattern))
        inner = folder / str(config.get("data_dir", "."))
        if not files and "data_dir" in config and inner.is_dir() and ".." not in inner.parts:
            files = _by_names(inner, split)
        if any(files.values()):
            found[name] = files
            default += [name] * (name == "default" or config.get("default") is True)
    if chosen in found:
        return found[chosen]
    if len(found) > 1 and len(default) != 1:
        raise _several(folder, found, split)
    return found[default[0] if default else next(iter(found))] if found else None


def _configs(readme: Path) -> list[dict[str, Any]]:
    import yaml

    text = readme.read_text(encoding="utf-8-sig", errors="replace") if readme.is_file() else ""
    header = re.match(r"---[ \t]*\n(.*?)\n---[ \t]*(?:\n|$)", text, re.DOTALL)
    try:
        fields = yaml.safe_load(header[1]) if header else None
    except (yaml.YAMLError, ValueError, RecursionError):
        return []  # prose, whose names of files still say their splits
    configs = fields.get("configs") if isinstance(fields, dict) else None
    return [config for config in configs if isinstance(config, dict)] if isinstance(configs, list) else []


def _patterns(data_files: Any) -> Iterator[tuple[str | None, str]]:
    """(split or None, pattern of paths) of a config's data_files, in each of the forms that the hub allows."""
    for entry in data_files if isinstance(data_files, list) else [data_files]:
        if isinstance(entry, dict) and "path" in entry:
            pairs = [(entry.get("split"), entry["path"])]
        else:
            pairs = list(entry.items()) if isinstance(entry, dict) else [(None, entry)]
        for split, paths in pairs:
            for path in paths if isinstance(paths, list) else [paths]:
                if isinstance(path, str):
                    yield (None if split is None else str(split)), path


def _matching(folder: Path, pattern: str) -> list[Path]:
    """The data files of a pattern, which never leads out of the folder."""
    from fsspec.implementations.local import LocalFileSystem

    root = os.path.abspath(folder)
    try:
        paths = [os.path.relpath(path, root) for path in LocalFileSystem().glob(f"{glob.escape(root)}/{pattern}")]
    except (ValueError, re.error):  # no pattern
        return []
    return [folder / path for path in sorted(paths) if not path.startswith("..") and _is_data(folder / path)]
