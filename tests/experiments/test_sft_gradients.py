"""SFT hands the optimizer the gradient of the mean over an update's output tokens, however the update is cut."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from gradient_script import Capture
from transformers import AutoModelForCausalLM

from lmgym.config import ModelConfig, OptimizerConfig, RowsConfig, RunConfig, TrainerConfig
from lmgym.models.loading import load_tokenizer
from lmgym.runs.run import Run
from lmgym.training.plan import TrainingPlan
from sft import train
from sft.check import SftPlan
from sft.config import SftConfig
from sft.tasks import CHAT


@pytest.mark.parametrize(("accumulation", "tokens"), [(1, None), (4, None), (12, 200)])
def test_it_is_the_gradient_of_the_mean_over_all_output_tokens_of_the_update(
    accumulation: int, tokens: int | None, small_models: dict[str, Path], chats_file: Path, tmp_path: Path
) -> None:
    rows = 12
    config = SftConfig(
        "gradients",
        ModelConfig(str(small_models["qwen3"]), precision="fp32"),
        RowsConfig(str(chats_file), eval_size=4, max_length=128),
        OptimizerConfig(
            learning_rate=0.0,
            max_grad_norm=1e9,
            global_batch=rows,
            micro_batch=rows // accumulation,
            tokens_per_micro_batch=tokens,
            max_updates=1,
        ),
        run=RunConfig(output=str(tmp_path), tracking="none", eval_updates=10_000, save_updates=-1),
        trainer=TrainerConfig(log_updates=1),
    )
    tokenizer = load_tokenizer(config.policy.model)
    data = CHAT.prepare(config, tokenizer)
    plan = SftPlan(TrainingPlan(config, config.policy, None, accumulation, tokenizer, data, []), [], {})
    capture = Capture()
    with Run.start(config.output, {}, 0, "none") as run:
        trainer = train.make_trainer(plan, CHAT, run)
        trainer.add_callback(capture)
        trainer.train()
    [gradients] = capture.updates

    plain = AutoModelForCausalLM.from_pretrained(small_models["qwen3"], dtype=torch.float32)
    examples = [data.train[i] for i in trainer.sampler.updates()[0]]
    losses = [
        F.cross_entropy(plain(torch.tensor([e.ids])).logits[0, e.places], torch.tensor(e.targets), reduction="sum")
        for e in examples
    ]
    (torch.stack(losses).sum() / sum(len(e.targets) for e in examples)).backward()
    theirs = dict(plain.named_parameters())
    everything = torch.cat([p.grad.flatten() for p in theirs.values()]).norm()
    assert gradients.keys() == {f"model.{name}" for name in theirs}
    for name, parameter in theirs.items():
        error = (gradients[f"model.{name}"] - parameter.grad).norm()
        assert error <= 1e-5 * parameter.grad.norm() + 1e-6 * everything, name
