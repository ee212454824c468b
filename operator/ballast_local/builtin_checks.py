"""Validates objects of the built-in kinds: missing and invalid fields, and changes to immutable ones. PURE."""

import base64
import json
import re
from collections.abc import Callable, Iterator
from typing import Any
from zoneinfo import ZoneInfo

from ballast_local import meta
from ballast_local.errors import Obj, cause
from ballast_local.quantity import is_quantity, parse_quantity
from ballast_local.resources import Resource
from ballast_local.selectors import selector_matches
from ballast_local.workloads.schedule import Schedule

_STATEFUL_SET_MUTABLE = ("replicas", "ordinals", "template", "updateStrategy", "revisionHistoryLimit",
                         "persistentVolumeClaimRetentionPolicy", "minReadySeconds")  # fmt: skip
_POD_MUTABLE = ("activeDeadlineSeconds", "terminationGracePeriodSeconds", "tolerations", "nodeName", "schedulingGates")


def check_built_in(resource: Resource, new: Obj, old: Obj | None, subresource: str) -> list[Obj]:
    check = _KINDS.get(resource.kind)
    if check is None or subresource in ("status", "finalize"):
        return []
    return check(new, old)


def _required(field: str, hint: str = "") -> Obj:
    return cause("FieldValueRequired", "Required value" + (f": {hint}" if hint else ""), field)


def _forbidden(field: str, text: str) -> Obj:
    return cause("FieldValueForbidden", f"Forbidden: {text}", field)


def _invalid(field: str, value: Any, why: str) -> Obj:
    return cause("FieldValueInvalid", f"Invalid value: {json.dumps(value)}: {why}", field)


def _one_of(holder: Obj, field: str, path: str, *supported: str) -> list[Obj]:
    if holder.get(field) in supported:
        return []
    listed = ", ".join(f'"{one}"' for one in supported)
    text = f'Unsupported value: "{holder.get(field) or ""}": supported values: {listed}'
    return [cause("FieldValueNotSupported", text, f"{path}.{field}")]


def _not_negative(holder: Obj, path: str, *fields: str) -> list[Obj]:
    why = "must be greater than or equal to 0"
    return [_invalid(f"{path}.{name}", holder[name], why) for name in fields if holder.get(name, 0) < 0]


def _immutable(field: str, value: Any) -> Obj:
    return cause("FieldValueInvalid", f"Invalid value: {value!r}: field is immutable", field)


_VOLUMES = ("configMap", "secret", "emptyDir", "persistentVolumeClaim", "hostPath", "downwardAPI", "projected")
_PROBE_NUMBERS = ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold")
_PROBES = ("readinessProbe", "livenessProbe", "startupProbe")
DATA_LIMIT_BYTES = 1024 * 1024
NODE_PORTS = range(30000, 32768)
_NODE_PORTS_SHOWN = f"{NODE_PORTS[0]}-{NODE_PORTS[-1]}"
_KEY = re.compile(r"[-._a-zA-Z0-9]+\Z")
_KEY_RULE = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  "
    "or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)
_NOT_HERE = "the embedded Kubernetes API does not have this"


def _each_container(spec: Obj, path: str) -> Iterator[tuple[str, Obj]]:
    """(path, container); a name that both kinds of containers have is a duplicate in the init container."""
    for field in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(field) or []):
            yield f"{path}.{field}[{index}]", container


