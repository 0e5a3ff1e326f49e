"""Angles that are looked up are those that the model's own module computes, and follow it."""

import pytest
import torch
from transformers import AutoConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from lmgym.models.fast.rotary import ROOM_STEP, Angles

POSITIONS = torch.tensor([3, 0, 7, 7, ROOM_STEP + 5])


def rotary(**parameters) -> LlamaRotaryEmbedding:
    settings = {"rope_type": "default", "rope_theta": 10000.0} | parameters
    config = AutoConfig.for_model(
        "llama", hidden_size=32, num_attention_heads=2, max_position_embeddings=64, rope_parameters=settings
    )
    return LlamaRotaryEmbedding(config)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("parameters", [{}, {"rope_type": "linear", "factor": 4.0}])
def test_a_rotation_by_the_table_is_that_of_transformers(parameters: dict, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    module, heads = rotary(**parameters), torch.randn(len(POSITIONS), 2, 16, dtype=dtype)
    cos, sin = Angles(module)(heads.flatten(1), POSITIONS)
    theirs, _ = apply_rotary_pos_emb(
        heads[None], heads[None], *module(heads.flatten(1)[None], POSITIONS[None]), unsqueeze_dim=2
    )
    close = {"rtol": 0, "atol": 1e-6 if dtype == torch.float32 else 0.04}
    torch.testing.assert_close(heads * cos + heads.roll(8, -1) * sin, theirs[0], **close)
    assert cos.dtype == dtype


def test_a_table_is_made_once_and_grows_with_the_positions(monkeypatch) -> None:
    module, calls = rotary(), []
    forward = module.forward
    monkeypatch.setattr(module, "forward", lambda *given: calls.append(1) or forward(*given))
    angles, hidden = Angles(module), torch.empty(2, 32)
    for positions in ([0, 5], [900, 3], [ROOM_STEP - 1, 0]):
        angles(hidden, torch.tensor(positions))
    assert len(calls) == 1
    angles(hidden, torch.tensor([ROOM_STEP, 0]))
    assert len(calls) == 2


def test_frequencies_that_move_with_the_text_are_asked_for_at_every_call() -> None:
    module = rotary(rope_type="dynamic", factor=2.0)
    angles, hidden = Angles(module), torch.empty(200, 32)
    short = angles(hidden[:10], torch.arange(10))[0]
    long = angles(hidden, torch.arange(200))[0]  # beyond the 64 that it was trained on
    assert not torch.allclose(short, long[:10])
    torch.testing.assert_close(angles(hidden[:10], torch.arange(10))[0], short)


def test_other_frequencies_make_another_table() -> None:
    module, hidden = rotary(), torch.empty(3, 32)
    angles, positions = Angles(module), torch.arange(3)
    before, _ = angles(hidden, positions)
    module.inv_freq = module.inv_freq * 2
    after, _ = angles(hidden, positions)
    torch.testing.assert_close(after[1], before[2])


def test_a_table_made_while_sampling_serves_training() -> None:
    angles, hidden = Angles(rotary()), torch.randn(3, 32, requires_grad=True)
    with torch.inference_mode():
        angles(hidden.detach(), torch.arange(3))
    cos, _ = angles(hidden, torch.arange(3))
    (hidden.view(3, 2, 16) * cos).sum().backward()
    torch.testing.assert_close(hidden.grad, cos.expand(3, 2, 16).flatten(1))
