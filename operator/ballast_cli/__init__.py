"""`./ballast`: one module per command. This file is imported before every command, so it imports next to nothing."""

import errno

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)  # on the disk, or in what of it somebody may have


class CommandError(Exception):
    """What was asked for cannot be done; the text is one sentence for the person who asked. Exit code 2."""

    exit_code = 2
