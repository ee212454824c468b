"""Runs the machine's own Prometheus with given targets, on a port that it chooses and tells: one chosen for it could be
another's by the time that it listens."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.certificates import Authority
from tests.waiting import eventually

from ballast_rebalance.prometheus_http import Endpoint, PrometheusError

DEADLINE_S = 60.0
LISTENS = re.compile(r'msg="Listening on".* address=\S+:(\d+)')


class Targets:
    """The targets that Prometheus scrapes, by job; they may change while it runs."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "targets.json"

    def set(self, jobs: Mapping[str, Sequence[str]]) -> None:
        groups = [{"labels": {"job": job}, "targets": list(targets)} for job, targets in jobs.items()]
        fresh = self.file.with_suffix(".new")
        fresh.write_text(json.dumps(groups), encoding="utf-8")
        fresh.rename(self.file)


@contextmanager
def prometheus(directory: Path, ports: Sequence[int], interval: str = "1s") -> Iterator[Endpoint]:
    """Run Prometheus until the block ends; yields when the first scrape of every target has succeeded."""
    with prometheus_of(directory, {"ballast": [f"127.0.0.1:{port}" for port in ports]}, interval) as (endpoint, _):
        yield endpoint


@contextmanager
def prometheus_of(
    directory: Path,
    jobs: Mapping[str, Sequence[str]],
    interval: str = "1s",
    rules: Path | None = None,
    login: tuple[str, str, str] | None = None,
    authority: Authority | None = None,
) -> Iterator[tuple[Endpoint, Targets]]:
    """The same with several jobs, whose targets can be changed, and with rules. `login` (user, password, its bcrypt
    hash) requires basic authentication, `authority` a client certificate from it."""
    binary = shutil.which("prometheus")
    assert binary is not None, "these tests need Prometheus on the PATH"
    targets = Targets(directory)
    targets.set(jobs)
    job = {"job_name": "ballast", "file_sd_configs": [{"files": [str(targets.file)], "refresh_interval": "1s"}]}
    times = {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval}
    settings = {"global": times, "scrape_configs": [job], "rule_files": [str(rules)] if rules else []}
    config = directory / "prometheus.yml"
    config.write_text(json.dumps(settings), encoding="utf-8")
    web = directory / "web.yml"
    asks: dict[str, Any] = {"basic_auth_users": {login[0]: login[2]}} if login else {}
    if authority is not None:
        server = authority.issue("prometheus")
        asks["tls_server_config"] = {
            "cert_file": str(server), "key_file": str(server), "client_ca_file": str(authority.ca),
            "client_auth_type": "RequireAndVerifyClientCert",
        }  # fmt: skip
    web.write_text(json.dumps(asks), encoding="utf-8")
    log = directory / "prometheus.log"
    with log.open("wb") as said:
        process = subprocess.Popen(
            [binary, f"--config.file={config}", f"--storage.tsdb.path={directory / 'data'}",
             "--web.listen-address=127.0.0.1:0", f"--web.config.file={web}", "--query.lookback-delta=10s"],
            stdout=said, stderr=said,
        )  # fmt: skip
    try:
        port = eventually(lambda: LISTENS.search(log.read_text()), f"Prometheus listens: see {log}", DEADLINE_S)[1]
    except AssertionError:
        process.kill()
        process.wait()
        raise
    headers = (("Authorization", f"Basic {base64.b64encode(':'.join(login[:2]).encode()).decode()}"),) if login else ()
    endpoint = Endpoint(f"http://127.0.0.1:{port}", attempts=1, headers=headers)
    if authority is not None:
        asked, own = authority.ca.read_text(), authority.issue("tests").read_text()
        endpoint = replace(endpoint, url=f"https://127.0.0.1:{port}", authorities=asked, certificate=own)
    try:
        wait_for(lambda: endpoint.scalar("sum(up)") == sum(map(len, jobs.values())))
        yield endpoint, targets
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


def wait_for(holds: Callable[[], bool]) -> None:
    """Poll until it holds, at most `DEADLINE_S`."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            if holds():
                return
        except PrometheusError:
            pass
        time.sleep(0.1)
    raise AssertionError("did not come true in time")
