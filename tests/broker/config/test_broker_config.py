"""The broker's configuration: Kafka's names and defaults, and errors that say what is allowed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ballast_broker.config.broker import (
    BrokerConfig,
    Endpoint,
    Voter,
    broker_config,
)
from ballast_broker.config.broker_properties import BROKER_PROPERTIES, ONLY_DYNAMIC, WITHOUT_EFFECT
from ballast_broker.config.properties_file import parse_properties
from ballast_broker.config.topics import TOPIC_PROPERTIES
from ballast_broker.config_rules import Rules
from ballast_broker.config_types import ConfigError
from ballast_broker.metadata.image import RESOURCE_BROKER
from ballast_broker.settings import storage_config
from ballast_wire.errors import ApiError, ErrorCode

SOURCES = Path(__file__).resolve().parents[3] / "broker-image" / "ballast_broker"
MINIMAL = {"node.id": "1"}
CLUSTER = {
    "node.id": "2",
    "process.roles": "broker,controller",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "controller.quorum.voters": "1@a:9093,2@b:9093,3@[::1]:9093",
}


def config(**changes: str) -> BrokerConfig:
    return broker_config(MINIMAL | {name.replace("_", "."): text for name, text in changes.items()})


def test_the_defaults_are_enough_for_one_node() -> None:
    found = config()
    assert (found.node_id, found.is_broker, found.is_controller) == (1, True, True)
    assert found.client_listeners == (Endpoint("PLAINTEXT", "", 9092),)
    assert found.log_directories == ("/tmp/kafka-logs",)
    assert (found.log_segment_bytes, found.log_retention_hours) == (1 << 30, 168)
    assert found.warnings == ()


def test_one_of_several_controllers() -> None:
    found = broker_config(CLUSTER)
    assert found.voters == (Voter(1, "a", 9093), Voter(2, "b", 9093), Voter(3, "::1", 9093))
    assert [e.name for e in found.client_listeners] == ["PLAINTEXT"]
    assert [e.name for e in found.controller_listeners] == ["CONTROLLER"]
    assert found.inter_broker_listener == "PLAINTEXT"


def test_listeners_have_names() -> None:
    found = config(
        listeners="INTERNAL://:9092,EXTERNAL://0.0.0.0:9094",
        advertised_listeners="INTERNAL://here:9092, EXTERNAL://there:19094",
        listener_security_protocol_map="INTERNAL:PLAINTEXT,EXTERNAL:PLAINTEXT",
        inter_broker_listener_name="INTERNAL",
    )
    assert found.advertised == (Endpoint("INTERNAL", "here", 9092), Endpoint("EXTERNAL", "there", 19094))
    assert found.inter_broker_listener == "INTERNAL"


def test_the_file_that_comes_with_kafka_is_taken() -> None:
    """The listener properties of Kafka 4's config/server.properties."""
    found = config(
        process_roles="broker,controller",
        controller_quorum_bootstrap_servers="localhost:9093",
        listeners="PLAINTEXT://:9092,CONTROLLER://:9093",
        inter_broker_listener_name="PLAINTEXT",
        advertised_listeners="PLAINTEXT://localhost:9092,CONTROLLER://localhost:19093",
        controller_listener_names="CONTROLLER",
        listener_security_protocol_map="CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL",
    )
    assert found.advertised == (Endpoint("PLAINTEXT", "localhost", 9092),)
    assert found.advertised_controllers == (Endpoint("CONTROLLER", "localhost", 19093),)
    assert not found.warnings
    assert found.is_its_own_quorum


@pytest.mark.spec("DIR-05")
@pytest.mark.parametrize(
    ("properties", "alone"),
    [
        (MINIMAL, True),
        (CLUSTER, False),
        (CLUSTER | {"controller.quorum.voters": "2@a:9093"}, True),
        (CLUSTER | {"process.roles": "broker", "controller.quorum.voters": "1@a:9093"}, False),
    ],
)
def test_a_voter_that_has_no_other_is_told_apart(properties: dict[str, str], alone: bool) -> None:
    assert storage_config(broker_config(properties), open_files=100).alone_has_metadata == alone


