"""Writes the dashboards, the PrometheusRule and docs/runbooks.md from what is said here and in rules.yaml.

`python manifests/monitoring/generate.py` rewrites the files; with --check it fails when they are out of date. Every
panel is one line: title, unit, and queries with their legends. Nothing but Python and PyYAML is needed.
"""

from __future__ import annotations

import json
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
RUNBOOKS = HERE.parents[1] / "docs" / "runbooks.md"
SELECTOR = 'job=~"$job"'
WIDTH, HEIGHT = 24, 8


@dataclass(frozen=True)
class Panel:
    """One panel; `queries` are (PromQL, legend). `$job` and the dashboard's other variables may occur."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    kind: str = "timeseries"
    columns: int = 2
    description: str = ""
    limit: float | None = None


@dataclass(frozen=True)
class Dashboard:
    name: str
    title: str
    panels: tuple[Panel, ...]
    variables: tuple[tuple[str, str], ...] = field(default=())
    job_metric: str = "ballast_broker_info"


def one(query: str, legend: str = "") -> tuple[tuple[str, str], ...]:
    return ((query, legend),)


def s(metric: str, more: str = "") -> str:
    """A metric of the chosen jobs."""
    return f"{metric}{{{SELECTOR}{',' + more if more else ''}}}"


FILL = f"{s('ballast_log_dir_used_bytes')} / {s('ballast_log_dir_total_bytes')}"
BROKER = 'broker=~"$broker"'
DISK = "{{broker}}:{{log_dir}}"
QUANTILE = "histogram_quantile({q}, sum by (le, api) (rate({m}[5m])))"

DASHBOARDS = (
    Dashboard(
        "cluster",
        "Ballast / Cluster",
        (
            Panel("Brokers", "none", one(f"count({s('ballast_broker_info')})"), "stat", 6),
            Panel("Active controllers", "none", one(f"sum({s('ballast_controller_active')})"), "stat", 6),
            Panel("Under-replicated", "none", one(f"sum({s('ballast_under_replicated_partitions')})"), "stat", 6,
                  limit=1),
            Panel("Below min.insync", "none", one(f"sum({s('ballast_under_min_isr_partitions')})"), "stat", 6, limit=1),
            Panel("Offline replicas", "none", one(f"sum({s('ballast_offline_replicas')})"), "stat", 6, limit=1),
            Panel("Fullest directory", "percentunit", one(f"max({FILL})"), "stat", 6, limit=0.9),
            Panel("Fill of brokers", "percentunit", one(
                f"sum by (broker) ({s('ballast_log_dir_used_bytes')}) / "
                f"sum by (broker) ({s('ballast_log_dir_total_bytes')})", "broker {{broker}}")),
            Panel("Leaders per broker", "none", one(s("ballast_leaders"), "broker {{broker}}")),
            Panel("Bytes in", "Bps", one(f"sum(rate({s('ballast_partition_bytes_in_total')}[5m]))", "in")),
            Panel("Bytes out", "Bps", one(f"sum(rate({s('ballast_partition_bytes_out_total')}[5m]))", "out")),
            Panel("Changes of the ISR", "ops", (
                (f"sum(rate({s('ballast_isr_shrinks_total')}[5m]))", "shrinks"),
                (f"sum(rate({s('ballast_isr_expands_total')}[5m]))", "expands"))),
            Panel("Metadata offset behind the newest", "none", one(
                f"max({s('ballast_metadata_offset')}) - on() group_right() {s('ballast_metadata_offset')}",
                "broker {{broker}}")),
        ),
    ),
    Dashboard(
        "broker",
        "Ballast / Broker",
        (
            Panel("Requests", "reqps", one(
                f"sum by (api) (rate({s('ballast_request_duration_seconds_count', BROKER)}[5m]))", "{{api}}")),
            Panel("Latency, 99th percentile", "s", one(
                QUANTILE.format(q="0.99", m=s("ballast_request_duration_seconds_bucket", BROKER)), "{{api}}")),
            Panel("Errors", "reqps", one(
                f"sum by (api, error) (rate({s('ballast_request_errors_total', BROKER)}[5m]))", "{{api}} {{error}}")),
            Panel("Connections", "none", one(s("ballast_connections", BROKER), "broker {{broker}}")),
            Panel("New and refused connections", "cps", (
                (f"sum(rate({s('ballast_connections_accepted_total', BROKER)}[5m]))", "accepted"),
                (f"sum(rate({s('ballast_connections_refused_total', BROKER)}[5m]))", "refused"))),
            Panel("Requests and replies in memory", "bytes", one(
                s("ballast_request_queue_bytes", BROKER), "broker {{broker}}")),
            Panel("Replicas", "none", one(s("ballast_replicas", BROKER), "broker {{broker}}")),
            Panel("Refused changes of the ISR", "ops", one(
                f"rate({s('ballast_isr_failed_updates_total', BROKER)}[5m])", "broker {{broker}}")),
        ),
        (("broker", "label_values(ballast_broker_info, broker)"),),
    ),
    Dashboard(
        "directories",
        "Ballast / Directories",
        (
            Panel("Spread of fill levels", "percentunit", one(f"max({FILL}) - min({FILL})"), "stat", 4, limit=0.25),
            Panel("Fullest", "percentunit", one(f"max({FILL})"), "stat", 4, limit=0.9),
            Panel("Offline", "none", one(f"sum({s('ballast_log_dir_offline')})"), "stat", 4, limit=1),
            Panel("Cordoned", "none", one(f"sum({s('ballast_log_dir_cordoned')})"), "stat", 4),
            Panel("Fill now", "percentunit", one(f"sort_desc({FILL})", DISK), "bargauge", 1, limit=0.9),
            Panel("Fill over time", "percentunit", one(FILL, DISK)),
            Panel("Growth", "Bps", one(f"deriv({s('ballast_log_dir_used_bytes')}[1h])", DISK)),
            Panel("Fill in 24 hours at this rate", "percentunit", one(
                f"predict_linear({s('ballast_log_dir_used_bytes')}[6h], 86400) / {s('ballast_log_dir_total_bytes')}",
                DISK)),
            Panel("Replicas per directory", "none", one(
                f"count by (broker, log_dir) ({s('ballast_replica_size_bytes')})", DISK)),
        ),
    ),
    Dashboard(
        "topics",
        "Ballast / Topics",
        (
            Panel("Largest topics", "bytes", one(
                f"topk(15, sum by (topic) ({s('ballast_replica_size_bytes')}))", "{{topic}}")),
            Panel("Largest replicas", "bytes", one(
                f"topk(15, {s('ballast_replica_size_bytes')})", "{{topic}}-{{partition}} on {{broker}}")),
            Panel("Bytes in", "Bps", one(
                f"topk(15, sum by (topic) (rate({s('ballast_partition_bytes_in_total')}[5m])))", "{{topic}}")),
            Panel("Bytes out", "Bps", one(
                f"topk(15, sum by (topic) (rate({s('ballast_partition_bytes_out_total')}[5m])))", "{{topic}}")),
            Panel("Records kept", "none", one(
                f"topk(15, sum by (topic) (({s('ballast_replica_log_end_offset')} - "
                f"{s('ballast_replica_log_start_offset')}) * on (topic, partition, broker) "
                f"({s('ballast_partition_leader')} == 1)))", "{{topic}}")),
            Panel("Lag of groups", "none", one(
                f"topk(15, sum by (group, topic) (max by (group, topic, partition) ({s('ballast_group_lag')})))",
                "{{group}} {{topic}}")),
            Panel("Members of groups", "none", one(f"sum by (group) ({s('ballast_group_members')})", "{{group}}")),
        ),
    ),
    Dashboard(
        "reassignments",
        "Ballast / Reassignments",
        (
            Panel("Moves between directories", "none", (
                (f"sum({s('ballast_moves')})", "in progress"),
                (f"sum({s('ballast_moves_paused')})", "paused"),
                (f"sum({s('ballast_moves_not_converging')})", "not converging"))),
            Panel("Copied", "Bps", one(f"rate({s('ballast_moves_copied_bytes_total')}[1m])", "broker {{broker}}")),
            Panel("Copies in the making", "bytes", one(
                f"sum by (broker, log_dir) ({s('ballast_replica_future_size_bytes')})", DISK)),
            Panel("Fill of directories", "percentunit", one(FILL, DISK)),
            Panel("Under-replicated", "none", one(
                s("ballast_under_replicated_partitions"), "broker {{broker}}")),
            Panel("Produce latency, 99th percentile", "s", one(
                QUANTILE.format(q="0.99", m=s("ballast_request_duration_seconds_bucket", 'api="Produce"')), "{{api}}")),
        ),
    ),
    Dashboard(
        "operator",
        "Ballast / Operator",
        (
            Panel("Leaders", "none", one(f"sum({s('ballast_operator_leader')})"), "stat", 4),
            Panel("Waiting objects", "none", one(f"sum({s('ballast_operator_queue_depth')})"), "stat", 4),
            Panel("Oldest look in progress", "s", one(
                f"max({s('ballast_operator_oldest_reconcile_seconds')})"), "stat", 4, limit=300),
            Panel("Statuses written", "none", one(f"sum({s('ballast_operator_status_writes_total')})"), "stat", 4),
            Panel("Looks", "ops", one(
                f"sum by (kind) (rate({s('ballast_operator_reconciled_objects_total')}[5m]))", "{{kind}}")),
            Panel("Failures", "ops", one(
                f"sum by (kind) (rate({s('ballast_operator_reconcile_errors_total')}[5m]))", "{{kind}}")),
            Panel("Duration, 95th percentile", "s", one(
                f"histogram_quantile(0.95, sum by (le, kind) "
                f"(rate({s('ballast_operator_reconcile_seconds_bucket')}[5m])))", "{{kind}}")),
            Panel("Watch events", "ops", one(
                f"sum by (kind) (rate({s('ballast_operator_watch_events_total')}[5m]))", "{{kind}}")),
        ),
        job_metric="ballast_operator_leader",
    ),
    Dashboard(
        "rebalance",
        "Ballast / Rebalance",
        (
            Panel("Last outcome", "none", one(f"{s('ballast_rebalance_last_outcome')} == 1", "{{reason}}"), "stat", 4),
            Panel("Since the last look", "s", one(
                f"time() - {s('ballast_rebalance_last_run_timestamp_seconds')}"), "stat", 4, limit=3600),
            Panel("Bytes of the plan", "bytes", one(s("ballast_rebalance_proposed_bytes"), "{{way}}"), "stat", 4),
            Panel("Duration of a look", "s", one(s("ballast_rebalance_last_run_duration_seconds")), "stat", 4),
            Panel("Spread now and as planned", "percentunit", one(
                s("ballast_rebalance_fill_spread_ratio"), "{{state}}")),
            Panel("Looks by outcome", "ops", one(
                f"sum by (reason) (rate({s('ballast_rebalance_runs_total')}[1h]))", "{{reason}}")),
        ),
        job_metric="ballast_rebalance_last_run_timestamp_seconds",
    ),
)  # fmt: skip


def dashboard_json(dashboard: Dashboard) -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    variables = [_variable("job", f"label_values({dashboard.job_metric}, job)")]
    variables += [_variable(name, query) for name, query in dashboard.variables]
    return {
        "uid": f"ballast-{dashboard.name}",
        "title": dashboard.title,
        "tags": ["ballast"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_data_source(), *variables]},
        "panels": _laid_out(dashboard.panels),
    }


def _data_source() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 3,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _laid_out(panels: tuple[Panel, ...]) -> list[dict[str, Any]]:
    x, y, row_height, placed = 0, 0, 0, []
    for number, panel in enumerate(panels, 1):
        width, height = WIDTH // panel.columns, HEIGHT // 2 if panel.kind == "stat" else HEIGHT
        if x + width > WIDTH or (row_height and height != row_height):
            x, y = 0, y + row_height
        placed.append(_panel(number, panel, {"x": x, "y": y, "w": width, "h": height}))
        x, row_height = x + width, height
    return placed


def _panel(number: int, panel: Panel, position: dict[str, int]) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.limit is not None:
        steps.append({"color": "red", "value": panel.limit})
    defaults = {"unit": panel.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}}
    source = {"type": "prometheus", "uid": "${datasource}"}
    targets = [
        {"refId": chr(ord("A") + index), "datasource": source, "expr": query, "legendFormat": legend or "__auto"}
        | ({} if panel.kind == "timeseries" else {"instant": True})
        for index, (query, legend) in enumerate(panel.queries)
    ]
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": source,
        "gridPos": position,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": targets,
    }


def prometheus_rule(rules: dict[str, Any]) -> dict[str, Any]:
    """rules.yaml for the Prometheus operator."""
    labels = {"app.kubernetes.io/part-of": "ballast"}
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "ballast", "labels": labels},
        "spec": rules,
    }


def generated() -> dict[Path, str]:
    """Every generated file and what belongs into it."""
    files = {
        HERE / "dashboards" / f"{dashboard.name}.json": json.dumps(dashboard_json(dashboard), indent=1) + "\n"
        for dashboard in DASHBOARDS
    }
    rules = yaml.safe_load((HERE / "rules.yaml").read_text(encoding="utf-8"))
    text = "# Written by generate.py from rules.yaml.\n" + yaml.safe_dump(
        prometheus_rule(rules), sort_keys=False, width=120
    )
    return files | {HERE / "prometheusrule.yaml": text, RUNBOOKS: runbooks(rules)}


def runbooks(rules: dict[str, Any]) -> str:
    """A page of all alerts: when each fires, and what to do then."""
    lines = ["# Runbooks", "", "What to do when an alert fires. Written by `manifests/monitoring/generate.py` from the"]
    lines += ["rules in `manifests/monitoring/rules.yaml`, whose annotations say the same.", ""]
    for group in rules["groups"]:
        for rule in group["rules"]:
            if "alert" not in rule:
                continue
            condition = " ".join(str(rule["expr"]).split())
            lines += [f"## {rule['alert']}", ""]
            lines += [f"{rule['labels']['severity'].capitalize()}, after {rule.get('for', '0m')} of", ""]
            lines += [f"    {condition}", "", *textwrap.wrap(rule["annotations"]["runbook"].strip(), 120), ""]
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    stale = []
    for path, text in generated().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path)
            if "--check" not in arguments:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
    for path in stale:
        print(f"{'out of date' if '--check' in arguments else 'wrote'}: {path.relative_to(HERE.parents[1])}")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
