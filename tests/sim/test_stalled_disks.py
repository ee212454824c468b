"""All that the schedules of faults show holds as well while every append goes by thread (LOG-32)."""

from __future__ import annotations

import pytest
from tests.sim.test_many import fails, pool

from ballast_broker.storage.log import Log

SEEDS = range(5000, 5060)


def fails_while_disks_stall(seed: int) -> str | None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Log, "append_is_slow", lambda log: True)
        return fails(seed)


@pytest.mark.simulation
@pytest.mark.interpreted
@pytest.mark.spec("LOG-32")
@pytest.mark.timeout(1200)
def test_everything_holds_while_disks_stall() -> None:
    with pool() as workers:
        failed = [text for text in workers.map(fails_while_disks_stall, SEEDS) if text is not None]
    assert not failed, f"{len(failed)} of {len(SEEDS)} seeds failed:\n" + "\n".join(failed[:3])
