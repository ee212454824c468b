"""Requests to the active controller while it freezes, dies or changes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from tests.broker.raft.memory import LocalNetwork, LoopClock

from ballast_broker.api.forwarded import forward
from ballast_broker.controller.client import ControllerClient
from ballast_broker.controller.error_responses import error_response, is_not_controller
from ballast_broker.raft.voters import Endpoint
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message


def asker(network: LocalNetwork, leader: Any) -> ControllerClient:
    endpoints = {node_id: Endpoint(f"n{node_id}", 9093) for node_id in (1, 2)}
    return ControllerClient(
        node_id=3, leader=leader, local=None, endpoints=endpoints.get, network=network, clock=LoopClock(),
        call_timeout_s=30.0,
    )  # fmt: skip


def heartbeat() -> Any:
    return message("BrokerHeartbeatRequest")(
        broker_id=3, broker_epoch=1, current_metadata_offset=1, want_fence=False, want_shut_down=False
    )


async def never(*_: Any) -> Any:
    await asyncio.Event().wait()


async def at_once(*_: Any) -> Any:
    return message("BrokerHeartbeatResponse")(
        throttle_time_ms=0, error_code=0, is_caught_up=True, is_fenced=False, should_shut_down=False
    )


@pytest.mark.spec("CLU-02", "REP-13")
async def test_nobody_waits_for_a_frozen_controller_once_there_is_another_one() -> None:
    network = LocalNetwork()
    network.listen("n1", 9093, never)
    network.listen("n2", 9093, at_once)
    leader = SimpleNamespace(leader_id=1)
    client = asker(network, leader)
    asking = asyncio.ensure_future(client.call(heartbeat(), 1))
    while not network.calls:  # noqa: ASYNC110
        await asyncio.sleep(0)
    leader.leader_id = 2
    async with asyncio.timeout(10):
        assert (await asking).is_caught_up
    client.close()


@pytest.mark.spec("CLU-02", "TOP-05")
@pytest.mark.parametrize(
    ("api", "entries"),
    [
        ("CreateTopics", {"topics": [{"name": "orders", "num_partitions": 1, "replication_factor": 1}]}),
        ("DeleteTopics", {"topics": [{"name": "orders"}]}),
        ("CreateAcls", {"creations": [{"resource_type": 2, "resource_name": "orders", "operation": 3}]}),
        ("DeleteAcls", {"filters": [{"resource_type_filter": 2, "operation": 3, "permission_type": 3}]}),
        ("AlterConfigs", {"resources": [{"resource_type": 2, "resource_name": "orders"}]}),
        ("IncrementalAlterConfigs", {"resources": [{"resource_type": 2, "resource_name": "orders"}]}),
        ("CreatePartitions", {"topics": [{"name": "orders", "count": 2}]}),
        ("AlterClientQuotas", {"entries": [{}]}),
        ("AlterUserScramCredentials", {"deletions": [{"name": "alice", "mechanism": 1}]}),
    ],
)
def test_what_the_controller_of_before_refuses_is_asked_of_the_next_one(api: str, entries: dict[str, Any]) -> None:
    """If a response has no top-level error code, each of its entries has the error."""
    kind = message(api + "Request")
    request = kind(version=kind.valid_versions[1])
    for name, given in entries.items():
        entry = kind._struct.fields[name].data_class
        setattr(request, name, [entry(version=request.API_VERSION, **each) for each in given])
    refused = error_response(api, request, ApiError(ErrorCode.NOT_CONTROLLER))
    assert is_not_controller(refused)
    assert not is_not_controller(error_response(api, request, ApiError(ErrorCode.POLICY_VIOLATION)))


@pytest.mark.spec("CLU-02", "CLU-13")
async def test_an_election_of_the_first_version_is_asked_of_the_next_controller_as_well() -> None:
    """Its response has an error per partition named in the request, and a request for all partitions names none."""
    network, asked = LocalNetwork(), []

    async def controller(_key: int, _version: int, request: Any, _origin: Any) -> Any:
        asked.append(request)
        if len(asked) == 1:
            return error_response("ElectLeaders", request, ApiError(ErrorCode.NOT_CONTROLLER))
        return message("ElectLeadersResponse")(throttle_time_ms=0, error_code=0, replica_election_results=[])

    network.listen("n1", 9093, controller)
    client = asker(network, SimpleNamespace(leader_id=1))
    kind = message("ElectLeadersRequest")
    request = kind.decode(bytes(kind(topic_partitions=None, timeout_ms=1000).encode(version=0)), version=0)
    broker = SimpleNamespace(controller=client, config=SimpleNamespace(request_timeout_ms=30_000))
    context: Any = SimpleNamespace(version=0, api_key=43, broker=broker, asker_to_tell=None)
    response = await forward(request, context)
    assert len(asked) == 2
    assert response.version == 0, "it is encoded as what it says to be"
    client.close()


async def test_where_nobody_answers_in_time_it_is_a_refusal() -> None:
    network = LocalNetwork()
    network.listen("n1", 9093, never)
    client = asker(network, SimpleNamespace(leader_id=1))
    with pytest.raises(ApiError) as refusal:
        await client.call(heartbeat(), 1, timeout_s=0.05)
    assert refusal.value.code is ErrorCode.REQUEST_TIMED_OUT
    client.close()


@pytest.mark.spec("CLU-02")
async def test_a_controller_in_this_process_that_cannot_commit_is_not_waited_for() -> None:
    """As when the other voters were stopped first: a broker that shuts down must not wait for its own controller."""

    class Stuck:
        async def handle(self, api_key: int, version: int, request: Any, context: Any = None, asker: Any = None) -> Any:
            await asyncio.get_running_loop().create_future()

    loop = asyncio.get_running_loop()
    client = ControllerClient(
        node_id=1,
        leader=SimpleNamespace(leader_id=1),
        local=Stuck(),
        endpoints=lambda _: None,
        network=LocalNetwork(),
        clock=SimpleNamespace(monotonic=loop.time, wall_ms=lambda: 0),
        call_timeout_s=0.05,
    )
    with pytest.raises(ApiError) as refused:
        await client.call(message("BrokerHeartbeatRequest")(broker_id=1, broker_epoch=1), 1)
    assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT
    client.close()
