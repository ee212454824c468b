"""Whose request time counts for a client that has not logged in, or claims to be a broker: real connections, a real
dispatcher."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from tests.broker.api.asking import Asker
from tests.broker.api.test_permissions import allow, knowing
from tests.broker.controller.scene import Scene
from tests.broker.net.serving import Client, Serving
from tests.broker.net.test_sasl import PASSWORD, access, plainly, say, shake

from ballast_broker.api.authorizer import Operation, ResourceKind
from ballast_broker.api.client_quotas import REQUESTS
from ballast_broker.api.dispatch import Dispatcher
from ballast_broker.api.registry import BROKER_APIS
from ballast_broker.metadata.acls import Acl
from ballast_broker.metadata.image import ClientQuotasImage
from ballast_broker.metrics.requests import RequestMetrics

ONE_WINDOW_MS = 1000
EVERYTHING = 1e-7  # percent: any request is too much
AS_A_REPLICA = {"replica_id": 2, "isolation_level": 0, "topics": []}


def dispatcher(*acls: Acl) -> Dispatcher:
    """That of a broker where the time of every client id is limited."""
    asker = Asker(Scene(), authorizer=knowing(*acls))
    delta: Any = None
    image: Any = SimpleNamespace(client_quotas=ClientQuotasImage({(("client-id", None),): {REQUESTS: EVERYTHING}}))
    asker.services.client_quotas.publish(delta, image)
    return Dispatcher(asker.services, BROKER_APIS, RequestMetrics(), time.monotonic)


async def told_ms(client: Client) -> int:
    return int((await say(client, "ApiVersions", 2)).throttle_time_ms)


@pytest.mark.spec("CLI-11")
async def test_who_has_not_logged_in_uses_nobodys_time() -> None:
    """A stranger chooses a client id as he likes, and those who may use it would wait for him."""
    async with Serving(dispatcher().dispatch, access=access()) as serving:
        stranger = await serving.connect()
        assert [await told_ms(stranger) for _ in range(3)] == [0, 0, 0]
        one = await serving.connect()
        assert await told_ms(one) == 0
        await shake(one, "PLAIN")
        assert (await plainly(one, "alice", PASSWORD)).error_code == 0
        assert await told_ms(one) == ONE_WINDOW_MS


@pytest.mark.spec("CLI-11")
@pytest.mark.parametrize("is_broker", [True, False])
async def test_only_a_broker_is_exempt_as_one(is_broker: bool) -> None:
    """A client may call itself a replica: without the right of one it is told like all others."""
    rights = [allow(ResourceKind.CLUSTER, "kafka-cluster", Operation.CLUSTER_ACTION)] if is_broker else []
    async with Serving(dispatcher(*rights).dispatch) as serving:
        one = await serving.connect()
        answer = await say(one, "ListOffsets", 7, **AS_A_REPLICA)
        assert answer.throttle_time_ms == (0 if is_broker else ONE_WINDOW_MS)
