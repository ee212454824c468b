"""DescribeConfigs and both APIs to alter configs, with the controller's real commands behind them."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from tests.broker import turning
from tests.broker.api.asking import Asker
from tests.broker.controller.scene import Scene

from ballast_wire.errors import ErrorCode

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
FROM_TOPIC, FROM_BROKER, FROM_ALL_BROKERS, FROM_FILE, FROM_DEFAULT = 1, 2, 3, 4, 5


@pytest.fixture
def asker() -> Asker:
    scene = Scene((1, 2))
    scene.add_topic("orders", [1])
    return Asker(scene, **{"log.segment.bytes": "2000000"})


async def described(asker: Asker, resource_type: int, name: str, version: int = 4) -> dict[str, Any]:
    resource = {"resource_type": resource_type, "resource_name": name, "configuration_keys": None}
    answer = await asker.ask("DescribeConfigs", version, resources=[resource], include_synonyms=True)
    assert answer["results"][0]["error_code"] == 0, answer
    return {each["name"]: each for each in answer["results"][0]["configs"]}


async def altered(
    asker: Asker, resource_type: int, name: str, *changes: tuple[str, int, str | None]
) -> tuple[int, Any]:
    configs = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in changes]
    resource = {"resource_type": resource_type, "resource_name": name, "configs": configs}
    answer = await asker.ask("IncrementalAlterConfigs", 1, resources=[resource], validate_only=False)
    return answer["responses"][0]["error_code"], answer["responses"][0]["error_message"]


def sources(config: dict[str, Any]) -> list[tuple[str, str, int]]:
    return [(each["name"], each["value"], each["source"]) for each in config["synonyms"]]


@pytest.mark.spec("TOP-23")
async def test_a_topic_config_has_the_strongest_source_of_five(asker: Asker) -> None:
    name = "segment.bytes"
    levels = [("log.segment.bytes", "2000000", FROM_FILE), ("log.segment.bytes", "1073741824", FROM_DEFAULT)]
    assert sources((await described(asker, TOPIC, "orders"))[name]) == levels
    await altered(asker, BROKER, "", ("log.segment.bytes", SET, "3000000"))
    await altered(asker, BROKER, "1", ("log.segment.bytes", SET, "4000000"))
    await altered(asker, TOPIC, "orders", (name, SET, "5000000"))
    found = (await described(asker, TOPIC, "orders"))[name]
    assert (found["value"], found["config_source"]) == ("5000000", FROM_TOPIC)
    assert sources(found) == [
        (name, "5000000", FROM_TOPIC),
        ("log.segment.bytes", "4000000", FROM_BROKER),
        ("log.segment.bytes", "3000000", FROM_ALL_BROKERS),
        *levels,
    ]
    for undone, value, source in (("5", "4000000", FROM_BROKER), ("4", "3000000", FROM_ALL_BROKERS)):
        resource = (TOPIC, "orders", name) if undone == "5" else (BROKER, "1", "log.segment.bytes")
        assert await altered(asker, *resource[:2], (resource[2], DELETE, None)) == (0, None)
        found = (await described(asker, TOPIC, "orders"))[name]
        assert (found["value"], found["config_source"]) == (value, source)


@pytest.mark.spec("TOP-23", "CLI-10")
async def test_a_value_is_described_as_it_is_understood(asker: Asker) -> None:
    written = [
        ("retention.ms", " +7000000 ", "7000000"),
        ("unclean.leader.election.enable", "TRUE", "true"),
        ("min.cleanable.dirty.ratio", "0.50", "0.5"),
        ("cleanup.policy", " delete , compact", "delete,compact"),
    ]
    assert await altered(asker, TOPIC, "orders", *((name, SET, text) for name, text, _ in written)) == (0, None)
    found = await described(asker, TOPIC, "orders")
    for name, _, understood in written:
        assert (found[name]["value"], found[name]["synonyms"][0]["value"]) == (understood, understood)
    assert await altered(asker, BROKER, "1", ("log.cleaner.min.cleanable.ratio", SET, " 0.70")) == (0, None)
    of_broker = (await described(asker, BROKER, "1"))["log.cleaner.min.cleanable.ratio"]
    assert (of_broker["value"], of_broker["synonyms"][0]["value"]) == ("0.7", " 0.70")


@pytest.mark.spec("TOP-23")
@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("cleanup.policy", "delete,,compact", "String must be one of: compact, delete"),
        ("cleanup.policy", "delete,", "String must be one of: compact, delete"),
        ("retention.ms", "7_000", "Not a number of type LONG"),
        ("segment.bytes", "1_000_000_000", "Not a number of type INT"),
        ("min.cleanable.dirty.ratio", "0.5_5", "Not a number of type DOUBLE"),
    ],
)
async def test_what_apache_kafka_would_not_read_is_not_stored(
    asker: Asker, name: str, text: str, complaint: str
) -> None:
    error, says = await altered(asker, TOPIC, "orders", (name, SET, text))
    assert error == ErrorCode.INVALID_CONFIG
    assert says.endswith(complaint)


async def test_a_value_in_hours_counts_for_one_in_milliseconds(asker: Asker) -> None:
    found = (await described(asker, TOPIC, "orders"))["retention.ms"]
    assert found["value"] == str(24 * 3_600_000)


@pytest.mark.parametrize("version", range(1, 5))
async def test_types_and_read_only_of_a_broker(asker: Asker, version: int) -> None:
    configs = await described(asker, BROKER, "1", version)
    assert configs["node.id"]["read_only"]
    assert configs["node.id"]["config_source"] == FROM_FILE
    assert not configs["log.retention.ms"]["read_only"]
    assert configs["log.retention.ms"]["value"] is None
    assert "leader.replication.throttled.rate" not in configs
    if version >= 3:
        assert configs["log.dirs"]["config_type"] == 2
        assert configs["offsets.topic.replication.factor"]["config_type"] == 4
        assert configs["log.cleaner.min.cleanable.ratio"]["config_type"] == 6
    assert configs["log.cleaner.io.max.bytes.per.second"]["value"] == "1.7976931348623157E308"


async def test_a_throttle_is_shown_while_it_is_set(asker: Asker) -> None:
    name = "leader.replication.throttled.rate"
    assert await altered(asker, BROKER, "1", (name, SET, "1000")) == (0, None)
    found = (await described(asker, BROKER, "1"))[name]
    assert (found["value"], sources(found)) == ("1000", [(name, "1000", FROM_BROKER)])
    assert await altered(asker, BROKER, "1", (name, DELETE, None)) == (0, None)
    assert name not in await described(asker, BROKER, "1")


async def test_all_brokers_show_what_is_set_for_all(asker: Asker) -> None:
    await altered(asker, BROKER, "", ("log.retention.ms", SET, "5"))
    configs = await described(asker, BROKER, "")
    assert sources(configs["log.retention.ms"]) == [("log.retention.ms", "5", FROM_ALL_BROKERS)]
    assert set(configs) == {"log.retention.ms", "min.insync.replicas"}


@pytest.mark.spec("TOP-23")
async def test_lists_grow_and_shrink(asker: Asker) -> None:
    name = "leader.replication.throttled.replicas"
    await altered(asker, TOPIC, "orders", (name, SET, "0:1"))
    await altered(asker, TOPIC, "orders", (name, APPEND, "0:2,0:1"))
    assert (await described(asker, TOPIC, "orders"))[name]["value"] == "0:1,0:2"
    await altered(asker, TOPIC, "orders", (name, SUBTRACT, "0:1"))
    assert (await described(asker, TOPIC, "orders"))[name]["value"] == "0:2"
    assert await altered(asker, TOPIC, "orders", ("retention.ms", APPEND, "5")) == (
        ErrorCode.INVALID_CONFIG,
        "Can't APPEND to key retention.ms because its type is not LIST.",
    )


REFUSED = [
    (TOPIC, "orders", "retention.ms", "abc", 40,
     "Invalid value abc for configuration retention.ms: Not a number of type LONG"),
    (TOPIC, "orders", "retention.ms", "-5", 40,
     "Invalid value -5 for configuration retention.ms: Value must be at least -1"),
    (TOPIC, "orders", "min.cleanable.dirty.ratio", "2", 40,
     "Invalid value 2.0 for configuration min.cleanable.dirty.ratio: Value must be no more than 1"),
    (TOPIC, "orders", "cleanup.policy", "delete,burn", 40,
     "Invalid value burn for configuration cleanup.policy: String must be one of: compact, delete"),
    (TOPIC, "orders", "follower.replication.throttled.replicas", "0:1,x", 40,
     "Invalid value [0:1, x] for configuration follower.replication.throttled.replicas: "
     "follower.replication.throttled.replicas must be the literal '*' or a list of replicas in the following format: "
     "[partitionId]:[brokerId],[partitionId]:[brokerId],..."),
    (TOPIC, "orders", "no.such", "1", 40, "Unknown topic config name: no.such"),
    (TOPIC, "nowhere", "retention.ms", "1", 3, "The topic 'nowhere' does not exist."),
    (TOPIC, "", "retention.ms", "1", 42, "Default topic resources are not allowed."),
    (BROKER, "1", "num.partitions", "5", 42, "Cannot update these configs dynamically: Set(num.partitions)"),
    (BROKER, "1", "listener.name.safe.ssl.client.auth", "none", 42,
     "Cannot update these configs dynamically: Set(listener.name.safe.ssl.client.auth)"),
    (BROKER, "1", "listener.name.safe.ssl.keystore.location", "/a", 42,
     "Cannot update these configs dynamically: Set(listener.name.safe.ssl.keystore.location): "
     "stores are read again when their files change"),
    (BROKER, "1", "no.such", "5", 42, "Unknown broker config name: no.such"),
    (BROKER, "2", "log.retention.ms", "5", 42, "Unexpected broker id, expected 1, but received 2"),
    (BROKER, "x", "log.retention.ms", "5", 42, "Node id must be an integer, but it is: x"),
    (LOGGER, " 1", "root", "INFO", 42, "Node id must be an integer, but it is:  1"),
    (LOGGER, "1_0", "root", "INFO", 42, "Node id must be an integer, but it is: 1_0"),
    (GROUP, "", "consumer.session.timeout.ms", "5", 42, "Default group resources are not allowed."),
    (CLIENT_METRICS, "", "interval.ms", "5", 42, "Subscription name can't be empty"),
    (3, "x", "y", "z", 42, "Unknown resource type 3"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "resource", "name", "value", "code", "text"), REFUSED)
async def test_what_cannot_be_is_refused_and_changes_nothing(
    asker: Asker, kind: int, resource: str, name: str, value: str, code: int, text: str
) -> None:
    before = asker.scene.image.configs
    assert await altered(asker, kind, resource, (name, SET, value)) == (code, text)
    assert asker.scene.image.configs is before


async def test_the_good_are_changed_beside_the_bad(asker: Asker) -> None:
    configs = [{"name": "retention.ms", "config_operation": SET, "value": "7"}]
    resources = [
        {"resource_type": TOPIC, "resource_name": "nowhere", "configs": configs},
        {"resource_type": TOPIC, "resource_name": "orders", "configs": configs},
        {"resource_type": LOGGER, "resource_name": "9", "configs": configs},
    ]
    answer = await asker.ask("IncrementalAlterConfigs", 1, resources=resources, validate_only=False)
    assert [each["error_code"] for each in answer["responses"]] == [3, 0, 42]
    assert asker.scene.image.configs.of(TOPIC, "orders") == {"retention.ms": "7"}


async def test_a_resource_twice_is_refused_both_times(asker: Asker) -> None:
    resource = {"resource_type": TOPIC, "resource_name": "orders", "configs": []}
    answer = await asker.ask("IncrementalAlterConfigs", 1, resources=[resource, resource], validate_only=False)
    assert [each["error_message"] for each in answer["responses"]] == ["Each resource must appear at most once."] * 2


@pytest.mark.parametrize("version", range(3))
async def test_the_old_form_replaces_the_whole(asker: Asker, version: int) -> None:
    await altered(asker, TOPIC, "orders", ("flush.ms", SET, "9"))
    resource = {
        "resource_type": TOPIC,
        "resource_name": "orders",
        "configs": [{"name": "retention.ms", "value": "7"}],
    }
    answer = await asker.ask("AlterConfigs", version, resources=[resource], validate_only=True)
    assert answer["responses"][0]["error_code"] == 0
    assert asker.scene.image.configs.of(TOPIC, "orders") == {"flush.ms": "9"}
    await asker.ask("AlterConfigs", version, resources=[resource], validate_only=False)
    assert asker.scene.image.configs.of(TOPIC, "orders") == {"retention.ms": "7"}


async def test_without_a_controller_loggers_are_changed_still(asker: Asker) -> None:
    asker.away = True
    logger = logging.getLogger("ballast_broker.tests.levels")
    resources = [
        {"resource_type": TOPIC, "resource_name": "orders", "configs": []},
        {
            "resource_type": LOGGER,
            "resource_name": "1",
            "configs": [{"name": logger.name, "config_operation": SET, "value": "DEBUG"}],
        },
    ]
    try:
        answer = await asker.ask("IncrementalAlterConfigs", 1, resources=resources, validate_only=True)
        assert logger.level == logging.NOTSET
        answer = await asker.ask("IncrementalAlterConfigs", 1, resources=resources, validate_only=False)
        assert [each["error_code"] for each in answer["responses"]] == [ErrorCode.REQUEST_TIMED_OUT, 0]
        assert (await described(asker, LOGGER, "1"))[logger.name]["value"] == "DEBUG"
        await altered(asker, LOGGER, "1", (logger.name, DELETE, None))
        assert logger.level == logging.NOTSET
    finally:
        logger.setLevel(logging.NOTSET)


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        (("no.such.logger", SET, "INFO"), 40, "Logger no.such.logger does not exist!"),
        (("root", DELETE, None), 42, "Removing the log level of the root logger is not allowed"),
        (("root", APPEND, "INFO"), 42, "APPEND operation is not allowed for the BROKER_LOGGER resource"),
        (
            ("root", SET, "LOUD"),
            40,
            "Cannot set the log level of root to LOUD as it is not a supported log level. "
            "Valid log levels are DEBUG, ERROR, FATAL, INFO, TRACE, WARN",
        ),
    ],
)
async def test_levels_that_cannot_be(asker: Asker, change: Any, code: int, text: str) -> None:
    before = logging.root.level
    assert await altered(asker, LOGGER, "1", change) == (code, text)
    assert logging.root.level == before


async def test_one_unknown_kind_spoils_a_whole_description(asker: Asker) -> None:
    resources = [
        {"resource_type": TOPIC, "resource_name": "orders", "configuration_keys": None},
        {"resource_type": 99, "resource_name": "x", "configuration_keys": None},
    ]
    answer = await asker.ask("DescribeConfigs", 4, resources=resources)
    assert [each["error_code"] for each in answer["results"]] == [ErrorCode.INVALID_REQUEST] * 2


async def test_resources_are_listed_by_type(asker: Asker) -> None:
    async def listed(*types: int) -> list[tuple[int, str]]:
        answer = await asker.ask("ListConfigResources", 1, resource_types=list(types))
        return [(each["resource_type"], each["resource_name"]) for each in answer["config_resources"]]

    assert await listed(TOPIC) == [(TOPIC, "orders")]
    everything = [(TOPIC, "orders"), (BROKER, "1"), (BROKER, "2"), (LOGGER, "1"), (LOGGER, "2")]
    assert await listed() == everything
    refused = await asker.ask("ListConfigResources", 1, resource_types=[99])
    assert refused["error_code"] == ErrorCode.UNSUPPORTED_VERSION
    assert (await asker.ask("ListConfigResources", 0))["config_resources"] == []


@pytest.mark.parametrize("version", range(1, 5))
async def test_many_topics_are_described_in_turns(asker: Asker, monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    turning.end_at_once(monkeypatch)
    names = [f"t{number}" for number in range(100)]
    for name in names:
        asker.scene.add_topic(name, [1])
    await altered(asker, TOPIC, "t7", ("retention.ms", SET, "7"))
    resources = [{"resource_type": TOPIC, "resource_name": name, "configuration_keys": None} for name in names]
    fields: dict[str, Any] = {
        "resources": [*resources, {**resources[0], "resource_name": "none"}],
        "include_synonyms": True,
    }
    told, turns = await turning.beside(asker.ask("DescribeConfigs", version, **fields))
    assert turns >= 100
    results = told["results"]
    assert [each["resource_name"] for each in results] == [*names, "none"]
    assert [each["error_code"] for each in results] == [0] * 100 + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    for name, result in zip(names, results, strict=False):
        assert {each["name"]: each for each in result["configs"]} == await described(asker, TOPIC, name, version)
    assert {each["value"] for each in results[7]["configs"] if each["name"] == "retention.ms"} == {"7"}


@pytest.mark.spec("TOP-23")
@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ([("min.insync.replicas", SET, "0")], "Value must be at least 1"),
        ([("min.insync.replicas", SET, "x")], "Not a number of type INT"),
        ([("min.insync.replicas", SET, "1"), ("num.partitions", SET, "3")], "Cannot update these configs dynamically"),
    ],
)
async def test_a_minimum_in_sync_that_cannot_be_is_refused_as_such_also_with_elr(
    asker: Asker, changes: list[tuple[str, int, str]], text: str
) -> None:
    """As Apache Kafka's brokers do, which look before they ask the controller."""
    code, message = await altered(asker, BROKER, "1", *changes)
    assert code == ErrorCode.INVALID_REQUEST
    assert text in message
    assert (await altered(asker, BROKER, "1", ("min.insync.replicas", SET, "1")))[0] == ErrorCode.INVALID_CONFIG
