"""Configs of consumer protocol groups, by the broker's properties and per group: each refusal names the config."""

from __future__ import annotations

import pytest

from ballast_broker.config.broker import BrokerConfig, broker_config
from ballast_broker.config_rules import Rules
from ballast_broker.metadata.image import RESOURCE_GROUP
from ballast_wire.errors import ApiError, ErrorCode

pytestmark = pytest.mark.spec("CLI-04")

FILE = {"node.id": "1", "listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
        "controller.quorum.voters": "1@localhost:9093"}  # fmt: skip
SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


def config(**properties: str) -> BrokerConfig:
    given = {"group." + name.replace("_", "."): value for name, value in properties.items()}
    return broker_config(FILE | given)


@pytest.mark.parametrize(
    ("properties", "complaint"),
    [
        ({"consumer_session_timeout_ms": "100"}, "must be greater than or equal to group.consumer.min.session"),
        ({"consumer_session_timeout_ms": "70000"}, "group.consumer.max.session.timeout.ms must be greater than"),
        ({"consumer_min_heartbeat_interval_ms": "9000"}, "must be greater than or equal to group.consumer.min.heart"),
        (
            {"consumer_heartbeat_interval_ms": "45000", "consumer_max_heartbeat_interval_ms": "45000"},
            "group.consumer.heartbeat.interval.ms must be less than group.consumer.session.timeout.ms",
        ),
        ({"consumer_assignors": "sticky"}, "String must be one of: uniform, range"),
        ({"consumer_assignors": ""}, "group.consumer.assignors is empty"),
        ({"consumer_max_size": "0"}, "Value must be at least 1"),
        ({"consumer_migration_policy": "sideways"}, "String must be one of"),
        ({"coordinator_rebalance_protocols": "consumer"}, "disabling the 'classic' protocol"),
        ({"coordinator_rebalance_protocols": "classic,streams"}, "String must be one of: classic, consumer"),
    ],
)
def test_a_file_that_cannot_be(properties: dict[str, str], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        config(**properties)


@pytest.mark.parametrize(
    ("configs", "complaint"),
    [
        ({SESSION: "44999"}, f"{SESSION} must be greater than or equal to group.consumer.min.session.timeout.ms"),
        ({SESSION: "60001"}, f"{SESSION} must be less than or equal to group.consumer.max.session.timeout.ms"),
        ({HEARTBEAT: "15001"}, f"{HEARTBEAT} must be less than or equal to group.consumer.max.heartbeat.interval.ms"),
        ({HEARTBEAT: "x"}, "Not a number of type INT"),
        ({"share.session.timeout.ms": "45000"}, "Unknown group config name: share.session.timeout.ms"),
    ],
)
def test_a_group_that_cannot_be(configs: dict[str, str], complaint: str) -> None:
    with pytest.raises(ApiError, match=complaint) as caught:
        Rules(config()).validate(RESOURCE_GROUP, "g", configs)
    assert caught.value.code is ErrorCode.INVALID_CONFIG


def test_a_group_has_a_session_longer_than_its_heartbeats_are_apart() -> None:
    rules = Rules(config(consumer_min_session_timeout_ms="6000"))
    rules.validate(RESOURCE_GROUP, "g", {SESSION: "15001", HEARTBEAT: "15000"})
    with pytest.raises(ApiError, match=f"{SESSION} must be greater than {HEARTBEAT}"):
        rules.validate(RESOURCE_GROUP, "g", {SESSION: "15000", HEARTBEAT: "15000"})
