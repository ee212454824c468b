"""Builds the object that runs the rebalance job: CronJob, ScheduledSparkApplication or Deployment. PURE.

The job's ServiceAccount and its Role come with manifests/spark, so the operator needs no permission to grant any.
"""

from __future__ import annotations

from typing import Any

from ballast_operator.model.cluster import JobRun, KafkaCluster, RebalanceJob
from ballast_operator.model.meta import GROUP, MANAGED_BY
from ballast_operator.plan.volumes import FULL_WEIGHT
from ballast_operator.resources import names
from ballast_operator.resources.pods import USER
from ballast_operator.resources.security import FILE_MODE

ROLE = "rebalance"
# Its pods do not carry the cluster's own label, by which Services, budgets and the operator find brokers.
OF_CLUSTER = f"{GROUP}/rebalances"
METRICS_PORT = 9405
SPARK_VERSION = "4.3.0"
# Where the job's image keeps the sources, for drivers that are submitted rather than started by a command.
SOURCES = "/opt/ballast/spark"
MAIN_FILE = f"local://{SOURCES}/ballast_rebalance/__main__.py"
PROMETHEUS_VOLUME = "prometheus"
# The job reads the files again at each look, so changes of the Secret need no restart.
PROMETHEUS_SECRET = "/etc/ballast/prometheus"
LATEST_START_SECONDS = 600
LONGEST_RUN_SECONDS = 3_600
WATCH_GRACE_SECONDS = 30

KINDS = {
    JobRun.CRON_JOB: "CronJob",
    JobRun.SCHEDULED_SPARK_APPLICATION: "ScheduledSparkApplication",
    JobRun.WATCH: "Deployment",
}


def job_of(cluster: KafkaCluster) -> RebalanceJob | None:
    return cluster.spec.rebalance.job if cluster.spec.rebalance else None


def refusal(cluster: KafkaCluster) -> str | None:
    """Why the requested job cannot work, as a sentence without its full stop."""
    job, external = job_of(cluster), cluster.spec.external
    wants = external.tls or external.sasl if external else not _is_open(cluster)
    if job is not None and wants and not _asks_prometheus(job):
        why = "the job cannot ask brokers that want TLS or SASL, or that give rights"
        return f"{why}; name a Prometheus in spec.rebalance.job.prometheus"
    return None


def rebalance_object(cluster: KafkaCluster) -> dict[str, Any] | None:
    """The one object that runs the job, or None where no job is wanted."""
    job = job_of(cluster)
    if job is None:
        return None
    if job.run is JobRun.CRON_JOB:
        return _cron_job(cluster, job)
    if job.run is JobRun.WATCH:
        return _deployment(cluster, job)
    return _scheduled_application(cluster, job)


def arguments(cluster: KafkaCluster, job: RebalanceJob) -> list[str]:
    """The job's command line, without the name of the program."""
    found = ["--apply", "--cluster", cluster.meta.name, "--namespace", cluster.meta.namespace]
    if job.prometheus is not None:
        found += ["--prometheus", job.prometheus]
    asks_prometheus = _asks_prometheus(job)
    if job.prometheus_secret is not None and asks_prometheus:
        found += ["--prometheus-secret", PROMETHEUS_SECRET]
    if job.cluster_label is not None and asks_prometheus:
        found += ["--cluster-label", job.cluster_label]
    bootstrap = _bootstrap(cluster)
    if bootstrap is not None:
        found += ["--bootstrap", bootstrap]
    if job.directory_capacity is not None:
        found += ["--capacity", job.directory_capacity]
    for volume in cluster.spec.volumes:
        if volume.weight != FULL_WEIGHT:
            found += ["--weight", f"{volume.name}={volume.weight}"]
    found += ["--band", f"{job.band_percent / 100:g}", "--min-improvement", f"{job.min_improvement_percent / 100:g}"]
    found += ["--max-moves", str(job.max_moves)]
    throttle = cluster.spec.rebalance.throttle if cluster.spec.rebalance else None
    if throttle is not None and throttle.inter_broker is not None:
        found += ["--throttle-network", str(throttle.inter_broker)]
    if throttle is not None and throttle.intra_broker is not None:
        found += ["--throttle-disk", str(throttle.intra_broker)]
    return [*found, *job.args]


def _asks_prometheus(job: RebalanceJob) -> bool:
    return job.prometheus is not None or "--prometheus" in {each.split("=")[0] for each in job.args}


def _bootstrap(cluster: KafkaCluster) -> str | None:
    """The brokers' address; None if the job could not authenticate there, and asks only Prometheus."""
    external = cluster.spec.external
    if external is None:
        if not _is_open(cluster):
            return None
        port = cluster.spec.listeners[0].port
        return f"{names.bootstrap_service(cluster)}.{cluster.meta.namespace}.svc:{port}"
    return None if external.tls or external.sasl else external.bootstrap_servers


def _is_open(cluster: KafkaCluster) -> bool:
    """Whether anybody may ask the brokers through their first listener."""
    return cluster.spec.listeners[0].is_plain and cluster.spec.authorization is None


def pod_labels(cluster: KafkaCluster) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "ballast",
        MANAGED_BY: names.MANAGER,
        OF_CLUSTER: cluster.meta.name,
        names.ROLE_LABEL: ROLE,
    }


def _metadata(cluster: KafkaCluster) -> dict[str, Any]:
    return {
        "name": names.rebalance(cluster),
        "namespace": cluster.meta.namespace,
        "labels": names.labels(cluster, ROLE),
    }


