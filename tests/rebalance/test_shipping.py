"""What `spec.rebalance.job` makes of a cluster, what its driver may do, and what the condition Balanced says."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from ballast_operator.model.cluster import KafkaCluster, read_cluster
from ballast_operator.plan.balanced import balanced_condition, names_trouble
from ballast_operator.resources import names, others, pods
from ballast_operator.resources.layout import Layout, new_identity
from ballast_operator.resources.names import BROKER_ROLE
from ballast_operator.resources.rebalance import MAIN_FILE, SPARK_VERSION, rebalance_object, refusal
from ballast_rebalance import command
from ballast_rebalance.arguments import add_arguments

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = ROOT / "manifests"
NOW = "2026-01-02T03:04:05Z"
RUNS = ["CronJob", "Watch", "ScheduledSparkApplication"]
JOB = {"prometheus": "http://prometheus:9090", "clusterLabel": "job=demo", "args": ["--horizon", "12h"]}


def cluster(job: Mapping[str, Any] | None, status: Mapping[str, Any] | None = None, **spec: Any) -> KafkaCluster:
    wanted = {
        "volumes": [{"name": "a", "size": "10Gi"}],
        "rebalance": {"job": job, "throttle": {"interBroker": "50Mi"}},
    }
    meta = {"name": "demo", "namespace": "kafka", "uid": "u", "generation": 3}
    return read_cluster({"metadata": meta, "spec": wanted | spec, "status": dict(status or {})})


def external(job: Mapping[str, Any], **more: Any) -> KafkaCluster:
    return cluster(job, volumes=None, external={"bootstrapServers": "old:9092", **more})


def arguments_of(subject: KafkaCluster) -> list[str]:
    job = rebalance_object(subject)
    assert job is not None
    arguments: list[str] = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["args"]
    return arguments


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(arguments)


@pytest.mark.spec("REB-01")
def test_a_cron_job_runs_the_job_in_one_pod() -> None:
    found = rebalance_object(cluster(JOB | {"schedule": "*/30 * * * *"}))
    assert found is not None
    assert (found["apiVersion"], found["kind"]) == ("batch/v1", "CronJob")
    assert (found["spec"]["schedule"], found["spec"]["concurrencyPolicy"]) == ("*/30 * * * *", "Forbid")
    job = found["spec"]["jobTemplate"]["spec"]
    assert (job["backoffLimit"], job["template"]["spec"]["restartPolicy"]) == (0, "Never")
    container = job["template"]["spec"]["containers"][0]
    assert container["command"] == ["ballast", "rebalance"]
    args = parsed(container["args"])
    assert (args.cluster, args.namespace, args.apply, args.master) == ("demo", "kafka", True, "local[*]")
    assert (args.prometheus, args.cluster_label) == ("http://prometheus:9090", [("job", "demo")])
    assert args.bootstrap == "demo-bootstrap.kafka.svc:9092"
    assert (args.band, args.min_improvement, args.max_moves) == (0.1, 0.02, 500)
    assert (args.throttle_network, args.throttle_disk, args.horizon) == ("50Mi", None, 43_200.0)


def test_a_job_that_asks_no_prometheus_gets_no_arguments_for_one() -> None:
    """It would refuse them, and never run."""
    without = {"clusterLabel": "job=demo", "prometheusSecret": "login"}
    assert not [each for each in arguments_of(cluster(without)) if "prometheus" in each or "label" in each]
    asked = parsed(arguments_of(cluster(without | {"args": ["--prometheus=http://p"]})))
    assert (asked.cluster_label, str(asked.prometheus_secret)) == ([("job", "demo")], "/etc/ballast/prometheus")


@pytest.mark.spec("OPR-40")
def test_the_job_is_told_the_weights_of_volumes() -> None:
    volumes = [{"name": "a", "size": "10Gi"}, {"name": "slow-1", "size": "10Gi", "weight": 40}]
    found = rebalance_object(cluster(JOB, volumes=volumes))
    assert found is not None
    args = parsed(found["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["args"])
    assert command.job_options(args).weights == {"slow-1": 40}


@pytest.mark.spec("REB-01")
def test_watch_is_one_deployment_that_serves_its_metrics() -> None:
    found = rebalance_object(cluster(JOB | {"run": "Watch"}))
    assert found is not None
    assert (found["kind"], found["spec"]["replicas"], found["spec"]["strategy"]) == (
        "Deployment", 1, {"type": "Recreate"},
    )  # fmt: skip
    template = found["spec"]["template"]
    assert found["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    container = template["spec"]["containers"][0]
    args = parsed(container["args"])
    assert args.stream
    assert container["ports"] == [{"name": "metrics", "containerPort": args.metrics_port}]


@pytest.mark.spec("REB-01")
def test_a_scheduled_spark_application_is_given_the_file_and_the_sources() -> None:
    found = rebalance_object(cluster(JOB | {"run": "ScheduledSparkApplication", "executors": 4}))
    assert found is not None
    assert (found["apiVersion"], found["kind"]) == ("sparkoperator.k8s.io/v1beta2", "ScheduledSparkApplication")
    application = found["spec"]["template"]
    assert (application["type"], application["mode"]) == ("Python", "cluster")
    assert parsed(application["arguments"]).master is None, "the Spark operator says where it runs"
    assert (application["driver"]["serviceAccount"], application["executor"]["instances"]) == ("ballast-rebalance", 4)
    sources = application["sparkConf"]["spark.executorEnv.PYTHONPATH"]
    main = application["mainApplicationFile"].removeprefix(f"local://{sources}/")
    submitted = [sys.executable, "-I", "-S", ROOT / "spark" / main, "--help"]
    found_help = subprocess.run(submitted, capture_output=True, text=True, timeout=50)
    assert "--prometheus" in found_help.stdout, found_help.stderr
    lock = (ROOT / "requirements" / "spark.lock").read_text(encoding="utf-8")
    assert f"pyspark=={SPARK_VERSION} " in lock
    assert application["sparkVersion"] == SPARK_VERSION


def templates_of(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The templates of all pods that the object runs."""
    template = found["spec"].get("jobTemplate", found)["spec"]["template"]
    return [template[part]["template"] for part in ("driver", "executor")] if "driver" in template else [template]


