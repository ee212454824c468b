"""Dashboard: which topics are large, busy or consumed too slowly."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.models import units

from manifests.monitoring.grafana.house import dashboard, graph, over_time
from manifests.monitoring.grafana.queries import (
    BROKERS,
    CLUSTER,
    GROUPS,
    OF_BROKER,
    OF_CLUSTER,
    OF_GROUP,
    OF_TOPIC,
    TOPICS,
    rate,
    series,
)

MANY = 15
HERE = f"{OF_TOPIC},{OF_BROKER}"


def most(query: str) -> str:
    return f"topk({MANY}, {query})"


def build() -> Dashboard:
    size = series("ballast_replica_size_bytes", HERE)
    kept = f"{series('ballast_replica_log_end_offset', HERE)} - {series('ballast_replica_log_start_offset', HERE)}"
    led = f"{series('ballast_partition_leader', HERE)} == 1"
    sizes = (
        graph("Largest topics", units.BytesIEC, "All replicas on the chosen brokers together.").with_target(
            over_time(most(f"sum by (topic) ({size})"), "{{topic}}")
        ),
        graph(
            "Largest replicas", units.BytesIEC,
            "One that is large beside a directory's band keeps that directory from being level.",
        ).with_target(over_time(most(size), "{{topic}}-{{partition}} on {{broker}}:{{log_dir}}")),
        graph("Records kept", units.Short, "Between log start and log end of the leaders.").with_target(
            over_time(most(f"sum by (topic) (({kept}) and ({led}))"), "{{topic}}")
        ),
        graph("Partitions", units.Short, "With their leader on the chosen brokers.").with_target(
            over_time(most(f"sum by (topic) ({series('ballast_partition_leader', HERE)})"), "{{topic}}")
        ),
    )  # fmt: skip
    traffic = (
        graph("Bytes in", units.BytesPerSecondSI, "Produced to the leaders.").with_target(
            over_time(most(f"sum by (topic) ({rate('ballast_partition_bytes_in_total', HERE)})"), "{{topic}}")
        ),
        graph("Bytes out", units.BytesPerSecondSI, "Fetched, by consumers and followers.").with_target(
            over_time(most(f"sum by (topic) ({rate('ballast_partition_bytes_out_total', HERE)})"), "{{topic}}")
        ),
    )
    # A group's coordinator exports the lag only if it has a replica itself. All replicas of a partition export its log
    # end offset, unless series of partitions are switched off.
    partition = "namespace, job, topic, partition"
    end = f"max by ({partition}) ({series('ballast_replica_log_end_offset', OF_TOPIC)})"
    done = f"max by (group, {partition}) ({series('ballast_group_committed_offset', f'{OF_TOPIC},{OF_GROUP}')})"
    told = f"max by (group, {partition}) ({series('ballast_group_lag', f'{OF_TOPIC},{OF_GROUP}')})"
    lag = f"clamp_min({end} - on ({partition}) group_right() {done}, 0) or {told}"
    groups = (
        graph(
            "Lag of groups", units.Short, "Records between the end of a partition and what was committed."
        ).with_target(over_time(most(f"sum by (group, topic) ({lag})"), "{{group}} {{topic}}")),
        graph("Members of groups", units.NoUnit, "None, with lag: nobody reads.").with_target(
            over_time(f"sum by (group) ({series('ballast_group_members', OF_GROUP)})", "{{group}}")
        ),
    )
    rows = (("Sizes", sizes), ("Traffic", traffic), ("Groups", groups))
    about = f"The {MANY} largest and busiest of the chosen topics, and the groups that read them."
    return dashboard("topics", "Topics", about, (*CLUSTER, BROKERS, TOPICS, GROUPS), OF_CLUSTER, rows)
