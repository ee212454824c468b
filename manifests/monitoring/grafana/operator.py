"""Dashboard: the operator at work: whether there is a leader, whether it keeps up, what fails."""

from __future__ import annotations

from functools import partial

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.models import units

from manifests.monitoring.grafana import queries
from manifests.monitoring.grafana.house import (
    EXACTLY_ONE,
    QUARTER,
    Variable,
    dashboard,
    graph,
    number,
    over_time,
    steps,
)
from manifests.monitoring.grafana.queries import OF_OPERATOR

# One operator serves many clusters, from a namespace of its own.
OPERATOR = Variable("operator", "Operator", "The job label.", "label_values(ballast_operator_leader, job)")
series = partial(queries.series, of=OF_OPERATOR)
rate = partial(queries.rate, of=OF_OPERATOR)
quantile = partial(queries.quantile, of=OF_OPERATOR)

# At the second value BallastReconcileStuck fires.
AGE_STEPS = steps(60, 300)


def build() -> Dashboard:
    state = (
        number(
            "Leaders", units.NoUnit, "Two operators run, one of them holds the Lease and acts.", width=QUARTER,
            limits=EXACTLY_ONE,
        ).with_target(over_time(f"sum({series('ballast_operator_leader')})", "leaders")),
        number("Waiting objects", units.NoUnit, "Objects that wait to be looked at.", width=QUARTER).with_target(
            over_time(f"sum({series('ballast_operator_queue_depth')})", "objects")
        ),
        number(
            "Oldest look in progress", units.Seconds, "A cluster that does not answer holds up only itself.",
            width=QUARTER, limits=AGE_STEPS,
        ).with_target(over_time(f"max({series('ballast_operator_oldest_reconcile_seconds')})", "age")),
        number("Statuses written", units.Short, "Since the operator started.", width=QUARTER).with_target(
            over_time(f"sum({series('ballast_operator_status_writes_total')})", "statuses")
        ),
    )  # fmt: skip
    looks = (
        graph("Looks", units.OpsPerSecond, "Objects looked at, by kind.", stacked=True).with_target(
            over_time(f"sum by (kind) ({rate('ballast_operator_reconciled_objects_total')})", "{{kind}}")
        ),
        graph(
            "Failures", units.OpsPerSecond, "Looks that failed. Conditions of the objects say why.",
            limits=steps(critical=0.01),
        ).with_target(over_time(f"sum by (kind) ({rate('ballast_operator_reconcile_errors_total')})", "{{kind}}")),
        graph("Duration, 95th percentile", units.Seconds, "Of a look, by kind.").with_target(
            over_time(quantile(0.95, "ballast_operator_reconcile_seconds", "kind"), "{{kind}}")
        ),
        graph("Waiting objects over time", units.NoUnit, "A queue that only grows: the operator does not keep up.")
        .with_target(over_time(series("ballast_operator_queue_depth"), "{{instance}}")),
    )  # fmt: skip
    kubernetes = (
        graph("Watch events", units.OpsPerSecond, "What Kubernetes tells, by kind.").with_target(
            over_time(f"sum by (kind) ({rate('ballast_operator_watch_events_total')})", "{{kind}}")
        ),
        graph("Requests to Kubernetes", units.RequestsPerSecond, "Without watches and the Lease.").with_target(
            over_time(f"sum by (verb) ({rate('ballast_operator_api_requests_total')})", "{{verb}}")
        ),
    )
    rows = (("State", state), ("Work", looks), ("Kubernetes", kubernetes))
    about = "The operator: who leads, what waits, what fails, how much it asks of Kubernetes."
    return dashboard("operator", "Operator", about, (OPERATOR,), OF_OPERATOR, rows)
