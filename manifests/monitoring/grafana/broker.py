"""Dashboard: what brokers do for their clients, and how long it takes."""

from __future__ import annotations

from collections.abc import Sequence

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.models import units

from manifests.monitoring.grafana.house import THIRD, Panel, dashboard, graph, link_to, over_time, steps
from manifests.monitoring.grafana.queries import BROKER, BROKERS, CLUSTER, OF_BROKER, OF_CLUSTER, quantile, rate, series

DURATION = "ballast_request_duration_seconds"


def build() -> Dashboard:
    rows = (
        ("Requests", _requests()),
        ("Connections", _connections()),
        ("Quotas", _quotas()),
        ("Event loop", _event_loop()),
        ("Replicas", _replicas()),
        ("Compaction", _compaction()),
    )
    about = "Brokers as their clients meet them: requests, latency, errors, connections, and what holds them up."
    return dashboard("broker", "Broker", about, (*CLUSTER, BROKERS), OF_CLUSTER, rows)


def _requests() -> Sequence[Panel]:
    return (
        graph("Requests", units.RequestsPerSecond, "Answered, by kind.", stacked=True).with_target(
            over_time(f"sum by (api) ({rate(f'{DURATION}_count', OF_BROKER)})", "{{api}}")
        ),
        graph(
            "Errors", units.RequestsPerSecond,
            "Error codes told, each partition's for itself. Some are the protocol at work: a client that asks the "
            "wrong broker asks another one next.",
        ).with_target(over_time(f"sum by (api, error) ({rate('ballast_request_errors_total', OF_BROKER)})",
                                "{{api}} {{error}}")),
        graph("Latency, median", units.Seconds, "From a request's last byte to its reply.").with_target(
            over_time(quantile(0.5, DURATION, "api", OF_BROKER), "{{api}}")
        ),
        graph(
            "Latency, 99th percentile", units.Seconds,
            "From a request's last byte to its reply. Fetch includes what a consumer was willing to wait for records.",
        ).with_target(over_time(quantile(0.99, DURATION, "api", OF_BROKER), "{{api}}")),
    )  # fmt: skip


def _connections() -> Sequence[Panel]:
    return (
        graph("Connections", units.NoUnit, "Open ones.", width=THIRD).with_target(
            over_time(series("ballast_connections", OF_BROKER), BROKER)
        ),
        graph(
            "New and refused connections", units.CountsPerSecond,
            "Refused over a limit; delayed: a listener let nobody in for a while. Clients that connect anew for each "
            "request show here.", width=THIRD,
        )
        .with_target(over_time(f"sum({rate('ballast_connections_accepted_total', OF_BROKER)})", "accepted"))
        .with_target(over_time(f"sum({rate('ballast_connections_refused_total', OF_BROKER)})", "refused", "B"))
        .with_target(over_time(f"sum({rate('ballast_connections_delayed_total', OF_BROKER)})", "delayed", "C")),
        graph(
            "Requests in memory", units.BytesIEC, "Bytes of requests that are still coming in.", width=THIRD
        ).with_target(over_time(series("ballast_request_queue_bytes", OF_BROKER), BROKER)),
    )  # fmt: skip


def _quotas() -> Sequence[Panel]:
    return (
        graph(
            "Clients told to wait", units.CountsPerSecond,
            "By the quota that they are over: bytes produced or fetched, time that requests take, partitions made and "
            "deleted.",
        ).with_target(over_time(f"sum by (quota) ({rate('ballast_quota_throttles_total', OF_BROKER)})", "{{quota}}")),
        graph("For how long", units.NoUnit, "Seconds of waiting told in a second, to all clients.").with_target(
            over_time(f"sum by (quota) ({rate('ballast_quota_throttled_seconds_total', OF_BROKER)})", "{{quota}}")
        ),
    )  # fmt: skip


def _event_loop() -> Sequence[Panel]:
    busy = f"sum by (broker) ({rate('ballast_event_loop_lag_seconds_sum', OF_BROKER)})"
    return (
        graph(
            "Busy", units.PercentUnit,
            "How much of the time the broker's one thread for requests has something to do. Near all of it, clients "
            "wait for each other: more brokers.", width=THIRD, limits=steps(0.6, 0.9),
        ).with_target(over_time(busy, BROKER)),
        graph(
            "Turns of the event loop, 99th percentile", units.Seconds,
            "What is long in one turn holds up all requests of the broker.", width=THIRD, limits=steps(0.1, 0.5),
        ).with_target(over_time(quantile(0.99, "ballast_event_loop_lag_seconds", "broker", OF_BROKER), BROKER)),
        graph(
            "Longest turn", units.Seconds,
            "Since the broker was ready. Where the processor's part is small, the turn waited: for a disk, or for the "
            "machine.", width=THIRD,
        )
        .with_target(over_time(series("ballast_event_loop_longest_turn_seconds", OF_BROKER), f"{BROKER}"))
        .with_target(
            over_time(series("ballast_event_loop_longest_turn_cpu_seconds", OF_BROKER), f"{BROKER}, processor", "B")
        ),
    )  # fmt: skip


def _replicas() -> Sequence[Panel]:
    to_directories = link_to("directories", "Directories of broker ${__field.labels.broker}", broker="broker")
    return (
        graph("Replicas", units.NoUnit, "Leaders and followers.", width=THIRD)
        .data_links([to_directories])
        .with_target(over_time(series("ballast_replicas", OF_BROKER), BROKER)),
        graph("Leaders", units.NoUnit, "Partitions that the broker leads.", width=THIRD)
        .data_links([to_directories])
        .with_target(over_time(series("ballast_leaders", OF_BROKER), BROKER)),
        graph(
            "Refused changes of the ISR", units.OpsPerSecond,
            "By the controller. More than a few: this broker knows less than the controller.", width=THIRD,
        ).with_target(over_time(rate("ballast_isr_failed_updates_total", OF_BROKER), BROKER)),
    )  # fmt: skip


def _compaction() -> Sequence[Panel]:
    return (
        graph("Compaction, read", units.BytesPerSecondSI, "Bytes that compaction reads.", width=THIRD).with_target(
            over_time(rate("ballast_cleaner_read_bytes_total", OF_BROKER), BROKER)
        ),
        graph("Logs compacted", units.OpsPerSecond, "Passes over a log.", width=THIRD).with_target(
            over_time(rate("ballast_cleaner_passes_total", OF_BROKER), BROKER)
        ),
        graph(
            "Uncleanable partitions", units.NoUnit,
            "Left alone since compacting them failed, or until there is room for it: they only grow. The broker's log "
            "says why.", width=THIRD, limits=steps(1),
        ).with_target(over_time(series("ballast_cleaner_uncleanable_partitions", OF_BROKER), BROKER)),
    )  # fmt: skip
