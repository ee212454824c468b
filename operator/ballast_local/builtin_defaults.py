"""Sets the default values of built-in kinds that clients and controllers rely on. PURE."""

import base64
from collections.abc import Callable

from ballast_local.errors import Obj
from ballast_local.resources import Resource

# Fields that the server has set and that a client's update (PUT) may leave out.
_CARRIED = {
    "Service": ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"),
    "PersistentVolumeClaim": ("volumeName", "storageClassName"),
    "Pod": ("nodeName",),
    "Job": ("selector",),
}


def default_built_in(resource: Resource, obj: Obj, old: Obj | None = None) -> None:
    for field in _CARRIED.get(resource.kind, ()) if old is not None else ():
        if old is not None and field in (old.get("spec") or {}):
            obj.setdefault("spec", {}).setdefault(field, old["spec"][field])
    if resource.kind == "Service" and old is not None:
        _carry_node_ports(obj["spec"], old["spec"])
    complete = _KINDS.get(resource.kind)
    if complete is not None and resource.group in ("", "apps", "batch", "storage.k8s.io"):
        complete(obj)


def _carry_node_ports(spec: Obj, old: Obj) -> None:
    """Keep the node port allocated to a port, and release it if the Service's type no longer has node ports."""
    has_them = spec.get("type") in ("NodePort", "LoadBalancer")
    given = {(port["port"], port.get("protocol")): port.get("nodePort") for port in old.get("ports") or []}
    for port in spec.get("ports") or []:
        held = given.get((port.get("port"), port.get("protocol", "TCP")))
        if held and has_them:
            port.setdefault("nodePort", held)
        elif held and port.get("nodePort") == held:
            del port["nodePort"]


def _probe(probe: Obj) -> None:
    for field, value in (
        ("timeoutSeconds", 1),
        ("periodSeconds", 10),
        ("successThreshold", 1),
        ("failureThreshold", 3),
    ):
        probe[field] = probe.get(field) or value  # 0 means the default, too
    if "httpGet" in probe:
        probe["httpGet"].setdefault("scheme", "HTTP")
        probe["httpGet"].setdefault("path", "/")


def _container(container: Obj) -> None:
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    container.setdefault("imagePullPolicy", "IfNotPresent")
    container.setdefault("resources", {})
    for port in container.get("ports") or []:
        port.setdefault("protocol", "TCP")
    for name in ("readinessProbe", "livenessProbe", "startupProbe"):
        if name in container:
            _probe(container[name])
    for variable in container.get("env") or []:
        reference = (variable.get("valueFrom") or {}).get("fieldRef")
        if reference:
            reference.setdefault("apiVersion", "v1")


def pod_spec(spec: Obj) -> None:
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("securityContext", {})
    spec.setdefault("schedulerName", "default-scheduler")
    for container in (spec.get("containers") or []) + (spec.get("initContainers") or []):
        _container(container)
    if spec["terminationGracePeriodSeconds"] < 0:
        spec["terminationGracePeriodSeconds"] = 1
    for volume in spec.get("volumes") or []:
        if volume.keys() <= {"name"}:
            volume["emptyDir"] = {}
        for kind in ("configMap", "secret", "projected"):
            if isinstance(volume.get(kind), dict):
                volume[kind].setdefault("defaultMode", 420)