@pytest.mark.spec("CLU-05")
@pytest.mark.parametrize(
    ("properties", "alone"),
    [
        ({}, True),
        ({"controller.quorum.bootstrap.servers": "127.0.0.1:9093"}, True),
        ({"controller.quorum.bootstrap.servers": "localhost:9093,b:9093"}, False),
        ({"controller.quorum.bootstrap.servers": "b:9093"}, False),
        ({"controller.quorum.bootstrap.servers": "localhost:9093", "controller.quorum.standalone": "true"}, False),
        ({"controller.quorum.voters": "1@localhost:9093"}, False),
    ],
)
def test_a_controller_that_has_nobody_else_to_ask_is_its_own_quorum(properties: dict[str, str], alone: bool) -> None:
    listeners = {"node.id": "1", "listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093"}
    assert broker_config(listeners | properties).is_its_own_quorum == alone


@pytest.mark.spec("CLU-05")
@pytest.mark.parametrize(
    ("properties", "why"),
    [
        ({"controller.quorum.bootstrap.servers": "b"}, "Value must be HOST:PORT"),
        ({"controller.quorum.standalone": "true"}, "goes with controller.quorum.bootstrap.servers"),
        (
            {
                "controller.quorum.standalone": "true",
                "controller.quorum.bootstrap.servers": "b:1",
                "controller.quorum.voters": "1@localhost:9093",
            },
            "without controller.quorum.voters",
        ),
        (
            {
                "controller.quorum.standalone": "true",
                "controller.quorum.bootstrap.servers": "b:1",
                "process.roles": "broker",
                "listeners": "PLAINTEXT://localhost:9092",
            },
            "this node is none",
        ),
        (
            {"controller.quorum.bootstrap.servers": "b:1", "listeners": "PLAINTEXT://localhost:9092"},
            "none for the controller",
        ),
    ],
)
def test_what_cannot_be_meant_for_a_quorum_that_can_be_changed(properties: dict[str, str], why: str) -> None:
    listeners = {"node.id": "1", "listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093"}
    with pytest.raises(ConfigError, match=why):
        broker_config(listeners | properties)


def test_the_broker_id_of_old_files_is_taken() -> None:
    assert broker_config({"broker.id": "7"}).node_id == 7
    assert broker_config({"broker.id": "7", "node.id": "7"}).node_id == 7


def test_overrides_win() -> None:
    found = broker_config(MINIMAL | {"num.partitions": "2"}, ["num.partitions=5", "log.dirs=/a,/b"])
    assert (found.num_partitions, found.log_directories) == (5, ("/a", "/b"))


