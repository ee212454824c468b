"""Defines what a log needs from its owner, bundled in one object, and the configuration of storage as a whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ballast_broker.seams import Clock, Disk
from ballast_broker.storage.open_files import OpenFiles

if TYPE_CHECKING:
    from ballast_broker.storage.log import Log


@dataclass(frozen=True, slots=True)
class StorageConfig:
    """The broker's properties that storage reads; names are Kafka's with underscores."""

    node_id: int
    log_dirs: tuple[str, ...]
    cluster_id: str | None = None
    generate_cluster_id: bool = False  # for a quorum of one that starts on empty directories
    metadata_log_dir: str | None = None
    alone_has_metadata: bool = False  # a static quorum of one: what it loses is lost for good
    cordoned_log_dirs: frozenset[str] = frozenset()
    log_dir_reserve_bytes: int | None = None  # None: the larger of 1 GiB and 2 %, at most a tenth
    num_recovery_threads_per_data_dir: int = 2
    log_retention_check_interval_ms: int = 300_000
    log_flush_scheduler_interval_ms: int = 2**63 - 1
    log_flush_offset_checkpoint_interval_ms: int = 60_000
    log_flush_start_offset_checkpoint_interval_ms: int = 60_000
    replica_high_watermark_checkpoint_interval_ms: int = 5_000
    log_cleaner_enable: bool = True
    log_cleaner_dedupe_buffer_size: int = 134_217_728
    log_cleaner_io_buffer_load_factor: float = 0.9
    log_cleaner_io_max_bytes_per_second: float = float("inf")
    log_cleaner_backoff_ms: int = 15_000
    producer_id_expiration_ms: int = 86_400_000
    producer_id_expiration_check_interval_ms: int = 600_000
    maximum_open_files: int = 8192


def _nothing_to_do(*_: object) -> None:
    """For a log without an owner that cleans up (tools, tests): renamed files stay where they are."""


@dataclass(slots=True)
class LogContext:
    """`remove_later(paths, delay_ms)` takes files already renamed `.deleted`; `flush_later(log)` a log that rolled."""

    disk: Disk
    clock: Clock
    open_files: OpenFiles = field(default_factory=OpenFiles)
    remove_later: Callable[[list[str], int], None] = _nothing_to_do
    flush_later: Callable[[Log], None] = _nothing_to_do
