"""Maps Kafka's properties to each component's settings. PURE."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import isnan

from ballast_broker.api.client_quotas import QuotaWindows
from ballast_broker.config.broker import BrokerConfig
from ballast_broker.config.broker_properties import RACK_AWARE_SELECTOR
from ballast_broker.config.entries import dynamic_values
from ballast_broker.config.logs import LogConfig
from ballast_broker.controller.commands.context import ControllerConfig, TokenConfig
from ballast_broker.controller.service import ServiceTiming
from ballast_broker.coordinator.consumers.config import ConsumerConfig
from ballast_broker.coordinator.consumers.heartbeat import ConsumerLimits
from ballast_broker.coordinator.rebalance import GroupLimits
from ballast_broker.coordinator.service import CoordinatorConfig
from ballast_broker.coordinator.transaction_service import TransactionConfig
from ballast_broker.metadata.image import RESOURCE_BROKER, RESOURCE_TOPIC, MetadataImage
from ballast_broker.net.connection_rates import ConnectionRates, CreationRates, canonical
from ballast_broker.net.server import Limits
from ballast_broker.raft.terms import Timeouts
from ballast_broker.rates import Window
from ballast_broker.replication.settings import ReplicationSettings
from ballast_broker.seams import Clock
from ballast_broker.storage.context import StorageConfig

Texts = tuple[tuple[str, str], ...]

CREATION_RATE = "max.connection.creation.rate"
MOST_CONNECTIONS = "max.connections"
ADDRESS, ADDRESS_RATE = "ip", "connection_creation_rate"
MINUTE_MS = 60_000
METADATA_SEGMENT_MS = 7 * 24 * 3_600_000


def storage_config(config: BrokerConfig, open_files: int) -> StorageConfig:
    """A cluster of one generates its cluster id; with several nodes it must be given, or each would make up its own."""
    reserve = config.ballast_log_dir_reserve_bytes
    alone = config.is_its_own_quorum or len(config.voters) == 1
    return StorageConfig(
        node_id=config.node_id,
        log_dirs=config.log_directories,
        cluster_id=config.cluster_id or None,
        generate_cluster_id=config.is_controller and (alone or config.controller_quorum_standalone),
        metadata_log_dir=config.metadata_directory,
        alone_has_metadata=config.is_controller and alone,
        cordoned_log_dirs=frozenset(config.cordoned_log_dirs),
        log_dir_reserve_bytes=None if reserve < 0 else reserve,
        num_recovery_threads_per_data_dir=config.num_recovery_threads_per_data_dir,
        log_retention_check_interval_ms=config.log_retention_check_interval_ms,
        log_flush_scheduler_interval_ms=config.log_flush_scheduler_interval_ms,
        log_flush_offset_checkpoint_interval_ms=config.log_flush_offset_checkpoint_interval_ms,
        log_flush_start_offset_checkpoint_interval_ms=config.log_flush_start_offset_checkpoint_interval_ms,
        replica_high_watermark_checkpoint_interval_ms=config.replica_high_watermark_checkpoint_interval_ms,
        log_cleaner_enable=config.log_cleaner_enable,
        log_cleaner_dedupe_buffer_size=config.log_cleaner_dedupe_buffer_size,
        log_cleaner_io_max_bytes_per_second=config.log_cleaner_io_max_bytes_per_second,
        log_cleaner_backoff_ms=config.log_cleaner_backoff_ms,
        producer_id_expiration_ms=config.producer_id_expiration_ms,
        producer_id_expiration_check_interval_ms=config.producer_id_expiration_check_interval_ms,
        maximum_open_files=open_files,
    )


def replication_settings(config: BrokerConfig) -> ReplicationSettings:
    return ReplicationSettings(
        broker_id=config.node_id,
        inter_broker_listener_name=config.inter_broker_listener,
        num_replica_fetchers=config.num_replica_fetchers,
        replica_lag_time_max_ms=config.replica_lag_time_max_ms,
        replica_fetch_wait_max_ms=config.replica_fetch_wait_max_ms,
        replica_fetch_min_bytes=config.replica_fetch_min_bytes,
        replica_fetch_max_bytes=config.replica_fetch_max_bytes,
        replica_fetch_response_max_bytes=config.replica_fetch_response_max_bytes,
        replica_fetch_backoff_ms=config.replica_fetch_backoff_ms,
        replica_socket_timeout_ms=config.replica_socket_timeout_ms,
        num_replica_alter_log_dirs_threads=config.mover_count,
        reads_in_rack=config.replica_selector_class == RACK_AWARE_SELECTOR,
    )


def controller_config(config: BrokerConfig, cluster_id: str) -> ControllerConfig:
    return ControllerConfig(
        cluster_id=cluster_id,
        node_id=config.node_id,
        num_partitions=config.num_partitions,
        default_replication_factor=config.default_replication_factor,
        min_insync_replicas=config.min_insync_replicas,
        unclean_leader_election_enable=config.unclean_leader_election_enable,
        leader_imbalance_per_broker_percentage=config.leader_imbalance_per_broker_percentage,
        delete_topic_enable=config.delete_topic_enable,
        inter_broker_listener_name=config.inter_broker_listener,
        has_authorizer=config.has_authorizer,
        delegation_tokens=_token_config(config),
    )


def _token_config(config: BrokerConfig) -> TokenConfig | None:
    secret = config.delegation_token_secret
    if secret is None:
        return None
    return TokenConfig(secret, config.delegation_token_max_lifetime_ms, config.delegation_token_expiry_time_ms)


def controller_timing(config: BrokerConfig) -> ServiceTiming:
    return ServiceTiming(
        session_timeout_s=config.broker_session_timeout_ms / 1000,
        leader_balance_enable=config.auto_leader_rebalance_enable,
        leader_balance_interval_s=config.leader_imbalance_check_interval_seconds,
        token_expiry_interval_s=config.delegation_token_expiry_check_interval_ms / 1000,
    )


def raft_timeouts(config: BrokerConfig) -> Timeouts:
    return Timeouts(
        election_s=config.controller_quorum_election_timeout_ms / 1000,
        fetch_s=config.controller_quorum_fetch_timeout_ms / 1000,
        retry_s=config.controller_quorum_retry_backoff_ms / 1000,
        backoff_max_s=config.controller_quorum_election_backoff_max_ms / 1000,
    )


def coordinator_config(config: BrokerConfig) -> CoordinatorConfig:
    return CoordinatorConfig(
        offsets_topic_num_partitions=config.offsets_topic_num_partitions,
        offsets_retention_ms=config.offsets_retention_minutes * MINUTE_MS,
        offset_metadata_max_bytes=config.offset_metadata_max_bytes,
        min_session_timeout_ms=config.group_min_session_timeout_ms,
        max_session_timeout_ms=config.group_max_session_timeout_ms,
        limits=GroupLimits(config.group_initial_rebalance_delay_ms, config.group_max_size),
        consumers=_consumer_config(config),
    )


def _consumer_config(config: BrokerConfig) -> ConsumerConfig:
    return ConsumerConfig(
        patterns_take_rights=config.has_authorizer,
        session_timeout_ms=config.group_consumer_session_timeout_ms,
        heartbeat_interval_ms=config.group_consumer_heartbeat_interval_ms,
        session_timeouts_ms=(
            config.group_consumer_min_session_timeout_ms,
            config.group_consumer_max_session_timeout_ms,
        ),
        heartbeat_intervals_ms=(
            config.group_consumer_min_heartbeat_interval_ms,
            config.group_consumer_max_heartbeat_interval_ms,
        ),
        limits=ConsumerLimits(config.group_consumer_max_size, config.group_consumer_assignors),
        upgrades=config.group_consumer_migration_policy in ("bidirectional", "upgrade"),
        downgrades=config.group_consumer_migration_policy in ("bidirectional", "downgrade"),
    )


def transaction_config(config: BrokerConfig) -> TransactionConfig:
    return TransactionConfig(
        partitions=config.transaction_state_log_num_partitions,
        id_expiration_ms=config.transactional_id_expiration_ms,
        max_timeout_ms=config.transaction_max_timeout_ms,
        abort_interval_ms=config.transaction_abort_timed_out_transaction_cleanup_interval_ms,
        expiry_interval_ms=config.transaction_remove_expired_transaction_cleanup_interval_ms,
        busy_patience_ms=config.add_partitions_to_txn_retry_backoff_max_ms,
    )


def connection_limits(config: BrokerConfig, handles: int) -> Limits:
    """At most `handles` connections. Buffer sizes only if configured: the kernel's auto-tuning beats Kafka's 100 KB."""
    given = config.given
    return Limits(
        max_request_bytes=config.socket_request_max_bytes,
        max_connections=min(config.max_connections, handles),
        own_listeners=own_listeners(config),
        of_listeners=_of_listeners(config, MOST_CONNECTIONS),
        max_connections_per_ip=config.max_connections_per_ip,
        max_queued_bytes=config.queued_max_request_bytes,
        max_idle_ms=config.connections_max_idle_ms,
        backlog=config.socket_listen_backlog_size,
        send_buffer_bytes=config.socket_send_buffer_bytes if "socket.send.buffer.bytes" in given else -1,
        receive_buffer_bytes=config.socket_receive_buffer_bytes if "socket.receive.buffer.bytes" in given else -1,
    )


def connection_rates(config: BrokerConfig, clock: Clock) -> ConnectionRates:
    return ConnectionRates(
        clock,
        CreationRates(config.max_connection_creation_rate),
        of_listeners=_of_listeners(config, CREATION_RATE),
        own_listeners=own_listeners(config),
        window=quota_windows(config).of_clients,
    )


def _of_listeners(config: BrokerConfig, name: str) -> dict[str, int]:
    """The values of listeners that have their own."""
    found = {e.name: config.of_listeners.get((e.name.lower(), name)) for e in config.listeners_all}
    return {listener: limit for listener, limit in found.items() if isinstance(limit, int)}


def creation_rates(config: BrokerConfig, image: MetadataImage) -> CreationRates:
    """Connection creation rates, dynamic values taking precedence over the file."""
    layers = (image.configs.of(RESOURCE_BROKER, ""), image.configs.of(RESOURCE_BROKER, str(config.node_id)))
    of_all = dynamic_values(*layers).get(CREATION_RATE, config.max_connection_creation_rate)
    of_addresses = {}
    for entity, quotas in image.client_quotas.by_entity.items():
        limit = quotas.get(ADDRESS_RATE)
        kind, address = entity[0]
        if limit is not None and kind == ADDRESS and not isnan(limit):
            of_addresses[None if address is None else canonical(address)] = limit
    return CreationRates(of_all, of_addresses)


def own_listeners(config: BrokerConfig) -> frozenset[str]:
    """Listeners only nodes use, as in Kafka: the controllers', and the brokers' own if clients have another."""
    own = config.controller_names
    return own | {config.inter_broker_listener} if len(config.client_listeners) > 1 else own


def quota_windows(config: BrokerConfig) -> QuotaWindows:
    return QuotaWindows(
        Window(config.quota_window_num, config.quota_window_size_seconds),
        Window(config.controller_quota_window_num, config.controller_quota_window_size_seconds),
    )


def metadata_log_config(config: BrokerConfig) -> LogConfig:
    """The metadata log is not deleted by age or size: it is truncated at snapshots."""
    return LogConfig(
        segment_bytes=config.metadata_log_segment_bytes,
        segment_ms=METADATA_SEGMENT_MS,
        retention_ms=-1,
        retention_bytes=-1,
        max_message_bytes=2**31 - 1,
        message_timestamp_after_max_ms=2**63 - 1,
    )


def topic_log_configs(config: BrokerConfig) -> Callable[[MetadataImage, str], LogConfig]:
    """The log configuration of each topic on this broker. Topics with equal overrides share one object."""
    layers = (RESOURCE_BROKER, ""), (RESOURCE_BROKER, str(config.node_id))

    @lru_cache(maxsize=1_024)
    def resolved(overrides: Texts, *dynamic: Texts) -> LogConfig:
        found: LogConfig = config.log_config(dict(overrides), dynamic_values(*map(dict, dynamic)))
        return found

    def of(image: MetadataImage, topic: str) -> LogConfig:
        resources = (RESOURCE_TOPIC, topic), *layers
        return resolved(*(tuple(image.configs.of(*resource).items()) for resource in resources))

    return of