def _unsupported(spec: Obj, path: str) -> list[Obj]:
    """Refuse pod fields that would otherwise be silently ignored."""
    causes = [_forbidden(f"{path}.schedulingGates", _NOT_HERE)] if spec.get("schedulingGates") else []
    named: set[str] = set()
    for index, volume in enumerate(spec.get("volumes") or []):
        where = f"{path}.volumes[{index}]"
        if volume.get("name") in named:
            causes.append(cause("FieldValueDuplicate", f'Duplicate value: "{volume["name"]}"', f"{where}.name"))
        elif not meta.is_label(name := volume.get("name") or "v"):  # a directory has this name
            causes.append(_invalid(f"{where}.name", name, "must be a lowercase RFC 1123 label"))
        named.add(volume.get("name", ""))
        kinds = [kind for kind in volume if kind != "name"]
        causes += [_forbidden(f"{where}.{kind}", "may not specify more than 1 volume type") for kind in kinds[1:]]
        others = [kind for kind in volume if kind not in ("name", *_VOLUMES)]
        causes += [_forbidden(f"{path}.volumes[{index}].{kind}", _NOT_HERE) for kind in others]
        for place, source in enumerate((volume.get("projected") or {}).get("sources") or []):
            others = [kind for kind in source if kind not in ("configMap", "secret", "downwardAPI")]
            where = f"{path}.volumes[{index}].projected.sources[{place}]"
            causes += [_forbidden(f"{where}.{kind}", _NOT_HERE) for kind in others]
    for where, container in _each_container(spec, path):
        for probe in _PROBES:
            actions = set(container.get(probe) or {}) & {"exec", "httpGet", "tcpSocket", "grpc"}
            if "grpc" in actions:
                causes.append(_forbidden(f"{where}.{probe}.grpc", _NOT_HERE))
            causes += _not_negative(container.get(probe) or {}, f"{where}.{probe}", *_PROBE_NUMBERS)
            if probe != "readinessProbe" and (container.get(probe) or {}).get("successThreshold", 1) != 1:
                value = container[probe]["successThreshold"]
                causes.append(_invalid(f"{where}.{probe}.successThreshold", value, "must be 1"))
            if probe in container and not actions:
                causes.append(_required(f"{where}.{probe}", "must specify a handler type"))
        hooks = container.get("lifecycle") or {}
        for hook, action in hooks.items():
            if hook != "preStop" or "exec" not in (action or {}):
                causes.append(_forbidden(f"{where}.lifecycle.{hook}", f"{_NOT_HERE}; preStop.exec is there"))
        if container.get("restartPolicy"):
            causes.append(_forbidden(f"{where}.restartPolicy", f"{_NOT_HERE}: no sidecar containers"))
    why = "may not be set for init containers without restartPolicy=Always"
    for index, container in enumerate(spec.get("initContainers") or []):
        fields = [field for field in (*_PROBES, "lifecycle") if field in container]
        causes += [_forbidden(f"{path}.initContainers[{index}].{field}", why) for field in fields]
    return causes


def _numbers(container: Obj, where: str) -> list[Obj]:
    """Check what would otherwise fail only when the container starts, or not at all."""
    causes: list[Obj] = []
    for place, variable in enumerate(container.get("env") or []):
        name = variable.get("name") or "A"
        if "=" in name or not (name.isascii() and name.isprintable()):
            why = "a valid environment variable name must consist only of printable ASCII characters other than '='"
            causes.append(_invalid(f"{where}.env[{place}].name", name, why))
    for place, port in enumerate(container.get("ports") or []):
        number = port.get("containerPort") or 1
        if not 0 < number < 65536:
            why = "must be between 1 and 65535, inclusive"
            causes.append(_invalid(f"{where}.ports[{place}].containerPort", number, why))
    paths: set[str] = set()
    for place, mount in enumerate(container.get("volumeMounts") or []):
        if mount.get("mountPath") in paths:
            causes.append(_invalid(f"{where}.volumeMounts[{place}].mountPath", mount["mountPath"], "must be unique"))
        paths.add(mount.get("mountPath", ""))
    return causes


def _containers(spec: Obj, path: str) -> list[Obj]:
    causes = _unsupported(spec, path)
    if not spec.get("containers"):
        causes.append(_required(f"{path}.containers"))
    if (seconds := spec.get("activeDeadlineSeconds", 1)) < 1:
        why = "must be between 1 and 2147483647, inclusive"
        causes.append(_invalid(f"{path}.activeDeadlineSeconds", seconds, why))
    volumes = {volume.get("name") for volume in spec.get("volumes") or []}
    seen: set[str] = set()
    for where, container in _each_container(spec, path):
        name = container.get("name")
        if not name:
            causes.append(_required(f"{where}.name"))
        elif name in seen:
            causes.append(cause("FieldValueDuplicate", f'Duplicate value: "{name}"', f"{where}.name"))
        elif not meta.is_label(name):
            causes.append(_invalid(f"{where}.name", name, "must be a lowercase RFC 1123 label"))
        seen.add(name or "")
        causes += _numbers(container, where)
        if not container.get("image"):
            causes.append(_required(f"{where}.image"))
        for place, mount in enumerate(container.get("volumeMounts") or []):
            if mount.get("name") not in volumes:
                text = f'Not found: "{mount.get("name")}"'
                causes.append(cause("FieldValueNotFound", text, f"{where}.volumeMounts[{place}].name"))
    return causes


