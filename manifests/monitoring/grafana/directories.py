"""Dashboard: every disk of every broker: how full, how level, how soon full."""

from __future__ import annotations

from collections.abc import Sequence

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.models import units

from manifests.monitoring.grafana.house import (
    FILL_STEPS,
    NONE_ALLOWED,
    Panel,
    bars,
    dashboard,
    graph,
    link_to,
    now,
    number,
    over_time,
    steps,
)
from manifests.monitoring.grafana.queries import (
    BROKERS,
    CLUSTER,
    DIRECTORIES,
    DIRECTORY,
    OF_CLUSTER,
    OF_DIRECTORY,
    fill,
    series,
)

# At the second value BallastDisksImbalanced fires.
SPREAD_STEPS = steps(0.15, 0.25)
# Absent where series of partitions are switched off.
TOLD = series("ballast_replica_size_bytes")
USED, TOTAL = (series(f"ballast_log_dir_{what}_bytes", OF_DIRECTORY) for what in ("used", "total"))
FILL = fill(OF_DIRECTORY)
# Computed as in BallastLogDirFullWithin24h: across restarts, and without the first hours of a new directory.
EACH = "max by (namespace, job, broker, log_dir)"
IN_A_DAY = f"predict_linear({EACH} ({USED})[6h:1m], 86400)"
OLD_ENOUGH = f"{EACH} ({USED} offset 3h)"
FULL_IN_A_DAY = f"{IN_A_DAY} > {EACH} ({TOTAL}) and deriv({EACH} ({USED})[1h:1m]) > 0 and {OLD_ENOUGH}"
TO_TOPICS = link_to("topics", "What lies on broker ${__field.labels.broker}", broker="broker")


def build() -> Dashboard:
    rows = (("State", _state()), ("Levels", _levels()), ("Content", _content()))
    about = "All log directories: how full and how level they are, how fast they grow, which will be full first."
    return dashboard("directories", "Directories", about, (*CLUSTER, BROKERS, DIRECTORIES), OF_CLUSTER, rows)


def _state() -> Sequence[Panel]:
    # The disk of a controller-only node stays empty; a cordoned one can only get emptier.
    levelled = f"{FILL} and on (namespace, job, broker) {series('ballast_replicas')}"
    closed = f"on (namespace, job, broker, log_dir) {series('ballast_log_dir_cordoned', OF_DIRECTORY)} == 1"
    return (
        number(
            "Spread", units.PercentUnit, "Fullest minus emptiest. The rebalance job proposes what levels them.",
            limits=SPREAD_STEPS,
        ).with_target(over_time(f"max({levelled}) - min({levelled} unless {closed})", "spread")),
        number("Fullest", units.PercentUnit, "A full directory goes offline.", limits=FILL_STEPS).with_target(
            over_time(f"max({FILL})", "fullest")
        ),
        number(
            "Full within a day", units.NoUnit, "Directories, at the rate of the last six hours; new ones not at first.",
            limits=NONE_ALLOWED,
        ).with_target(over_time(f"count({FULL_IN_A_DAY}) or 0 * count({TOTAL})", "directories")),
        number("Offline", units.NoUnit, "Directories that failed.", limits=NONE_ALLOWED).with_target(
            over_time(f"sum({series('ballast_log_dir_offline', OF_DIRECTORY)})", "directories")
        ),
        number("Cordoned", units.NoUnit, "Directories that take no new replicas.", limits=steps(1)).with_target(
            over_time(f"sum({series('ballast_log_dir_cordoned', OF_DIRECTORY)})", "directories")
        ),
        number("Free", units.BytesIEC, "On all chosen directories together.").with_target(
            over_time(f"sum({TOTAL}) - sum({USED})", "free")
        ),
    )  # fmt: skip


def _levels() -> Sequence[Panel]:
    return (
        bars(
            "Fill now", units.PercentUnit, "Fullest first. Everything used on the volume counts, also by others.",
            height=10, limits=FILL_STEPS,
        )
        .data_links([TO_TOPICS])
        .with_target(now(f"sort_desc({FILL})", DIRECTORY)),
        graph("Fill over time", units.PercentUnit, "Of each directory.", limits=FILL_STEPS)
        .max(1)
        .data_links([TO_TOPICS])
        .with_target(over_time(FILL, DIRECTORY)),
        graph(
            "Fill in 24 hours at this rate", units.PercentUnit,
            "A line through the last six hours, drawn on, of directories that are older than three.",
            limits=steps(0.9, 1),
        )
        .data_links([TO_TOPICS])
        .with_target(over_time(f"{IN_A_DAY} / {EACH} ({TOTAL}) and {OLD_ENOUGH}", DIRECTORY)),
    )  # fmt: skip


def _content() -> Sequence[Panel]:
    return (
        graph(
            "Growth", units.BytesPerSecondSI, "Over the last hour; below zero where retention or a move frees space.",
            below_zero=True,
        )
        .data_links([TO_TOPICS])
        .with_target(over_time(f"deriv({USED}[1h])", DIRECTORY)),
        graph("Replicas per directory", units.NoUnit, "Needs metrics.partitions.enable.")
        .data_links([TO_TOPICS])
        .with_target(
            over_time(f"count by (broker, log_dir) ({series('ballast_replica_size_bytes', OF_DIRECTORY)})", DIRECTORY)
        ),
        graph(
            "Used by others", units.BytesIEC,
            "On the volume, but not by replicas. A plan cannot move it; much of it makes level disks impossible.",
        ).with_target(
            over_time(
                f"sum by (broker, log_dir) ({USED}) - (sum by (broker, log_dir) ("
                f"{series('ballast_replica_size_bytes', OF_DIRECTORY)} "
                f"or {series('ballast_replica_future_size_bytes', OF_DIRECTORY)}) "
                f"or sum by (broker, log_dir) (0 * {USED} and on (namespace, job) {TOLD}))",
                DIRECTORY,
            )
        ),
        graph("Size of the volumes", units.BytesIEC, "Steps where a volume was grown.").with_target(
            over_time(TOTAL, DIRECTORY)
        ),
    )  # fmt: skip
