"""Rows of updates: each once an epoch, the same number per update, and as many forwards on every rank."""

import random
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch

from lmgym.data.batching import (
    MicroBatches,
    Slot,
    UpdateSampler,
    accumulation_steps,
    even_batches,
    length_batches,
)
from lmgym.errors import InputError

# global batch, micro batch, ranks, rows
PLANS = [
    (8, 8, 1, 64), (8, 4, 1, 64), (8, 4, 2, 64), (8, 1, 8, 64), (8, 2, 2, 61), (8, 2, 2, 57), (8, 2, 4, 58),
    (64, 8, 2, 600), (64, 8, 8, 599), (6, 1, 3, 20), (6, 3, 2, 7), (4, 2, 2, 3), (4, 1, 4, 1), (16, 4, 4, 17),
    (1, 1, 1, 5), (12, 2, 3, 12), (12, 2, 3, 0),
]  # fmt: skip


def lengths_of(rows: int) -> np.ndarray:
    return np.random.default_rng(rows).integers(1, 100, size=rows)


def epoch_of(plan: tuple[int, int, int, int], seed: int = 0, epoch: int = 0) -> list[list[list[Slot]]]:
    """Micro-batches by rank."""
    global_batch, micro_batch, ranks, rows = plan
    steps = accumulation_steps(global_batch, micro_batch, ranks)
    samplers = [UpdateSampler(lengths_of(rows), global_batch, steps, ranks, rank, seed) for rank in range(ranks)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    return [list(sampler) for sampler in samplers]


def updates_of(plan: tuple[int, int, int, int], **options: int) -> list[list[list[list[Slot]]]]:
    """Updates, of ranks, of micro-batches."""
    steps = accumulation_steps(*plan[:3])
    by_rank = epoch_of(plan, **options)
    return [[rank[i : i + steps] for rank in by_rank] for i in range(0, len(by_rank[0]), steps)]


@pytest.mark.parametrize("plan", PLANS)
def test_every_row_counts_exactly_once_an_epoch_over_all_ranks(plan: tuple[int, int, int, int]) -> None:
    seen = Counter(slot.row for rank in epoch_of(plan) for batch in rank for slot in batch if slot.counts)
    assert seen == Counter(range(plan[3]))


@pytest.mark.parametrize("plan", PLANS)
def test_every_rank_has_the_same_number_of_micro_batches_none_empty_or_too_big(plan: tuple[int, int, int, int]) -> None:
    by_rank = epoch_of(plan)
    assert len({len(rank) for rank in by_rank}) == 1
    assert all(1 <= len(batch) <= plan[1] for rank in by_rank for batch in rank)


@pytest.mark.parametrize("plan", PLANS)
def test_every_update_but_the_last_has_the_global_batch(plan: tuple[int, int, int, int]) -> None:
    sizes = [sum(s.counts for rank in update for batch in rank for s in batch) for update in updates_of(plan)]
    whole, rest = divmod(plan[3], plan[0])
    assert sizes == [plan[0]] * whole + [rest] * bool(rest)


@pytest.mark.parametrize("plan", PLANS)
def test_fillers_are_alone_in_a_micro_batch_and_only_where_rows_run_out(plan: tuple[int, int, int, int]) -> None:
    updates = updates_of(plan)
    whole = plan[3] // plan[0]
    for index, update in enumerate(updates):
        for batch in (batch for rank in update for batch in rank):
            if not all(slot.counts for slot in batch):
                assert index == whole  # the last, short update
                assert len(batch) == 1
                assert 0 <= batch[0].row < plan[3]


def test_a_rank_without_a_row_gets_a_filler() -> None:
    by_rank = epoch_of((4, 1, 4, 1))
    assert [[slot.counts for slot in rank[0]] for rank in by_rank] == [[True], [False], [False], [False]]


@pytest.mark.parametrize("plan", PLANS)
def test_the_length_of_a_sampler_is_what_it_yields(plan: tuple[int, int, int, int]) -> None:
    ranks = plan[2]
    sampler = UpdateSampler(lengths_of(plan[3]), plan[0], accumulation_steps(*plan[:3]), ranks, ranks - 1)
    assert len(sampler) == len(list(sampler))


@pytest.mark.parametrize("plan", PLANS)
def test_within_an_update_the_longest_rows_come_first(plan: tuple[int, int, int, int]) -> None:
    lengths = lengths_of(plan[3])
    for update in updates_of(plan):
        steps = [[lengths[s.row] for rank in update for s in rank[i] if s.counts] for i in range(len(update[0]))]
        for longer, shorter in pairwise(steps):
            assert min(longer) >= max(shorter)


def test_the_rows_of_an_update_are_drawn_regardless_of_length() -> None:
    lengths = lengths_of(6400)
    means = [lengths[rows].mean() for rows in UpdateSampler(lengths, 64, 8).updates()]
    # the standard error of a mean of 64 uniform lengths in 1..99 is 3.6
    assert np.std(means) == pytest.approx(99 / 12**0.5 / 8, rel=0.3)


def test_lengths_change_neither_the_updates_nor_their_order_but_for_the_first() -> None:
    one, other = (UpdateSampler(lengths, 8, 2) for lengths in (np.arange(40), np.ones(40)))
    for sampler in (one, other):
        sampler.set_epoch(1)
    assert [set(rows) for rows in one.updates()] == [set(rows) for rows in other.updates()]


def test_the_first_update_of_all_holds_the_longest_row() -> None:
    drawn = UpdateSampler(np.ones(44), 8, 2).updates()
    for longest in (drawn[3][5], drawn[0][1], drawn[5][0]):  # the last one is short and stays where it is
        lengths = np.ones(44)
        lengths[longest] = 9
        found = UpdateSampler(lengths, 8, 2).updates()
        assert sorted(map(sorted, found)) == sorted(map(sorted, drawn))
        assert len(found[-1]) == 4
        assert longest in found[-1 if longest in drawn[-1] else 0]


def test_the_same_seed_gives_the_same_plan_and_epochs_and_seeds_differ() -> None:
    plan = (8, 2, 2, 61)
    assert epoch_of(plan, seed=3, epoch=1) == epoch_of(plan, seed=3, epoch=1)
    plans = [str(epoch_of(plan, seed=seed, epoch=epoch)) for seed in (3, 4) for epoch in (0, 1)]
    assert len(set(plans)) == 4


def test_accumulation_shapes_the_forwards_and_not_the_updates() -> None:
    rows = [
        [{s.row for rank in update for batch in rank for s in batch if s.counts} for update in updates_of(plan)]
        for plan in ((8, 8, 1, 61), (8, 2, 1, 61), (8, 1, 4, 61))
    ]
    assert rows[0] == rows[1] == rows[2]


@pytest.mark.parametrize(("plan", "steps"), [((64, 8, 1), 8), ((64, 8, 8), 1), ((6, 1, 3), 2)])
def test_accumulation_steps_divide(plan: tuple[int, int, int], steps: int) -> None:
    assert accumulation_steps(*plan) == steps


@pytest.mark.parametrize(
    ("plan", "fix"),
    [
        ((100, 8, 1), "--micro_batch 5, which leaves an update as it is, or --global_batch 96 or 104"),
        ((100, 4, 8), "use --global_batch 96 or 128"),
        ((3, 4, 2), "use --global_batch 8"),
        ((8, 8, 2), "--micro_batch 4, which leaves an update as it is, or --global_batch 16"),
    ],
)
def test_a_batch_that_does_not_divide_names_those_that_do(plan: tuple[int, int, int], fix: str) -> None:
    with pytest.raises(InputError, match=fix) as caught:
        accumulation_steps(*plan)
    assert f"global_batch={plan[0]}" in str(caught.value)


@pytest.mark.parametrize("plan", [(0, 1, 1), (8, 0, 1), (-8, 8, 1)])
def test_a_batch_of_nothing_is_refused(plan: tuple[int, int, int]) -> None:
    with pytest.raises(InputError, match="at least 1"):
        accumulation_steps(*plan)


def test_micro_batches_hold_rows_with_their_counts_flag() -> None:
    slots = MicroBatches(["a", "b"], tuple)
    assert len(slots) == 2
    assert slots.__getitems__([Slot(1, False, (0, 0, 0)), Slot(0, True, (0, 0, 0))]) == (("b", False), ("a", True))


def test_randomness_in_a_micro_batch_depends_only_on_its_place() -> None:
    def draw(items: list) -> tuple[float, float, float]:
        return random.random(), np.random.random(), torch.rand(()).item()

    slots = MicroBatches(["a", "b"], draw, seed=3)
    places = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    before = torch.get_rng_state(), random.getstate()
    first = [slots.__getitems__([Slot(0, True, place)]) for place in places]
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    again = [slots.__getitems__([Slot(1, True, place)]) for place in reversed(places)]
    assert first == again[::-1]
    assert len({value for drawn in first for value in drawn}) == 12


def test_every_micro_batch_of_all_ranks_and_epochs_has_another_place() -> None:
    places = []
    for rank in range(2):
        sampler = UpdateSampler(lengths_of(61), 8, 2, 2, rank)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            places += [{slot.place for slot in batch} for batch in sampler]
    assert all(len(place) == 1 for place in places)
    assert len({place.pop() for place in places}) == len(places) > 20


@pytest.mark.parametrize("tokens", [1, 64, 500, 10**6])
def test_length_batches_hold_every_row_once_within_the_budget(tokens: int) -> None:
    lengths = lengths_of(300).tolist()
    batches = length_batches(lengths, tokens)
    assert sorted(row for batch in batches for row in batch) == list(range(300))
    assert all(len(batch) == 1 or sum(lengths[row] for row in batch) <= tokens for batch in batches)
    order = [lengths[row] for batch in batches for row in batch]
    assert order == sorted(lengths, reverse=True)
    # no batch could have taken the first row of the next one
    assert all(sum(lengths[r] for r in a) + lengths[b[0]] > tokens for a, b in pairwise(batches))


def test_no_rows_make_no_batches() -> None:
    assert length_batches([], 64) == []


# --- micro-batches by tokens

# rows of an update, ranks, rows, most tokens
BY_TOKENS = [
    (8, 1, 64, 150), (8, 2, 61, 150), (64, 8, 599, 400), (6, 3, 20, 1), (12, 4, 12, 10_000), (4, 4, 1, 50),
    (8, 4, 58, 99), (16, 1, 37, 60),
]  # fmt: skip
Plan = tuple[int, int, int, int]


def cut_by_tokens(plan: Plan, epoch: int = 0) -> list[list[list[list[Slot]]]]:
    """Updates, of ranks, of micro-batches."""
    global_batch, ranks, rows, tokens = plan
    steps = global_batch // ranks
    samplers = [
        UpdateSampler(lengths_of(rows), global_batch, steps, ranks, rank, tokens=tokens) for rank in range(ranks)
    ]
    by_rank = []
    for sampler in samplers:
        sampler.set_epoch(epoch)
        by_rank.append(list(sampler))
        assert len(by_rank[-1]) == len(sampler)
    return [[rank[i : i + steps] for rank in by_rank] for i in range(0, len(by_rank[0]), steps)]


@pytest.mark.parametrize("epoch", [0, 3])
@pytest.mark.parametrize("plan", BY_TOKENS)
def test_by_tokens_updates_have_the_rows_that_they_have_otherwise(plan: Plan, epoch: int) -> None:
    global_batch, ranks, rows, _ = plan
    otherwise = UpdateSampler(lengths_of(rows), global_batch, global_batch // ranks, ranks)
    otherwise.set_epoch(epoch)
    found = cut_by_tokens(plan, epoch)
    for update, wanted in zip(found, otherwise.updates(), strict=True):
        assert sorted(s.row for rank in update for batch in rank for s in batch if s.counts) == sorted(wanted)


@pytest.mark.parametrize("plan", BY_TOKENS)
def test_by_tokens_no_micro_batch_holds_more_unless_it_is_one_row_and_the_empty_ones_come_first(plan: Plan) -> None:
    lengths, tokens = lengths_of(plan[2]), plan[3]
    for update in cut_by_tokens(plan):
        for batches in zip(*update, strict=True):  # of all ranks at a time
            assert len({bool(batch) for batch in batches}) == 1, "nobody waits for a forward that another leaves out"
            for batch in batches:
                assert len(batch) <= 1 or lengths[[slot.row for slot in batch]].sum() <= tokens
                assert all(slot.counts for slot in batch) or len(batch) == 1
        for rank in update:
            filled = [bool(batch) for batch in rank]
            assert filled == sorted(filled)
            assert filled[-1], "the last one makes the update"


def test_by_tokens_an_update_has_few_and_even_micro_batches() -> None:
    lengths = np.random.default_rng(0).integers(10, 100, 6400)
    samplers = [UpdateSampler(lengths, 64, 32, 2, rank, tokens=700) for rank in range(2)]
    sums = [[lengths[[s.row for s in batch]].sum() for batch in sampler if batch] for sampler in samplers]
    assert 64 * 55 / 700 / 2 * 100 < len(sums[0]) < 3.2 * 100
    assert np.mean(sums) > 0.8 * 700
    assert np.median(np.array(sums[0]) / sums[1]) == pytest.approx(1, abs=0.1), "ranks wait for each other"


@pytest.mark.parametrize("tokens", [1, 99, 120, 500, 10_000])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_even_batches_are_as_many_as_allowed_and_within_the_budget(tokens: int, count: int) -> None:
    lengths = lengths_of(50).tolist()
    fewest = length_batches(lengths, tokens)
    found = even_batches(lengths, tokens, len(fewest) + count)
    assert sorted(row for batch in found for row in batch) == list(range(50))
    assert len(fewest) <= len(found) <= len(fewest) + count
    assert all(len(batch) == 1 or sum(lengths[i] for i in batch) <= tokens for batch in found)
    largest, before = (max(sum(lengths[i] for i in batch) for batch in batches) for batches in (found, fewest))
    assert largest <= before
    assert even_batches([], tokens, count) == []


def test_nothing_is_collated_for_an_empty_micro_batch() -> None:
    assert MicroBatches(["a"], pytest.fail).__getitems__([]) == {}
