"""How a run may end other than well: by a user's mistake, or by its own word."""

# exit codes of sysexits.h, so that schedulers can tell what is worth another try
NON_FINITE, REWARDS_FAILED, STALLED, STORAGE_FULL, FOLDER_IN_USE, INTERRUPTED = 65, 69, 70, 74, 73, 75


class InputError(ValueError):
    """What was asked for cannot be done: the message says what was found, what is needed and how to fix it.

    Launches print the message without a traceback and exit with 2; any other exception is a defect of ours.
    """

    exit_code = 2
    outcome = "failed"
    alone = False
    """True where this rank is the only one that knows: it speaks for itself"""


class TooLong(InputError):
    """A conversation has more tokens than the model reads: a shorter one may do."""


class RunStopped(Exception):
    """A run that ends before its work is done, by its own word: why, its outcome in run.json, and its exit code."""

    alone = False

    def __init__(self, why: str, outcome: str, exit_code: int) -> None:
        super().__init__(why, outcome, exit_code)  # all of them: ranks send it to each other
        self.why, self.outcome, self.exit_code = why, outcome, exit_code

    def __str__(self) -> str:
        return self.why
