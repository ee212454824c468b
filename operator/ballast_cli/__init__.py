"""`./ballast`: one module per command. This file is imported before every command, so it imports next to nothing."""

import errno

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)  # the disk is full, or the user's quota is


class CommandError(Exception):
    """The command cannot be carried out; the text is one sentence for the user. Exit code 2."""

    exit_code = 2
