"""Runs the experiment that the first argument names, with an epsilon of Adam as large as gradients are.

Otherwise, where a gradient is 0 but for rounding, the rounding decides which way a weight moves, and a gradient that is
too large throughout is hidden.
"""

import runpy
import sys
from functools import partial

EPSILON = 0.1

if __name__ == "__main__":
    import transformers

    transformers.TrainingArguments = partial(transformers.TrainingArguments, adam_epsilon=EPSILON)
    sys.argv.pop(0)
    runpy.run_path(sys.argv[0], run_name="__main__")