def _pod(new: Obj, old: Obj | None) -> list[Obj]:
    if old is None:
        return _containers(new["spec"], "spec") + _one_of(
            new["spec"], "restartPolicy", "spec", "Always", "OnFailure", "Never"
        )
    images = {"containers", "initContainers"}
    before = {key: value for key, value in old["spec"].items() if key not in _POD_MUTABLE and key not in images}
    after = {key: value for key, value in new["spec"].items() if key not in _POD_MUTABLE and key not in images}
    same = [{key: value for key, value in one.items() if key != "image"} for one in new["spec"].get("containers", [])]
    were = [{key: value for key, value in one.items() if key != "image"} for one in old["spec"].get("containers", [])]
    if before != after or same != were:
        return [_forbidden("spec", "pod updates may not change fields other than container images and tolerations")]
    return []


def _with_template(new: Obj, claims: bool = False) -> list[Obj]:
    spec = new["spec"]
    template = spec["template"]
    selector = spec.get("selector")
    if selector is None:
        return [_required("spec.selector")]
    causes: list[Obj] = []
    if not selector.get("matchLabels") and not selector.get("matchExpressions"):
        text = f"Invalid value: {{}}: empty selector is invalid for {new['kind'].lower()}"
        causes.append(cause("FieldValueInvalid", text, "spec.selector"))
    labels = template["metadata"].get("labels") or {}
    if not selector_matches(selector, labels):
        text = f"Invalid value: {labels!r}: `selector` does not match template `labels`"
        causes.append(cause("FieldValueInvalid", text, "spec.template.metadata.labels"))
    pod_spec = template["spec"]
    if claims:
        wanted: list[Obj] = spec.get("volumeClaimTemplates") or []
        for index, claim in enumerate(wanted):
            where = f"spec.volumeClaimTemplates[{index}]"
            if not claim.get("metadata", {}).get("name"):
                causes.append(_required(f"{where}.metadata.name"))
            causes += [fault | {"field": f"{where}.{fault['field']}"} for fault in _claim(claim, None)]
        held: list[Obj] = pod_spec.get("volumes") or []
        claimed = {claim.get("metadata", {}).get("name") or "" for claim in wanted} - {one.get("name") for one in held}
        pod_spec = pod_spec | {"volumes": held + [{"name": name} for name in sorted(claimed) if name]}
    causes += _not_negative(spec, "spec", "replicas", "minReadySeconds", "revisionHistoryLimit")
    causes += _one_of(template["spec"], "restartPolicy", "spec.template.spec", "Always")
    return causes + _containers(pod_spec, "spec.template.spec")


def _stateful_set(new: Obj, old: Obj | None) -> list[Obj]:
    causes = _with_template(new, claims=True)
    causes += _one_of(new["spec"], "podManagementPolicy", "spec", "OrderedReady", "Parallel")
    causes += _one_of(new["spec"]["updateStrategy"], "type", "spec.updateStrategy", "RollingUpdate", "OnDelete")
    for field in ("whenDeleted", "whenScaled"):
        path = "spec.persistentVolumeClaimRetentionPolicy"
        causes += _one_of(new["spec"]["persistentVolumeClaimRetentionPolicy"], field, path, "Retain", "Delete")
    if old is not None:
        before = {key: value for key, value in old["spec"].items() if key not in _STATEFUL_SET_MUTABLE}
        after = {key: value for key, value in new["spec"].items() if key not in _STATEFUL_SET_MUTABLE}
        if before != after:
            listed = ", ".join(f"'{field}'" for field in _STATEFUL_SET_MUTABLE[:-1])
            text = (
                f"updates to statefulset spec for fields other than {listed} and '{_STATEFUL_SET_MUTABLE[-1]}'"
                " are forbidden"
            )
            causes.append(_forbidden("spec", text))
    return causes


