"""A real Prometheus of the machine on a free port, scraping what it is told to."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ballast_rebalance.prometheus_http import Endpoint, PrometheusError

DEADLINE_S = 40.0


@contextmanager
def prometheus(directory: Path, ports: Sequence[int], interval: str = "1s") -> Iterator[Endpoint]:
    """Runs until the block ends; yields when the first scrape of every target has succeeded."""
    binary = shutil.which("prometheus")
    assert binary is not None, "these tests need Prometheus on the PATH"
    config = directory / "prometheus.yml"
    targets = [f"127.0.0.1:{port}" for port in ports]
    job = {"job_name": "ballast", "static_configs": [{"targets": targets}]}
    settings = {"global": {"scrape_interval": interval, "scrape_timeout": interval}, "scrape_configs": [job]}
    config.write_text(json.dumps(settings), encoding="utf-8")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = (directory / "prometheus.log").open("wb")
    process = subprocess.Popen(
        [binary, f"--config.file={config}", f"--storage.tsdb.path={directory / 'data'}",
         f"--web.listen-address=127.0.0.1:{port}", "--query.lookback-delta=10s"],
        stdout=log, stderr=log,
    )  # fmt: skip
    endpoint = Endpoint(f"http://127.0.0.1:{port}", attempts=1)
    try:
        wait_for(lambda: endpoint.scalar("sum(up)") == len(ports))
        yield endpoint
    finally:
        process.terminate()
        process.wait(DEADLINE_S)
        log.close()


def wait_for(holds: Callable[[], bool]) -> None:
    """Polls until it holds; a deadline ends it."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            if holds():
                return
        except PrometheusError:
            pass
        time.sleep(0.1)
    raise AssertionError("did not come true in time")
