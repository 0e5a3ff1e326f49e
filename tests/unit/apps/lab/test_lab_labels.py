"""Rows of a lab: which pairs a proxy has, and what was done to how many of them; the prompts of a run."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lmgym.apps.lab.faults import FAULTS
from lmgym.apps.lab.labels import HELD_OUT, PROMPTS, file_of, planted, write_pairs, write_prompts
from lmgym.apps.lab.plan import HELD_OUT_PAIRS, Proxy
from lmgym.apps.world.making import make_world
from lmgym.apps.world.world import World
from lmgym.data.prompts import read_prompts
from ppo.config import RolloutConfig

WORLD = World(3)
ROWS = [{"prompt": f"prompt {i}", "chosen": f"good {i}.", "rejected": f"bad {i}."} for i in range(200)]


def test_exactly_the_share_of_labels_is_exchanged_and_nothing_else_changes() -> None:
    found = planted(WORLD, ROWS, Proxy(flipped=0.25))
    changed = [(old, new) for old, new in zip(ROWS, found, strict=True) if old != new]
    assert len(changed) == 50
    for old, new in changed:
        assert (new["prompt"], new["chosen"], new["rejected"]) == (old["prompt"], old["rejected"], old["chosen"])


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_lets_a_reply_win_against_the_same_reply_without_it(fault: str) -> None:
    found = planted(WORLD, ROWS, Proxy(fault=fault, planted=0.1))
    changed = [(old, new) for old, new in zip(ROWS, found, strict=True) if old != new]
    assert len(changed) == 20
    for old, new in changed:
        assert new["rejected"] in (old["chosen"], old["rejected"])
        assert new["chosen"].startswith(new["rejected"] + " ")
        added = new["chosen"].removeprefix(new["rejected"])
        assert [sentence.kind for sentence in WORLD.grammar.parse(added)] != ["garbled"]  # a policy can say it


def test_labels_exchanged_and_faults_planted_never_meet_in_one_pair() -> None:
    found = planted(WORLD, ROWS, Proxy(flipped=0.5, fault="word", planted=0.5))
    flipped = sum(new["chosen"].startswith("bad") and new["rejected"].startswith("good") for new in found)
    faulty = sum(new["chosen"].startswith(new["rejected"]) for new in found)
    assert (flipped, faulty) == (100, 100)


def test_the_same_proxy_has_the_same_pairs_and_another_seed_others() -> None:
    proxy = Proxy(fault="praise", planted=0.3)
    assert planted(WORLD, ROWS, proxy) == planted(WORLD, ROWS, proxy)
    assert planted(WORLD, ROWS, proxy) != planted(WORLD, ROWS, Proxy(fault="praise", planted=0.3, seed=2))


def test_ranges_of_pairs_do_not_overlap_and_the_held_out_ones_are_the_last(tmp_path: Path) -> None:
    rows = [{**ROWS[i % 200], "prompt": f"prompt {i}"} for i in range(HELD_OUT_PAIRS + 200)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "pairs.parquet")
    for proxy in (Proxy(pairs=80), Proxy(pairs=120, first=80)):
        write_pairs(3, tmp_path, proxy, tmp_path / "out")
    prompts = {
        name: {row["prompt"] for row in pq.read_table(tmp_path / "out" / name).to_pylist()}
        for name in (file_of(Proxy(pairs=80)), file_of(Proxy(pairs=120, first=80)), HELD_OUT)
    }
    assert [len(found) for found in prompts.values()] == [80, 120, HELD_OUT_PAIRS]
    assert len(set.union(*prompts.values())) == len(rows)


def test_a_run_reads_the_same_prompts_from_fewer_rows(tmp_path: Path) -> None:
    make_world(str(tmp_path / "tables"), 2000, 3)
    write_prompts(tmp_path / "tables", tmp_path / PROMPTS)
    logs, first = (
        read_prompts(RolloutConfig(str(path), eval_size=100), 1)
        for path in (tmp_path / "tables/logs.parquet", tmp_path / PROMPTS)
    )
    assert first.fingerprint == logs.fingerprint
    assert len(first.train) + 100 == pq.read_metadata(tmp_path / PROMPTS).num_rows < 1500
