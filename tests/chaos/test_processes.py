"""Real broker processes under faults: the brief versions of `./ballast chaos` and `./ballast soak kill`."""

from __future__ import annotations

from pathlib import Path

import pytest
from e2e import chaos, kills
from e2e.checker import partition_folder


@pytest.mark.spec("REP-14", "CLU-02", "CLU-11")
@pytest.mark.timeout(600)
def test_three_brokers_lose_nothing_over_three_faults(tmp_path: Path) -> None:
    kinds = ("kill a leader", "kill the controller", "kill two in turn")
    settings = chaos.Settings(
        seed=7, seconds=0, least_faults=3, most_faults=3, kinds=kinds, pause_seconds=(0.1, 0.5), records_per_second=200
    )
    verdict = chaos.Chaos(tmp_path, settings, print).run()
    assert verdict.findings == [], "\n".join(verdict.history)
    assert verdict.faults == 3
    assert verdict.acknowledged == verdict.consumed > 0


@pytest.mark.spec("LOG-05")
@pytest.mark.timeout(600)
def test_one_broker_loses_nothing_over_four_kills(tmp_path: Path) -> None:
    settings = kills.Settings(seed=2, times=4, most_s=1.0, records_per_second=1000, trim_bytes=8 << 20)
    verdict = kills.Kills(tmp_path, settings, print).run()
    assert verdict.findings == []
    assert verdict.kills == 4
    assert verdict.acknowledged > 0
    assert verdict.index_entries > 0


class Forgetful(kills.Kills):
    """A disk that loses half of a partition at the first kill."""

    def _kill(self) -> None:
        super()._kill()
        log = max(partition_folder(self.broker.volumes, kills.TOPIC, 0).glob("*.log"))
        with log.open("r+b") as file:
            file.truncate(log.stat().st_size // 2)


@pytest.mark.timeout(600)
def test_a_disk_that_forgets_is_found_out(tmp_path: Path) -> None:
    settings = kills.Settings(seed=3, times=1, most_s=0.5, records_per_second=500)
    verdict = Forgetful(tmp_path, settings, print).run()
    assert any("partition 0" in finding and "was acknowledged at" in finding for finding in verdict.findings), verdict
