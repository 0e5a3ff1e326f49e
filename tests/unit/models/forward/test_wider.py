"""A forward in a wider dtype: of every family that of the whole model in fp64, whose weights stay as they are."""

import pytest
import torch
from families import FAMILIES, LENGTHS, OTHERS, Family, alone, build, by_speed, random_rows

from lmgym.models.forward.decoder import Decoder
from lmgym.models.forward.packed_rows import pack_rows
from lmgym.models.forward.wider import wider_logprobs

TEMPERATURE = 0.7


@pytest.mark.parametrize("family", by_speed((*FAMILIES, *OTHERS)))
def test_log_probabilities_in_fp64_are_those_of_the_model_in_fp64(family: Family, family_tokenizer) -> None:
    model = build(family, family_tokenizer)
    rows, reads = random_rows(len(family_tokenizer)), [1 + n // 4 for n in LENGTHS]
    targets = torch.arange(sum(reads)) + 5
    before = [(p, p.data_ptr(), p.dtype) for p in model.parameters()]
    with torch.no_grad():
        found = wider_logprobs(Decoder(model), pack_rows(rows, reads), targets, TEMPERATURE, torch.float64)
        assert [(p, p.data_ptr(), p.dtype) for p in model.parameters()] == before
        model.double().config._experts_implementation = "eager"  # torch's grouped product has no fp64
        logits = torch.cat([alone(model, row)[-n - 1 : -1] for row, n in zip(rows, reads, strict=True)])
    wanted = (logits.double() / TEMPERATURE).log_softmax(-1).gather(1, targets[:, None])[:, 0]
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=2e-5)
