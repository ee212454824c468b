"""Requests about thousands of things are decoded, and their responses encoded, over several turns of the event loop."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.broker import turning
from tests.broker.api.asking import Peer
from tests.broker.api.producing import Producing
from tests.broker.replication.cluster import Cluster

from ballast_broker.api.client_quotas import ClientQuotas
from ballast_broker.api.context import RequestContext
from ballast_broker.api.dispatch import MOST_BYTES, Dispatcher
from ballast_broker.api.produce import Produce
from ballast_broker.api.registry import BROKER_APIS
from ballast_broker.metrics.requests import RequestMetrics
from ballast_broker.net_reply import Pending
from ballast_broker.real_world import RealClock
from ballast_wire.errors import ErrorCode
from ballast_wire.fast.reader import MOST_ENTRIES, MalformedRequest
from ballast_wire.messages import message

pytestmark = pytest.mark.spec("CLI-09")

VERSION = 5
NAMES = [f"group-{number:04}" for number in range(4000)]
Request, Response = message("DescribeGroupsRequest"), message("DescribeGroupsResponse")


async def describe(request: Any, _: RequestContext) -> Any:
    assert request._header is None
    groups = [
        Response.DescribedGroup(group_id=each, error_code=ErrorCode.GROUP_ID_NOT_FOUND if number % 2 else 0)
        for number, each in enumerate(request.groups)
    ]
    return Response(groups=groups)


@asynccontextmanager
async def listening(tmp_path: Path) -> AsyncIterator[Scene]:
    async with Cluster(tmp_path) as cluster:
        [node] = await cluster.add(1)
        yield Scene(Producing(cluster, node).produce)


class Scene:
    """A listener for clients; without `produce`, a controller's."""

    def __init__(self, produce: Produce | None) -> None:
        self.metrics = RequestMetrics()
        broker: Any = SimpleNamespace(client_quotas=ClientQuotas(RealClock()))
        self._dispatcher = Dispatcher(
            broker, BROKER_APIS, self.metrics, lambda: 0.0, produce=produce, handlers=lambda _: describe
        )

    async def ask(self, names: list[str], *, cut: int = 0) -> Any:
        body = bytes(Request(groups=names, include_authorized_operations=False).encode(version=VERSION))
        frame = bytearray(struct.pack(">hhih", Request.API_KEY, VERSION, 7, -1) + b"\0" + body[: len(body) - cut])
        peer: Any = Peer()
        reply = self._dispatcher.dispatch(peer, memoryview(frame))
        assert type(reply) is Pending
        frame[:] = bytes(len(frame))  # the connection reads the next one to the same place
        [answer] = await reply.future
        return Response.decode(bytes(answer)[9:], version=VERSION)


async def test_thousands_are_read_and_answered_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening(tmp_path) as scene:
        turning.end_at_once(monkeypatch)
        answer, turns = await turning.beside(scene.ask(NAMES))
        assert turns > 2 * len(NAMES) / 100
        assert [each.group_id for each in answer.groups] == NAMES
        assert sum(each.error_code != 0 for each in answer.groups) == len(NAMES) / 2
        assert scene.metrics.errors["DescribeGroups", "GROUP_ID_NOT_FOUND"] == len(NAMES) / 2
        few, turns = await turning.beside(scene.ask(NAMES[:3]))
        assert [each.group_id for each in few.groups] == NAMES[:3]
        assert turns < 10, "few are not"


async def test_what_is_refused_ends_the_connection_however_much_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with listening(tmp_path) as scene:
        turning.end_at_once(monkeypatch)
        with pytest.raises(MalformedRequest, match="DescribeGroups version 5 cannot be read"):
            await scene.ask(NAMES, cut=2000)
        with pytest.raises(MalformedRequest, match=f"names more than {MOST_ENTRIES} things"):
            await scene.ask(["g"] * (MOST_ENTRIES + 1))
        with pytest.raises(MalformedRequest, match=r"DescribeGroups version 5 of \d+ bytes"):
            await scene.ask(["n" * 30_000] * (MOST_BYTES // 30_000 + 1))


async def test_a_controller_reads_as_many_things_as_a_broker_and_all_that_a_broker_forwards() -> None:
    controller, just_too_long_for_a_broker = Scene(None), ["n" * 30_000] * (MOST_BYTES // 30_000 + 1)
    answer = await controller.ask(just_too_long_for_a_broker)
    assert [each.group_id for each in answer.groups] == just_too_long_for_a_broker
    with pytest.raises(MalformedRequest, match=r"DescribeGroups version 5 of \d+ bytes"):
        await controller.ask(just_too_long_for_a_broker * 2)
    with pytest.raises(MalformedRequest, match=f"names more than {MOST_ENTRIES} things"):
        await controller.ask(["g"] * (MOST_ENTRIES + 1))
