"""Where things are: the checkout that a command belongs to, and the folders in which commands keep data."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def kept(name: str) -> Path:
    """The default folder in which a command keeps its data."""
    return Path(os.environ.get("BALLAST_HOME", ROOT / ".ballast")) / name
