"""The controller mutation quota, enforced strictly or by throttling afterwards, depending on the request version."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.broker.controller.scene import Scene
from tests.broker.controller.test_client import asker as client_of
from tests.broker.raft.memory import LocalNetwork
from tests.broker.seams import TurnedClock

from ballast_broker.controller.commands.mutations import STRICT_SINCE, MutationQuota
from ballast_broker.controller.commands.partitions import create_partitions
from ballast_broker.controller.commands.topics import create_topics, delete_topics
from ballast_broker.rates import TokenBucket
from ballast_wire.envelope import Enclosed, Requester, disclose, enclose_answer, refusal
from ballast_wire.errors import ErrorCode
from ballast_wire.messages import message
from ballast_wire.names import ZERO_UUID

OVER = ErrorCode.THROTTLING_QUOTA_EXCEEDED
ANN = Requester("ann", "app", "/10.0.0.1")


class Case:
    """A token bucket of 10 partitions, refilled at one per second."""

    def __init__(self) -> None:
        self.clock = TurnedClock()
        self.scene = Scene()
        self.bucket = TokenBucket(self.clock, 1.0, 10.0)

    def run(self, command: Any, request: Any, *, strict: bool = True) -> tuple[dict[str, ErrorCode], int]:
        """The error of each topic, and the throttle time."""
        quota = MutationQuota(self.bucket, strict=strict)
        outcome = command(replace(self.scene.context, mutations=quota), request)
        response = self.scene.commit(outcome)
        rows = next(getattr(response, each) for each in ("topics", "results", "responses") if hasattr(response, each))
        return {each.name: ErrorCode(each.error_code) for each in rows}, quota.throttle_ms

    def create(self, *, validate_only: bool = False, strict: bool = True, **partitions: int) -> Any:
        kind = message("CreateTopicsRequest")
        topics = [
            kind.CreatableTopic(name=name, num_partitions=count, replication_factor=1, assignments=[], configs=[])
            for name, count in partitions.items()
        ]
        return self.run(create_topics, kind(topics=topics, timeout_ms=1, validate_only=validate_only), strict=strict)

    def expand(self, **counts: int) -> Any:
        kind = message("CreatePartitionsRequest")
        wanted = kind.CreatePartitionsTopic
        topics = [wanted(name=name, count=count, assignments=None) for name, count in counts.items()]
        return self.run(create_partitions, kind(topics=topics, timeout_ms=1, validate_only=False))

    def delete(self, *names: str, strict: bool = True) -> Any:
        kind = message("DeleteTopicsRequest")
        topics = [kind.DeleteTopicState(name=name, topic_id=ZERO_UUID) for name in names]
        return self.run(delete_topics, kind(topics=topics, timeout_ms=1), strict=strict)


@pytest.mark.spec("CLI-11")
def test_who_has_no_debt_may_make_one_and_then_is_refused_until_it_is_paid() -> None:
    case = Case()
    assert case.create(a=4, b=8) == ({"a": ErrorCode.NONE, "b": ErrorCode.NONE}, 0)
    assert case.create(c=1) == ({"c": OVER}, 2000)
    assert case.scene.image.topics.by_name("c") is None
    case.clock.now += 2.0
    assert case.create(c=1, d=1) == ({"c": ErrorCode.NONE, "d": OVER}, 1000)


@pytest.mark.spec("CLI-11")
def test_what_is_refused_for_another_reason_costs_nothing() -> None:
    case = Case()
    case.create(a=1)
    answers, _ = case.create(a=9, **dict[str, Any]({"not a name": 9}))
    assert set(answers.values()) == {ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.INVALID_TOPIC_EXCEPTION}
    assert case.create(b=9)[1] == 0
    assert not case.bucket.exceeded()


@pytest.mark.spec("CLI-11")
def test_what_is_only_tried_counts_as_well() -> None:
    case = Case()
    assert case.create(validate_only=True, a=12)[0] == {"a": ErrorCode.NONE}
    assert case.create(b=1) == ({"b": OVER}, 2000)


@pytest.mark.spec("CLI-11")
def test_partitions_that_are_added_and_topics_that_are_deleted_count_too() -> None:
    case = Case()
    case.scene.add_topic("t", [1], [2])
    case.scene.add_topic("u", [1])
    assert case.expand(t=13) == ({"t": ErrorCode.NONE}, 0)  # 11 more
    assert case.expand(u=2) == ({"u": OVER}, 1000)
    assert case.delete("u") == ({"u": OVER}, 1000)
    assert case.scene.image.topics.by_name("u") is not None
    case.clock.now += 1.0
    assert case.delete("t", "u", "none") == (
        {"t": ErrorCode.NONE, "u": OVER, "none": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
        13_000,
    )


@pytest.mark.spec("CLI-11")
def test_old_versions_are_carried_out_and_told() -> None:
    case = Case()
    assert case.create(strict=False, a=12) == ({"a": ErrorCode.NONE}, 2000)
    assert case.delete("a", strict=False) == ({"a": ErrorCode.NONE}, 14_000)


def test_a_wait_of_years_can_be_told() -> None:
    case = Case()
    case.bucket = TokenBucket(case.clock, 1e-9, 1.0)
    case.create(a=4)
    assert case.create(b=1) == ({"b": OVER}, 2**31 - 1)


def test_since_when_it_is_strict() -> None:
    assert STRICT_SINCE == {19: 6, 20: 5, 37: 3}


class Controller:
    """The controller's end of a connection: it answers requests in envelopes, and notes who sent them.

    One of an earlier release does not know envelopes, and closes the connection as for all unknown requests."""

    def __init__(self, *errors: ErrorCode, knows_envelopes: bool = True) -> None:
        self.asked: list[Enclosed | str] = []
        self.versions_asked = 0
        self._errors = list(errors)
        self._knows_envelopes = knows_envelopes

    async def __call__(self, api_key: int, version: int, request: Any, origin: Any) -> Any:
        del origin
        if api_key == 18 and version >= 3:  # earlier releases do not answer lower versions
            self.versions_asked += 1
            return versions_of(19, *([58] if self._knows_envelopes else []))
        if api_key == 58 and not self._knows_envelopes:
            raise ConnectionResetError
        if api_key != 58:
            self.asked.append(type(request).__name__)
            return message("CreateTopicsResponse")(topics=[], throttle_time_ms=0)
        found = disclose(request, {19: "CreateTopics"})
        self.asked.append(found)
        error = self._errors.pop(0) if self._errors else ErrorCode.NONE
        if error is not ErrorCode.NONE:
            return refusal(error)
        return enclose_answer(found, message("CreateTopicsResponse")(topics=[], throttle_time_ms=5))


def versions_of(*keys: int) -> Any:
    kind = message("ApiVersionsResponse")
    entries = [kind.ApiVersion(version=3, api_key=key, min_version=0, max_version=7) for key in keys]
    return kind(version=3, error_code=0, api_keys=entries)


def creation() -> Any:
    kind = message("CreateTopicsRequest")
    topic = kind.CreatableTopic(name="t", num_partitions=1, replication_factor=1, assignments=[], configs=[])
    return kind(topics=[topic], timeout_ms=1, validate_only=False)


@pytest.mark.spec("CLI-11")
async def test_a_controller_elsewhere_learns_who_asks_where_it_has_to() -> None:
    network, controller = LocalNetwork(), Controller(ErrorCode.NOT_CONTROLLER)
    network.listen("n1", 9093, controller)
    client = client_of(network, type("Leader", (), {"leader_id": 1})())
    response = await client.call(creation(), 7, asker=ANN)
    assert response.throttle_time_ms == 5
    first, again = controller.asked
    assert isinstance(again, Enclosed)
    assert (again.asker, again.version) == (ANN, 7)
    assert isinstance(first, Enclosed)
    assert (await client.call(creation(), 7)).throttle_time_ms == 0
    assert controller.asked[2:] == ["CreateTopicsRequest"]
    client.close()


async def test_a_controller_that_takes_no_envelopes_is_no_fault_of_who_asks() -> None:
    network = LocalNetwork()
    network.listen("n1", 9093, Controller(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    client = client_of(network, type("Leader", (), {"leader_id": 1})())
    (answer,) = (await client.call(creation(), 7, asker=ANN)).topics
    assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    client.close()


@pytest.mark.spec("CLI-11", "CLU-03")
async def test_while_the_controller_is_of_a_release_before_it_is_asked_without_an_envelope() -> None:
    """When a newer release answers there, it gets envelopes: what one connection has told holds for that one only."""
    network, before, after = LocalNetwork(), Controller(knows_envelopes=False), Controller()
    network.listen("n1", 9093, before)
    client = client_of(network, type("Leader", (), {"leader_id": 1})())
    for _ in range(2):
        await client.call(creation(), 7, asker=ANN, timeout_s=5.0)
    assert before.asked == ["CreateTopicsRequest"] * 2
    assert before.versions_asked == 1
    network.stop_listening("n1", 9093)
    network.listen("n1", 9093, after)
    for _ in range(2):
        await client.call(creation(), 7, asker=ANN, timeout_s=5.0)
    assert [each.asker for each in after.asked if isinstance(each, Enclosed)] == [ANN, ANN]
    assert after.versions_asked == 1
    network.stop_listening("n1", 9093)
    network.listen("n1", 9093, before)
    await client.call(creation(), 7, asker=ANN, timeout_s=5.0)
    assert before.asked == ["CreateTopicsRequest"] * 3
    assert network.calls.count("Envelope") == 2
    client.close()


@pytest.mark.spec("CLI-11")
async def test_a_controller_that_cannot_say_what_it_takes_is_asked_again_at_the_next_request() -> None:
    network, controller, refusals = LocalNetwork(), Controller(), [ErrorCode.UNKNOWN_SERVER_ERROR]

    async def answer(api_key: int, version: int, request: Any, origin: Any) -> Any:
        if api_key == 18 and refusals:
            return message("ApiVersionsResponse")(version=3, error_code=refusals.pop(), api_keys=[])
        return await controller(api_key, version, request, origin)

    network.listen("n1", 9093, answer)
    client = client_of(network, type("Leader", (), {"leader_id": 1})())
    for _ in range(2):
        await client.call(creation(), 7, asker=ANN, timeout_s=5.0)
    client.close()
    assert [type(each) for each in controller.asked] == [str, Enclosed]