def test_log_dirs_win_over_log_dir() -> None:
    assert config(log_dir="/a", log_dirs="/b, /c").log_directories == ("/b", "/c")
    assert config(log_dir="/a").log_directories == ("/a",)
    assert config(log_dirs="/b,/c").metadata_directory == "/b"
    assert config(log_dirs="/b,/c", metadata_log_dir="/m").metadata_directory == "/m"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num.partitions": "0"}, "Invalid value 0 for configuration num.partitions: Value must be at least 1"),
        ({"num.partitions": "many"}, "Invalid value many for configuration num.partitions: Not a number of type INT"),
        ({"num.partitions": "2147483648"}, "Not a number of type INT"),
        ({"log.segment.bytes": "100"}, "Value must be at least 1048576"),
        ({"log.retention.hours": "0"}, "log.retention.ms must be unlimited (-1) or, greater than or equal to 1"),
        ({"log.retention.minutes": "0"}, "log.retention.ms must be unlimited (-1) or, greater than or equal to 1"),
        ({"log.roll.ms": "0"}, "log.roll.ms must be greater than or equal to 1"),
        ({"log.roll.jitter.ms": "-1"}, "log.roll.jitter.ms must be greater than or equal to 0"),
        ({"auto.create.topics.enable": "yes"}, "Expected value to be either true or false"),
        ({"log.cleaner.min.cleanable.ratio": "1.5"}, "Value must be no more than 1"),
        ({"compression.type": "brotli"}, "configuration compression.type"),
        ({"process.roles": "broker,king"}, "process.roles"),
        ({"metrics.port": "70000"}, "Value must be no more than 65535"),
        ({"node.id": "-1"}, "node.id is missing"),
        ({"broker.id": "3"}, "node.id 1 and broker.id 3 differ"),
        ({"listeners": "PLAINTEXT:9092"}, "Value must be NAME://HOST:PORT"),
        ({"listeners": "INTERNAL://:9092"}, "listener.security.protocol.map does not map"),
        ({"listeners": "SSL://:9092"}, "listener SSL has no certificate"),
        ({"listeners": "CONTROLLER://:9092"}, "none for clients"),
        ({"listeners": "PLAINTEXT://:9092,PLAINTEXT://:9093"}, "a name and a port of its own"),
        ({"listeners": "PLAINTEXT://:9092,CONTROLLER://:9092"}, "a name and a port of its own"),
        ({"advertised.listeners": "SSL://a:9092"}, "which listeners does not have for clients"),
        ({"advertised.listeners": "CONTROLLER://a:9092"}, "which listeners does not have for clients"),
        (
            {
                "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
                "advertised.listeners": "PLAINTEXT://a:9092,CONTROLLER://0.0.0.0:9093",
            },
            "0.0.0.0 is no address",
        ),
        (
            {"listeners": "PLAINTEXT://:9092,CONTROLLER://:9093", "advertised.listeners": "CONTROLLER://a:9093"},
            "which advertised.listeners does not have",
        ),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:9092"}, "0.0.0.0 is no address"),
        ({"listeners": "PLAINTEXT://0.0.0.0:9092"}, "0.0.0.0 is no address"),
        ({"inter.broker.listener.name": "OTHER"}, "inter.broker.listener.name is OTHER"),
        ({"log.dirs": "/a,/b,/a"}, "names a directory twice"),
        ({"log.dirs": "/a,/b", "cordoned.log.dirs": "/c"}, "cordoned.log.dirs names /c"),
        ({"controller.quorum.voters": "2@a:9093"}, "does not name node.id 1"),
        ({"controller.quorum.voters": "a:9093"}, "Value must be ID@HOST:PORT"),
        ({"controller.quorum.voters": "1@a:65536"}, "Value must be ID@HOST:PORT"),
        ({"controller.quorum.voters": "¹@a:9093"}, "Value must be ID@HOST:PORT"),
        ({"listeners": "PLAINTEXT://a:²"}, "Value must be NAME://HOST:PORT"),
        ({"controller.quorum.voters": "1@a:9093,2@b:9093"}, "none for the controller"),
        ({"process.roles": "broker"}, "must know its controllers"),
    ],
)
def test_what_cannot_be_is_refused_with_what_is_allowed(changes: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        broker_config(MINIMAL | changes)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("log.retention.ms", "0", "unlimited (-1) or, greater than or equal to 1"),
        ("log.roll.ms", "0", "greater than or equal to 1"),
        ("log.roll.ms", "-5", "greater than or equal to 1"),
        ("log.roll.jitter.ms", "-1", "greater than or equal to 0"),
    ],
)
@pytest.mark.parametrize("broker", ["", "1"])
def test_times_that_would_be_over_at_once_are_refused_at_run_time_too(
    broker: str, name: str, value: str, allowed: str
) -> None:
    rules = Rules(config())
    with pytest.raises(ApiError, match=re.escape(f"requirement failed: {name} must be {allowed}")) as caught:
        rules.validate(RESOURCE_BROKER, broker, {name: value})
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    rules.validate(RESOURCE_BROKER, broker, {"log.retention.ms": "-1", "log.roll.ms": "1", "log.roll.jitter.ms": "0"})


