"""What each metric of `/metrics` means, for its HELP line; the table in `docs/metrics.md` says the same."""

from __future__ import annotations

from typing import Final

MEANINGS: Final = {
    "ballast_broker_info": "1; the broker's rack, empty if it has none",
    "ballast_controller_active": "1 on the active controller",
    "ballast_controller_heard": (
        "1 on the active controller and on each node that had an answer from it within "
        "controller.quorum.fetch.timeout.ms"
    ),
    "ballast_metadata_lacking": (
        "1 if the disk has lost part of the metadata log after it was written, until a leader has supplied it again"
    ),
    "ballast_leaderless_partitions": (
        "partitions of the cluster without a leader, reported by the active controller; 0 on other nodes"
    ),
    "ballast_registered_broker": (
        "1 for each registered broker, up or down, reported by the active controller: registered is its id, "
        "broker the controller's"
    ),
    "ballast_reassigning_partitions": (
        "partitions of the cluster that are being reassigned, as far as each node knows: take the maximum, not the sum"
    ),
    "ballast_metadata_offset": "offset up to which this node has applied the metadata log",
    "ballast_connections": "open connections",
    "ballast_connections_accepted_total": "connections accepted",
    "ballast_connections_refused_total": "connections refused because of a limit",
    "ballast_connections_delayed_total": "times a listener paused accepting connections because of a rate limit",
    "ballast_request_queue_bytes": "bytes of requests that are still being received",
    "ballast_certificate_end_timestamp_seconds": "when the first of the listener's certificates expires",
    "ballast_request_duration_seconds": "time from the last byte of a request to its response",
    "ballast_request_errors_total": "error codes returned, counted per partition",
    "ballast_quota_throttles_total": (
        "times a client was throttled by its quota for produce, fetch, request (time) or mutation (partitions "
        "created and deleted)"
    ),
    "ballast_quota_throttled_seconds_total": "total time for which clients were throttled",
    "ballast_event_loop_lag_seconds": "turns of the event loop; a long turn delays all requests",
    "ballast_event_loop_longest_turn_seconds": "the longest turn since the broker was ready",
    "ballast_event_loop_longest_turn_cpu_seconds": "the most CPU time that one turn used; the rest is waiting",
    "ballast_log_dir_total_bytes": "size of the volume",
    "ballast_log_dir_used_bytes": "bytes used on the volume, by anything",
    "ballast_log_dir_offline": "1 if the directory has failed",
    "ballast_log_dir_silent": "1 while the disk has not answered for 5 s: it may be about to fail",
    "ballast_log_dir_cordoned": "1 if the directory takes no new replicas",
    "ballast_cleaner_passes_total": "logs compacted",
    "ballast_cleaner_read_bytes_total": "bytes read by compaction",
    "ballast_cleaner_uncleanable_partitions": (
        "partitions not compacted because an attempt failed, or until there is room for it"
    ),
    "ballast_replicas": "replicas on the broker",
    "ballast_leaders": "partitions that the broker leads",
    "ballast_under_replicated_partitions": (
        "partitions led by the broker with fewer in-sync replicas than they should have; as in Apache Kafka, "
        "replicas that a reassignment is adding do not count as missing"
    ),
    "ballast_under_min_isr_partitions": "partitions led by the broker whose ISR is below min.insync.replicas",
    "ballast_offline_replicas": "replicas on failed directories",
    "ballast_isr_shrinks_total": "times an ISR shrank",
    "ballast_isr_expands_total": "times an ISR grew",
    "ballast_isr_failed_updates_total": "ISR changes that the controller rejected",
    "ballast_unclean_elections_total": (
        "times the broker became leader without having been in sync: records may be lost"
    ),
    "ballast_replica_fetch_failures_total": (
        "times a replica got nothing from its leader for a reason that does not resolve itself; the log gives the "
        "reason"
    ),
    "ballast_replica_truncated_records_total": (
        "records that replicas truncated because their leader does not have them; usually they were never "
        "acknowledged, but after an unclean election they may be lost ones"
    ),
    "ballast_moves": "moves in progress between the broker's directories",
    "ballast_moves_paused": "moves paused for lack of space",
    "ballast_moves_not_converging": "moves slower than their partition grows",
    "ballast_moves_copied_bytes_total": "bytes copied between directories",
    "ballast_replica_size_bytes": "size of the replica's log",
    "ballast_replica_future_size_bytes": "size of the copy that a move is creating",
    "ballast_replica_position": "position in the assignment; 0 is the preferred leader",
    "ballast_replica_log_end_offset": "log end offset",
    "ballast_replica_log_start_offset": "log start offset",
    "ballast_partition_leader": "1 if the broker leads the partition",
    "ballast_partition_bytes_in_total": "bytes produced to the leader",
    "ballast_partition_bytes_out_total": "bytes fetched from the broker, including by followers",
    "ballast_group_state": "1 for the group's current state",
    "ballast_group_members": "members of the group",
    "ballast_group_committed_offset": "committed offset",
    "ballast_group_lag": (
        "high watermark minus committed offset, if the group's coordinator has a replica of the partition"
    ),
    "ballast_transactions": (
        "transactional ids in this state that the broker coordinates; those that stay in PrepareCommit or "
        "PrepareAbort are waiting for a partition to get a leader"
    ),
}