@pytest.mark.spec("REB-02")
@pytest.mark.parametrize("run", RUNS)
def test_what_prometheus_asks_for_is_mounted_for_the_driver_alone(run: str) -> None:
    """As files that the group of the job's process may read; nothing of the Secret is in the object."""
    found = rebalance_object(cluster(JOB | {"run": run, "prometheusSecret": "prometheus-reader"}))
    without = rebalance_object(cluster(JOB | {"run": run}))
    assert found is not None
    assert without is not None
    driver, *executors = templates_of(found)
    container = driver["spec"]["containers"][0]
    submitted = found["spec"].get("template", {}).get("arguments")
    place = parsed(submitted or container["args"]).prometheus_secret
    (mount,) = [one for one in container["volumeMounts"] if one["mountPath"] == str(place)]
    (volume,) = [one for one in driver["spec"]["volumes"] if one["name"] == mount["name"]]
    assert volume["secret"] == {"secretName": "prometheus-reader", "defaultMode": 0o440}
    assert mount["readOnly"]
    assert driver["spec"]["securityContext"]["fsGroup"] == driver["spec"]["securityContext"]["runAsGroup"]
    assert "prometheus" not in json.dumps(executors)
    assert "secret" not in json.dumps(without)


@pytest.mark.spec("REB-01")
@pytest.mark.parametrize("run", RUNS)
def test_the_jobs_pods_pass_the_restricted_standard(run: str) -> None:
    found = rebalance_object(cluster(JOB | {"run": run}))
    assert found is not None
    for template in templates_of(found):
        pod = template["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
        security = pod["containers"][0]["securityContext"]
        assert (security["allowPrivilegeEscalation"], security["capabilities"]) == (False, {"drop": ["ALL"]})


@pytest.mark.spec("REB-01")
def test_a_driver_that_hangs_is_ended_as_the_pod_of_a_cron_job_is() -> None:
    """Neither starts another run while one is there."""
    scheduled = rebalance_object(cluster(JOB | {"run": "ScheduledSparkApplication"}))
    cron_job = rebalance_object(cluster(JOB))
    assert scheduled is not None
    assert cron_job is not None
    limit = cron_job["spec"]["jobTemplate"]["spec"]["activeDeadlineSeconds"]
    assert templates_of(scheduled)[0]["spec"]["activeDeadlineSeconds"] == limit


@pytest.mark.spec("REB-01")
@pytest.mark.parametrize("run", RUNS)
def test_a_run_has_a_name_and_a_label_also_where_the_clusters_name_is_long(run: str) -> None:
    """The Spark operator appends a dash and nanoseconds, and the whole is a label; a CronJob appends minutes."""
    meta = {"namespace": "kafka", "uid": "u", "generation": 3}
    spec = {"volumes": [{"name": "a", "size": "10Gi"}], "rebalance": {"job": JOB | {"run": run}}}
    long = "analytics-of-the-whole-group-in-production-"
    found = [
        rebalance_object(read_cluster({"metadata": meta | {"name": name}, "spec": spec, "status": {}}))
        for name in (f"{long}a", f"{long}b", "analytics")
    ]
    names = [one["metadata"]["name"] for one in found if one is not None]
    assert max(len(f"{name}-{2**60}") for name in names) <= 63
    assert len(set(names)) == 3, "each cluster has its own"
    assert names[2] == "analytics-rebalance"


@pytest.mark.spec("REB-01")
def test_a_cluster_that_exists_already_is_asked_only_where_the_job_can_log_in() -> None:
    assert rebalance_object(cluster(None)) is None
    args = arguments_of(external({}))
    assert parsed(args).bootstrap == "old:9092"
    secured = external({}, tls={"secretName": "ca"})
    assert "TLS or SASL" in (refusal(secured) or "")
    for how in (
        {"listeners": [{"name": "CLIENTS", "port": 9092, "tls": {"secretName": "clients"}}]},
        {"security": {"internal": {"tls": {"secretName": "inside"}}, "authorization": {"type": "Simple"}}},
    ):
        run = cluster({}, **how)
        assert "TLS or SASL, or that give rights" in (refusal(run) or "")
        args = arguments_of(run)
        assert parsed(args).bootstrap is None
    for given in (["--prometheus", "http://other:9090"], ["--prometheus=http://other:9090"]):
        job = {"args": given, "clusterLabel": "job=demo"}
        for asks in (external(job, tls={"secretName": "ca"}), cluster(job, **how)):
            assert refusal(asks) is None
            told = parsed(arguments_of(asks))
            assert (told.bootstrap, told.prometheus, bool(told.cluster_label)) == (None, "http://other:9090", True)
    watched = external(JOB, tls={"secretName": "ca"})
    assert refusal(watched) is None
    args = arguments_of(watched)
    assert (parsed(args).bootstrap, parsed(args).prometheus) == (None, "http://prometheus:9090")


@pytest.mark.spec("REB-08")
@pytest.mark.parametrize(
    ("reason", "status", "trouble"),
    [
        ("Balanced", "True", False),
        ("TooLittleToGain", "True", False),
        ("Proposed", "False", False),
        ("NoBetterPlacement", "False", True),
        ("MaxMovesTooFew", "False", True),
        ("MetricsStale", "Unknown", True),
        ("MetricsPartial", "Unknown", True),
        ("PrometheusUnavailable", "Unknown", True),
    ],
)
def test_the_condition_says_what_the_last_look_came_to(reason: str, status: str, trouble: bool) -> None:
    looked = cluster(JOB, {"rebalance": {"reason": reason, "message": "so it is", "time": NOW}})
    found = balanced_condition(looked, None, None, NOW)
    assert found is not None
    assert (found.type, found.status, found.reason, found.message) == ("Balanced", status, reason, "so it is")
    assert (found.last_transition_time, found.observed_generation) == (NOW, 3)
    assert names_trouble(found) is trouble
    later = balanced_condition(looked, None, found, "2026-02-02T03:04:05Z")
    assert later == found, "the same status keeps its time"


@pytest.mark.spec("REB-08")
def test_the_condition_before_a_look_and_without_a_job() -> None:
    assert balanced_condition(cluster(None), None, None, NOW) is None
    waiting = balanced_condition(cluster(JOB), None, None, NOW)
    assert waiting is not None
    assert (waiting.status, waiting.reason, names_trouble(waiting)) == ("Unknown", "NotLookedYet", False)
    refused = balanced_condition(cluster(JOB), "it is not known here", None, NOW)
    assert refused is not None
    assert (refused.status, refused.reason, refused.message) == ("Unknown", "JobNotCreated", "It is not known here.")


@pytest.mark.spec("REB-01")
def test_the_documented_spark_submit_is_one_that_works() -> None:
    text = (ROOT / "docs" / "rebalance.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```\n(spark-submit .*?)```", text, re.DOTALL)
    words = shlex.split(block.replace("\\\n", " "))
    position = words.index(MAIN_FILE)
    submit, job = words[:position], words[position + 1 :]
    assert submit[1:3] == ["--master", "k8s://https://API-SERVER:6443"]
    settings = dict(word.split("=", 1) for word in submit if word.startswith("spark."))
    account = yaml.safe_load((MANIFESTS / "spark" / "service-account.yaml").read_text(encoding="utf-8"))
    driver = "spark.kubernetes.authenticate.driver.serviceAccountName"
    assert settings[driver] == account["metadata"]["name"]
    assert MAIN_FILE.startswith(f"local://{settings['spark.executorEnv.PYTHONPATH']}/")
    assert parsed(job).apply


def test_every_reason_is_explained() -> None:
    sources = "\n".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "spark" / "ballast_rebalance").glob("*.py")
    )
    given = set(re.findall(r'Refusal\(\s*"(\w+)"', sources)) | {
        "Proposed",
        "Confirming",
        "NotLookedYet",
        "JobNotCreated",
    }
    text = (ROOT / "docs" / "rebalance.md").read_text(encoding="utf-8")
    assert given == set(re.findall(r"^\| `(\w+)` \| (?:True|False|Unknown) \|", text, re.MULTILINE))


