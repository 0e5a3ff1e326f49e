"""Runs the experiment that LMGYM_TEST_EXPERIMENT names, with an epsilon of Adam as large as gradients are.

Otherwise, where a gradient is 0 but for rounding, the rounding decides which way a weight moves, and a gradient that is
too large throughout is hidden.
"""

import os
import runpy

EPSILON = 0.1


def trainer_with_large_epsilon():
    """(class, name of the attribute, what takes its place) that give the Trainer's Adam this epsilon."""
    from transformers import TrainingArguments

    finish = TrainingArguments.__post_init__

    def with_epsilon(arguments) -> None:
        arguments.adam_epsilon = EPSILON
        finish(arguments)

    return TrainingArguments, "__post_init__", with_epsilon


if __name__ == "__main__":
    setattr(*trainer_with_large_epsilon())
    runpy.run_path(os.environ["LMGYM_TEST_EXPERIMENT"], run_name="__main__")
