"""The broker's configuration: Kafka's property names and defaults, validated once into a frozen object.

Unknown properties, and Kafka properties without effect here, cause a warning. An invalid value is rejected with the
property, the value and what is allowed.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from ballast_broker.config.broker_properties import (
    AUTHORIZER_ONLY,
    BROKER_PROPERTIES,
    OF_A_LISTENER,
    ONLY_DYNAMIC,
    WITHOUT_EFFECT,
)
from ballast_broker.config.providers import resolved
from ballast_broker.config.topics import check_log_times, log_config
from ballast_broker.config_types import ConfigError
from ballast_broker.security.properties import (
    GSSAPI,
    JAAS_SUFFIX,
    OAUTHBEARER,
    PLAIN,
    PREFIX,
    PROTOCOLS,
    listener_property,
    parse_of_listener,
)
from ballast_broker.security.settings import ListenerSecurity, check_mechanism, listener_security


def address(host: str, port: int) -> str:
    """Format host:port; IPv6 addresses get brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Endpoint(NamedTuple):
    name: str
    host: str
    port: int
    security: str = "PLAINTEXT"

    def __str__(self) -> str:
        return f"{self.name}://{address(self.host, self.port)}"


class Voter(NamedTuple):
    node_id: int
    host: str
    port: int


HIGHEST_PORT = 65_535
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, repr=False)
class BrokerConfig:
    """Every property, as an attribute with underscores for dots (`config.num_partitions`), and derived values."""

    values: Mapping[str, Any]
    given: frozenset[str]  # names set in the file or by an override
    warnings: tuple[str, ...] = ()
    of_listeners: Mapping[tuple[str, str], Any] = field(default_factory=dict)  # listener, property → value

    def __getattr__(self, field: str) -> Any:
        try:
            return self.values[field.replace("_", ".")]
        except KeyError:
            raise AttributeError(field) from None

    @cached_property
    def node_id(self) -> int:
        node_id: int = self.values["node.id"]
        return node_id if node_id >= 0 else self.values["broker.id"]

    @cached_property
    def log_directories(self) -> tuple[str, ...]:
        directories: tuple[str, ...] = self.values["log.dirs"] or self.values["log.dir"]
        return directories

    @cached_property
    def metadata_directory(self) -> str:
        return self.values["metadata.log.dir"] or self.log_directories[0]

    @cached_property
    def is_broker(self) -> bool:
        return "broker" in self.values["process.roles"]

    @cached_property
    def is_controller(self) -> bool:
        return "controller" in self.values["process.roles"]

    @cached_property
    def security_map(self) -> dict[str, str]:
        known = {name: name for name in PROTOCOLS}
        pairs = (entry.partition(":") for entry in self.values["listener.security.protocol.map"])
        mapped = {name.strip().upper(): security.strip().upper() for name, _, security in pairs}
        if mapped:
            return mapped
        listeners = {text.partition("://")[0].upper() for text in self.values["listeners"]}
        if listeners & (known.keys() - {"PLAINTEXT"}):
            return known  # as in Kafka: with any secure listener, the controllers' must be mapped explicitly
        controllers = {name.upper(): "PLAINTEXT" for name in self.values["controller.listener.names"]}
        return controllers | known

    @cached_property
    def listeners_all(self) -> tuple[Endpoint, ...]:
        return tuple(self._endpoint("listeners", text) for text in self.values["listeners"])

    @cached_property
    def controller_names(self) -> frozenset[str]:
        return frozenset(name.upper() for name in self.values["controller.listener.names"])

    @cached_property
    def client_listeners(self) -> tuple[Endpoint, ...]:
        return tuple(e for e in self.listeners_all if e.name not in self.controller_names)

    @cached_property
    def controller_listeners(self) -> tuple[Endpoint, ...]:
        return tuple(e for e in self.listeners_all if e.name in self.controller_names)

    @cached_property
    def advertised_all(self) -> tuple[Endpoint, ...]:
        text = self.values["advertised.listeners"]
        return tuple(self._endpoint("advertised.listeners", part.strip()) for part in text.split(",")) if text else ()

    @cached_property
    def advertised(self) -> tuple[Endpoint, ...]:
        """Endpoints advertised to clients. Since Kafka 3.9 controller listeners may be listed as well."""
        if not self.advertised_all:
            return self.client_listeners
        controllers = {e.name for e in self.controller_listeners}
        return tuple(e for e in self.advertised_all if e.name not in controllers)

    @cached_property
    def advertised_controllers(self) -> tuple[Endpoint, ...]:
        named = {e.name: e for e in self.advertised_all}
        return tuple(named.get(e.name, e) for e in self.controller_listeners)

    @cached_property
    def advertised_host(self) -> str:
        """The host advertised for an address without one: this machine's name, as in Kafka."""
        return socket.getfqdn()

    @cached_property
    def inter_broker_listener(self) -> str:
        named = self.values["inter.broker.listener.name"]
        if named:
            return str(named).upper()
        if "security.inter.broker.protocol" in self.given:
            return str(self.values["security.inter.broker.protocol"])
        return self.client_listeners[0].name if self.client_listeners else "PLAINTEXT"

    @cached_property
    def listener_security(self) -> dict[str, ListenerSecurity]:
        """The security of this node's listeners, and of the controllers' listener even if it only connects there."""
        served = {e.name: e.security for e in self.listeners_all}
        names = {self.controller_listener: self.security_map.get(self.controller_listener, "PLAINTEXT")} | served
        return {
            name: listener_security(name, protocol, self.values, self.of_listeners, serving=name in served)
            for name, protocol in names.items()
        }

    @cached_property
    def controller_listener(self) -> str:
        """The listener used to connect to controllers: the first one named."""
        names = self.values["controller.listener.names"]
        return names[0].upper() if names else "CONTROLLER"

    @cached_property
    def voters(self) -> tuple[Voter, ...]:
        return tuple(_voter(text) for text in self.values["controller.quorum.voters"])

    @cached_property
    def quorum_bootstrap(self) -> tuple[tuple[str, int], ...]:
        """Where to find the quorum's leader; without configured voters, the metadata log tells the voters."""
        return tuple(_bootstrap_server(text) for text in self.values["controller.quorum.bootstrap.servers"])

    @cached_property
    def is_its_own_quorum(self) -> bool:
        """Neither voters nor other bootstrap servers are configured, as in the example file of Kafka."""
        if not self.is_controller or self.voters or self.values["controller.quorum.standalone"]:
            return False
        own = {(e.host, e.port) for e in (*self.advertised_controllers, *self.controller_listeners)}
        own |= {(host, port) for _, port in own for host in LOOPBACK}
        return set(self.quorum_bootstrap) <= own

    @cached_property
    def asks_other_controllers(self) -> bool:
        return bool(self.voters) or (bool(self.quorum_bootstrap) and not self.is_its_own_quorum)

    @cached_property
    def has_authorizer(self) -> bool:
        return bool(self.values["authorizer.class.name"])

    @cached_property
    def delegation_token_secret(self) -> bytes | None:
        """None if delegation tokens are disabled."""
        return (self.values["delegation.token.secret.key"] or "").encode() or None

    @cached_property
    def super_users(self) -> frozenset[str]:
        """As in `User:alice;User:bob`."""
        return frozenset(each.strip() for each in (self.values["super.users"] or "").split(";") if each.strip())

    @cached_property
    def mover_count(self) -> int:
        return self.values["num.replica.alter.log.dirs.threads"] or len(self.log_directories)

    def log_config(self, overrides: Mapping[str, str], dynamic: Mapping[str, Any] | None = None) -> Any:
        """The log configuration of a topic on this broker."""
        return log_config(overrides, {**self.values_set, **(dynamic or {})})

    @cached_property
    def values_set(self) -> dict[str, Any]:
        """Explicitly set values; defaults of broker properties equal those of topic configs."""
        return {name: self.values[name] for name in self.given}

    def _endpoint(self, name: str, text: str) -> Endpoint:
        label, separator, rest = text.partition("://")
        host, _, port = rest.rpartition(":")
        if not separator or not _is_port(port):
            raise ConfigError(f"Invalid value {text} for configuration {name}: Value must be NAME://HOST:PORT")
        security = self.security_map.get(label.upper())
        if security is None:
            raise ConfigError(f"{name} names {label}, which listener.security.protocol.map does not map")
        return Endpoint(label.upper(), host.strip("[]"), int(port), security)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _is_port(text: str) -> bool:
    return _is_number(text) and int(text) <= HIGHEST_PORT


