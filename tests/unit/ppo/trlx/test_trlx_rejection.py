"""trlx's RFT as the method rft."""

import pytest

from lmgym.errors import InputError
from ppo.check import check_settings
from ppo.trlx.data.default_configs import TRLConfig, default_ppo_config
from ppo.trlx.rejection import largest_batch, rft_config
from ppo.trlx.trainer.accelerate_rft_trainer import RFTConfig


def base(**method) -> TRLConfig:
    config = TRLConfig.update(default_ppo_config(), {"tokenizer.tokenizer_path": "lvwerra/gpt2-imdb"})
    config.method = RFTConfig(gen_kwargs=config.method.gen_kwargs, **method)
    return config


def test_an_iteration_replies_to_every_prompt_and_an_update_learns_about_a_batch(monkeypatch) -> None:
    ours, _ = rft_config(base(n_generations_per_prompt=100, start_percentile=0.9, n_improve_steps=1), 32, ["x"])
    assert (ours.method.method, ours.algorithm.percentile, ours.algorithm.ppo_epochs) == ("rft", 0.9, 1)
    assert (ours.rollout.num_rollouts, ours.rollout.num_generations, ours.rollout.stop) == (3200, 100, ("x",))
    assert ours.optimizer.global_batch == 320, "32 of which are learned"
    assert ours.optimizer.max_updates == 100 * 10, "an epoch is a step"
    check_settings(ours, 1)
    monkeypatch.setenv("WORLD_SIZE", "2")
    ours, _ = rft_config(base(n_generations_per_prompt=100, start_percentile=0.9, n_improve_steps=1), 32)
    assert (ours.rollout.num_rollouts, ours.optimizer.global_batch) == (3200, 640)
    check_settings(ours, 2)


def test_thresholds_that_rise_become_their_mean_and_that_is_told() -> None:
    ours, notes = rft_config(base(start_percentile=0.5, end_percentile=0.9, n_improve_steps=4), 4)
    assert ours.method.percentile == pytest.approx((0.5 + 0.6 + 0.7 + 0.8) / 4)
    assert notes[-1] == "method.start_percentile to end_percentile: every step has their mean, 0.65"
    assert not [note for note in rft_config(base(n_improve_steps=1), 4)[1] if "percentile" in note]


@pytest.mark.parametrize(
    ("rollouts", "most", "ranks", "batch"), [(12, 5, 1, 4), (12, 5, 3, 3), (12, 99, 1, 12), (7, 3, 1, 1), (7, 3, 2, 7)]
)
def test_the_batch_divides_the_rollouts(rollouts: int, most: float, ranks: int, batch: int) -> None:
    assert largest_batch(rollouts, most, ranks) == batch


@pytest.mark.parametrize(
    ("method", "prompts", "said"),
    [
        ({"start_percentile": 0.9, "end_percentile": 0.8}, 4, "needed: 0 <= start <= end < 1"),
        ({"end_percentile": 1.0}, 4, "needed: 0 <= start <= end < 1"),
        ({"n_improve_steps": 0}, 4, "n_improve_steps=0; needed: .* a step or more"),
        ({}, 100_000, "32 replies to each of 100,000 prompts; needed: 1,048,576 replies at most"),
        ({"n_generations_per_prompt": 0}, 4, "0 replies to each of 4 prompts"),
    ],
)
def test_what_cannot_be_is_refused(method: dict, prompts: int, said: str) -> None:
    with pytest.raises(InputError, match=said):
        rft_config(base(**method), prompts)
