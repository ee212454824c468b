"""`./ballast up` again, with other numbers: what is there stays but for these."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from tests.local.conftest import APPLY, DEFINITIONS, Running
from tests.waiting import eventually

from ballast_cli import demo_prometheus, up
from ballast_cli.places import ROOT
from ballast_cli.up import Stack, _serving, changed_cluster, example_cluster

CLUSTERS = "/apis/ballast.dev/v1alpha1/namespaces/default/kafkaclusters"


@pytest.mark.spec("OPR-40")
def test_a_number_that_is_not_asked_for_stays(tmp_path: Path) -> None:
    """Started with five volumes, a cluster does not give two of them up because it is to get a broker."""
    running = Running(tmp_path)
    try:
        api = running.api()
        api.post(DEFINITIONS, yaml.safe_load((ROOT / "crds" / "kafkaclusters.yaml").read_text()))

        def apply(body: dict[str, Any]) -> Any:
            return api.patch(f"{CLUSTERS}/demo?fieldManager=ballast&force=true", body, APPLY)

        apply(example_cluster(None, 5))
        found = api.patch(f"{CLUSTERS}/demo", {"spec": {"config": {"num.io.threads": "3"}}})
        names = [f"disk-{index}" for index in range(5)]
        found = apply(changed_cluster(found, 4, None))
        assert found["spec"]["brokers"] == 4
        assert [one["name"] for one in found["spec"]["volumes"]] == names
        found["spec"]["volumes"][0]["size"] = "20Gi"
        found = apply(changed_cluster(found, None, 6))
        assert found["spec"]["brokers"] == 4
        assert [one["name"] for one in found["spec"]["volumes"]] == [*names, "disk-5"]
        assert [one["size"] for one in found["spec"]["volumes"]][:2] == ["20Gi", "10Gi"]
        found = apply(changed_cluster(found, 5, 2))
        assert [one["name"] for one in found["spec"]["volumes"]] == names[:2]
        assert found["spec"]["config"] == {"num.io.threads": "3"}
    finally:
        running.close()


@pytest.mark.spec("OPR-40")
@pytest.mark.parametrize("asks", [{"tls": {"secretName": "own"}}, {"authentication": {"type": "SCRAM-SHA-512"}}])
async def test_a_cluster_that_asks_who_one_is_can_be_started_again(asks: dict[str, Any]) -> None:
    """Nobody here has a name there: that its brokers take connections has to do, or it would be stopped again."""
    with socket.create_server(("127.0.0.1", 0)) as there, socket.create_server(("127.0.0.1", 0)) as gone:
        both = [f"127.0.0.1:{one.getsockname()[1]}" for one in (there, gone)]
        listener = {"name": "CLIENTS", "port": 9092, **asks}
        body = {"spec": {"brokers": 2, "listeners": [listener]}, "status": {"bootstrapServers": ",".join(both)}}
        assert await _serving(body)
        gone.close()
        assert not await _serving(body)


class Ending(asyncio.subprocess.Process):
    """Ends when the test says so, and not before."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @property
    def returncode(self) -> int | None:
        return self.ended.result() if self.ended.done() else None

    def terminate(self) -> None:
        pass

    async def wait(self) -> int:
        return await self.ended


async def test_who_is_cancelled_as_the_operator_ends_is_cancelled(tmp_path: Path) -> None:
    """Whoever cancelled would wait for an end that does not come."""
    stack, operator = Stack(tmp_path), Ending()
    stack._operator = operator
    stopping = asyncio.create_task(stack.stop())
    await asyncio.sleep(0.01)
    operator.ended.set_result(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping


@pytest.mark.parametrize(("code", "how"), [(-signal.SIGKILL, "was killed by SIGKILL"), (1, "has exited")])
async def test_an_operator_that_was_killed_is_told_by_what(
    code: int, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log has nothing of that."""

    async def never() -> None:
        await asyncio.Event().wait()

    stack, operator = Stack(tmp_path), Ending()
    stack._operator = operator
    monkeypatch.setattr(stack._local, "failed", never)
    operator.ended.set_result(code)
    assert await stack.ended() == f"the operator {how}; see {tmp_path}/operator.log"


async def test_a_prometheus_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, noted = tmp_path / "bin" / "prometheus", tmp_path / "pid"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntrap '' TERM\necho $$ > {noted}.new && mv {noted}.new {noted}\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setattr(demo_prometheus, "STOP_SECONDS", 0.2)

    async def no_pods(*_: object) -> AsyncIterator[dict[str, Any]]:
        for pod in list[dict[str, Any]]():
            yield pod

    stack = Stack(tmp_path)
    stack.api = SimpleNamespace(items=no_pods)
    async with demo_prometheus.scraping(stack, "demo"):
        await asyncio.to_thread(eventually, noted.exists)
    with pytest.raises(ProcessLookupError):
        os.kill(int(noted.read_text()), 0)


SCRAPING = """
import asyncio, sys
from pathlib import Path
from types import SimpleNamespace
from ballast_cli import demo_prometheus, up
from ballast_cli.up import Stack

async def no_pods(*_):
    for pod in ():
        yield pod

async def main():
    stack = Stack(Path(sys.argv[1]))
    stack.api = SimpleNamespace(items=no_pods)
    async with demo_prometheus.scraping(stack, "demo"):
        await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.timeout(120)
def test_a_demo_that_is_killed_takes_its_prometheus_along(tmp_path: Path) -> None:
    program, pipe = tmp_path / "bin" / "prometheus", tmp_path / "pipe"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nexec sleep 600 > {pipe}\n")
    program.chmod(0o755)
    os.mkfifo(pipe)
    paths = os.pathsep.join(str(ROOT / part) for part in ("operator", "spark", "broker-image"))
    environment = {**os.environ, "PYTHONPATH": paths, "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}
    demo = subprocess.Popen([sys.executable, "-c", SCRAPING, str(tmp_path)], env=environment)
    with demo, pipe.open("rb") as held:  # when somebody has it open for writing
        demo.kill()
        assert held.read() == b"", "nobody has it open any more"


class Bare(Stack):
    """A stack of nothing, which is sent a signal as it starts, as by somebody who presses Ctrl-C early, or later."""

    def __init__(self, data: Path, early: signal.Signals | None = None) -> None:
        super().__init__(data)
        self._early = early

    async def start(self) -> None:
        if self._early is not None:
            os.kill(os.getpid(), self._early)

    async def stop(self, gently: bool = True) -> None:
        pass

    async def ended(self) -> str:
        return await asyncio.Event().wait() and ""

    async def get(self, plural: str, name: str) -> dict[str, Any] | None:
        return None

    async def apply(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_cluster_that_is_stopped_before_it_is_ready_is_no_success(
    number: signal.Signals, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`./ballast up && ...` goes on only after one that had been there."""

    async def ready(stack: Stack, began: float) -> bool:
        os.kill(os.getpid(), number)
        return True

    monkeypatch.setattr(up, "require_ports", lambda cluster: None)
    assert asyncio.run(up._run(Bare(tmp_path, number), None, None)) == code
    monkeypatch.setattr(up, "_up", ready)
    assert asyncio.run(up._run(Bare(tmp_path), None, None)) == 0
