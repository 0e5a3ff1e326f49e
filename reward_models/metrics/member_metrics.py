"""The members of an ensemble on held-out pairs: do they err together, and does their spread warn of errors?"""

import numpy as np
import torch
from numpy.typing import NDArray

from lmgym.aids import aid
from lmgym.scoring.combinations import error_correlation, spread
from lmgym.training.probes import Report
from reward_models.metrics.rank_statistics import spearman

Floats = NDArray[np.float64]


@aid("the figures of heads", lambda: Report({}, {}))
def member_metrics(chosen: Floats, rejected: Floats) -> Report:
    """Metrics of members' scores [members, pairs] of chosen and rejected replies, read as Bradley-Terry.

    The error of a member on a pair is 1 - sigmoid(chosen - rejected). `member_accuracy` is the mean over members;
    `member_error_correlation` the mean correlation of two members' errors; `spread` the mean standard deviation of the
    members' scores of a reply; `spread_error_spearman` the rank correlation, over pairs, of the deviation of the
    members' margins with the error of their mean: above 0, disagreement tells where the mean errs.
    """
    margins = torch.from_numpy(chosen - rejected)
    errors = torch.sigmoid(-margins)
    replies = torch.from_numpy(np.concatenate([chosen, rejected], 1))
    found: dict[str, float | None] = {
        "member_accuracy": float((margins > 0).double().mean()),
        "member_error_correlation": error_correlation(errors),
        "spread": float(spread(replies).mean()),
        "spread_error_spearman": rank_correlation(spread(margins).numpy(), torch.sigmoid(-margins.mean(0)).numpy()),
    }
    reason = "too few pairs, or all of them alike"
    return Report(
        {name: value for name, value in found.items() if value is not None},
        {name: reason for name, value in found.items() if value is None},
    )


def rank_correlation(values: Floats, errors: Floats) -> float | None:
    """Spearman's; None for fewer than 3 values, and where all are equal."""
    if len(values) < 3 or np.ptp(values) == 0 or np.ptp(errors) == 0:
        return None
    return float(spearman(values, errors))
