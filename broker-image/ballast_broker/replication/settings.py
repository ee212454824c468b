"""Defines the configuration that replication reads; the broker's `settings.py` makes it from Kafka's properties."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReplicationSettings:
    broker_id: int
    inter_broker_listener_name: str = "PLAINTEXT"
    num_replica_fetchers: int = 1
    replica_lag_time_max_ms: int = 30_000
    replica_fetch_wait_max_ms: int = 500
    replica_fetch_min_bytes: int = 1
    replica_fetch_max_bytes: int = 1_048_576
    replica_fetch_response_max_bytes: int = 10_485_760
    replica_fetch_backoff_ms: int = 1_000
    replica_socket_timeout_ms: int = 30_000
    num_replica_alter_log_dirs_threads: int | None = None  # None: as many as log directories
    reads_in_rack: bool = False  # redirect consumers to the replica in their rack
