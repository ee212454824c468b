"""Responses about the cluster, API versions, quotas and producer ids, and which requests are forwarded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.broker import turning
from tests.broker.api.asking import CLUSTER_ID, Asker, Peer
from tests.broker.controller.scene import Scene

from ballast_broker.api.api_versions import handle as api_versions
from ballast_broker.api.context import RequestContext
from ballast_broker.api.registry import BROKER_APIS
from ballast_broker.coordinator.group import Group
from ballast_broker.metadata.records import record
from ballast_broker.metadata.snapshot import quota_record
from ballast_wire.errors import ErrorCode


@pytest.fixture
def asker() -> Asker:
    scene = Scene((1, 2, 3))
    scene.add_topic("orders", [1])
    return Asker(scene)


@pytest.mark.spec("CLI-10")
@pytest.mark.parametrize("version", range(5))
async def test_versions_are_those_of_the_registry(asker: Asker, version: int) -> None:
    answer = await asker.ask("ApiVersions", version, client_software_name="a", client_software_version="1")
    told = {each["api_key"]: (each["min_version"], each["max_version"]) for each in answer["api_keys"]}
    assert told == {api.key: (api.lowest, api.highest) for api in BROKER_APIS.values()}


async def test_features_with_a_lowest_level_of_zero_are_for_new_clients(asker: Asker) -> None:
    names = {}
    for version in (3, 4):
        answer = await asker.ask("ApiVersions", version, client_software_name="a", client_software_version="1")
        names[version] = {each["name"] for each in answer["supported_features"]}
        finalized = {each["name"]: each["max_version_level"] for each in answer["finalized_features"]}
        assert finalized == {name: level for name, level in asker.scene.image.features.levels.items() if level}
        assert answer["finalized_features_epoch"] == asker.scene.image.offset
    assert names[3] == {"metadata.version"}
    assert names[4] == {
        "metadata.version",
        "kraft.version",
        "eligible.leader.replicas.version",
        "group.version",
        "transaction.version",
    }


@pytest.mark.spec("CLU-05")
async def test_a_quorum_that_can_be_changed_is_told_as_a_feature(asker: Asker) -> None:
    asker.services.kraft_version = lambda: 1
    answer = await asker.ask("ApiVersions", 4, client_software_name="a", client_software_version="1")
    finalized = {each["name"]: each["max_version_level"] for each in answer["finalized_features"]}
    assert finalized["kraft.version"] == 1


@pytest.mark.parametrize(("name", "software_version"), [("", "1"), ("a b", "1"), ("-a", "1"), ("a", ""), ("a", "1-")])
async def test_a_client_must_name_itself_properly(asker: Asker, name: str, software_version: str) -> None:
    answer = await asker.ask("ApiVersions", 4, client_software_name=name, client_software_version=software_version)
    assert answer["error_code"] == ErrorCode.INVALID_REQUEST
    assert answer["api_keys"] == []


async def test_a_version_of_the_future_learns_the_range(asker: Asker) -> None:
    context = RequestContext(asker.services, 18, 9, 1, "tests", Peer())
    answer = await api_versions(None, context)
    assert answer.version == 0
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert [(each.api_key, each.min_version, each.max_version) for each in answer.api_keys] == [(18, 0, 4)]


async def test_the_cluster_is_described(asker: Asker) -> None:
    asker.scene.change_broker(3, fenced=True)
    answer = await asker.ask("DescribeCluster", 2, endpoint_type=1, include_fenced_brokers=False)
    assert answer["cluster_id"] == CLUSTER_ID
    assert [each["broker_id"] for each in answer["brokers"]] == [1, 2]
    answer = await asker.ask("DescribeCluster", 2, endpoint_type=1, include_fenced_brokers=True)
    assert [(each["broker_id"], each["is_fenced"]) for each in answer["brokers"]] == [(1, False), (2, False), (3, True)]


@pytest.mark.parametrize(
    ("endpoint_type", "error"),
    [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (9, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)],
)
async def test_a_broker_does_not_describe_controllers(asker: Asker, endpoint_type: int, error: ErrorCode) -> None:
    answer = await asker.ask("DescribeCluster", 2, endpoint_type=endpoint_type)
    assert answer["error_code"] == error
    assert answer["controller_id"] == -1


def quota(**entity: str | None) -> dict[str, Any]:
    parts = [{"entity_type": kind.replace("_", "-"), "entity_name": name} for kind, name in entity.items()]
    return {"entity": parts, "ops": [{"key": "producer_byte_rate", "value": 1000.0, "remove": False}]}


async def matching(asker: Asker, *components: tuple[str, int, str | None], strict: bool = False) -> set[frozenset[Any]]:
    asked = [{"entity_type": kind, "match_type": match, "match": name} for kind, match, name in components]
    answer = await asker.ask("DescribeClientQuotas", 1, components=asked, strict=strict)
    assert answer["error_code"] == 0, answer
    return {
        frozenset((each["entity_type"], each["entity_name"]) for each in entry["entity"]) for entry in answer["entries"]
    }


async def test_quotas_are_found_by_filter(asker: Asker) -> None:
    entries = [quota(user="ann"), quota(user=None), quota(user="ann", client_id="app"), quota(client_id="app")]
    await asker.ask("AlterClientQuotas", 1, entries=entries, validate_only=False)
    ann, default = frozenset({("user", "ann")}), frozenset({("user", None)})
    both, app = frozenset({("user", "ann"), ("client-id", "app")}), frozenset({("client-id", "app")})
    assert await matching(asker) == {ann, default, both, app}
    assert await matching(asker, ("user", 0, "ann")) == {ann, both}
    assert await matching(asker, ("user", 0, "ann"), strict=True) == {ann}
    assert await matching(asker, ("user", 1, None)) == {default}
    assert await matching(asker, ("user", 2, None)) == {ann, default, both}
    assert await matching(asker, ("user", 2, None), ("client-id", 0, "app")) == {both}


@pytest.mark.parametrize(
    ("component", "error"),
    [
        (("", 0, "a"), ErrorCode.INVALID_REQUEST),
        (("user", 7, "a"), ErrorCode.INVALID_REQUEST),
        (("user", 0, None), ErrorCode.INVALID_REQUEST),
        (("user", 1, "a"), ErrorCode.INVALID_REQUEST),
        (("user", 2, "a"), ErrorCode.INVALID_REQUEST),
        (("planet", 0, "mars"), ErrorCode.UNSUPPORTED_VERSION),
    ],
)
async def test_filters_that_cannot_be(asker: Asker, component: Any, error: ErrorCode) -> None:
    asked = [dict(zip(("entity_type", "match_type", "match"), component, strict=True))]
    answer = await asker.ask("DescribeClientQuotas", 1, components=asked, strict=False)
    assert (answer["error_code"], answer["entries"]) == (error, None)


@pytest.mark.parametrize("version", range(6))
async def test_producer_ids_are_new_each_time(asker: Asker, version: int) -> None:
    answers = [
        await asker.ask("InitProducerId", version, transactional_id=None, transaction_timeout_ms=1) for _ in range(2)
    ]
    assert len({each["producer_id"] for each in answers}) == 2
    assert all((each["error_code"], each["producer_epoch"]) == (0, 0) for each in answers)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"transactional_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"transactional_id": None, "producer_id": 5}, ErrorCode.INVALID_REQUEST),
    ],
)
async def test_what_is_no_idempotent_producer_gets_no_id(asker: Asker, fields: Any, error: ErrorCode) -> None:
    answer = await asker.ask("InitProducerId", 5, transaction_timeout_ms=1, **fields)
    assert (answer["error_code"], answer["producer_id"], answer["producer_epoch"]) == (error, -1, -1)


@pytest.mark.spec("TOP-05")
@pytest.mark.parametrize("version", range(4))
async def test_the_controller_is_asked_in_the_clients_version(asker: Asker, version: int) -> None:
    topics = [{"name": "orders", "count": 3, "assignments": None}]
    answer = await asker.ask("CreatePartitions", version, topics=topics, timeout_ms=1, validate_only=False)
    assert answer["results"][0]["error_code"] == 0
    found = asker.scene.image.topics.by_name("orders")
    assert found is not None
    assert len(found.partitions) == 3


async def test_without_a_controller_each_entry_says_so(asker: Asker) -> None:
    asker.away = True
    topics = [{"name": name, "count": 3, "assignments": None} for name in ("orders", "other")]
    answer = await asker.ask("CreatePartitions", 3, topics=topics, timeout_ms=1, validate_only=False)
    assert [(each["name"], each["error_code"]) for each in answer["results"]] == [
        ("orders", ErrorCode.REQUEST_TIMED_OUT),
        ("other", ErrorCode.REQUEST_TIMED_OUT),
    ]


MANY = 40
KEPT = {"salt": b"s", "stored_key": b"k", "server_key": b"v", "iterations": 4096}


@pytest.mark.spec("CLI-09")
@pytest.mark.parametrize(
    ("name", "version", "fields"),
    [
        ("DescribeClientQuotas", 1, {"components": [], "strict": False}),
        ("DescribeUserScramCredentials", 0, {"users": None}),
        ("ListGroups", 5, {"states_filter": [], "types_filter": []}),
    ],
)
async def test_many_users_and_groups_are_told_of_in_turns(
    asker: Asker, monkeypatch: pytest.MonkeyPatch, name: str, version: int, fields: dict[str, Any]
) -> None:
    users = [f"user-{number}" for number in range(MANY)]
    asker.scene.apply([quota_record((("user", user),), "producer_byte_rate", 1.0) for user in users])
    asker.scene.apply([record("UserScramCredentialRecord", name=user, mechanism=1, **KEPT) for user in users])
    asker.services.groups = SimpleNamespace(list_groups=lambda: [Group(user) for user in users])
    turning.end_at_once(monkeypatch)
    told, turns = await turning.beside(asker.ask(name, version, **fields))
    assert turns >= MANY
    assert all(f"'{user}'" in str(told) for user in users)
