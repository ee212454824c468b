from __future__ import annotations

from pathlib import Path

import pytest
from tests.broker.replication.cluster import Cluster

RATE = "log.cleaner.io.max.bytes.per.second"


@pytest.mark.spec("LOG-26")
async def test_how_fast_logs_are_cleaned_may_be_told_while_the_broker_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For all brokers, or for one, which then counts."""
    async with Cluster(tmp_path) as cluster:
        [node] = await cluster.add(1)
        rates: list[float] = []
        monkeypatch.setattr(node.logs.compactor._runner, "change_rate", rates.append)
        cluster.controller.configure(4, "", {RATE: "1000.0"})
        cluster.controller.configure(4, "1", {RATE: "2000.0"})
        cluster.controller.configure(4, "", {RATE: "3000.0"})
        assert rates == [1000.0, 2000.0, 2000.0]
