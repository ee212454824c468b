"""Divides the limit of open files between logs and connections.

Without shares, a crowd of connections, or of logs being written, would use up all descriptors; and a log that cannot be
opened looks like a failing disk.
"""

from __future__ import annotations

import contextlib
import errno
import resource
from typing import NamedTuple

MOST_FOR_LOGS = 8192
# Indexes, checkpoints and copies in use, connections to other nodes, the cleaner.
FOR_ALL_ELSE = 512
# If the hard limit is infinite, there is a limit all the same (macOS: OPEN_MAX).
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
    """Whether the process or the machine ran out of file descriptors, so that nothing was done."""
    return isinstance(error, OSError) and error.errno in OUT_OF_HANDLES


class NothingOpened(Exception):
    """Out of file descriptors, so nothing was done: the caller may retry."""


def advice(error: OSError) -> str:
    """Advice on EMFILE or ENFILE."""
    if error.errno == errno.ENFILE:
        return "the machine has no file descriptors left: raise fs.file-max"
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return f"the process may have {limit} files open: raise its limit (ulimit -n, LimitNOFILE of systemd)"


def raise_limit() -> int:
    """Raise the soft limit, as Java does: its default (1,024 in most shells) is for programs that need no more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (hard, ALWAYS_ALLOWED):
        if soft < wanted:  # unlimited is -1
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                return wanted
    return soft if soft > 0 else ALWAYS_ALLOWED
