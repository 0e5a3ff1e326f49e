"""The figure's scorers in a world that was chosen when the figure stood: do its curves fall where six others say?

Without weights of the KL penalty and halves. benchmarks/over_optimisation.py compares it with the prediction intervals
of `figure`.
"""

from dataclasses import replace

from lmgym.apps.lab.plans.figure import PLAN as FIGURE
from lmgym.apps.lab.plans.figure import PROXIES

WORLD = 31
PLAN = replace(
    FIGURE,
    runs=[replace(run, world=WORLD) for run in FIGURE.runs if run.world == 0 and not run.kl],
    proxies=PROXIES,
    halves={},
)
