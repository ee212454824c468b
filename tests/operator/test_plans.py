"""What a plan is made of has to be known: it is waited for, and not guessed."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from tests.operator.making import reassignment, topic_view, view
from tests.operator.test_left_behind import CLUSTER, Told, shared_by

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