def _deployment(new: Obj, old: Obj | None) -> list[Obj]:
    strategy, path = new["spec"]["strategy"], "spec.strategy"
    causes = _one_of(strategy, "type", path, "Recreate", "RollingUpdate") + _selector_kept(new, old)
    rolling = strategy.get("rollingUpdate")
    if strategy.get("type") == "Recreate" and rolling is not None:
        causes.append(_forbidden(f"{path}.rollingUpdate", "may not be specified when strategy `type` is 'Recreate'"))
    for field, value in (rolling or {}).items():
        if not (isinstance(value, int) and value >= 0) and not re.fullmatch(r"[0-9]+%", str(value)):
            why = "must be a whole number that is not negative, or a percentage such as 25%"
            causes.append(_invalid(f"{path}.rollingUpdate.{field}", value, why))
    if rolling and all(str(rolling.get(field)).rstrip("%") == "0" for field in ("maxSurge", "maxUnavailable")):
        value = rolling["maxUnavailable"]
        causes.append(_invalid(f"{path}.rollingUpdate.maxUnavailable", value, "may not be 0 when `maxSurge` is 0"))
    return causes


def _selector_kept(new: Obj, old: Obj | None) -> list[Obj]:
    causes = _with_template(new)
    if old is not None and old["spec"].get("selector") != new["spec"].get("selector"):
        causes.append(_immutable("spec.selector", new["spec"].get("selector")))
    return causes


def _job(new: Obj, old: Obj | None) -> list[Obj]:
    spec = new["spec"]
    causes = _job_spec(spec, "spec")
    if old is not None:
        causes += [
            _immutable(f"spec.{field}", spec.get(field))
            for field in ("completions", "selector", "template", "completionMode")
            if old["spec"].get(field) != spec.get(field)
        ]
    return causes


_JOB_NOT_HERE = ("podFailurePolicy", "successPolicy", "backoffLimitPerIndex", "maxFailedIndexes", "managedBy")


