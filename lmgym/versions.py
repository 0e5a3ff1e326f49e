"""Versions of what measured figures rest on: small integers that are raised by hand.

Raise one when the same command, rows and seed would give other figures afterwards, beyond rounding: `make docs` then
fails for every page that shows a figure of before, until it is measured again or goes. The simulated world and its
laboratory have versions of their own: `lmgym.apps.world.world`, `lmgym.apps.lab.record`.
"""

ROWS = 2
"""what a model sees of a row; 2: tokenised as in generation at all stages, to where the template ends a turn"""
SAMPLER = 1
"""which tokens a policy draws at given settings"""
METHOD = 2
"""losses, advantages, schedules; 2: the first update of a warm-up has a rate above 0"""
INTERVALS = 2
"""intervals and tests; 2: the jackknife over independent units, and Wilson's interval of shares"""
