"""A softmax over candidates from one packed forward, against transformers' own forward of each candidate alone."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from families import FAMILIES, OTHERS, Family
from transformers import AutoModelForCausalLM

from lmgym.models.forward.decoder import decoder_of
from lmgym.models.forward.logprobs import policy_logprobs
from lmgym.models.forward.packed_rows import PackedRows, pack_choices

END = 1
PROMPTS = [[5, 6, 7, 8, 9], [11], [12, 13, 14]]  # one of a single token, and below one with a single candidate
CANDIDATES = [[(20, END), (20, 21, 22, END), (23, 24, END)], [(30, 31, END), (32, END)], [(40, 41, END)]]
DIVISORS = {"sum": [[1.0] * 3, [1.0] * 2, [1.0]], "token": [[2.0, 4.0, 3.0], [3.0, 2.0], [3.0]]}
ASKED = [0, 1, 0, 2, 0, 1]  # a row by number for each choice: some are asked more than once
CHOSEN = [1, 0, 2, 0, 1, 1]


def by_brute_force(model, divisors: list[list[float]], temperature: float) -> list[torch.Tensor]:
    """Log-probabilities of every choice's candidates, from one whole forward a candidate."""
    found = []
    for prompt, candidates, own in zip(PROMPTS, CANDIDATES, divisors, strict=True):
        sums = []
        for ids in candidates:
            logits = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1].float()
            sums.append(logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None]).sum())
        found.append((torch.stack(sums) / torch.tensor(own) / temperature).log_softmax(-1))
    return found


def packed(divisors: list[list[float]]) -> tuple[PackedRows, torch.Tensor]:
    return pack_choices(*([of_row[i] for i in ASKED] for of_row in (PROMPTS, CANDIDATES, divisors)), CHOSEN)


def spread_out(folder: Path):
    """The model with larger weights, so that candidates differ."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(2.0)
    return model


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("scores", ["sum", "token"])
@pytest.mark.parametrize(("family", "pack"), [("gpt2", None), ("llama", None), ("llama", False), ("qwen3", None)])
def test_a_choice_its_entropy_and_their_gradients_are_those_of_a_softmax_by_brute_force(
    family: str, pack: bool | None, scores: str, temperature: float, small_models: dict[str, Path]
) -> None:
    model, plain = spread_out(small_models[family]), spread_out(small_models[family])
    rows, targets = packed(DIVISORS[scores])
    decoder = decoder_of(model, pack)
    logprobs, entropies = policy_logprobs(decoder, decoder.hidden(rows), rows, targets, temperature, entropies=True)
    assert entropies is not None
    wanted = by_brute_force(plain, DIVISORS[scores], temperature)
    chosen = torch.stack([wanted[i][number] for i, number in zip(ASKED, CHOSEN, strict=True)])
    spread = torch.stack([-(wanted[i].exp() * wanted[i]).sum() for i in ASKED])
    assert float(chosen.detach()[0]) < -0.05, "or there is nothing to compare"
    torch.testing.assert_close(logprobs, chosen, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropies, spread, rtol=1e-5, atol=1e-5)
    weights = torch.tensor([1.0, -2.0, 0.5, 1.5, 0.25, -0.75])
    ((logprobs + 0.3 * entropies) * weights).sum().backward()
    ((chosen + 0.3 * spread) * weights).sum().backward()
    gradients = dict(model.named_parameters())
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(gradients[name].grad, parameter.grad, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("name", ["gemma2", "granite", "mistral", "bloom", "mamba"])
def test_so_it_is_in_families_with_scales_caps_and_windows_and_where_rows_are_padded(
    name: str, family_folder: Callable[[Family], Path]
) -> None:
    [family] = [family for family in (*FAMILIES, *OTHERS) if family.name == name]
    model = AutoModelForCausalLM.from_pretrained(family_folder(family), dtype=torch.float32).eval()
    decoder, (rows, targets) = decoder_of(model), packed(DIVISORS["token"])
    assert decoder.packed is not bool(family.why_padded)
    found, _ = policy_logprobs(decoder, decoder.hidden(rows), rows, targets)
    wanted = by_brute_force(model, DIVISORS["token"], 1.0)
    torch.testing.assert_close(found, torch.stack([wanted[i][n] for i, n in zip(ASKED, CHOSEN, strict=True)]))


def test_a_prompt_and_its_candidates_run_once_and_every_candidate_begins_with_its_last_token() -> None:
    rows, targets = packed(DIVISORS["sum"])
    assert rows.choices is not None
    assert len(rows.ids) == sum(len(p) - 1 + sum(map(len, own)) for p, own in zip(PROMPTS, CANDIDATES, strict=True))
    assert targets.tolist() == [token for own in CANDIDATES for ids in own for token in ids]
    assert rows.ids[rows.places[rows.choices.prompts]].tolist() == [PROMPTS[i][-1] for i in ASKED]


def test_what_is_chosen_from_one_candidate_is_certain_and_has_no_gradient(small_models: dict[str, Path]) -> None:
    decoder = decoder_of(spread_out(small_models["llama"]))
    rows, targets = pack_choices(PROMPTS[2:], CANDIDATES[2:], [[1.0]], [0])
    logprobs, entropies = policy_logprobs(decoder, decoder.hidden(rows), rows, targets, entropies=True)
    assert entropies is not None
    assert [logprobs.item(), entropies.item()] == [0.0, 0.0]
    (logprobs + entropies).sum().backward()
    assert all(p.grad is None or not p.grad.any() for p in decoder.model.parameters())
