"""Losses over preferences and their gradients by TRL's trainers, of given log-probabilities. Lives in .venv-bench.

`python benchmarks/runners/trl_preference_formulas.py SPEC.json RESULT.json`; the spec is made by
benchmarks/preference_formulas.py. The methods are TRL's own, called with an object that has only the attributes that
they read, and a model whose log-probabilities are given. ORPO's own SFT loss also counts the tokens of the prompt (TRL
1.16): it is added here, over the reply.
"""

from interface import parse_paths  # isort: skip  (before torch)

import json
from collections import defaultdict
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from trl import DPOTrainer, KTOTrainer
from trl.experimental.cpo import CPOTrainer
from trl.experimental.orpo import ORPOTrainer

Rows = Sequence[torch.Tensor]


def padded(rows: Rows) -> torch.Tensor:
    """[rows, longest], 0 behind each."""
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)


def mask_of(rows: Rows) -> torch.Tensor:
    """[rows, 1 + longest]: 1 where a token is the reply's, behind one of the prompt."""
    mask = padded([torch.ones(len(row), dtype=torch.int64) for row in rows])
    return torch.nn.functional.pad(mask, (1, 0))


class GivenModel:
    """Takes the place of a model: `graded` where gradients are recorded, else `plain`."""

    def __init__(self, graded: Rows, plain: Rows = ()) -> None:
        self.graded, self.plain = graded, plain

    def __call__(self, **_) -> SimpleNamespace:
        logprobs = padded(self.graded if torch.is_grad_enabled() else self.plain)
        zeros = torch.zeros_like(logprobs)
        return SimpleNamespace(log_probs=logprobs, entropy=zeros, mean_logits=zeros, is_top1=zeros > 0)


def trainer_of(settings: dict[str, Any]) -> Any:
    """An object with the attributes that TRL's methods read."""
    same = {name: lambda value: value for name in ("gather", "gather_for_metrics")}
    defaults = {
        "model": SimpleNamespace(training=True),
        "accelerator": SimpleNamespace(device=torch.device("cpu"), **same),
        "aux_loss_enabled": False,
        "ld_alpha": None,
        "precompute_ref_logps": True,
        "f_divergence_type": "reverse_kl",
        "use_weighting": False,
        "label_smoothing": 0.0,
        "alpha": 0.0,
        "loss_type": "kto",
        "calculate_KL": True,
        "desirable_weight": 1.0,
        "undesirable_weight": 1.0,
        "_metrics": {"train": defaultdict(list)},
        "_total_train_tokens": 0,
        "_tp_size": 1,
    }
    return SimpleNamespace(**(defaults | settings))


def dpo_loss(trainer: Any, leaves: Rows, given: dict[str, Rows]) -> torch.Tensor:
    """TRL's batch has all chosen replies before all rejected ones."""
    order = [*range(0, len(leaves), 2), *range(1, len(leaves), 2)]
    rows = [leaves[i] for i in order]
    reference = torch.stack([given["reference"][i].sum() for i in order])
    mask = mask_of(rows)
    chosen, rejected = reference.chunk(2)
    batch = {
        "input_ids": torch.ones_like(mask),
        "attention_mask": mask,
        "completion_mask": mask,
        "ref_chosen_logps": chosen,
        "ref_rejected_logps": rejected,
    }
    return DPOTrainer._compute_loss(trainer, GivenModel(rows), batch, False)


def kto_loss(trainer: Any, leaves: Rows, given: dict[str, Rows]) -> torch.Tensor:
    """Every other reply is liked."""
    mask = mask_of(leaves)
    batch = {
        **{f"{kl}{name}": mask for kl in ("", "KL_") for name in ("input_ids", "attention_mask", "completion_mask")},
        "label": torch.tensor([i % 2 == 0 for i in range(len(leaves))]),
        "ref_logps": torch.stack([row.sum() for row in given["reference"]]),
        "ref_KL_logps": torch.stack([row.sum() for row in given["mismatched_reference"]]),
    }
    trainer._compute_kl_logps = lambda model, batch: KTOTrainer._compute_kl_logps(trainer, model, batch)
    return KTOTrainer._compute_loss(trainer, GivenModel(leaves, given["mismatched"]), batch, False)


def cpo_loss(trainer: Any, leaves: Rows, given: dict[str, Rows]) -> torch.Tensor:
    """SimPO of means; DPO's formula is CPO's of log-ratios."""
    simpo = trainer.loss_type == "simpo"
    values = [
        row.mean() if simpo else row.sum() - of_reference.sum()
        for row, of_reference in zip(leaves, given["reference"], strict=True)
    ]
    losses, _, _ = CPOTrainer.cpo_loss(trainer, torch.stack(values[::2]), torch.stack(values[1::2]))
    return losses.mean()


def orpo_loss(trainer: Any, leaves: Rows, given: dict[str, Rows]) -> torch.Tensor:
    """The odds ratio's part is subtracted from the SFT loss."""
    means = torch.stack([row.mean() for row in leaves])
    odds = ORPOTrainer.odds_ratio_loss(trainer, means[::2], means[1::2])[0]
    return -means[::2].mean() - odds.mean()


LOSSES = {"dpo": dpo_loss, "kto": kto_loss, "cpo": cpo_loss, "orpo": orpo_loss}


def run_case(case: dict[str, Any]) -> dict[str, Any]:
    """Loss, a mean over pairs or replies, and gradients by token."""
    given = {name: [torch.tensor(row) for row in rows] for name, rows in case["replies"].items()}
    leaves = [row.requires_grad_() for row in given["logprobs"]]
    loss = LOSSES[case["trainer"]](trainer_of(case["trl"]), leaves, given)
    loss.backward()
    return {"loss": loss.item(), "gradients": [leaf.grad.tolist() for leaf in leaves]}


def main() -> None:
    paths = parse_paths()
    spec = json.loads(Path(paths.spec).read_text())
    found = {case["name"]: run_case(case) for case in spec["cases"]}
    versions = {name: version(name) for name in ("trl", "transformers", "torch")}
    Path(paths.result).write_text(json.dumps({"cases": found, "versions": versions}))


if __name__ == "__main__":
    main()
