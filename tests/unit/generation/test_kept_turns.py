"""Conversations that go on from turn to turn: their replies are those of a generator that reads all of it anew."""

from dataclasses import replace

import numpy as np
import pytest
from acting import Chat, play
from tiny_generators import PACKED, prompts_of

from lmgym.generation.kept_turns import KeptTurns
from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.protocol import Sampling
from lmgym.models.memory import cache_numbers_per_token

SAMPLING = Sampling(max_new_tokens=12, temperature=1.0)


def talk(generator: LocalGenerator, turns: int, n: int = 1) -> tuple[list, list[int]]:
    """The replies to twelve conversations, turn after turn, and the tokens that each turn's prompts add."""
    prompts, rng, said, added = prompts_of(12, seed=21, longest=60), np.random.default_rng(22), [], []
    for turn in range(turns):
        seeds = tuple(range(100 * turn, 100 * turn + len(prompts)))
        found = generator.generate(prompts, n, replace(SAMPLING, seed=seeds))
        said += found
        news = [rng.integers(5, 400, rng.integers(1, 9)).tolist() for _ in prompts]
        prompts = [[*p, *replies[-1].ids, *new] for p, replies, new in zip(prompts, found, news, strict=True)]
        added.append(sum(map(len, news)))
    return said, added


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("family", [*PACKED, "mamba"])
def test_turns_that_go_on_say_what_turns_that_are_read_anew_say(family: str, n: int, generators, monkeypatch) -> None:
    generator = generators[family]
    monkeypatch.setattr(generator, "generation_batch_size", 8)
    monkeypatch.setattr(generator, "eos", [*range(5, 400, 12)])
    expected, _ = talk(generator, 4, n)
    with generator.turns():
        found, _ = talk(generator, 4, n)
    assert generator.kept_turns is None
    assert len({len(one.ids) for ones in expected[:12] for one in ones}) > 1
    for replies, others in zip(found, expected, strict=True):
        for one, other in zip(replies, others, strict=True):
            assert one.ids == other.ids
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


def test_from_the_third_turn_on_only_what_was_added_is_computed(generators) -> None:
    generator, computed = generators["llama"], []
    with generator.turns():
        kept, read = generator.kept_turns, KeptTurns.read
        with pytest.MonkeyPatch.context() as patch:

            def counted(turns, prompts):
                before = turns.computed
                found = read(turns, prompts)
                computed.append((turns.computed - before, sum(map(len, prompts))))
                return found

            patch.setattr(KeptTurns, "read", counted)
            _, added = talk(generator, 5)
    assert kept.turn == 5
    assert [own for own, _ in computed[:2]] == [whole for _, whole in computed[:2]], "nothing is kept of the first turn"
    for (own, _), new in zip(computed[2:], added[1:], strict=False):
        assert own == new + 12, "and the last sampled token of each, which was never read"


def test_no_more_tokens_are_kept_than_there_is_room_for(generators, monkeypatch) -> None:
    generator, held = generators["gpt2"], []
    a_token = 4 * cache_numbers_per_token(generator.model.config)
    expected, _ = talk(generator, 4)
    monkeypatch.setattr("lmgym.generation.local_generation.CACHE_GIB", 250 * a_token / 2**30)
    with generator.turns():
        keep = KeptTurns.keep

        def noted(turns, ids, states):
            keep(turns, ids, states)
            held.append(sum(len(own) for own, _ in turns._kept))

        monkeypatch.setattr(KeptTurns, "keep", noted)
        found, _ = talk(generator, 4)
    assert 150 < max(held) <= 250
    assert [[one.ids for one in ones] for ones in found] == [[one.ids for one in ones] for ones in expected]


@pytest.mark.parametrize("kept", [[7, 8, 9], [7, 8, 9, 10, 11], [7, 8, 3, 3, 3, 3], [3, 3]])
def test_a_prompt_shares_what_it_begins_with_and_at_most_all_but_its_last_token(kept: list[int], generators) -> None:
    generator, prompt, sampling = generators["qwen3"], [7, 8, 9, 10], replace(SAMPLING, seed=5)
    [[expected]] = generator.generate([prompt], 1, sampling)
    with generator.turns():
        for begun in ([5], kept):
            generator.generate([begun, [300]], 1, Sampling(1, seed=6))
        before = generator.kept_turns.computed
        [[found], _] = generator.generate([prompt, [200]], 1, replace(sampling, seed=(5, 6)))
        shared = next((i for i, (a, b) in enumerate(zip(kept, prompt[:3], strict=False)) if a != b), 3)
        assert generator.kept_turns.computed - before == 4 - shared + 1
    assert found.ids == expected.ids
    assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-5)


def test_episodes_of_several_turns_are_played_within_turns(generators, monkeypatch) -> None:
    """Their replies are those of episodes whose prompts are read anew."""
    generator, read, found = generators["llama"], [], []
    whole = KeptTurns.read

    def counted(turns, prompts):
        before = turns.computed
        states = whole(turns, prompts)
        read.append((turns.computed - before, sum(map(len, prompts))))
        return states

    monkeypatch.setattr(KeptTurns, "read", counted)
    for keep in (KeptTurns.keep, lambda *_: None):
        monkeypatch.setattr(KeptTurns, "keep", keep)
        episodes = play([Chat(4) for _ in range(6)], generator, sampling=SAMPLING)
        found.append([[step.completion.ids for step in episode.steps] for episode in episodes])
    assert found[0] == found[1]
    assert len(read) == 8
    assert all(computed == prompts for computed, prompts in (*read[:2], *read[4:]))
    assert all(computed < prompts / 2 for computed, prompts in read[2:4])
