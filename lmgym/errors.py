"""The one kind of error that is a user's to mend."""


class InputError(ValueError):
    """What was asked for cannot be done: the message says what was found, what is needed and how to fix it.

    Launches print the message without a traceback and exit with 2; any other exception is a defect of ours.
    """
