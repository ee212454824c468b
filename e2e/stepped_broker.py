"""A broker whose wall clock can be set, without touching the machine's: `python -m e2e.stepped_broker OFFSET FILE ...`.

OFFSET is a file with a number of milliseconds; it is read at the start and again at every SIGUSR1. Everything else is
the broker as it is, with the arguments that follow.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from ballast_broker import __main__ as broker
from ballast_broker import real_world


class SteppedClock(real_world.RealClock):
    offset_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.offset_ms


def main() -> int:
    path = Path(sys.argv.pop(1))

    def step(*_: object) -> None:
        SteppedClock.offset_ms = int(path.read_text()) if path.exists() else 0

    step()
    signal.signal(signal.SIGUSR1, step)
    real_world.RealClock = SteppedClock  # type: ignore[misc]
    return broker.main()


if __name__ == "__main__":
    sys.exit(main())
