"""`./ballast`: one module per command. This file is imported before every command, so it imports nothing."""


class CommandError(Exception):
    """What was asked for cannot be done; the text is one sentence for the person who asked. Exit code 2."""

    exit_code = 2
