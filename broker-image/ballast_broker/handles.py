"""How many files the process may have open, and how many of them are whose.

Without shares a crowd of connections, or of logs that are written to, takes the last one; and a log that cannot be
opened looks like a disk that fails.
"""

from __future__ import annotations

import contextlib
import errno
import resource
from typing import NamedTuple

MOST_FOR_LOGS = 8192
# Indexes, checkpoints and copies while they are in use, connections to other nodes, the cleaner.
FOR_ALL_ELSE = 512
# Where the kernel names no hard limit it has one all the same (macOS: OPEN_MAX).
ALWAYS_ALLOWED = 10_240
OUT_OF_HANDLES = (errno.EMFILE, errno.ENFILE)


class Handles(NamedTuple):
    logs: int
    connections: int


def shares(limit: int) -> Handles:
    rest = limit - min(FOR_ALL_ELSE, limit // 3)
    logs = min(MOST_FOR_LOGS, rest // 2)
    return Handles(logs, rest - logs)


def are_out(error: BaseException | None) -> bool:
    """Nothing could be opened, of the process or of the machine, and so nothing was done."""
    return isinstance(error, OSError) and error.errno in OUT_OF_HANDLES


class NothingOpened(Exception):
    """For want of file descriptors, and so nothing was done: whoever asked may ask again."""


def advice(error: OSError) -> str:
    """What an operator can do about EMFILE or ENFILE."""
    if error.errno == errno.ENFILE:
        return "the machine has no file descriptors left: raise fs.file-max"
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return f"the process may have {limit} files open: raise its limit (ulimit -n, LimitNOFILE of systemd)"


def raise_limit() -> int:
    """As Java does: the soft limit (1,024 in most shells) is for programs that know no more than that many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (hard, ALWAYS_ALLOWED):
        if soft < wanted:  # what is unlimited is -1
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                return wanted
    return soft if soft > 0 else ALWAYS_ALLOWED
