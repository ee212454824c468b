"""The table columns of the built-in kinds, between Name and Age: (title, priority, cell). PURE."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from ballast_local.errors import Obj
from ballast_local.meta import parse_time

Column = tuple[str, int, Callable[[Obj, datetime], Any]]


def _at(path: str, default: Any = "<none>") -> Callable[[Obj, datetime], Any]:
    parts = path.split(".")

    def cell(obj: Obj, now: datetime) -> Any:
        value: Any = obj
        for part in parts:
            value = value.get(part) if isinstance(value, dict) else None
        return default if value is None else value

    return cell


def _age_of(path: str) -> Callable[[Obj, datetime], Any]:
    read = _at(path, None)

    def cell(obj: Obj, now: datetime) -> str:
        from ballast_local.table import age

        return age(read(obj, now), now)

    return cell


def _ready(obj: Obj, now: datetime) -> str:
    statuses = obj.get("status", {}).get("containerStatuses") or []
    total = len(obj["spec"].get("containers") or [])
    return f"{sum(bool(one.get('ready')) for one in statuses)}/{total}"


def pod_phase(obj: Obj, now: datetime | None = None) -> str:
    status = obj.get("status", {})
    reason: str = status.get("reason") or status.get("phase", "Unknown")
    initial = _initializing(obj)
    for one in status.get("containerStatuses") or []:
        state = one.get("state") or {}
        waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
        if waiting.get("reason"):
            reason = waiting["reason"]
        elif ended and status.get("phase") != "Succeeded":
            reason = ended.get("reason") or f"ExitCode:{ended.get('exitCode')}"
        elif ended:
            reason = "Completed"
    reason = initial or reason
    return "Terminating" if "deletionTimestamp" in obj["metadata"] else reason


def _initializing(obj: Obj) -> str:
    """The state of the first init container that has not succeeded; empty if all have."""
    statuses = obj.get("status", {}).get("initContainerStatuses") or []
    for index, one in enumerate(statuses):
        state = one.get("state") or {}
        waiting, ended = (state.get("waiting") or {}).get("reason", ""), state.get("terminated")
        if ended is not None and ended.get("exitCode") == 0:
            continue
        if ended is not None:
            return f"Init:{ended.get('reason') or 'ExitCode:' + str(ended.get('exitCode'))}"
        return f"Init:{waiting}" if waiting not in ("", "PodInitializing") else f"Init:{index}/{len(statuses)}"
    return ""


def _restarts(obj: Obj, now: datetime) -> str:
    return str(sum(one.get("restartCount", 0) for one in obj.get("status", {}).get("containerStatuses") or []))


def _ports(obj: Obj, now: datetime) -> str:
    parts = []
    for port in obj["spec"].get("ports") or []:
        node = f":{port['nodePort']}" if port.get("nodePort") else ""
        parts.append(f"{port['port']}{node}/{port.get('protocol', 'TCP')}")
    return ",".join(parts) or "<none>"


def _addresses(obj: Obj, now: datetime) -> str:
    found = [
        f"{address['ip']}:{port['port']}"
        for subset in obj.get("subsets") or []
        for address in subset.get("addresses") or []
        for port in subset.get("ports") or [{"port": ""}]
    ]
    return ",".join(found[:3]) + (f" + {len(found) - 3} more..." if len(found) > 3 else "") or "<none>"


def _ratio(top: str, bottom: str) -> Callable[[Obj, datetime], str]:
    above, below = _at(top, 0), _at(bottom, 0)
    return lambda obj, now: f"{above(obj, now)}/{below(obj, now)}"


def _job_status(obj: Obj, now: datetime) -> str:
    for condition in obj.get("status", {}).get("conditions") or []:
        if condition.get("status") == "True":
            return str(condition["type"])
    return "Running"


def _count(*fields: str) -> Callable[[Obj, datetime], int]:
    return lambda obj, now: sum(len(obj.get(field) or ()) for field in fields)


def _access_modes(obj: Obj, now: datetime) -> str:
    short = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}
    return ",".join(short.get(mode, mode) for mode in obj["spec"].get("accessModes") or [])


def _event_age(obj: Obj, now: datetime) -> str:
    from ballast_local.table import duration

    for field in ("lastTimestamp", "deprecatedLastTimestamp", "eventTime", "firstTimestamp"):
        if obj.get(field):
            return duration((now - parse_time(obj[field])).total_seconds())
    return str(_age_of("metadata.creationTimestamp")(obj, now))


def _event_object(obj: Obj, now: datetime) -> str:
    held = obj.get("involvedObject") or obj.get("regarding") or {}
    return f"{held.get('kind', '').lower()}/{held.get('name', '')}"


def _node_ready(obj: Obj, now: datetime) -> str:
    conditions = obj.get("status", {}).get("conditions") or []
    ready = next((one["status"] for one in conditions if one["type"] == "Ready"), "Unknown")
    return "Ready" if ready == "True" else "NotReady"


BUILT_IN_COLUMNS: dict[str, tuple[Column, ...]] = {
    "pods.": (
        ("Ready", 0, _ready), ("Status", 0, pod_phase), ("Restarts", 0, _restarts),
        ("IP", 1, _at("status.podIP")), ("Node", 1, _at("spec.nodeName")),
    ),
    "namespaces.": (("Status", 0, _at("status.phase")),),
    "nodes.": (("Status", 0, _node_ready), ("Roles", 0, lambda obj, now: "<none>"),
               ("Version", 0, _at("status.nodeInfo.kubeletVersion"))),
    "services.": (
        ("Type", 0, _at("spec.type")), ("Cluster-IP", 0, _at("spec.clusterIP")),
        ("External-IP", 0, lambda obj, now: "<none>"), ("Port(s)", 0, _ports), ("Selector", 1, _at("spec.selector")),
    ),
    "endpoints.": (("Endpoints", 0, _addresses),),
    "configmaps.": (("Data", 0, _count("data", "binaryData")),),
    "secrets.": (("Type", 0, _at("type")), ("Data", 0, _count("data"))),
    "persistentvolumeclaims.": (
        ("Status", 0, _at("status.phase")), ("Volume", 0, _at("spec.volumeName", "")),
        ("Capacity", 0, _at("status.capacity.storage", "")), ("Access Modes", 0, _access_modes),
        ("StorageClass", 0, _at("spec.storageClassName", "")),
    ),
    "events.": (
        ("Last Seen", 0, _event_age), ("Type", 0, _at("type")), ("Reason", 0, _at("reason")),
        ("Object", 0, _event_object), ("Subobject", 1, _at("involvedObject.fieldPath", "")),
        ("Source", 1, lambda obj, now: obj.get("source", {}).get("component") or obj.get("reportingComponent") or ""),
        ("Message", 0, lambda obj, now: obj.get("message") or obj.get("note") or ""),
        ("First Seen", 1, _age_of("firstTimestamp")), ("Count", 1, _at("count", 1)), ("Name", 1, _at("metadata.name")),
    ),
    "statefulsets.apps": (("Ready", 0, _ratio("status.readyReplicas", "spec.replicas")),),
    "deployments.apps": (
        ("Ready", 0, _ratio("status.readyReplicas", "spec.replicas")),
        ("Up-to-date", 0, _at("status.updatedReplicas", 0)), ("Available", 0, _at("status.availableReplicas", 0)),
    ),
    "replicasets.apps": (
        ("Desired", 0, _at("spec.replicas", 0)), ("Current", 0, _at("status.replicas", 0)),
        ("Ready", 0, _at("status.readyReplicas", 0)),
    ),
    "jobs.batch": (("Status", 0, _job_status), ("Completions", 0, _ratio("status.succeeded", "spec.completions"))),
    "cronjobs.batch": (
        ("Schedule", 0, _at("spec.schedule")), ("Suspend", 0, _at("spec.suspend")),
        ("Active", 0, lambda obj, now: len(obj.get("status", {}).get("active") or [])),
    ),
    "leases.coordination.k8s.io": (("Holder", 0, _at("spec.holderIdentity", "")),),
    "storageclasses.storage.k8s.io": (
        ("Provisioner", 0, _at("provisioner")), ("ReclaimPolicy", 0, _at("reclaimPolicy")),
    ),
    "poddisruptionbudgets.policy": (
        ("Min Available", 0, _at("spec.minAvailable", "N/A")),
        ("Max Unavailable", 0, _at("spec.maxUnavailable", "N/A")),
        ("Allowed Disruptions", 0, _at("status.disruptionsAllowed", 0)),
    ),
    "customresourcedefinitions.apiextensions.k8s.io": (("Created At", 0, _at("metadata.creationTimestamp")),),
}  # fmt: skip
BUILT_IN_COLUMNS["events.events.k8s.io"] = BUILT_IN_COLUMNS["events."]
