"""Determines each config's value and source: topic, this broker, all brokers, file, default. PURE.

Kafka's rules: a config's synonyms are listed from the strongest source to the weakest, starting with the first one that
has the config's own name; the value's source is that of the first synonym, or DEFAULT if there is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ballast_broker.config.broker import BrokerConfig
from ballast_broker.config.broker_properties import BROKER_PROPERTIES
from ballast_broker.config.groups import GROUP_PROPERTIES, broker_property
from ballast_broker.config.topics import TOPIC_PROPERTIES, ConfigSource, broker_default
from ballast_broker.config_types import Property

# Configs that take effect at run time.
DYNAMIC_BROKER_PROPERTIES = frozenset(
    {
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.type",
        "compression.zstd.level",
        "cordoned.log.dirs",
        "follower.replication.throttled.rate",
        "leader.replication.throttled.rate",
        "log.cleaner.backoff.ms",
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.delete.retention.ms",
        "log.cleaner.io.max.bytes.per.second",
        "log.cleaner.max.compaction.lag.ms",
        "log.cleaner.min.cleanable.ratio",
        "log.cleaner.min.compaction.lag.ms",
        "log.cleanup.policy",
        "log.flush.interval.messages",
        "log.flush.interval.ms",
        "log.index.interval.bytes",
        "log.index.size.max.bytes",
        "log.message.timestamp.after.max.ms",
        "log.message.timestamp.before.max.ms",
        "log.message.timestamp.type",
        "log.preallocate",
        "log.retention.bytes",
        "log.retention.ms",
        "log.roll.jitter.ms",
        "log.roll.ms",
        "log.segment.bytes",
        "log.segment.delete.delay.ms",
        "max.connection.creation.rate",
        "message.max.bytes",
        "min.insync.replicas",
        "replica.alter.log.dirs.io.max.bytes.per.second",
        "unclean.leader.election.enable",
    }
)

BOOLEAN, STRING, INT, SHORT, LONG, DOUBLE, LIST, CLASS, PASSWORD = range(1, 10)
UNKNOWN_TYPE = 0
TYPES = {
    "boolean": BOOLEAN, "string": STRING, "int": INT, "long": LONG, "double": DOUBLE, "list": LIST,
    "password": PASSWORD,
}  # fmt: skip
# Kafka reports other types for these than the ones we parse.
TYPES_BY_NAME = {
    "controller.listener.names": STRING,
    "listener.security.protocol.map": STRING,
    "listeners": STRING,
    "log.dir": STRING,
    "log.dirs": STRING,
    "offsets.topic.replication.factor": SHORT,
    "transaction.state.log.replication.factor": SHORT,
    "sasl.oauthbearer.jwt.retriever.class": CLASS,
    "sasl.oauthbearer.jwt.validator.class": CLASS,
}
# To Kafka, throttles are not configs of the broker's file: shown only if set, and as read-only.
SHOWN_WHERE_SET = frozenset(
    {
        "follower.replication.throttled.rate",
        "leader.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    }
)
# Broker configs in several units, finest first; the topic table lists them.
CHAINS = {
    name: chain
    for chain in (tuple(name for name, _ in entry.synonyms) for entry in TOPIC_PROPERTIES.values())
    for name in chain
    if len(chain) > 1 and name != "log.flush.scheduler.interval.ms"
}


@dataclass(frozen=True, slots=True)
class Synonym:
    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    name: str
    value: str | None
    type: int
    synonyms: tuple[Synonym, ...]
    read_only: bool = False

    @property
    def sensitive(self) -> bool:
        """A password, or possibly one (unknown configs of a cluster started by Apache Kafka): never show its value."""
        return self.type in (PASSWORD, UNKNOWN_TYPE)

    @property
    def source(self) -> ConfigSource:
        return self.synonyms[0].source if self.synonyms else ConfigSource.DEFAULT


def dynamic_values(*layers: Mapping[str, str]) -> dict[str, Any]:
    """Values of dynamic broker configs; later layers win: all brokers' first, then this one's."""
    known = [
        (BROKER_PROPERTIES[n], text) for layer in layers for n, text in layer.items() if n in DYNAMIC_BROKER_PROPERTIES
    ]
    return {each.name: value for each, text in known if (value := each.stored(text)) is not None}


class ConfigEntries:
    """`own` and `cluster`: the dynamic configs of this broker and of all brokers, from the metadata."""

    def __init__(self, config: BrokerConfig, own: Mapping[str, str], cluster: Mapping[str, str]) -> None:
        self._config = config
        given = {name: BROKER_PROPERTIES[name].text_of(value) for name, value in config.values_set.items()}
        defaults = {name: each.text_of(each.default) for name, each in BROKER_PROPERTIES.items()}
        self._own = own
        self._cluster = cluster
        self._given = given
        self._layers: tuple[tuple[ConfigSource, Mapping[str, str | None]], ...] = (
            (ConfigSource.DYNAMIC_BROKER, dict(own)),
            (ConfigSource.DYNAMIC_DEFAULT_BROKER, dict(cluster)),
            (ConfigSource.STATIC_BROKER, given),
            (
                ConfigSource.DEFAULT,
                {name: text for name, text in defaults.items() if text is not None and name not in SHOWN_WHERE_SET},
            ),
        )

    def of_topic(self, overrides: Mapping[str, str]) -> Iterator[ConfigEntry]:
        values = {**self._config.values_set, **dynamic_values(self._cluster, self._own)}
        for name, entry in TOPIC_PROPERTIES.items():
            chain = tuple(synonym for synonym, _ in entry.synonyms)
            synonyms = self._synonyms(chain[0], chain) if chain else ()
            value = entry.property.text_of(broker_default(entry, values))
            own = entry.property.stored(overrides[name]) if name in overrides else None
            if own is not None:
                value = entry.property.text_of(own)
                synonyms = (Synonym(name, value, ConfigSource.TOPIC), *synonyms)
            yield ConfigEntry(name, value, type_of(entry.property), synonyms)

    def of_group(self, overrides: Mapping[str, str]) -> Iterator[ConfigEntry]:
        for name, known in GROUP_PROPERTIES.items():
            default = known.text_of(self._config.values[broker_property(name)])
            synonym = Synonym(name, default, ConfigSource.DEFAULT)
            if name in overrides:
                synonym = Synonym(name, overrides[name], ConfigSource.GROUP)
            yield ConfigEntry(name, synonym.value, type_of(known), (synonym,))

    def of_broker(self) -> Iterator[ConfigEntry]:
        for name, known in BROKER_PROPERTIES.items():
            is_set = name in self._own or name in self._cluster or name in self._given
            if name in SHOWN_WHERE_SET and not is_set:
                continue
            yield ConfigEntry(
                name,
                self._broker_value(known),
                type_of(known),
                self._synonyms(name, CHAINS.get(name, (name,))),
                read_only=name not in DYNAMIC_BROKER_PROPERTIES or name in SHOWN_WHERE_SET,
            )

    def of_all_brokers(self) -> Iterator[ConfigEntry]:
        """The dynamic configs of all brokers, and nothing else."""
        for name, value in self._cluster.items():
            known = BROKER_PROPERTIES.get(name)
            yield ConfigEntry(
                name,
                value,
                UNKNOWN_TYPE if known is None else type_of(known),
                (Synonym(name, value, ConfigSource.DYNAMIC_DEFAULT_BROKER),),
                read_only=name not in DYNAMIC_BROKER_PROPERTIES or name in SHOWN_WHERE_SET,
            )

    def _broker_value(self, known: Property) -> str | None:
        for _, layer in self._layers:
            text = layer.get(known.name)
            if text is not None and (value := known.stored(text)) is not None:
                return known.text_of(value)  # in canonical form
        return None

    def _synonyms(self, name: str, chain: tuple[str, ...]) -> tuple[Synonym, ...]:
        found = [
            Synonym(each, layer[each], source) for source, layer in self._layers for each in chain if each in layer
        ]
        while found and found[0].name != name:
            found.pop(0)
        return tuple(found)


def type_of(known: Property) -> int:
    return TYPES_BY_NAME.get(known.name, TYPES[known.kind])
