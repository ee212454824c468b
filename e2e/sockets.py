"""What clients written by others leave behind."""

from __future__ import annotations

import gc
import warnings


def forget_sockets() -> None:
    """Connections that failed or were cut are left to the garbage collector, which would tell of it anywhere."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
