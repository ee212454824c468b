"""The soaks, one module each, imported on demand. Each except the simulation has a function `begin`, a `Soak`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Outcome:
    """What was done, what held if nothing was wrong, and what was wrong."""

    summary: str
    held: str
    findings: Sequence[object]


Soak = Callable[[Path, int, int, Callable[[str], None]], Outcome]
