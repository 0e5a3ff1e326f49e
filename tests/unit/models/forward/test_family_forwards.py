"""Decoders of many families: packed rows against each row alone by transformers' own forward with plain attention."""

from collections.abc import Callable, Sequence

import pytest
import torch
from families import FAMILIES, LENGTHS, OTHERS, Family, alone, build, by_speed, random_rows
from families_table import FORWARD, STAGES, below

from lmgym.errors import InputError
from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.protocol import Sampling
from lmgym.generation.steps import PaddedSteps
from lmgym.models.forward.decoder import Decoder
from lmgym.models.forward.packed_rows import PackedRows, pack_replies, pack_rows
from lmgym.models.forward.policies import PolicyModel
from lmgym.text import Replies
from ppo.actor_critic import ActorCritic

BAR = 1e-5
READS = (6, 5, 4, 2)
TEMPERATURE = 0.7
NO_CACHE = ("recurrent_gemma",)  # its forward returns none to go on from: it cannot be sampled from


def rows_of(tokenizer) -> list[list[int]]:
    return random_rows(len(tokenizer))


def shared(rows: Sequence[list[int]]) -> list[Replies]:
    """Replies that share prefixes, longer and shorter than a window, or have none."""
    a, b, c, d = rows
    return [Replies(a, [b, d]), Replies(d, [c, a[:9]]), Replies([], [c])]