def _job_spec(spec: Obj, path: str) -> list[Obj]:
    template = f"{path}.template.spec"
    counts = ("parallelism", "completions", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished")
    causes = _not_negative(spec, path, *counts) + _containers(spec["template"]["spec"], template)
    if spec["template"]["spec"].get("restartPolicy") == "Always":
        causes.append(_required(f"{template}.restartPolicy", 'valid values: "OnFailure", "Never"'))
    else:
        causes += _one_of(spec["template"]["spec"], "restartPolicy", template, "OnFailure", "Never")
    if spec.get("completionMode") == "Indexed":
        causes.append(_forbidden(f"{path}.completionMode", "the embedded Kubernetes API runs only NonIndexed jobs"))
    if spec.get("podReplacementPolicy") == "Failed":
        causes.append(_forbidden(f"{path}.podReplacementPolicy", _NOT_HERE))
    return causes + [_forbidden(f"{path}.{field}", _NOT_HERE) for field in _JOB_NOT_HERE if field in spec]


def _cron_job(new: Obj, old: Obj | None) -> list[Obj]:
    spec, causes = new["spec"], []
    if "TZ" in spec["schedule"]:
        why = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"
        causes.append(_invalid("spec.schedule", spec["schedule"], why))
    else:
        try:
            Schedule.parse(spec["schedule"])
        except ValueError as fault:
            causes.append(_invalid("spec.schedule", spec["schedule"], str(fault)))
    try:
        ZoneInfo(spec.get("timeZone", "UTC"))
    except (KeyError, ValueError, OSError):
        causes.append(_invalid("spec.timeZone", spec["timeZone"], f"unknown time zone {spec['timeZone']}"))
    causes += _one_of(spec, "concurrencyPolicy", "spec", "Allow", "Forbid", "Replace")
    counts = ("startingDeadlineSeconds", "successfulJobsHistoryLimit", "failedJobsHistoryLimit")
    return (
        causes + _not_negative(spec, "spec", *counts) + _job_spec(spec["jobTemplate"]["spec"], "spec.jobTemplate.spec")
    )


def _service(new: Obj, old: Obj | None) -> list[Obj]:
    spec = new["spec"]
    kind = spec.get("type")
    causes: list[Obj] = []
    held = {port.get("nodePort") for port in (old or {"spec": {}})["spec"].get("ports") or []}
    if kind not in ("ClusterIP", "NodePort", "LoadBalancer", "ExternalName"):
        supported = '"ClusterIP", "ExternalName", "LoadBalancer", "NodePort"'
        causes.append(
            cause("FieldValueNotSupported", f"Unsupported value: {kind!r}: supported values: {supported}", "spec.type")
        )
    if not spec.get("ports") and spec.get("clusterIP") != "None" and kind != "ExternalName":
        causes.append(_required("spec.ports"))
    for index, port in enumerate(spec.get("ports") or []):
        if not isinstance(port.get("port"), int) or not 0 < port["port"] < 65536:
            text = f"Invalid value: {port.get('port')!r}: must be between 1 and 65535, inclusive"
            causes.append(cause("FieldValueInvalid", text, f"spec.ports[{index}].port"))
        if len(spec["ports"]) > 1 and not port.get("name"):
            causes.append(_required(f"spec.ports[{index}].name"))
        if (number := port.get("nodePort") or NODE_PORTS[0]) not in NODE_PORTS and number not in held:
            why = f"provided port is not in the valid range. The range of valid ports is {_NODE_PORTS_SHOWN}"
            causes.append(_invalid(f"spec.ports[{index}].nodePort", number, why))
    if old is not None and old["spec"].get("clusterIP") and old["spec"]["clusterIP"] != spec.get("clusterIP"):
        causes.append(_immutable("spec.clusterIP", spec.get("clusterIP")))
    return causes


def _budget(new: Obj, old: Obj | None) -> list[Obj]:
    spec = new.get("spec") or {}
    causes: list[Obj] = []
    if "minAvailable" in spec and "maxUnavailable" in spec:
        causes.append(_invalid("spec", spec, "minAvailable and maxUnavailable cannot be both set"))
    for field in ("minAvailable", "maxUnavailable"):
        value = spec.get(field, 0)
        if isinstance(value, int) and value < 0:
            causes.append(_invalid(f"spec.{field}", value, "must be greater than or equal to 0"))
        elif not isinstance(value, int) and not re.fullmatch(r"[0-9]+%", str(value)):
            why = "a valid percent string must be a numeric string followed by an ending '%'"
            causes.append(_invalid(f"spec.{field}", value, why))
    return causes


def _claim(new: Obj, old: Obj | None) -> list[Obj]:
    spec = new["spec"]
    asked = ((spec.get("resources") or {}).get("requests") or {}).get("storage")
    if asked is None:
        return [_required("spec.resources[storage]")]
    if not is_quantity(asked):
        return [
            cause(
                "FieldValueInvalid", f"Invalid value: {asked!r}: must be a quantity", "spec.resources.requests.storage"
            )
        ]
    if not spec.get("accessModes"):
        return [_required("spec.accessModes", "at least 1 access mode is required")]
    if old is not None:
        before = old["spec"]["resources"]["requests"]["storage"]
        if parse_quantity(asked) < parse_quantity(before):
            return [_forbidden("spec.resources.requests.storage", "field can not be less than previous value")]
        kept = {key: value for key, value in spec.items() if key not in ("resources", "volumeName")}
        was = {key: value for key, value in old["spec"].items() if key not in ("resources", "volumeName")}
        if kept != was:
            return [_forbidden("spec", "spec is immutable after creation except resources.requests for bound claims")]
    return []


def _data(new: Obj, old: Obj | None) -> list[Obj]:
    causes = [
        cause("FieldValueInvalid", f'Invalid value: "{key}": {_KEY_RULE}', f"{field}[{key}]")
        for field in ("data", "binaryData")
        for key in new.get(field) or {}
        if len(key) > 253 or key in (".", "..") or not _KEY.match(key)
    ]
    if causes:
        return causes
    if _data_bytes(new) > DATA_LIMIT_BYTES:
        return [cause("FieldValueTooLong", f"Too long: may not be more than {DATA_LIMIT_BYTES} bytes", "data")]
    if old is not None and old.get("immutable"):
        return [
            _forbidden(field, "field is immutable when `immutable` is set")
            for field in ("data", "binaryData", "immutable")
            if old.get(field) != new.get(field)
        ]
    return []


def _data_bytes(obj: Obj) -> int:
    encoded, texts = (obj.get("data"), {}) if obj["kind"] == "Secret" else (obj.get("binaryData"), obj.get("data"))
    sizes = [len(base64.b64decode(value)) for value in (encoded or {}).values()]
    return sum(sizes) + sum(len(value.encode()) for value in (texts or {}).values())


_KINDS: dict[str, Callable[[Obj, Obj | None], list[Obj]]] = {
    "Pod": _pod,
    "StatefulSet": _stateful_set,
    "Deployment": _deployment,
    "ReplicaSet": _selector_kept,
    "Job": _job,
    "CronJob": _cron_job,
    "Service": _service,
    "PersistentVolumeClaim": _claim,
    "PodDisruptionBudget": _budget,
    "ConfigMap": _data,
    "Secret": _data,
}
