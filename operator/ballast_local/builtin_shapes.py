"""How the built-in kinds are read: a text where a text belongs, a list where a list does. PURE.

Only what somebody here goes by is listed; types have the names that Go gives them, because people know the messages.
"""

import base64
import binascii
from typing import Any

from ballast_local.errors import Obj, bad_request
from ballast_local.resources import Resource

_TEXTS = "map[string]string"
_SCALARS: dict[str, tuple[type, ...]] = {"string": (str,), "int32": (int,), "int64": (int,), "bool": (bool,)}
_TEMPLATE = {"template": "v1.PodTemplateSpec", "selector": "v1.LabelSelector", "replicas": "int32"}
_STRUCTS: dict[str, dict[str, str]] = {
    "ObjectMeta": {"name": "string", "generateName": "string", "namespace": "string", "labels": _TEXTS,
                   "annotations": _TEXTS, "finalizers": "[]string", "ownerReferences": "[]v1.OwnerReference"},
    "OwnerReference": {"apiVersion": "string", "kind": "string", "name": "string", "uid": "string"},
    "LabelSelector": {"matchLabels": _TEXTS, "matchExpressions": "[]v1.LabelSelectorRequirement"},
    "LabelSelectorRequirement": {"key": "string", "operator": "string", "values": "[]string"},
    "ConfigMap": {"data": _TEXTS, "binaryData": "map[string][]uint8"},
    "Secret": {"stringData": _TEXTS, "data": "map[string][]uint8", "type": "string"},
    "PodTemplateSpec": {"metadata": "v1.ObjectMeta", "spec": "v1.PodSpec"},
    "PodSpec": {"containers": "[]v1.Container", "initContainers": "[]v1.Container", "volumes": "[]v1.Volume",
                "restartPolicy": "string", "terminationGracePeriodSeconds": "int64", "nodeName": "string",
                "hostname": "string", "subdomain": "string", "serviceAccountName": "string",
                "securityContext": "v1.PodSecurityContext", "readinessGates": "[]v1.PodReadinessGate"},
    "Container": {"name": "string", "image": "string", "workingDir": "string", "command": "[]string",
                  "args": "[]string", "env": "[]v1.EnvVar", "envFrom": "[]v1.EnvFromSource",
                  "ports": "[]v1.ContainerPort", "volumeMounts": "[]v1.VolumeMount", "livenessProbe": "v1.Probe",
                  "readinessProbe": "v1.Probe", "startupProbe": "v1.Probe", "lifecycle": "v1.Lifecycle",
                  "resources": "v1.ResourceRequirements"},
    "EnvVar": {"name": "string", "value": "string", "valueFrom": "v1.EnvVarSource"},
    "ContainerPort": {"name": "string", "containerPort": "int32", "protocol": "string"},
    "VolumeMount": {"name": "string", "mountPath": "string", "subPath": "string", "subPathExpr": "string"},
    "Volume": {"name": "string"},
    "Probe": {"exec": "v1.ExecAction", "httpGet": "v1.HTTPGetAction", "tcpSocket": "v1.TCPSocketAction",
              "initialDelaySeconds": "int32", "timeoutSeconds": "int32", "periodSeconds": "int32",
              "successThreshold": "int32", "failureThreshold": "int32"},
    "ExecAction": {"command": "[]string"},
    "HTTPGetAction": {"path": "string", "host": "string", "scheme": "string"},
    "StatefulSetSpec": {**_TEMPLATE, "serviceName": "string", "podManagementPolicy": "string",
                        "volumeClaimTemplates": "[]v1.PersistentVolumeClaim",
                        "updateStrategy": "v1.StatefulSetUpdateStrategy"},
    "DeploymentSpec": {**_TEMPLATE, "strategy": "v1.DeploymentStrategy", "paused": "bool"},
    "ReplicaSetSpec": _TEMPLATE,
    "JobSpec": {"template": "v1.PodTemplateSpec", "parallelism": "int32", "completions": "int32",
                "backoffLimit": "int32", "activeDeadlineSeconds": "int64", "suspend": "bool",
                "ttlSecondsAfterFinished": "int32"},
    "JobTemplateSpec": {"metadata": "v1.ObjectMeta", "spec": "v1.JobSpec"},
    "CronJobSpec": {"schedule": "string", "suspend": "bool", "jobTemplate": "v1.JobTemplateSpec", "timeZone": "string",
                    "startingDeadlineSeconds": "int64", "successfulJobsHistoryLimit": "int32",
                    "failedJobsHistoryLimit": "int32", "concurrencyPolicy": "string"},
    "ServiceSpec": {"selector": _TEXTS, "ports": "[]v1.ServicePort", "type": "string", "clusterIP": "string",
                    "publishNotReadyAddresses": "bool"},
    "ServicePort": {"name": "string", "port": "int32", "nodePort": "int32", "protocol": "string"},
    "PersistentVolumeClaim": {"metadata": "v1.ObjectMeta", "spec": "v1.PersistentVolumeClaimSpec"},
    "PersistentVolumeClaimSpec": {"accessModes": "[]string", "storageClassName": "string", "volumeName": "string",
                                  "resources": "v1.VolumeResourceRequirements"},
    "VolumeResourceRequirements": {"requests": "v1.ResourceList"},
}  # fmt: skip
_WITH_SPEC = frozenset(name.removesuffix("Spec") for name in _STRUCTS if name.endswith("Spec"))