@pytest.mark.parametrize(("kind", "called"), [(16, "client metrics"), (3, "resource type 3")])
def test_configs_that_are_not_kept_are_refused_by_name(kind: int, called: str) -> None:
    with pytest.raises(ApiError, match=f"Configs of {called} are not kept here") as caught:
        Rules(config()).validate(kind, "m", {"interval.ms": "1000"})
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_what_has_no_effect_is_told() -> None:
    found = config(log_retention_hourz="1", log_cleaner_threads="4", leader_replication_throttled_rate="1000")
    assert sorted(found.warnings) == [
        "property leader.replication.throttled.rate has no effect in a file: set it with kafka-configs",
        "property log.cleaner.threads has no effect in Ballast",
        "property log.retention.hourz is not known to Ballast and has no effect",
    ]


def test_an_override_without_a_value_is_refused() -> None:
    with pytest.raises(ConfigError, match="give it as name=value"):
        broker_config(MINIMAL, ["num.partitions"])


def test_no_property_is_read_and_then_ignored() -> None:
    """Each property is used somewhere, is a topic config's default, or is documented to have no effect."""
    table = SOURCES / "config" / "broker.py"
    of_security = "".join(path.read_text(encoding="utf-8") for path in (SOURCES / "security").glob("*settings.py"))
    code = "\n".join(path.read_text(encoding="utf-8") for path in SOURCES.rglob("*.py"))
    of_topics = {name for entry in TOPIC_PROPERTIES.values() for name, _ in entry.synonyms}
    used = {
        name
        for name in BROKER_PROPERTIES
        if name in of_topics
        or re.search(rf"config\.{name.replace('.', '_')}\b", code)
        or f'values["{name}"]' in table.read_text(encoding="utf-8")
        or f'"{name}"' in of_security
    }
    assert used.isdisjoint(WITHOUT_EFFECT)
    assert set(BROKER_PROPERTIES) - used == WITHOUT_EFFECT | ONLY_DYNAMIC


def test_properties_files_are_read_as_java_reads_them() -> None:
    text = "\n".join(
        ["# a comment", "! another", "", "a=1", " b : 2 ", "c=x=y:z", "d=one,\\", "   two", "e", "log.dirs=/a b/c "]
    )
    assert parse_properties(text) == {
        "a": "1",
        "b": "2",
        "c": "x=y:z",
        "d": "one,two",
        "e": "",
        "log.dirs": "/a b/c",
    }


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("a=1\nlog.dirs=/a,/b\\", {"a": "1", "log.dirs": "/a,/b"}),  # the last line announces a continuation
        ("log.dirs /a\nnode.id\t1\n", {"log.dirs": "/a", "node.id": "1"}),
        ("a=x,\\ \n  y\nb=1", {"a": "x,", "y": "", "b": "1"}),  # a blank behind the `\\`: the line ends there
        ("a=1\\\n\\\n2\nb=x,\\\n\nc=3", {"a": "12", "b": "x,", "c": "3"}),
        ("k\\=x\\:y\\ z=1", {"k=x:y z": "1"}),
        ("a=x\u2028y\x85z\r\nb=1\rc=2", {"a": "x\u2028y\x85z", "b": "1", "c": "2"}),
    ],
)
def test_odd_properties_files_are_read_as_java_reads_them(text: str, means: dict[str, str]) -> None:
    assert parse_properties(text) == means


@pytest.mark.spec("CLI-10")
@pytest.mark.parametrize(
    ("text", "shown"), [("Infinity", "Infinity"), ("-Infinity", "-Infinity"), ("NaN", "NaN"), ("5e6f", "5000000.0")]
)
def test_a_double_without_end_can_be_shown(text: str, shown: str) -> None:
    """Infinity means no limit; with it, the broker's configs could not be described at all."""
    rate = BROKER_PROPERTIES["log.cleaner.io.max.bytes.per.second"]
    assert rate.text_of(rate.parse(text)) == shown
