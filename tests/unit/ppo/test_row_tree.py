"""What rows have in common runs once, and gives what each row gives alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from lmgym.environments.episodes import Episode, Step
from lmgym.generation.protocol import Completion
from lmgym.models.forward.packed_rows import PackedRows, pack_rows
from lmgym.models.forward.policies import load_policy
from lmgym.models.loading import load_tokenizer
from ppo.actor_critic import ActorCritic
from ppo.config import RewardConfig
from ppo.rollouts import Rollouts, RowBatch, gather
from ppo.row_tree import RowTree

CPU = torch.device("cpu")
PROMPT, OTHER = [11, 12, 13, 14, 15], [11, 12, 13, 30]


def turn(prompt: list[int], reply: list[int]) -> Step:
    return Step(prompt, "", Completion("", "stop", tuple(reply), tuple(-0.5 for _ in reply), len(reply)), 1.0)


def episodes(*turns: list[Step]) -> list[Episode]:
    return [Episode(number, "policy", steps, True, False, None, {}) for number, steps in enumerate(turns)]


def in_turns(prompt: list[int], *more: tuple[list[int], list[int]]) -> list[Step]:
    """Steps of an episode: each prompt is the row before and what is said then."""
    steps: list[Step] = []
    for said, reply in more:
        steps.append(turn([*prompt, *said], reply))
        prompt = [*prompt, *said, *reply]
    return steps


def mixed() -> Rollouts:
    """A group of three replies; one to another prompt; one that no other row shares; two of several turns, of which one
    has its history written anew; a prompt of one token, twice.
    """
    anew = [*in_turns(PROMPT, ([20], [21, 22])), turn([40, 41, 42, 43], [23, 24])]
    return gather(
        episodes(
            [turn(PROMPT, [5, 6, 7])],
            [turn(PROMPT, [8, 9])],
            [turn(PROMPT, [5, 6, 4])],
            [turn(OTHER, [7, 7, 7, 7])],
            [turn([50, 51], [3])],
            in_turns(PROMPT, ([], [5, 9]), ([33, 34], [6, 6, 6]), ([35], [9])),
            anew,
            [turn([17], [5, 8])],
            [turn([17], [6])],
        ),
        RewardConfig(),
    )


def test_rows_are_paths_of_segments_that_are_computed_once() -> None:
    found = gather(
        episodes([turn(PROMPT, [5, 6, 7])], [turn(PROMPT, [8, 9])], in_turns(PROMPT, ([], [5, 9]), ([33], [6, 6]))),
        RewardConfig(),
    )
    batch = RowBatch.of(found, np.arange(4), CPU)
    assert batch.rows.ids.tolist() == [11, 12, 13, 14, *[15, 5, 6], *[15, 8], *[15, 5], *[9, 33, 6]]
    assert batch.rows.positions.tolist() == [0, 1, 2, 3, *[4, 5, 6], *[4, 5], *[4, 5], *[6, 7, 8]]
    assert batch.rows.prefixes == (-1, 0, 0, 0, 3)
    assert batch.rows.reads == (0, 3, 2, 2, 2)
    assert batch.targets.tolist() == [5, 6, 7, 8, 9, 5, 9, 6, 6]
    alone = RowBatch.of(found, np.array([3]), CPU)
    assert alone.rows.ids.tolist() == [11, 12, 13, 14, 15, 5, 9, 33, 6]
    assert alone.rows.lengths == (9,)


def outputs(actor: ActorCritic, rows: PackedRows, targets: torch.Tensor, weights: torch.Tensor) -> list[torch.Tensor]:
    """Log-probabilities, values, and the gradients of their weighted sum."""
    actor.zero_grad()
    logprobs, values, _ = actor(rows, targets)
    ((logprobs + 0.3 * values) * weights).sum().backward()
    return [logprobs.detach(), values.detach(), *(p.grad.clone() for p in actor.parameters() if p.grad is not None)]


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3"])
@pytest.mark.parametrize("frozen", [0, 1])
def test_log_probabilities_values_and_gradients_are_those_of_each_row_alone(family, frozen, small_models) -> None:
    folder, rollouts = small_models[family], mixed()
    actor = ActorCritic(load_policy(folder, load_tokenizer(folder)), frozen_layers=frozen)
    batch = RowBatch.of(rollouts, np.random.default_rng(0).permutation(len(rollouts.rows)), CPU)
    alone = pack_rows(rollouts.rows, rollouts.reply_lengths.tolist())
    replies = zip(rollouts.rows, rollouts.reply_lengths, strict=True)
    targets = torch.tensor([id_ for row, length in replies for id_ in row[-length:]])
    weights = torch.linspace(-1, 1, len(targets))
    ours = outputs(actor, batch.rows, batch.targets, weights[batch.tokens])
    theirs = outputs(actor, alone, targets, weights)
    theirs[:2] = [found[batch.tokens] for found in theirs[:2]]
    assert len(batch.rows.ids) < len(alone.ids)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


def test_a_batch_computes_each_segment_of_its_rows_once() -> None:
    tree = mixed().tree
    rows = np.arange(len(tree.episode_of_row))
    every = {segment for row in rows for segment in tree.paths[row]}
    assert every == set(range(len(tree.parents)))
    for batch in tree.batches(rows, 3):
        _, order, segments = tree.pack(batch, mixed().reply_lengths)
        assert sorted(order) == sorted(batch)
        assert len(set(segments)) == len(segments)
        assert set(segments) == {segment for row in batch for segment in tree.paths[row]}


def test_a_micro_batch_holds_as_many_tokens_as_are_computed() -> None:
    found = gather(episodes(*([turn(PROMPT * 4, [5, 6])] for _ in range(8))), RewardConfig())
    # the prompt is 19 tokens without its last one
    assert [len(batch) for batch in found.tree.batches(np.arange(8), 1, 35)] == [8]
    assert len(RowBatch.of(found, np.arange(8), CPU).rows.ids) == 19 + 8 * 2
    alone = replace(found, shared=False)
    assert [len(batch) for batch in alone.tree.batches(np.arange(8), 1, 35)] == [1] * 8


def test_batches_hold_each_row_once_the_longest_first_and_ranks_have_as_many(monkeypatch) -> None:
    def batches(lengths: list[int], *limits: int | None) -> list[list[int]]:
        tree = RowTree.unshared(lengths, np.arange(len(lengths)))
        return [batch.tolist() for batch in tree.batches(np.arange(len(lengths)), *limits)]

    monkeypatch.setattr("ppo.row_tree.max_over_ranks", lambda found: found + 1)  # another rank has one more
    assert batches([3, 9, 1, 9, 4], 2) == [[1, 3], [4, 0], [2], []]
    assert batches([3, 9, 1, 9, 4], 2, 9) == [[1], [3], [4], [0, 2]]
    assert batches([3, 9, 1, 9, 4], 2, 9, 4) == [[1], [3, 4, 0, 2]]
    assert batches([], 2, 9) == [[]], "it takes part in the other's forward"


def test_rows_of_a_group_stand_together_and_turns_in_their_order() -> None:
    found = gather(
        episodes(
            [turn(OTHER, [5])],
            [turn(PROMPT, [8, 9])],
            in_turns(OTHER, ([], [5, 9, 9]), ([33], [6, 6])),
            [turn(PROMPT, [5, 6, 7])],
        ),
        RewardConfig(),
    )
    [batch] = found.tree.batches(np.arange(5), 8)
    assert batch.tolist() == [2, 3, 0, 4, 1], "the longest family first, in it the longest episode, turn by turn"


def test_choices_after_the_same_prompt_share_its_segment_and_are_counted_once() -> None:
    """Two groups of three, of 10 and 7 tokens, whose rows alternate."""
    tree = RowTree.of_choices([("a", 10), ("b", 7)] * 3, np.arange(6))
    assert tree.parents.tolist() == [6, 7, 6, 7, 6, 7, -1, -1]
    assert tree.tokens.tolist() == [0] * 6 + [10, 7]
    assert [batch.tolist() for batch in tree.batches(np.arange(6), 2, tokens=16)] == [[0, 2, 4], [1, 3, 5]]
    assert [batch.tolist() for batch in tree.batches(np.arange(6), 2, tokens=17)] == [[0, 2, 4, 1, 3, 5]]
