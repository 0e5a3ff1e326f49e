"""Losses over preferences and their gradients by preferences/, of given log-probabilities.

`python benchmarks/runners/ours_preference_formulas.py SPEC.json RESULT.json`; the spec is made by
benchmarks/preference_formulas.py.
"""

from interface import parse_paths  # isort: skip  (before torch)

import json
from pathlib import Path
from typing import Any

import torch

from preferences.config import LossConfig
from preferences.losses import kto_baseline
from preferences.rewards import log_ratios, pair_loss, reply_sums, thumb_loss


def run_case(case: dict[str, Any]) -> dict[str, Any]:
    """Loss, a mean over pairs or replies, and gradients by token."""
    settings, rows = LossConfig(**case["ours"]), case["replies"]
    lengths = torch.tensor([len(row) for row in rows["logprobs"]])
    flat = {name: torch.tensor([x for row in part for x in row]) for name, part in rows.items()}
    leaf = flat["logprobs"].requires_grad_()
    policy, reference, *mismatched = (
        reply_sums(flat[name], lengths) for name in ("logprobs", "reference", "mismatched", "mismatched_reference")
    )
    if settings.loss == "kto":
        liked = torch.arange(len(lengths)) % 2 == 0
        ratios = mismatched[0] - mismatched[1]
        baseline = kto_baseline(torch.stack([ratios.sum(), torch.tensor(float(len(ratios)))]))
        total, count = thumb_loss(settings, log_ratios(settings, policy, reference, lengths), liked, baseline)
    else:
        pairs = (part.view(-1, 2) for part in (policy, reference, lengths))
        total, count = pair_loss(settings, *pairs, torch.ones(len(lengths) // 2))
    (total / count).backward()
    assert leaf.grad is not None
    gradients = [row.tolist() for row in leaf.grad.split(lengths.tolist())]
    return {"loss": (total / count).item(), "gradients": gradients}


def main() -> None:
    paths = parse_paths()
    spec = json.loads(Path(paths.spec).read_text())
    Path(paths.result).write_text(json.dumps({"cases": {case["name"]: run_case(case) for case in spec["cases"]}}))


if __name__ == "__main__":
    main()
