"""Faults of every kind on a real node for as long as `./ballast e2e --faults MINUTES` says."""

from __future__ import annotations

import os
import time

import pytest
from e2e.kubernetes.mixed_faults import MixedFaults
from e2e.kubernetes.world import FAULT_MINUTES, FAULT_SEED, World

MINUTES = float(os.environ.get(FAULT_MINUTES, 0))

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.skipif(not MINUTES, reason="./ballast e2e --faults MINUTES runs it"),
    # The last fault may take its time to heal, and all that was acknowledged is read in the end.
    pytest.mark.timeout(MINUTES * 60 + 1800),
    # Clients whose connections are cut leave them to the garbage collector.
    pytest.mark.filterwarnings("ignore:Exception ignored in. <(socket|ssl):pytest.PytestUnraisableExceptionWarning"),
]


@pytest.mark.spec("OPR-45")
@pytest.mark.spec("OPR-46")
@pytest.mark.spec("OPR-35")
def test_mixed_faults(host: World) -> None:
    mixed = MixedFaults(host, MINUTES, int(os.environ.get(FAULT_SEED) or time.time_ns() % 1_000_000))
    findings = mixed.run()
    host.say(f"{mixed.faults} faults; {mixed.account}")
    assert findings == []
