"""Runs a Prometheus for the demonstration, if one is installed, that scrapes only the brokers' pods."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ballast_local.workloads import launch

if TYPE_CHECKING:
    from ballast_cli.up import Stack

SEEN_SECONDS = 60.0
STOP_SECONDS = 20.0
SIZES = "sum(ballast_replica_size_bytes)"


@asynccontextmanager
async def scraping(stack: Stack, cluster: str) -> AsyncIterator[str | None]:
    """Run a Prometheus that scrapes the cluster's brokers; yields its address, or None if none is installed."""
    binary = shutil.which("prometheus")
    if binary is None:
        yield None
        return
    directory = stack.data / "prometheus"
    config = await asyncio.to_thread(_write_config, directory, await _targets(stack, cluster))
    port = _free_port()
    with (directory / "prometheus.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *launch.under(
                binary, f"--config.file={config}", f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ),
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        if process.returncode is None:
            process.terminate()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


async def seen(url: str, held_bytes: int) -> None:
    """Return once the metrics show what the brokers hold; raises TimeoutError if they never do."""
    from ballast_rebalance.prometheus_http import Endpoint, PrometheusError

    endpoint, said = Endpoint(url, attempts=1), "nothing"
    deadline = time.monotonic() + SEEN_SECONDS
    while time.monotonic() < deadline:
        try:
            found = await asyncio.to_thread(endpoint.scalar, SIZES)
            if found == held_bytes:
                return
            said = f"{found or 0:.0f} bytes"
        except PrometheusError as error:
            said = str(error)
        await asyncio.sleep(0.2)
    raise TimeoutError(f"Prometheus has not seen the {held_bytes} bytes that the brokers hold; it says {said}")


async def _targets(stack: Stack, cluster: str) -> list[str]:
    """The addresses of the brokers' metrics, from their pods."""
    from ballast_operator.apply.kubernetes import path_of

    found = []
    selector = f"ballast.dev/cluster={cluster},ballast.dev/role=broker"
    async for pod in stack.api.items(path_of("v1", "pods", "default"), selector):
        ports = {port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}
        found.append(f"{pod['status']['podIP']}:{ports['metrics']}")
    return sorted(found)


def _write_config(directory: Path, targets: list[str]) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    config = directory / "prometheus.yml"
    job = {"job_name": "ballast", "static_configs": [{"targets": targets}]}
    times = {"scrape_interval": "1s", "scrape_timeout": "1s"}
    config.write_text(json.dumps({"global": times, "scrape_configs": [job]}), encoding="utf-8")
    return config


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
