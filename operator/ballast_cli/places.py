"""Where things are: the checkout that a command is of, and what commands keep."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def kept(name: str) -> Path:
    """The folder of a command that keeps something, where nobody names another."""
    return Path(os.environ.get("BALLAST_HOME", ROOT / ".ballast")) / name
