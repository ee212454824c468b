"""A broker whose wall clock can be set, without touching the machine's: `python -m e2e.stepped_broker FILE ...`.

The environment names a file with a number of milliseconds; it is read at the start and again at every SIGUSR1.
Everything else is the broker as it is.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

OFFSET_FILE = "STEPPED_CLOCK_OFFSET_FILE"


def main() -> int:
    from ballast_broker import __main__ as broker
    from ballast_broker import real_world

    class SteppedClock(real_world.RealClock):
        offset_ms = 0

        def wall_ms(self) -> int:
            return super().wall_ms() + self.offset_ms

    path = Path(os.environ[OFFSET_FILE])

    def step(*_: object) -> None:
        SteppedClock.offset_ms = int(path.read_text()) if path.exists() else 0

    step()
    signal.signal(signal.SIGUSR1, step)
    real_world.RealClock = SteppedClock  # type: ignore[misc]
    return broker.main()


if __name__ == "__main__":
    sys.exit(main())
