"""Dashboard: whether the cluster is well, and if not, where to look next."""

from __future__ import annotations

from collections.abc import Sequence

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.models import units

from manifests.monitoring.grafana.house import (
    EIGHTH,
    EXACTLY_ONE,
    FILL_STEPS,
    NONE_ALLOWED,
    QUARTER,
    Panel,
    dashboard,
    graph,
    link_to,
    number,
    over_time,
)
from manifests.monitoring.grafana.queries import BROKER, CLUSTER, OF_CLUSTER, fill, rate, series

TO_BROKER = link_to("broker", "Broker ${__field.labels.broker}", broker="broker")


def build() -> Dashboard:
    rows = (("State", _state()), ("Brokers", _brokers()), ("Traffic", _traffic()), ("Agreement", _agreement()))
    about = "One cluster at a glance: what is wrong, which broker differs from the others, what goes in and out."
    return dashboard("cluster", "Cluster", about, CLUSTER, OF_CLUSTER, rows)


def _state() -> Sequence[Panel]:
    return (
        number("Brokers", units.NoUnit, "Brokers that are scraped.", width=EIGHTH).with_target(
            over_time(f"count({series('ballast_replicas')})", "brokers")
        ),
        number(
            "Active controllers", units.NoUnit, "One, but for seconds around an election.", width=EIGHTH,
            limits=EXACTLY_ONE,
        ).with_target(over_time(f"sum({series('ballast_controller_active')})", "controllers")),
        number(
            "Without a leader", units.NoUnit, "Partitions that can be neither written to nor read from.", width=EIGHTH,
            limits=NONE_ALLOWED,
        ).with_target(over_time(f"sum({series('ballast_leaderless_partitions')})", "partitions")),
        number(
            "Below min.insync", units.NoUnit, "Partitions that refuse writes with acks=all.", width=EIGHTH,
            limits=NONE_ALLOWED,
        ).with_target(over_time(f"sum({series('ballast_under_min_isr_partitions')})", "partitions")),
        number(
            "Under-replicated", units.NoUnit, "Partitions with fewer replicas in sync than they should have.",
            width=EIGHTH, limits=NONE_ALLOWED,
        ).with_target(over_time(f"sum({series('ballast_under_replicated_partitions')})", "partitions")),
        number(
            "Offline replicas", units.NoUnit, "Replicas on failed directories.", width=EIGHTH, limits=NONE_ALLOWED
        ).with_target(over_time(f"sum({series('ballast_offline_replicas')})", "replicas")),
        number(
            "Fullest directory", units.PercentUnit, "A full directory goes offline, and its partitions with it.",
            width=QUARTER, limits=FILL_STEPS,
        ).with_target(over_time(f"max({fill()})", "fullest")),
    )  # fmt: skip


def _brokers() -> Sequence[Panel]:
    used, total = series("ballast_log_dir_used_bytes"), series("ballast_log_dir_total_bytes")
    return (
        graph("Fill of brokers", units.PercentUnit, "All directories of a broker together.", limits=FILL_STEPS)
        .max(1)
        .data_links([TO_BROKER])
        .with_target(over_time(f"sum by (broker) ({used}) / sum by (broker) ({total})", BROKER)),
        graph("Leaders per broker", units.NoUnit, "A broker that restarts leads nothing until leaders are preferred.")
        .data_links([TO_BROKER])
        .with_target(over_time(series("ballast_leaders"), BROKER)),
        graph("Replicas per broker", units.NoUnit, "Leaders and followers.")
        .data_links([TO_BROKER])
        .with_target(over_time(series("ballast_replicas"), BROKER)),
        graph("Under-replicated by leader", units.NoUnit, "Partitions that the broker leads and that lack a replica.")
        .data_links([TO_BROKER])
        .with_target(over_time(series("ballast_under_replicated_partitions"), BROKER)),
    )


def _traffic() -> Sequence[Panel]:
    return (
        graph("Bytes in", units.BytesPerSecondSI, "Produced, by the leader that took them.", stacked=True)
        .data_links([TO_BROKER])
        .with_target(over_time(f"sum by (broker) ({rate('ballast_partition_bytes_in_total')})", BROKER)),
        graph("Bytes out", units.BytesPerSecondSI, "Fetched, by consumers and followers.", stacked=True)
        .data_links([TO_BROKER])
        .with_target(over_time(f"sum by (broker) ({rate('ballast_partition_bytes_out_total')})", BROKER)),
    )


def _agreement() -> Sequence[Panel]:
    return (
        graph("Changes of the ISR", units.OpsPerSecond, "Many, with no broker down: disks or network are slow.")
        .with_target(over_time(f"sum({rate('ballast_isr_shrinks_total')})", "shrinks"))
        .with_target(over_time(f"sum({rate('ballast_isr_expands_total')})", "expands", "B"))
        .with_target(over_time(f"sum({rate('ballast_unclean_elections_total')})", "unclean elections", "C")),
        graph(
            "Metadata offset behind the newest", units.NoUnit,
            "How many records of the metadata log a node has yet to apply.",
        )
        .data_links([TO_BROKER])
        .with_target(
            over_time(
                f"max by (namespace, job) ({series('ballast_metadata_offset')}) "
                f"- on (namespace, job) group_right() {series('ballast_metadata_offset')}",
                BROKER,
            )
        ),
    )  # fmt: skip