def _cron_job(cluster: KafkaCluster, job: RebalanceJob) -> dict[str, Any]:
    pod = _pod(cluster, job, [*arguments(cluster, job), "--master", "local[*]"])
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": _metadata(cluster),
        "spec": {
            "schedule": job.schedule,
            "concurrencyPolicy": "Forbid",
            "startingDeadlineSeconds": LATEST_START_SECONDS,
            "successfulJobsHistoryLimit": 1,
            "failedJobsHistoryLimit": 3,
            "jobTemplate": {
                "metadata": {"labels": pod_labels(cluster)},
                "spec": {
                    # A run that failed is not repeated at once: the next one is on the schedule.
                    "backoffLimit": 0,
                    "activeDeadlineSeconds": LONGEST_RUN_SECONDS,
                    "template": _template(cluster, pod | {"restartPolicy": "Never"}),
                },
            },
        },
    }


def _deployment(cluster: KafkaCluster, job: RebalanceJob) -> dict[str, Any]:
    more = ["--master", "local[*]", "--stream", "--metrics-port", str(METRICS_PORT)]
    pod = _pod(cluster, job, [*arguments(cluster, job), *more])
    pod["containers"][0]["ports"] = [{"name": "metrics", "containerPort": METRICS_PORT}]
    pod["terminationGracePeriodSeconds"] = WATCH_GRACE_SECONDS
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(cluster),
        "spec": {
            "replicas": 1,
            # Never two at a time: each would count its own confirmations.
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": {OF_CLUSTER: cluster.meta.name, names.ROLE_LABEL: ROLE}},
            "template": _template(cluster, pod),
        },
    }


def _template(cluster: KafkaCluster, pod: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"labels": pod_labels(cluster)}, "spec": pod}


def _pod(cluster: KafkaCluster, job: RebalanceJob, args: list[str]) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": "rebalance",
        "image": job.image,
        "command": ["ballast", "rebalance"],
        "args": args,
        "workingDir": "/tmp",
        "volumeMounts": [{"name": "scratch", "mountPath": "/tmp"}],
        "securityContext": _container_security(),
    }
    if job.resources:
        container["resources"] = dict(job.resources)
    if job.image_pull_policy is not None:
        container["imagePullPolicy"] = str(job.image_pull_policy)
    volumes, mounts = _secrets(job)
    container["volumeMounts"] += mounts
    return {
        "serviceAccountName": job.service_account_name,
        "enableServiceLinks": False,
        "securityContext": _pod_security(),
        "containers": [container],
        "volumes": [{"name": "scratch", "emptyDir": {}}, *volumes],
    }


def _secrets(job: RebalanceJob) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The volumes that the driver needs to authenticate to Prometheus, and where they are mounted."""
    if job.prometheus_secret is None:
        return [], []
    source = {"secretName": job.prometheus_secret, "defaultMode": FILE_MODE}
    mount = {"name": PROMETHEUS_VOLUME, "mountPath": PROMETHEUS_SECRET, "readOnly": True}
    return [{"name": PROMETHEUS_VOLUME, "secret": source}], [mount]


def _pod_security() -> dict[str, Any]:
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _container_security() -> dict[str, Any]:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def _spark_template(container: str, mounts: list[dict[str, Any]] | None = None, **pod: Any) -> dict[str, Any]:
    """The pod template that Spark starts from; it adds the rest to the container of this name. The Spark operator's own
    fields for this work only where its webhook is installed."""
    security = {key: value for key, value in _container_security().items() if key != "readOnlyRootFilesystem"}
    containers = [{"name": container, "securityContext": security} | ({"volumeMounts": mounts} if mounts else {})]
    return {"spec": {"securityContext": _pod_security(), "containers": containers, **pod}}


def _scheduled_application(cluster: KafkaCluster, job: RebalanceJob) -> dict[str, Any]:
    """For the Spark operator of Kubeflow, which submits the driver and gives it executors."""
    volumes, mounts = _secrets(job)
    driver = {"activeDeadlineSeconds": LONGEST_RUN_SECONDS} | ({"volumes": volumes} if volumes else {})
    application: dict[str, Any] = {
        "type": "Python",
        "pythonVersion": "3",
        "mode": "cluster",
        "sparkVersion": SPARK_VERSION,
        "image": job.image,
        "mainApplicationFile": MAIN_FILE,
        "arguments": arguments(cluster, job),
        "sparkConf": {"spark.executorEnv.PYTHONPATH": SOURCES},
        "restartPolicy": {"type": "Never"},
        "driver": {
            "cores": 1,
            "memory": "2g",
            "serviceAccount": job.service_account_name,
            "labels": pod_labels(cluster),
            "template": _spark_template("spark-kubernetes-driver", mounts, **driver),
        },
        "executor": {
            "instances": job.executors,
            "cores": 1,
            "memory": "1g",
            "labels": pod_labels(cluster),
            "template": _spark_template("spark-kubernetes-executor"),
        },
    }
    if job.image_pull_policy is not None:
        application["imagePullPolicy"] = str(job.image_pull_policy)
    return {
        "apiVersion": "sparkoperator.k8s.io/v1beta2",
        "kind": "ScheduledSparkApplication",
        # Driver and executors are given these labels as well.
        "metadata": _metadata(cluster) | {"labels": pod_labels(cluster)},
        "spec": {
            "schedule": job.schedule,
            "concurrencyPolicy": "Forbid",
            "successfulRunHistoryLimit": 1,
            "failedRunHistoryLimit": 3,
            "template": application,
        },
    }
