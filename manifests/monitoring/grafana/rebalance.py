"""Dashboard: the rebalance job: when it looked, what it found, what it proposes."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.models import common, units

from manifests.monitoring.grafana.directories import SPREAD_STEPS
from manifests.monitoring.grafana.house import QUARTER, dashboard, graph, now, number, over_time, steps
from manifests.monitoring.grafana.queries import OF_CLUSTER, cluster_of, series

# In intervals of the job; BallastRebalanceSilent fires a little later.
LATE_STEPS = steps(1.5, 2)


def build() -> Dashboard:
    ended = series("ballast_rebalance_last_run_timestamp_seconds")
    seconds = series("ballast_rebalance_last_run_duration_seconds")
    state = (
        number("Last outcome", units.NoUnit, "Its reason, as in the condition Balanced.", width=QUARTER)
        .text_mode(common.BigValueTextMode.NAME)
        .graph_mode(common.BigValueGraphMode.NONE)
        .with_target(now(f"{series('ballast_rebalance_last_outcome')} == 1", "{{reason}}")),
        number(
            "Since the last look", units.NoUnit, "In intervals of the job. Many: it hangs, or is too slow for them.",
            width=QUARTER, limits=LATE_STEPS,
        ).with_target(over_time(f"(time() - {ended}) / {series('ballast_rebalance_interval_seconds')}", "intervals")),
        number("Bytes of the plan", units.BytesIEC, "Over the network and between disks.", width=QUARTER).with_target(
            over_time(series("ballast_rebalance_proposed_bytes"), "{{way}}")
        ),
        number("Duration of a look", units.Seconds, "From the first query to the outcome.", width=QUARTER).with_target(
            over_time(seconds, "duration")
        ),
    )  # fmt: skip
    course = (
        graph(
            "Spread now and as planned",
            units.PercentUnit,
            "Fullest minus emptiest directory, while a look makes a plan; Directories has it always.",
            limits=SPREAD_STEPS,
        ).with_target(over_time(series("ballast_rebalance_fill_spread_ratio"), "{{state}} the plan")),
        graph("Bytes of plans", units.BytesIEC, "Over the network and between disks.", stacked=True).with_target(
            over_time(series("ballast_rebalance_proposed_bytes"), "{{way}}")
        ),
        graph("Looks by outcome", units.OpsPerSecond, "Reasons are explained in docs/rebalance.md.").with_target(
            over_time(f"sum by (reason) (rate({series('ballast_rebalance_runs_total')}[1h]))", "{{reason}}")
        ),
        graph("Duration of looks", units.Seconds, "From the first query to the outcome.").with_target(
            over_time(seconds, "duration")
        ),
    )  # fmt: skip
    rows = (("State", state), ("Course", course))
    found_in = "ballast_rebalance_last_run_timestamp_seconds"
    about = "The job that watches the disks: what it found, why it proposes or why it does not, and what that costs."
    return dashboard("rebalance", "Rebalance", about, cluster_of(found_in), OF_CLUSTER, rows)
