"""The input and output types of all controller commands. PURE."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol
from uuid import UUID

from ballast_broker.controller.commands.mutations import MutationQuota
from ballast_broker.metadata.delta import MetadataDelta
from ballast_broker.metadata.features import ELIGIBLE_LEADER_REPLICAS
from ballast_broker.metadata.image import DIRECTORY_UNASSIGNED, RESOURCE_BROKER, RESOURCE_TOPIC, MetadataImage
from ballast_broker.seams import Random
from ballast_wire.envelope import Requester
from ballast_wire.errors import ApiError, ErrorCode

MAX_RECORDS_PER_BATCH = 10_000
FIRST_RANDOM_ID = 100


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One effective topic config, as CreateTopics returns it."""

    name: str
    value: str | None
    read_only: bool
    source: int
    sensitive: bool


class ConfigRules(Protocol):
    """The known configs and their valid values; the table itself lives in a higher layer."""

    def validate(self, resource_type: int, resource_name: str, configs: Mapping[str, str]) -> None:
        """Raise ApiError (INVALID_CONFIG, naming the config) unless these overrides may be stored."""

    def is_list(self, resource_type: int, name: str) -> bool: ...

    def default(self, resource_type: int, name: str) -> str | None:
        """The static or default value that APPEND and SUBTRACT start from."""

    def effective_topic_configs(
        self, overrides: Mapping[str, str], own: Mapping[str, str], cluster: Mapping[str, str]
    ) -> Iterable[ConfigEntry]:
        """`own` and `cluster`: the dynamic configs of this node and of all brokers."""


@dataclass(frozen=True, slots=True)
class TokenConfig:
    """Delegation token settings; the same on all nodes of a cluster."""

    secret: bytes = field(repr=False)
    max_lifetime_ms: int = 7 * 24 * 3_600_000
    expiry_time_ms: int = 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    cluster_id: str
    node_id: int
    num_partitions: int = 1
    default_replication_factor: int = 1
    min_insync_replicas: int = 1
    unclean_leader_election_enable: bool = False
    leader_imbalance_per_broker_percentage: int = 10
    delete_topic_enable: bool = True
    inter_broker_listener_name: str = ""
    has_authorizer: bool = False
    delegation_tokens: TokenConfig | None = None


@dataclass(frozen=True, slots=True)
class CommandContext:
    """`image` contains every record appended so far, committed or not; `next_offset` is the offset of the next one."""

    image: MetadataImage
    config: ControllerConfig
    rules: ConfigRules
    random: Random
    next_offset: int = 0
    now_ms: int = 0
    kraft_version: int = 0
    controllers: Sequence[int] = ()
    """The ids of the voters."""
    voters_features: Mapping[int, Mapping[str, tuple[int, int]]] = field(default_factory=dict)
    """Supported feature ranges of the other voters, where they were asked."""
    asker: Requester | None = None
    """On whose behalf the request is sent, if known."""
    mutations: MutationQuota | None = None
    """The requester's quota; None: unlimited."""
    _settings: dict[tuple[str, str], str] = field(default_factory=dict, compare=False, repr=False)
    """Cache of `topic_setting`: losing a broker asks for the same topic once per partition."""

    def take_mutations(self, partitions: int) -> None:
        """Raise ApiError if the requester may not create or delete more partitions now."""
        if self.mutations is not None:
            self.mutations.take(partitions)

    @property
    def elr_enabled(self) -> bool:
        return self.image.features.level(ELIGIBLE_LEADER_REPLICAS) > 0

    def topic_setting(self, topic: str, name: str, static: str) -> str:
        """A topic config as the controller sees it; precedence: topic, this node, all brokers, static."""
        found = self._settings.get((topic, name))
        if found is None:
            found = self._settings[topic, name] = self._find_setting(topic, name, static)
        return found

    def _find_setting(self, topic: str, name: str, static: str) -> str:
        configs = self.image.configs
        for resource in ((RESOURCE_TOPIC, topic), (RESOURCE_BROKER, str(self.config.node_id)), (RESOURCE_BROKER, "")):
            value = configs.of(*resource).get(name)
            if value is not None:
                return value
        return static

    @property
    def dynamic_broker_configs(self) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """The dynamic configs of this node, and of all brokers."""
        configs = self.image.configs
        return configs.of(RESOURCE_BROKER, str(self.config.node_id)), configs.of(RESOURCE_BROKER, "")

    def min_insync_replicas(self, topic: str, replica_count: int) -> int:
        value = self.topic_setting(topic, "min.insync.replicas", str(self.config.min_insync_replicas))
        return min(int(value), replica_count)

    def unclean_election_enabled(self, topic: str) -> bool:
        static = "true" if self.config.unclean_leader_election_enable else "false"
        return self.topic_setting(topic, "unclean.leader.election.enable", static).strip().lower() == "true"

    def default_directory(self, broker_id: int) -> UUID:
        """The broker's directory if it has exactly one; otherwise unassigned: the broker chooses and reports back."""
        broker = self.image.cluster.brokers.get(broker_id)
        if broker is not None and len(broker.directories) == 1:
            return next(iter(broker.directories))
        return DIRECTORY_UNASSIGNED

    def after(self, records: Iterable[Any]) -> CommandContext:
        """The context with these records applied: for commands in several steps."""
        delta = MetadataDelta(self.image)
        for each in records:
            delta.replay(each)
        return replace(self, image=delta.apply(), _settings={})

    def new_id(self) -> UUID:
        """A random id that is none of the reserved ones."""
        while True:
            candidate = UUID(bytes=self.random.bytes_of(16), version=4)
            if candidate.int >= FIRST_RANDOM_ID:
                return candidate


@dataclass(slots=True)
class Outcome:
    """Records to commit (in one batch unless `atomic` is false), then the response to send.

    Long work is split: `rest` computes the next piece from the state at that time, and other events run between pieces.
    The response is sent when the last piece is committed.
    """

    records: list[Any] = field(default_factory=list)
    response: Any = None
    atomic: bool = True
    rest: Callable[[CommandContext], Outcome] | None = None

    def __post_init__(self) -> None:
        if self.atomic and len(self.records) > MAX_RECORDS_PER_BATCH:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION,
                f"Attempted to atomically commit {len(self.records)} records, but maxRecordsPerBatch is "
                f"{MAX_RECORDS_PER_BATCH}",
            )