def selected(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    rules = selector.get("matchExpressions", [])
    assert all(rule["operator"] == "In" for rule in rules)
    chosen = all(labels.get(rule["key"]) in rule["values"] for rule in rules)
    return chosen and selector.get("matchLabels", {}).items() <= labels.items()


@pytest.mark.spec("OPR-40")
@pytest.mark.parametrize("run", RUNS)
def test_the_jobs_pods_are_not_taken_for_brokers(run: str) -> None:
    subject = cluster(JOB | {"run": run})
    found = rebalance_object(subject)
    assert found is not None
    if run == "ScheduledSparkApplication":  # its pods are given the object's own labels as well
        labels = found["metadata"]["labels"] | found["spec"]["template"]["driver"]["labels"]
    else:
        labels = templates_of(found)[0]["metadata"]["labels"]
    for chosen in (others.headless_service, others.bootstrap_service, others.disruption_budget):
        selector = chosen(subject)["spec"]["selector"]
        assert not selector.get("matchLabels", selector).items() <= labels.items()
    assert "ballast.dev/cluster" not in labels


def kept(rules: list[dict[str, Any]], labels: Mapping[str, str]) -> bool:
    """Whether a pod of these labels passes the rules that keep."""
    seen = {f"__meta_kubernetes_pod_label_{re.sub('[^a-z]', '_', name)}": value for name, value in labels.items()}
    return all(
        re.fullmatch(rule["regex"], ";".join(seen.get(name, "") for name in rule["sourceLabels"]))
        for rule in rules
        if rule.get("action") == "keep"
    )


@pytest.mark.spec("OPR-41")
@pytest.mark.parametrize(("name", "scraped"), [("demo", True), ("another", False)])
def test_the_monitor_of_a_cluster_has_its_brokers_and_its_watching_job(name: str, scraped: bool) -> None:
    made = others.pod_monitor(cluster(JOB, metrics={"podMonitor": True}))
    of_that = cluster(JOB | {"run": "Watch"})
    subject = replace(of_that, meta=replace(of_that.meta, name=name))
    layout = Layout(subject, new_identity(subject, "id"), 3, subject.spec.volumes)
    watch = rebalance_object(subject)
    assert made is not None
    assert watch is not None
    (endpoint,) = made["spec"]["podMetricsEndpoints"]
    for template in (pods.pod_template(layout, BROKER_ROLE), watch["spec"]["template"]):
        labels = template["metadata"]["labels"]
        assert (selected(made["spec"]["selector"], labels) and kept(endpoint["relabelings"], labels)) is scraped
        assert endpoint["port"] in {port["name"] for port in template["spec"]["containers"][0]["ports"]}
    named = {rule["targetLabel"]: rule["sourceLabels"] for rule in endpoint["relabelings"][1:]}
    assert named == {"job": ["__meta_kubernetes_pod_label_ballast_dev_rebalances"]}


@pytest.mark.spec("OPR-41")
def test_the_series_of_a_cluster_have_its_name_as_their_job() -> None:
    """The job's --cluster-label and the dashboards name a cluster by it, whichever monitor it is scraped through."""
    subject = cluster(JOB)
    made = others.pod_monitor(cluster(JOB, metrics={"podMonitor": True}))
    assert made is not None
    shipped = [
        yaml.safe_load((MANIFESTS / "monitoring" / f"{kind}monitor.yaml").read_text(encoding="utf-8"))
        for kind in ("pod", "service")
    ]
    assert {names.labels(subject).get(monitor["spec"].get("jobLabel")) for monitor in (made, *shipped)} == {"demo"}


def test_monitors_select_what_there_is() -> None:
    """Brokers, watching jobs and the operator, by the labels and the named ports that their pods really have."""
    subject = cluster(JOB | {"run": "Watch"})
    layout = Layout(subject, new_identity(subject, "id"), 3, subject.spec.volumes)
    watch = rebalance_object(subject)
    assert watch is not None
    operator = yaml.safe_load((MANIFESTS / "base" / "deployment.yaml").read_text(encoding="utf-8"))
    templates = [pods.pod_template(layout, BROKER_ROLE), watch["spec"]["template"], operator["spec"]["template"]]
    monitor = yaml.safe_load((MANIFESTS / "monitoring" / "podmonitor.yaml").read_text(encoding="utf-8"))["spec"]
    scraped = {endpoint["port"] for endpoint in monitor["podMetricsEndpoints"]}
    plain = yaml.safe_load((MANIFESTS / "monitoring" / "scrape-config-kubernetes.yaml").read_text(encoding="utf-8"))
    keep = plain["scrape_configs"][0]["relabel_configs"][0]["regex"]
    for template in templates:
        labels = template["metadata"]["labels"]
        assert selected(monitor["selector"], labels)
        ports = {port["name"] for port in template["spec"]["containers"][0]["ports"]}
        assert len(scraped & ports) == 1
        joined = [f"{labels['app.kubernetes.io/name']};{port}" for port in ports]
        assert sum(bool(re.fullmatch(keep, one)) for one in joined) == 1
    services = yaml.safe_load((MANIFESTS / "monitoring" / "servicemonitor.yaml").read_text(encoding="utf-8"))["spec"]
    headless, bootstrap = others.headless_service(subject), others.bootstrap_service(subject)
    assert selected(services["selector"], headless["metadata"]["labels"])
    wanted = services["endpoints"][0]["port"]
    assert [wanted in {p["name"] for p in one["spec"]["ports"]} for one in (headless, bootstrap)] == [True, False]
