"""Dashboard: moves: how far they are, what holds them up, and how they affect everything else."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.models import units

from manifests.monitoring.grafana.house import FILL_STEPS, QUARTER, THIRD, dashboard, graph, number, over_time, steps
from manifests.monitoring.grafana.queries import (
    BROKER,
    BROKERS,
    CLUSTER,
    DIRECTORY,
    OF_BROKER,
    OF_CLUSTER,
    fill,
    quantile,
    rate,
    series,
)

DURATION = "ballast_request_duration_seconds"


def build() -> Dashboard:
    state = (
        number(
            "In progress", units.NoUnit, "Moves between the directories of a broker.", width=QUARTER
        ).with_target(over_time(f"sum({series('ballast_moves', OF_BROKER)})", "moves")),
        number(
            "Paused", units.NoUnit, "They wait for space: the destination is down to its reserve.", width=QUARTER,
            limits=steps(1),
        ).with_target(over_time(f"sum({series('ballast_moves_paused', OF_BROKER)})", "moves")),
        number(
            "Not converging", units.NoUnit, "Slower than their partition grows: raise the throttle.", width=QUARTER,
            limits=steps(1),
        ).with_target(over_time(f"sum({series('ballast_moves_not_converging', OF_BROKER)})", "moves")),
        number("Copied", units.BytesIEC, "Between directories, within the last hour.", width=QUARTER).with_target(
            over_time(f"sum(increase({series('ballast_moves_copied_bytes_total', OF_BROKER)}[1h]))", "bytes")
        ),
    )  # fmt: skip
    progress = (
        graph("Moves between directories", units.NoUnit, "Paused and not converging ones are in progress as well.")
        .with_target(over_time(f"sum({series('ballast_moves', OF_BROKER)})", "in progress"))
        .with_target(over_time(f"sum({series('ballast_moves_paused', OF_BROKER)})", "paused", "B"))
        .with_target(over_time(f"sum({series('ballast_moves_not_converging', OF_BROKER)})", "not converging", "C")),
        graph("Copied", units.BytesPerSecondSI, "Between directories. Flat at the throttle is as it should be.")
        .with_target(over_time(rate("ballast_moves_copied_bytes_total", OF_BROKER), BROKER)),
        graph("Copies in the making", units.BytesIEC, "Where moves are going to: space that is used twice meanwhile.")
        .with_target(over_time(
            f"sum by (broker, log_dir) ({series('ballast_replica_future_size_bytes', OF_BROKER)})", DIRECTORY)),
        graph("Fill of directories", units.PercentUnit, "It should come together.", limits=FILL_STEPS)
        .max(1)
        .with_target(over_time(fill(OF_BROKER), DIRECTORY)),
    )  # fmt: skip
    others = (
        graph(
            "Being reassigned", units.NoUnit, "Partitions of the cluster whose replicas go to other brokers.",
            width=THIRD,
        ).with_target(over_time(f"max({series('ballast_reassigning_partitions', OF_BROKER)})", "partitions")),
        graph(
            "Under-replicated", units.NoUnit, "Partitions that lack a replica. One that only moves lacks none.",
            width=THIRD,
        ).with_target(over_time(series("ballast_under_replicated_partitions", OF_BROKER), BROKER)),
        graph(
            "Produce latency, 99th percentile", units.Seconds, "If it rises with the copying, lower the throttle.",
            width=THIRD,
        ).with_target(over_time(quantile(0.99, DURATION, "broker", f'{OF_BROKER},api="Produce"'), BROKER)),
    )  # fmt: skip
    rows = (("State", state), ("Progress", progress), ("Meanwhile", others))
    about = "Moves of replicas: their progress, what they wait for, and what producers notice of them."
    return dashboard("reassignments", "Reassignments", about, (*CLUSTER, BROKERS), OF_CLUSTER, rows)
