"""The roof: the `lmgym` command. It alone may import stages, and only inside its commands."""
