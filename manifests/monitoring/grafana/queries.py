"""Queries that several dashboards share, and the variables that these name."""

from __future__ import annotations

from manifests.monitoring.grafana.house import Variable

OF_CLUSTER = 'namespace=~"$namespace",job=~"$job"'
OF_OPERATOR = 'job=~"$operator"'
OF_BROKER = 'broker=~"$broker"'
OF_DIRECTORY = f'{OF_BROKER},log_dir=~"$log_dir"'
OF_TOPIC = 'topic=~"$topic"'
OF_GROUP = 'group=~"$group"'

BROKER = "broker {{broker}}"
DIRECTORY = "{{broker}}:{{log_dir}}"


def series(metric: str, more: str = "", of: str = OF_CLUSTER) -> str:
    """A metric, restricted to what is selected."""
    return f"{metric}{{{of}{',' + more if more else ''}}}"


def rate(metric: str, more: str = "", of: str = OF_CLUSTER) -> str:
    """The rate of a counter, over the time that a point of the graph covers."""
    return f"rate({series(metric, more, of)}[$__rate_interval])"


def quantile(share: float, metric: str, by: str, more: str = "", of: str = OF_CLUSTER) -> str:
    """A quantile of a histogram for each value of label `by`; without observations it is NaN, and left out."""
    return f"histogram_quantile({share}, sum by (le, {by}) ({rate(f'{metric}_bucket', more, of)})) >= 0"


def fill(more: str = "") -> str:
    """How full each directory is, from 0 to 1."""
    return f"{series('ballast_log_dir_used_bytes', more)} / {series('ballast_log_dir_total_bytes', more)}"


def cluster_of(metric: str) -> tuple[Variable, Variable]:
    """Variables for the namespaces and clusters that have this metric.

    One cluster at a time: a level, a quorum or a leader belongs to one.
    """
    found, job = f"label_values({metric}, namespace)", f'label_values({metric}{{namespace=~"$namespace"}}, job)'
    return (
        Variable("namespace", "Namespace", "Of Kubernetes; none elsewhere.", found),
        Variable("job", "Cluster", "The job label, which Ballast's monitors make the cluster's name.", job, plain=True),
    )


def _values(label: str, metric: str, more: str = "") -> str:
    return f"label_values({series(metric, more)}, {label})"


CLUSTER = cluster_of("ballast_broker_info")
BROKERS = Variable("broker", "Broker", "Its broker.id.", _values("broker", "ballast_broker_info"))
DIRECTORIES = Variable(
    "log_dir",
    "Directory",
    "Its path, on any of the chosen brokers.",
    _values("log_dir", "ballast_log_dir_total_bytes", OF_BROKER),
)
TOPICS = Variable("topic", "Topic", "Of those that have a leader.", _values("topic", "ballast_partition_leader"))
GROUPS = Variable("group", "Group", "Of consumers.", _values("group", "ballast_group_members"))
