"""Runs a broker whose wall clock can be set, without touching the machine's: `python -m e2e.stepped_broker FILE ...`.

The environment names a file with an offset in milliseconds; it is read at the start and again at every SIGUSR1.
Everything else is the broker as it is. In a container this file is without its package (e2e/kubernetes/clocks.py).
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

OFFSET_FILE = "STEPPED_CLOCK_OFFSET_FILE"


def install(path: Path) -> None:
    """Offset the clock of a broker that starts in this process by the milliseconds in `path`."""
    from ballast_broker import real_world

    class SteppedClock(real_world.RealClock):
        offset_ms = 0

        def wall_ms(self) -> int:
            return super().wall_ms() + self.offset_ms

    def step(*_: object) -> None:
        SteppedClock.offset_ms = int(path.read_text()) if path.exists() else 0

    step()
    signal.signal(signal.SIGUSR1, step)
    real_world.RealClock = SteppedClock  # type: ignore[misc]


def main() -> int:
    from ballast_broker import __main__ as broker

    install(Path(os.environ[OFFSET_FILE]))
    return broker.main()


if __name__ == "__main__":
    sys.exit(main())