def apart(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference."""
    assert found.shape == wanted.shape
    return (found - wanted).abs().max().item()


@torch.no_grad()
def differences(model, decoder: Decoder, rows: list[list[int]]) -> list[float]:
    """From each row alone: of rows, of replies that share prefixes, of rows from the states of two frozen layers."""
    wanted = torch.cat([alone(model, row)[-n - 1 : -1] for row, n in zip(rows, READS, strict=True)])
    whole = [row.prefix + suffix for row in shared(rows) for suffix in row.suffixes]
    ends = torch.cat([alone(model, row)[-1:] for row in whole])
    batch = pack_rows(rows, READS)
    assert wanted.abs().max() > 0.3, "or nothing is compared"
    return [
        apart(decoder.logits(decoder.hidden(batch)), wanted),
        apart(decoder.logits(decoder.hidden(pack_replies(shared(rows)))), ends),
        apart(decoder.logits(decoder.hidden(batch, states=decoder.hidden_after(batch, 2), first=2)), wanted),
    ]


@pytest.mark.parametrize("family", by_speed([one for one in (*FAMILIES, *OTHERS) if one.special]))
def test_special_settings_of_a_family_change_its_logits(family: Family, family_tokenizer) -> None:
    row = rows_of(family_tokenizer)[0]
    with torch.no_grad():
        wanted = alone(build(family, family_tokenizer), row)
        for name, value in family.special.items():
            assert apart(alone(build(family, family_tokenizer, **{name: value}), row), wanted) > 0.05, name


@pytest.mark.parametrize("family", by_speed(FAMILIES))
def test_rows_run_packed_as_each_of_them_alone(family: Family, family_tokenizer, record_family) -> None:
    check_forward(family, family_tokenizer, record_family, STAGES)


@pytest.mark.slow
@pytest.mark.parametrize("family", OTHERS, ids=lambda family: family.name)
def test_rows_of_other_families_run_packed_as_each_of_them_alone(
    family: Family, family_tokenizer, record_family
) -> None:
    check_forward(family, family_tokenizer, record_family, FORWARD)


def check_forward(family: Family, tokenizer, record_family, table: str) -> None:
    model = build(family, tokenizer)
    decoder = Decoder(model)
    because = decoder.structure.padded_because
    assert because.startswith(family.why_padded)
    assert decoder.packed == (not family.why_padded)
    found = differences(model, decoder, rows_of(tokenizer))
    record_family(table, family.name, rows=f"padded: {because}" if because else "packed", from_alone=below(found))
    assert max(found) < BAR


@pytest.mark.parametrize("family", by_speed(FAMILIES))
def test_a_policys_logits_and_gradients_are_those_of_rows_alone(family: Family, family_tokenizer) -> None:
    model, rows = build(family, family_tokenizer), rows_of(family_tokenizer)
    places = [[0, len(row) // 2, len(row) - 1] for row in rows]
    policy = PolicyModel(model)
    assert policy.packed == (not family.why_padded)
    wanted = torch.cat([alone(model, row)[own] for row, own in zip(rows, places, strict=True)])
    found = policy(**policy.collate(rows, places))
    assert apart(found, wanted) < BAR
    same_gradients(found, wanted, dict(model.named_parameters()))


@pytest.mark.parametrize("family", by_speed(FAMILIES))
def test_a_scorers_logits_and_gradients_are_those_of_replies_alone(
    family: Family, family_tokenizer, family_scorer: Callable
) -> None:
    scoring, rows = family_scorer(family), shared(rows_of(family_tokenizer))
    assert scoring.packed == (not family.why_padded)
    wanted = torch.stack([alone(scoring.classifier, row.prefix + suffix) for row in rows for suffix in row.suffixes])
    found = scoring(**scoring.collate(rows, family_tokenizer.pad_token_id))
    assert wanted.std() > 0.1, "or nothing is compared"
    assert apart(found, wanted) < BAR
    same_gradients(found, wanted, dict(scoring.classifier.named_parameters()))


@pytest.mark.parametrize("family", by_speed(FAMILIES))
def test_an_actors_logprobs_values_and_gradients_above_frozen_layers_are_those_of_rows_alone(
    family: Family, family_tokenizer, family_scorer: Callable
) -> None:
    model, rows = build(family, family_tokenizer), rows_of(family_tokenizer)
    critic = family_scorer(family).classifier
    targets = torch.tensor([i for row, n in zip(rows, READS, strict=True) for i in row[-n:]])
    wanted, values = [], []
    actor = ActorCritic(model, critic, 2, TEMPERATURE)
    for row, n in zip(rows, READS, strict=True):
        logprobs = (alone(model, row)[-n - 1 : -1] / TEMPERATURE).log_softmax(-1)
        wanted.append(logprobs.gather(1, torch.tensor(row[-n:])[:, None])[:, 0])
        values += [alone(critic, row[:end]) for end in range(len(row) - n, len(row))]
    batch = pack_rows(rows, READS)
    found = actor(batch, targets)[:2]
    for own, other in zip(found, (torch.cat(wanted), torch.cat(values)), strict=True):
        assert apart(own, other) < BAR
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert 0 < len(trained) < len(list(model.parameters()))
    same_gradients(found[0], torch.cat(wanted), trained)
    assert apart(actor(batch, targets, actor.trunk(batch))[0], found[0]) < BAR


def same_gradients(found: torch.Tensor, wanted: torch.Tensor, weights: dict[str, torch.nn.Parameter]) -> None:
    """Of the sum of squares of both."""
    ours, theirs = (
        torch.autograd.grad(outputs.square().sum(), list(weights.values()), allow_unused=True)
        for outputs in (found, wanted)
    )
    everything = torch.stack([g.norm() for g in theirs if g is not None]).norm()
    assert everything > 0.1
    for name, own, other in zip(weights, ours, theirs, strict=True):
        nothing = torch.zeros_like(weights[name])
        error = ((nothing if own is None else own) - (nothing if other is None else other)).norm()
        assert error < 1e-5 * everything, name


@pytest.mark.parametrize("family", by_speed([*FAMILIES, *(one for one in OTHERS if one.name not in NO_CACHE)]))
@torch.no_grad()
def test_greedy_replies_are_those_of_transformers_and_samples_know_their_logprobs(
    family: Family, family_tokenizer
) -> None:
    model, rows = build(family, family_tokenizer), rows_of(family_tokenizer)
    generator = LocalGenerator(model, family_tokenizer)
    greedy = generator.generate(rows, 1, Sampling(max_new_tokens=16, temperature=0, ends_at_eos=False))
    for row, [one] in zip(rows, greedy, strict=True):
        wanted = model.generate(
            torch.tensor([row]), max_new_tokens=16, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        assert list(one.ids) == wanted[0, len(row) :].tolist()
    sampled = generator.generate(rows, 3, Sampling(max_new_tokens=16, temperature=TEMPERATURE, ends_at_eos=False))
    for row, replies in zip(rows, sampled, strict=True):
        assert len({one.ids for one in replies}) == 3
        for one in replies:
            logprobs = (alone(model, [*row, *one.ids])[len(row) - 1 : -1] / TEMPERATURE).log_softmax(-1)
            wanted = logprobs.gather(1, torch.tensor(one.ids)[:, None])[:, 0]
            assert apart(torch.tensor(one.logprobs), wanted) < 2 * BAR


def test_rows_are_longer_than_windows_and_of_different_lengths(family_tokenizer) -> None:
    rows: PackedRows = pack_rows(rows_of(family_tokenizer), READS)
    assert len(set(rows.lengths)) == len(LENGTHS)
    assert max(LENGTHS) > 3 * 12


def test_a_model_without_a_cache_is_refused_in_one_line(family_tokenizer) -> None:
    [family] = [one for one in OTHERS if one.name in NO_CACHE]
    decoder = Decoder(build(family, family_tokenizer))
    with pytest.raises(InputError, match="a recurrent_gemma gives no cache of its states, so it cannot be sampled"):
        PaddedSteps(decoder).start([[5, 6, 7]], 1)