def _pod(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    pod_spec(spec)
    spec.setdefault("enableServiceLinks", True)
    spec.setdefault("serviceAccountName", "default")
    spec.setdefault("serviceAccount", spec["serviceAccountName"])
    obj.setdefault("status", {"phase": "Pending", "qosClass": "BestEffort"})


def _template(spec: Obj) -> None:
    template = spec.setdefault("template", {})
    template.setdefault("metadata", {})
    pod_spec(template.setdefault("spec", {}))


def _stateful_set(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    spec.setdefault("podManagementPolicy", "OrderedReady")
    spec.setdefault("revisionHistoryLimit", 10)
    policy = spec.setdefault("persistentVolumeClaimRetentionPolicy", {})
    for field in ("whenDeleted", "whenScaled"):
        policy.setdefault(field, "Retain")
    strategy = spec.setdefault("updateStrategy", {"type": "RollingUpdate"})
    strategy.setdefault("type", "RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        strategy.setdefault("rollingUpdate", {}).setdefault("partition", 0)
    for claim in spec.get("volumeClaimTemplates") or []:
        claim.setdefault("apiVersion", "v1")
        claim.setdefault("kind", "PersistentVolumeClaim")
        claim.setdefault("spec", {}).setdefault("volumeMode", "Filesystem")
        claim.setdefault("status", {"phase": "Pending"})
    _template(spec)


def _deployment(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)
    strategy = spec.setdefault("strategy", {"type": "RollingUpdate"})
    strategy.setdefault("type", "RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxSurge", "25%")
        rolling.setdefault("maxUnavailable", "25%")
    _template(spec)


def _replica_set(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    _template(spec)


def _job_marks(uid: str, name: str) -> dict[str, str]:
    return {"batch.kubernetes.io/controller-uid": uid, "controller-uid": uid,
            "batch.kubernetes.io/job-name": name, "job-name": name}  # fmt: skip


def _job(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    spec.setdefault("backoffLimit", 6)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    _template(spec)
    uid = obj["metadata"].get("uid")
    if "selector" not in spec and uid:
        spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
        spec["template"]["metadata"].setdefault("labels", {}).update(_job_marks(uid, obj["metadata"]["name"]))


def without_job_marks(job: Obj) -> Obj:
    """The part of a job that its creator owns: without the selector and pod labels that the server generates."""
    spec, template = dict(job["spec"]), dict(job["spec"]["template"])
    if not spec.get("manualSelector"):
        spec.pop("selector", None)
        marks = _job_marks(job["metadata"]["uid"], job["metadata"]["name"])
        held = template["metadata"].get("labels") or {}
        labels = {name: value for name, value in held.items() if marks.get(name) != value}
        metadata = template.pop("metadata") | {"labels": labels}
        metadata = {name: value for name, value in metadata.items() if value}
        spec["template"] = template | ({"metadata": metadata} if metadata else {})
    return job | {"spec": spec}


def _cron_job(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("concurrencyPolicy", "Allow")
    spec.setdefault("suspend", False)
    spec.setdefault("successfulJobsHistoryLimit", 3)
    spec.setdefault("failedJobsHistoryLimit", 1)
    _template(spec.setdefault("jobTemplate", {}).setdefault("spec", {}))


def _service(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    spec.setdefault("internalTrafficPolicy", "Cluster")
    for port in spec.get("ports") or []:
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port"))
    obj.setdefault("status", {"loadBalancer": {}})


def _claim(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("volumeMode", "Filesystem")
    spec.setdefault("storageClassName", "standard")
    obj.setdefault("status", {"phase": "Pending"})


def _secret(obj: Obj) -> None:
    obj.setdefault("type", "Opaque")
    texts = obj.pop("stringData", None)
    if texts:
        data = obj.setdefault("data", {})
        for key, value in texts.items():
            data[key] = base64.b64encode(value.encode()).decode()


def _namespace(obj: Obj) -> None:
    obj.setdefault("spec", {"finalizers": ["kubernetes"]})
    obj.setdefault("status", {"phase": "Active"})
    name = obj["metadata"].get("name", "")
    obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = name


def _storage_class(obj: Obj) -> None:
    obj.setdefault("reclaimPolicy", "Delete")
    obj.setdefault("volumeBindingMode", "Immediate")


_KINDS: dict[str, Callable[[Obj], None]] = {
    "Pod": _pod,
    "StatefulSet": _stateful_set,
    "Deployment": _deployment,
    "ReplicaSet": _replica_set,
    "Job": _job,
    "CronJob": _cron_job,
    "Service": _service,
    "PersistentVolumeClaim": _claim,
    "Secret": _secret,
    "Namespace": _namespace,
    "StorageClass": _storage_class,
}
