"""One module per soak, imported when it is asked for. Each but the simulation has `begin`, a `Soak`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Outcome:
    """What was done, what that showed, and what was wrong."""

    summary: str
    held: str
    findings: Sequence[object]


Soak = Callable[[Path, int, int, Callable[[str], None]], Outcome]
