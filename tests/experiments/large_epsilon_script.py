"""Runs the experiment that LMGYM_TEST_EXPERIMENT names, with an epsilon of Adam as large as gradients are.

Otherwise, where a gradient is 0 but for rounding, the rounding decides which way a weight moves, and a gradient that is
too large throughout is hidden.
"""

import os
import runpy
from functools import partial

EPSILON = 0.1

if __name__ == "__main__":
    import transformers

    transformers.TrainingArguments = partial(transformers.TrainingArguments, adam_epsilon=EPSILON)
    runpy.run_path(os.environ["LMGYM_TEST_EXPERIMENT"], run_name="__main__")
