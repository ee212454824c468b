"""What a plan is made of has to be known: it is waited for, and not guessed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest
from tests.operator.making import reassignment, topic_view, view
from tests.operator.test_left_behind import CLUSTER, NOBODY, Told, shared_by

from ballast_operator.apply.kubernetes import KubernetesApi
from ballast_operator.apply.writer import Writer
from ballast_operator.cache import Cache
from ballast_operator.handlers import plans as plans_module
from ballast_operator.handlers.plans import Case, Plans
from ballast_operator.kafka_client import KafkaConnection
from ballast_operator.model.kafka import KafkaView, LogView
from ballast_operator.model.reassignment import Phase


@pytest.mark.spec("OPR-08", "OPR-43")
@pytest.mark.parametrize(("broker", "phase"), [(1, Phase.PLANNING), (7, Phase.FAILED)])
def test_a_directory_of_a_broker_that_just_restarts_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, broker: int, phase: Phase
) -> None:
    """The plan failed for good, and with it the removal of a volume that came together with another change."""

    async def whole(*_: Any) -> KafkaView:
        return view({"orders": topic_view((0,))}, {("orders", 0, 0): LogView("/a", 1)}, offline=[1])

    async def scenario() -> None:
        monkeypatch.setattr(plans_module, "observe_whole", whole)
        case = Case(reassignment(drainDirectories=[{"broker": broker, "directory": "/a"}]))
        await Plans(CLUSTER, shared_by(Cache(), Told())).make([case], await whole(), cast(KafkaConnection, None))
        assert case.step is not None
        assert (case.plan, case.step.phase) == (None, phase)

    asyncio.run(scenario())


class Maps(KubernetesApi):
    """ConfigMaps, and which of them were written."""

    def __init__(self) -> None:
        super().__init__(NOBODY)
        self.kept: dict[str, dict[str, Any]] = {}
        self.written: list[str] = []

    async def find(self, path: str) -> dict[str, Any] | None:
        return self.kept.get(path)

    async def apply(self, path: str, body: Mapping[str, Any], manager: str = "") -> dict[str, Any]:
        self.written.append(path)
        self.kept[path] = dict(body)
        return self.kept[path]


@pytest.mark.spec("OPR-04", "OPR-33")
async def test_a_plan_that_is_kept_and_was_not_told_is_not_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators that were killed at each write came no further than this one for as long as that went on."""
    api, size = Maps(), 10

    async def whole(*_: Any) -> KafkaView:
        return view({"orders": topic_view((0,))}, {("orders", 0, 0): LogView("/a", size)})

    monkeypatch.setattr(plans_module, "observe_whole", whole)

    async def told_by_another_operator(uid: str = "uid-drain") -> Case:
        cache = Cache()
        case = Case(reassignment("drain", drainBrokers=[0], meta={"uid": uid}))
        shared = shared_by(cache, Writer(api, cache), api)
        await Plans(CLUSTER, shared).make([case], await whole(), cast(KafkaConnection, None))
        assert case.plan is not None
        assert case.status.plan is not None
        assert case.status.plan.hash == case.plan.hash
        assert case.status.plan.bytes == case.plan.bytes
        return case

    first = await told_by_another_operator()
    (path,) = api.written
    size = 20  # producers go on
    second = await told_by_another_operator()
    assert api.written == [path]
    assert second.plan == first.plan, "what is kept is what is told"
    assert second.status.plan is not None
    assert first.status.plan is not None
    assert second.status.plan.config_maps == first.status.plan.config_maps

    await told_by_another_operator("uid-of-a-later-one")
    assert api.written == [path] * 2, "that of a Reassignment that was goes with it"
    for data in ({}, {"plan.json.gz": "AAAA"}):
        api.kept[path]["binaryData"] = data
        await told_by_another_operator("uid-of-a-later-one")
    assert api.written == [path] * 4