def _voter(text: str) -> Voter:
    node, _, address = text.partition("@")
    host, _, port = address.rpartition(":")
    if not _is_number(node) or not host or not _is_port(port):
        raise ConfigError(
            f"Invalid value {text} for configuration controller.quorum.voters: Value must be ID@HOST:PORT"
        )
    return Voter(int(node), host.strip("[]"), int(port))


def _bootstrap_server(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not _is_port(port):
        raise ConfigError(
            f"Invalid value {text} for configuration controller.quorum.bootstrap.servers: Value must be HOST:PORT"
        )
    return host.strip("[]"), int(port)


def broker_config(properties: Mapping[str, str], overrides: Iterable[str] = ()) -> BrokerConfig:
    """Validate everything; raises ConfigError at the first problem."""
    merged = dict(properties)
    for override in overrides:
        name, separator, value = override.partition("=")
        if not separator:
            raise ConfigError(f"--override {override}: give it as name=value")
        merged[name.strip()] = value.strip()
    values = {name: p.default for name, p in BROKER_PROPERTIES.items()}
    warnings = []
    given = set()
    of_listeners = {}
    for name, text in resolved(merged).items():
        known = BROKER_PROPERTIES.get(name)
        if known is None and (place := listener_property(name, OF_A_LISTENER)) is not None:
            of_listeners[place] = parse_of_listener(name, place[1], text, OF_A_LISTENER)
            continue
        if known is None and name.endswith(JAAS_SUFFIX[1:]):
            warnings.append(f"property {name} has no effect: name it {PREFIX}LISTENER.MECHANISM{JAAS_SUFFIX}")
            continue
        if known is None:
            warnings.append(f"property {name} is not known to Ballast and has no effect")
            continue
        if name in WITHOUT_EFFECT:
            warnings.append(f"property {name} has no effect in Ballast")
        elif name in ONLY_DYNAMIC:
            warnings.append(f"property {name} has no effect in a file: set it with kafka-configs")
        values[name] = known.parse(text)
        given.add(name)
    if not values["authorizer.class.name"]:
        without = sorted(given & AUTHORIZER_ONLY)
        warnings += [f"property {name} has no effect without authorizer.class.name" for name in without]
    config = BrokerConfig(values, frozenset(given), tuple(warnings), of_listeners)
    _check_whole(config)
    return config


def _check_whole(config: BrokerConfig) -> None:
    """Check constraints between properties."""
    if config.node_id < 0:
        raise ConfigError("node.id is missing: every broker and controller needs a number of its own, 0 or more")
    if not config.values["process.roles"]:
        raise ConfigError("process.roles is empty: a node is a broker, a controller or both")
    node, broker = config.values["node.id"], config.values["broker.id"]
    if node >= 0 and broker >= 0 and node != broker:
        raise ConfigError(
            f"node.id {node} and broker.id {broker} differ: they must be the same, or leave broker.id out"
        )
    if config.is_broker and not config.client_listeners:
        raise ConfigError("listeners has none for clients: add one, for instance PLAINTEXT://:9092")
    _check_listeners(config)
    _check_groups(config.values)
    check_log_times(config.values_set)
    if config.is_controller:
        _check_controller(config)
    elif not config.voters and not config.quorum_bootstrap:
        raise ConfigError(
            "controller.quorum.voters is empty: a broker must know its controllers (ID@HOST:PORT,...), or where to ask "
            "for them (controller.quorum.bootstrap.servers)"
        )
    elif config.values["controller.quorum.standalone"]:
        raise ConfigError("controller.quorum.standalone is for the first controller of a cluster; this node is none")
    directories = config.log_directories
    if len(set(directories)) != len(directories):
        raise ConfigError(f"log.dirs names a directory twice: {','.join(directories)}")
    for user in sorted(config.super_users):
        if ":" not in user:
            raise ConfigError(
                f"Invalid value {user} for configuration super.users: "
                "Value must be principals as User:NAME, separated by semicolons"
            )
    unknown = set(config.values["cordoned.log.dirs"]) - set(directories) - {"*"}
    if unknown:
        raise ConfigError(f"cordoned.log.dirs names {', '.join(sorted(unknown))}, which log.dirs does not")


def _check_groups(values: Mapping[str, Any]) -> None:
    for name in ("heartbeat.interval.ms", "session.timeout.ms"):
        least, own, most = (f"group.consumer.{part}{name}" for part in ("min.", "", "max."))
        for high, low in ((most, least), (own, least), (most, own)):
            if values[high] < values[low]:
                raise ConfigError(f"{high} must be greater than or equal to {low}")
    interval, timeout = "group.consumer.heartbeat.interval.ms", "group.consumer.session.timeout.ms"
    if values[interval] >= values[timeout]:
        raise ConfigError(f"{interval} must be less than {timeout}")
    if not values["group.consumer.assignors"]:
        raise ConfigError("group.consumer.assignors is empty: name uniform, range or both")
    if "classic" not in values["group.coordinator.rebalance.protocols"]:
        raise ConfigError("group.coordinator.rebalance.protocols: disabling the 'classic' protocol is not supported")


def _check_listeners(config: BrokerConfig) -> None:
    names = [e.name for e in config.listeners_all]
    places = [(e.host, e.port) for e in config.listeners_all if e.port]
    if len(set(names)) != len(names) or len(set(places)) != len(places):
        listed = ",".join(map(str, config.listeners_all))
        raise ConfigError(f"listeners {listed}: each needs a name and a port of its own")
    clients = {e.name for e in config.client_listeners}
    for endpoint in config.advertised:
        if endpoint.name not in clients:
            raise ConfigError(f"advertised.listeners names {endpoint.name}, which listeners does not have for clients")
    for endpoint in config.advertised_all or config.advertised:
        if endpoint.host == "0.0.0.0":
            raise ConfigError(
                f"advertised.listeners {endpoint}: 0.0.0.0 is no address that a client can connect to; "
                "give the one under which this machine is known"
            )
    if config.is_broker and config.inter_broker_listener not in {e.name for e in config.advertised}:
        raise ConfigError(
            f"inter.broker.listener.name is {config.inter_broker_listener}, which advertised.listeners does not have"
        )
    _check_security(config)


def _check_security(config: BrokerConfig) -> None:
    for listener, protocol in config.security_map.items():
        if protocol not in PROTOCOLS:
            raise ConfigError(
                f"listener.security.protocol.map gives {listener} {protocol}: there are {', '.join(PROTOCOLS)}"
            )
    if config.asks_other_controllers and config.controller_listener not in config.security_map:
        raise ConfigError(
            f"controller.listener.names names {config.controller_listener}, which listener.security.protocol.map does "
            "not map: say how controllers are to be reached"
        )
    if {"inter.broker.listener.name", "security.inter.broker.protocol"} <= config.given:
        raise ConfigError(
            "inter.broker.listener.name and security.inter.broker.protocol are both set: give one of them"
        )
    ways = []
    if config.is_broker:
        mechanism = config.values["sasl.mechanism.inter.broker.protocol"]
        ways.append((config.inter_broker_listener, "sasl.mechanism.inter.broker.protocol", mechanism))
    if config.asks_other_controllers:
        mechanism = config.values["sasl.mechanism.controller.protocol"]
        ways.append((config.controller_listener, "sasl.mechanism.controller.protocol", mechanism))
    for listener, name, mechanism in ways:
        sasl = config.listener_security[listener].sasl
        if sasl is None:
            continue
        check_mechanism(name, mechanism)
        if listener == config.controller_listener and mechanism not in (PLAIN, OAUTHBEARER, GSSAPI):
            raise ConfigError(
                f"Invalid value {mechanism} for configuration {name}: users of SCRAM are in the metadata, which "
                "controllers have only once they know each other; use PLAIN, OAUTHBEARER, GSSAPI, or SSL with "
                "ssl.client.auth=required"
            )
        if mechanism not in sasl.mechanisms:
            raise ConfigError(f"{name} is {mechanism}, which sasl.enabled.mechanisms of {listener} does not have")
        sasl.check_own(listener, mechanism)


def _check_controller(config: BrokerConfig) -> None:
    if config.voters and config.node_id not in {v.node_id for v in config.voters}:
        raise ConfigError(f"controller.quorum.voters does not name node.id {config.node_id}, which is a controller")
    standalone, bootstrap = config.values["controller.quorum.standalone"], config.quorum_bootstrap
    if standalone and (config.voters or not bootstrap):
        raise ConfigError(
            "controller.quorum.standalone founds a quorum whose voters can be changed: it goes with "
            "controller.quorum.bootstrap.servers and without controller.quorum.voters"
        )
    if not config.controller_listeners and (len(config.voters) > 1 or bootstrap):
        raise ConfigError(
            "listeners has none for the controller: add one named in controller.listener.names, "
            "for instance CONTROLLER://:9093"
        )
