"""The share of comparisons that replies win at equal length: judges often prefer the longer one (Dubois et al. 2024).

Design decisions:
- P that a reply wins is a logistic function of how much longer it is than the other one, logit P = a + b tanh(d / s),
  as in length-controlled AlpacaEval (arXiv:2404.04475); what is reported is P at d = 0, 1 / (1 + exp(-a)).
- s is the root mean square of d, and b has a normal prior, as strengths have: without one, replies of which exactly the
  longer ones win would leave a open. a has none, so that without a difference in length the share is the plain one.
- If all replies are longer, or all shorter, P at equal length would be an extrapolation: there is none.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from lmgym.scoring.strengths import PRIOR_STD, SMALL
from lmgym.statistics import NOTHING, Estimate, Floats, jackknife, share

STEPS, LONGEST_STEP = 200, 2.0  # of Newton's method, which takes about 8


def share_at_equal_length(won: ArrayLike, longer: ArrayLike) -> Estimate:
    """The share that replies win at equal length, 0 to 1, with its 95% interval over replies.

    `won` [replies] are shares in [0, 1], `longer` [replies] by how many characters each is longer than the other one.
    NOTHING, with the reason, where no reply is as short or none as long as the other one.
    """
    shares, more = np.asarray(won, dtype=np.float64), np.asarray(longer, dtype=np.float64)
    if not len(shares):
        return NOTHING
    if more.min() > 0 or more.max() < 0:
        side = "longer" if more.min() > 0 else "shorter"
        return replace(NOTHING, reason=f"every reply is {side} than the one that it is compared with")
    scale = np.sqrt(np.square(more).mean())
    if scale == 0 or shares.mean() in (0, 1):
        return share(shares)
    at_zero, without = _fitted(shares, np.tanh(more / scale))
    found = jackknife(at_zero, without, len(shares))
    ends = (None if end is None else float(special.expit(end)) for end in (found.value, found.low, found.high))
    value, low, high = ends
    return replace(found, value=value, low=low, high=high)


def _fitted(shares: Floats, x: Floats) -> tuple[float, Floats]:
    """(a of logit P = a + b x, and to first order a[replies] without each of them)."""
    design = np.stack([np.ones(len(x)), x], 1)
    prior, of = np.diag([0.0, PRIOR_STD**-2]), np.array([special.logit(shares.mean()), 0.0])
    for _ in range(STEPS):
        p = special.expit(design @ of)
        curvature = design.T @ (design * (p * (1 - p))[:, None]) + prior
        step = np.linalg.solve(curvature, design.T @ (shares - p) - prior @ of)
        of = of + step * min(1.0, LONGEST_STEP / max(np.abs(step).max(), SMALL))
        if np.abs(step).max() < SMALL:
            break
    influence = np.linalg.solve(curvature, (design * (shares - p)[:, None]).T)[0]
    return float(of[0]), of[0] - influence
