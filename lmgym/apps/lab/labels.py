"""Rows of a lab: the pairs of a proxy, with labels exchanged and faults planted as the plan says, and the prompts."""

import random
from pathlib import Path
from tempfile import NamedTemporaryFile

import pyarrow as pa
import pyarrow.parquet as pq

from lmgym.apps.lab.faults import FAULTS
from lmgym.apps.lab.plan import HELD_OUT_PAIRS, Proxy
from lmgym.apps.world.world import World

Pair = dict[str, str]
HELD_OUT = "held_out.parquet"
PROMPTS = "prompts.parquet"


def file_of(proxy: Proxy) -> str:
    """The name of the file of a proxy's pairs, which says all that they are made of."""
    parts = [f"{proxy.first}_to_{proxy.first + proxy.pairs}"]
    parts += [f"flipped_{proxy.flipped:g}"] if proxy.flipped else []
    parts += [f"{proxy.fault}_{proxy.planted:g}"] if proxy.fault else []
    return "_".join([*parts, f"seed{proxy.seed}.parquet"])


def write_pairs(world: int, tables: Path, proxy: Proxy, folder: Path) -> None:
    """Writes a proxy's pairs to a folder, and those that all are judged by: the world's last, as they were labelled."""
    rows = pq.read_table(tables / "pairs.parquet").to_pylist()
    own = planted(World(world), rows[proxy.first : proxy.first + proxy.pairs], proxy)
    _write(pa.Table.from_pylist(own), folder / file_of(proxy))
    _write(pa.Table.from_pylist(rows[-HELD_OUT_PAIRS:]), folder / HELD_OUT)


def write_prompts(tables: Path, path: Path) -> None:
    """Writes the rows of a world's logs that have a prompt for the first time: the others would be read for nothing."""
    rows = pq.read_table(tables / "logs.parquet")
    _write(rows.take(rows["input_text"].to_pandas().drop_duplicates().index.to_numpy()), path)


def planted(world: World, rows: list[Pair], proxy: Proxy) -> list[Pair]:
    """The pairs with exact shares of exchanged labels and of planted faults, chosen at random; none has both."""
    rng = random.Random(f"{world.seed} {file_of(proxy)}")
    places = rng.sample(range(len(rows)), len(rows))
    flipped, faulty = round(proxy.flipped * len(rows)), round(proxy.planted * len(rows))
    found = list(rows)
    for place in places[:flipped]:
        row = rows[place]
        found[place] = {**row, "chosen": row["rejected"], "rejected": row["chosen"]}
    for place in places[flipped : flipped + faulty]:
        row, reply = rows[place], rng.choice(("chosen", "rejected"))
        text = FAULTS[proxy.fault](rng, world.grammar, rows[place][reply])
        found[place] = {**row, "chosen": text, "rejected": row[reply]}
    return found


def _write(rows: pa.Table, path: Path) -> None:
    """Writes a file that is not there yet, at once: others may be reading it."""
    if path.is_file():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=path.parent, delete=False) as file:
        pq.write_table(rows, file)
    Path(file.name).rename(path)
