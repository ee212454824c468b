"""Plans moves, in waves, that level the disks of a cluster, with bounds that no plan can beat.

A plain library (numpy; HiGHS where it is installed): no Spark, no Kubernetes, no clock, no randomness. The job, the
operator and the command line use only what is named here.
"""

from ballast_planner.balance import PlanError, plan_add_brokers, plan_balance, plan_drain, plan_racks
from ballast_planner.check import check_plan
from ballast_planner.model import Broker, ClusterLoad, Directory, LoadError, Replica, ReplicaColumns
from ballast_planner.options import PlanOptions
from ballast_planner.plan import (
    Bounds,
    Fill,
    Move,
    Placement,
    Plan,
    PlanFormatError,
    Quality,
    Target,
    Unplaced,
    canonical_json,
    plan_hash,
    rows_from_kafka_json,
    rows_from_spec,
    spec_rows,
    to_kafka_json,
)
from ballast_planner.resource import ResourceOptions, reassignment_resources, rows_from_resource
from ballast_planner.targets import StaleRowsError, plan_explicit, plan_generate, plan_replication_factor
from ballast_planner.volumes import brokers_with_one_volume

__all__ = [
    "Bounds",
    "Broker",
    "ClusterLoad",
    "Directory",
    "Fill",
    "LoadError",
    "Move",
    "Placement",
    "Plan",
    "PlanError",
    "PlanFormatError",
    "PlanOptions",
    "Quality",
    "Replica",
    "ReplicaColumns",
    "ResourceOptions",
    "StaleRowsError",
    "Target",
    "Unplaced",
    "brokers_with_one_volume",
    "canonical_json",
    "check_plan",
    "plan_add_brokers",
    "plan_balance",
    "plan_drain",
    "plan_explicit",
    "plan_generate",
    "plan_hash",
    "plan_racks",
    "plan_replication_factor",
    "reassignment_resources",
    "rows_from_kafka_json",
    "rows_from_resource",
    "rows_from_spec",
    "spec_rows",
    "to_kafka_json",
]
