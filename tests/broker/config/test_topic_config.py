"""The effective configs of a log, from the topic, the broker's properties, and Kafka's defaults."""

from __future__ import annotations

import re
from dataclasses import fields
from math import isnan

import pytest

from ballast_broker.config.broker import broker_config
from ballast_broker.config.entries import ConfigEntries, dynamic_values
from ballast_broker.config.logs import LogConfig
from ballast_broker.config.topics import TOPIC_PROPERTIES, check_topic_configs, log_config
from ballast_broker.config_types import ConfigError, node_id


def test_the_table_has_what_a_log_is_configured_with() -> None:
    assert {entry.property.field for entry in TOPIC_PROPERTIES.values()} == {field.name for field in fields(LogConfig)}


def test_defaults_are_the_same_everywhere() -> None:
    assert log_config({}, {}) == LogConfig()
    assert broker_config({"node.id": "1"}).log_config({}) == LogConfig()


@pytest.mark.spec("TOP-23")
def test_the_topic_wins_over_the_broker() -> None:
    broker = broker_config({"node.id": "1", "log.retention.ms": "1000", "log.segment.bytes": "2000000"})
    found = broker.log_config({"retention.ms": "5", "cleanup.policy": "compact,delete"})
    assert (found.retention_ms, found.segment_bytes) == (5, 2_000_000)
    assert found.cleanup_policy == {"compact", "delete"}


@pytest.mark.spec("LOG-10", "LOG-20")
@pytest.mark.parametrize(
    ("given", "retention_ms"),
    [
        ({}, 168 * 3_600_000),
        ({"log.retention.hours": "1"}, 3_600_000),
        ({"log.retention.hours": "1", "log.retention.minutes": "1"}, 60_000),
        ({"log.retention.hours": "1", "log.retention.minutes": "1", "log.retention.ms": "1"}, 1),
        ({"log.retention.hours": "-1"}, -1),
        ({"log.retention.minutes": "-1"}, -1),
        ({"log.retention.ms": "-1", "log.retention.hours": "1"}, -1),
        ({"log.retention.ms": "-2"}, -1),
    ],
)
def test_the_finer_unit_wins(given: dict[str, str], retention_ms: int) -> None:
    assert broker_config({"node.id": "1"} | given).log_config({}).retention_ms == retention_ms


@pytest.mark.spec("LOG-10")
def test_roll_hours_are_taken_where_ms_is_not_set() -> None:
    assert broker_config({"node.id": "1", "log.roll.hours": "2"}).log_config({}).segment_ms == 7_200_000
    both = {"node.id": "1", "log.roll.hours": "2", "log.roll.ms": "7"}
    assert broker_config(both).log_config({}).segment_ms == 7