def check_shape(resource: Resource, obj: Obj) -> None:
    """Refuses what cannot be read as its kind; what is null in it is not there."""
    what = f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}'
    if resource.custom:
        _members(obj["metadata"], _STRUCTS["ObjectMeta"], "ObjectMeta", "", what)
        return
    fields = {"metadata": "v1.ObjectMeta"} | _STRUCTS.get(resource.kind, {})
    if resource.kind in _WITH_SPEC:
        fields["spec"] = f"v1.{resource.kind}Spec"
    _members(obj, fields, resource.kind, "", what)


def _members(value: Obj, fields: dict[str, str], struct: str, path: str, what: str) -> None:
    for name in [name for name in value if value[name] is None]:
        del value[name]
    for name, kind in fields.items():
        if name in value:
            _read(value[name], kind, struct, f"{path}.{name}", what)


def _read(value: Any, kind: str, struct: str, path: str, what: str) -> None:
    if kind in _SCALARS:
        if not isinstance(value, _SCALARS[kind]) or (isinstance(value, bool) and kind != "bool"):
            raise _unreadable(value, kind, struct, path, what)
    elif kind == "[]uint8":
        _bytes(value, struct, path, what)
    elif kind.startswith("[]"):
        if not isinstance(value, list):
            raise _unreadable(value, kind, struct, path, what)
        for item in value:
            _read(item, kind[2:], struct, path, what)
    elif not isinstance(value, dict):
        raise _unreadable(value, kind, struct, path, what)
    elif kind.startswith("map[string]"):
        for name, member in value.items():
            if member is None:
                value[name] = ""
            else:
                _read(member, kind.removeprefix("map[string]"), struct, path, what)
    else:
        name = kind.removeprefix("v1.")
        _members(value, _STRUCTS.get(name, {}), name, path, what)


def _bytes(value: Any, struct: str, path: str, what: str) -> None:
    if not isinstance(value, str):
        raise _unreadable(value, "[]uint8", struct, path, what)
    try:
        base64.b64decode(value.replace("\n", ""), validate=True)
    except binascii.Error as fault:
        raise bad_request(f"{what}: illegal base64 data in {path.removeprefix('.')}: {fault}") from None


def _unreadable(value: Any, kind: str, struct: str, path: str, what: str) -> Exception:
    names: tuple[tuple[type | tuple[type, ...], str], ...] = (
        (bool, "bool"), ((int, float), "number"), (str, "string"), (list, "array"), (dict, "object"),
    )  # fmt: skip
    found = next((name for python, name in names if isinstance(value, python)), "null")
    return bad_request(f"{what}: json: cannot unmarshal {found} into Go struct field {struct}{path} of type {kind}")
