"""Cleans up what third-party clients leave behind."""

from __future__ import annotations

import gc
import warnings


def forget_sockets() -> None:
    """Collect connections that failed or were cut now: else the ResourceWarning would appear somewhere else."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