@pytest.mark.spec("TOP-20")
@pytest.mark.parametrize(
    ("configs", "says"),
    [
        ({"retention.mz": "1"}, "Unknown topic config name: retention.mz"),
        ({"retention.ms": "soon"}, "Invalid value soon for configuration retention.ms: Not a number of type LONG"),
        ({"retention.ms": "-2"}, "Invalid value -2 for configuration retention.ms: Value must be at least -1"),
        ({"cleanup.policy": "shred"}, "Invalid value shred for configuration cleanup.policy"),
        ({"min.cleanable.dirty.ratio": "2"}, "Value must be no more than 1"),
        ({"min.cleanable.dirty.ratio": "2e9"}, "Invalid value 2.0E9 for configuration min.cleanable.dirty.ratio"),
        (
            {"min.cleanable.dirty.ratio": "Infinity"},
            "Invalid value Infinity for configuration min.cleanable.dirty.ratio",
        ),
        ({"leader.replication.throttled.replicas": "0:1,x"}, "leader.replication.throttled.replicas"),
        ({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"}, "min.compaction.lag.ms (5) >"),
    ],
)
def test_a_bad_config_is_named(configs: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        check_topic_configs(configs)


@pytest.mark.spec("TOP-23")
def test_a_double_is_written_as_in_java() -> None:
    for text in ("0.5f", "0.5F", "0.5d", "5e-1D", " .5 ", "5E-1", "+.5", "0x1p-1", "0X.8p0d", "\t0.5\x01"):
        assert check_topic_configs({"min.cleanable.dirty.ratio": text}) == {"min.cleanable.dirty.ratio": 0.5}
    for text in ("0.5L", "f", "0.5ff", "inf", "0.5_0", "nan", "0x1", "0.5\u00a0", "0 .5", "\u0660.5", "", "."):
        with pytest.raises(ConfigError, match="Not a number of type DOUBLE"):
            check_topic_configs({"min.cleanable.dirty.ratio": text})


def test_no_number_is_within_all_bounds() -> None:
    """As in Apache Kafka: with NaN only overdue logs are cleaned."""
    [ratio] = check_topic_configs({"min.cleanable.dirty.ratio": "NaN"}).values()
    assert isnan(ratio)


def test_a_whole_number_is_written_as_in_java() -> None:
    for text in ("10", "+10", " 10\t", "010", "\u0661\u0660", "\x0110"):
        assert check_topic_configs({"retention.ms": text, "max.message.bytes": text}) == {
            "retention.ms": 10,
            "max.message.bytes": 10,
        }
    for text in ("1_0", "1 0", "10\u00a0", "10.0", "0x10", "", "+", "1e1", "--1", "9223372036854775808"):
        with pytest.raises(ConfigError, match="Not a number of type LONG"):
            check_topic_configs({"retention.ms": text})
        with pytest.raises(ConfigError, match="Not a number of type INT"):
            broker_config({"node.id": "1", "num.partitions": text})
        with pytest.raises(ValueError, match="Not a number of type INT"):
            node_id(text)
    with pytest.raises(ValueError, match="Not a number of type INT"):
        node_id(" 1")  # blanks around names are not ignored


def test_what_is_not_understood_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    cluster, stored = {"log.retention.ms": "told once"}, {"retention.bytes": "told once, too"}
    config = broker_config({"node.id": "1"})
    for _ in range(3):
        config.log_config(stored, dynamic_values(cluster))
        entries = ConfigEntries(config, {}, cluster)
        assert list(entries.of_topic(stored))
        assert list(entries.of_broker())
    assert [each.getMessage().rpartition(": ")[0] for each in caplog.records] == [
        f"a stored configuration is not understood, and is ignored: Invalid value {text} for configuration {name}"
        for name, text in (("log.retention.ms", "told once"), ("retention.bytes", "told once, too"))
    ]


def test_throttled_replicas_are_a_list_or_a_star() -> None:
    for text in ("*", "0:1,1:2", "", ",", "0:1,", "*,"):
        check_topic_configs({"leader.replication.throttled.replicas": text})


@pytest.mark.spec("CLU-03", "TOP-23")
def test_what_apache_kafka_stored_and_nobody_here_understands_does_not_count() -> None:
    """A broker that takes over from Apache Kafka starts, and shows the effective value."""
    cluster = {"ssl.enabled.protocols": "TLSv1.1,TLSv1.2", "log.cleaner.min.cleanable.ratio": "half"}
    own = {"ssl.protocol": "SSL", "log.retention.ms": "+700000"}
    stored = {"min.cleanable.dirty.ratio": "half", "retention.bytes": "7"}
    config = broker_config({"node.id": "1"})
    assert dynamic_values(cluster, own) == {"log.retention.ms": 700_000}
    log = config.log_config(stored, dynamic_values(cluster, own))
    assert (log.min_cleanable_dirty_ratio, log.retention_bytes, log.retention_ms) == (0.5, 7, 700_000)
    entries = ConfigEntries(config, own, cluster)
    of_topic = {each.name: each.value for each in entries.of_topic(stored)}
    assert (of_topic["min.cleanable.dirty.ratio"], of_topic["retention.bytes"]) == ("0.5", "7")
    of_broker = {each.name: each.value for each in entries.of_broker()}
    assert of_broker["log.retention.ms"] == "700000"
    assert of_broker["ssl.enabled.protocols"] == "TLSv1.2,TLSv1.3"


@pytest.mark.spec("CLI-06")
def test_of_what_nobody_here_knows_no_value_is_shown_that_may_be_a_password() -> None:
    """Apache Kafka stores keystore passwords like this, and itself shows no value of a config that it does not know."""
    cluster = {"listener.name.x.ssl.keystore.password": "s3cret", "log.retention.ms": "5"}
    entries = ConfigEntries(broker_config({"node.id": "1"}), {}, cluster).of_all_brokers()
    assert {each.name: each.sensitive for each in entries} == {name: name != "log.retention.ms" for name in cluster}
