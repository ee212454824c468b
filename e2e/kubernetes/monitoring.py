"""Runs a real Prometheus in the cluster: this machine's program in an image of its own.

The brokers are listed statically: Debian builds it without the Kubernetes discovery that manifests/monitoring uses.
"""

from __future__ import annotations

import platform
import shutil
import tempfile
from pathlib import Path
from typing import Any

import yaml
from e2e.kubernetes.world import CLUSTER, NAMESPACE, World, restricted_pod

from ballast_cli.image_archive import write_archive, write_layer
from ballast_cli.image_base import debian_base
from ballast_cli.image_contents import USER, Flavour, architecture
from ballast_cli.kube_api import Obj

NAME = "prometheus"
IMAGE = "localhost/prometheus:e2e"
PORT = 9090
BROKERS, METRICS_PORT = f"{CLUSTER}-brokers", 9404
URL = f"http://{NAME}.{NAMESPACE}.svc:{PORT}"


def find_prometheus() -> str | None:
    return shutil.which("prometheus")


def load_prometheus(world: World) -> bool:
    """Build the image and load it on the nodes; False if that is not possible."""
    program = find_prometheus()
    assert program is not None
    base = debian_base(Flavour.BROKER.debian_packages, world.provider.say)
    with tempfile.TemporaryDirectory(prefix="ballast-e2e-prometheus-") as place:
        files = Path(place) / "files"
        files.mkdir()
        shutil.copy(program, files / "prometheus")
        layer, archive = Path(place) / "layer.tar", Path(place) / "image.tar"
        write_layer(layer, files, "/usr/local/bin")
        settings = {"architecture": architecture(platform.machine()), "config": {"User": f"{USER}:{USER}"}}
        write_archive(archive, IMAGE, [base.layer, layer], settings)
        return world.provider.load(archive)


def prometheus() -> list[Obj]:
    """The objects that it needs: ConfigMap, Service, pod."""
    brokers = [f"{CLUSTER}-{number}" for number in range(3)]
    targets = [
        {"targets": [f"{pod}.{BROKERS}.{NAMESPACE}.svc:{METRICS_PORT}"], "labels": {"namespace": NAMESPACE, "pod": pod}}
        for pod in brokers
    ]
    config = {
        "global": {"scrape_interval": "2s", "scrape_timeout": "2s"},
        "scrape_configs": [{"job_name": CLUSTER, "static_configs": targets}],
    }
    command = ["/usr/local/bin/prometheus", "--config.file=/etc/prometheus/prometheus.yml"]
    command += ["--storage.tsdb.path=/tmp/data", f"--web.listen-address=:{PORT}"]
    pod = restricted_pod(NAME, IMAGE, command)
    pod["metadata"]["labels"] = {"app": NAME}
    pod["spec"]["containers"][0]["volumeMounts"].append({"name": "config", "mountPath": "/etc/prometheus"})
    pod["spec"]["containers"][0]["readinessProbe"] = {"httpGet": {"path": "/-/ready", "port": PORT}, "periodSeconds": 1}
    pod["spec"]["volumes"].append({"name": "config", "configMap": {"name": NAME}})
    return [
        _object("v1", "ConfigMap", data={"prometheus.yml": yaml.safe_dump(config)}),
        _object("v1", "Service", spec={"selector": {"app": NAME}, "ports": [{"port": PORT}]}),
        pod,
    ]


def _object(version: str, kind: str, **parts: Any) -> Obj:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": NAME}, **parts}
