"""KafkaJS, the client of Node's applications that speaks the protocol by itself."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.clients.running import RunningBroker
from tests.clients.secured import PASSWORD, USER, Secured

from ballast_cli.compiled import files_under, key_of
from ballast_cli.image_base import cache_folder

pytestmark = [pytest.mark.node, pytest.mark.timeout(240)]
SOURCES = Path(__file__).parent / "node"
LIMIT_S = 100


def packages() -> Path:
    """KafkaJS as the lock names it, fetched once."""
    folder = cache_folder() / "node-clients" / key_of(platform.machine(), files_under(SOURCES), SOURCES)
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetching-") as place:
            for name in ("package.json", "package-lock.json"):
                shutil.copy(SOURCES / name, place)
            command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=LIMIT_S, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            if not folder.is_dir():  # another process may have been faster
                Path(place, "node_modules").rename(folder)
    return folder


def told(
    bootstrap: str, topic: str, meanwhile: Callable[[], object], login: Mapping[str, str] | None = None
) -> list[Any]:
    """What the program says; `meanwhile` is done before its second half."""
    running = subprocess.Popen(
        ["node", str(SOURCES / "main.js"), bootstrap, topic],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | dict(login or {}) | {"NODE_PATH": str(packages()), "KAFKAJS_NO_PARTITIONER_WARNING": "1"},
    )  # fmt: skip
    try:
        assert running.stdout is not None
        before = [running.stdout.readline() for _ in range(2)]
        if all(before):
            meanwhile()
        after, errors = running.communicate("\n", timeout=LIMIT_S)
    finally:
        running.kill()
        running.wait()
    assert running.returncode == 0, errors
    return [json.loads(line) for line in ("".join(before) + after).splitlines()]


ALL = [
    {"seen": 0, "assigned": 2},
    {"waits": True, "assigned": [1, 1]},
    {"seen": 0},
    {"read": 8, "offset": "2"},
    {"fenced": "INVALID_PRODUCER_EPOCH"},
]


@pytest.mark.spec("CLI-01", "CLI-04", "CLI-05", "CLI-07")
def test_group_and_transactions_outlive_the_broker(own_broker: Callable[..., RunningBroker], topic: str) -> None:
    broker = own_broker()
    broker.stays_where_it_is()

    def killed() -> None:
        broker.kill()
        broker.start()

    assert told(broker.bootstrap, topic, killed) == ALL


@pytest.mark.spec("CLI-06")
def test_with_tls_and_a_password(tmp_path: Path, topic: str) -> None:
    secured = Secured(tmp_path).start()
    login = {"CLIENT_CA": str(secured.authority.ca), "CLIENT_USER": USER, "CLIENT_PASSWORD": PASSWORD}
    try:
        assert told(secured.broker.listeners["SAFE"], topic, lambda: None, login) == ALL
    finally:
        assert secured.broker.stop() == 0
    assert "Traceback" not in secured.broker.log_text()
