"""Checks the types of fields of the built-in kinds: strings, lists, maps, numbers. PURE.

Only fields that this server uses are listed. Types have their Go names, so that error messages are those of the real
API server. A type ending in `!` marks a required field.
"""

import base64
import binascii
from typing import Any

from ballast_local.errors import ApiError, Obj, bad_request, cause
from ballast_local.resources import Resource
from ballast_local.schema import is_date_time

_TEXTS = "map[string]string"
_SCALARS: dict[str, tuple[type, ...]] = {"string": (str,), "int32": (int,), "int64": (int,), "bool": (bool,)}
_TEMPLATE = {
    "template": "v1.PodTemplateSpec",
    "selector": "v1.LabelSelector",
    "replicas": "int32",
    "minReadySeconds": "int32",
    "revisionHistoryLimit": "int32",
    "progressDeadlineSeconds": "int32",
}
_STRUCTS: dict[str, dict[str, str]] = {
    "ObjectMeta": {"name": "string", "generateName": "string", "namespace": "string", "labels": _TEXTS,
                   "annotations": _TEXTS, "finalizers": "[]string", "ownerReferences": "[]v1.OwnerReference"},
    "OwnerReference": {"apiVersion": "string", "kind": "string", "name": "string", "uid": "string"},
    "LabelSelector": {"matchLabels": _TEXTS, "matchExpressions": "[]v1.LabelSelectorRequirement"},
    "LabelSelectorRequirement": {"key": "string", "operator": "string", "values": "[]string"},
    "PodDisruptionBudgetSpec": {"selector": "v1.LabelSelector"},
    "Event": dict.fromkeys(("firstTimestamp", "lastTimestamp", "eventTime", "deprecatedFirstTimestamp",
                            "deprecatedLastTimestamp"), "time"),
    "ConfigMap": {"data": _TEXTS, "binaryData": "map[string][]uint8"},
    "Secret": {"stringData": _TEXTS, "data": "map[string][]uint8", "type": "string"},
    "PodTemplateSpec": {"metadata": "v1.ObjectMeta", "spec": "v1.PodSpec"},
    "PodSpec": {"containers": "[]v1.Container", "initContainers": "[]v1.Container", "volumes": "[]v1.Volume",
                "restartPolicy": "string", "terminationGracePeriodSeconds": "int64", "nodeName": "string",
                "activeDeadlineSeconds": "int64", "hostname": "string", "subdomain": "string",
                "serviceAccountName": "string",
                "securityContext": "v1.PodSecurityContext", "readinessGates": "[]v1.PodReadinessGate"},
    "Container": {"name": "string", "image": "string", "workingDir": "string", "command": "[]string",
                  "args": "[]string", "env": "[]v1.EnvVar", "envFrom": "[]v1.EnvFromSource",
                  "ports": "[]v1.ContainerPort", "volumeMounts": "[]v1.VolumeMount", "livenessProbe": "v1.Probe",
                  "readinessProbe": "v1.Probe", "startupProbe": "v1.Probe", "lifecycle": "v1.Lifecycle",
                  "resources": "v1.ResourceRequirements"},
    "EnvVar": {"name": "string!", "value": "string", "valueFrom": "v1.EnvVarSource"},
    "EnvVarSource": {"fieldRef": "v1.ObjectFieldSelector", "configMapKeyRef": "v1.ConfigMapKeySelector",
                     "secretKeyRef": "v1.SecretKeySelector", "resourceFieldRef": "v1.ResourceFieldSelector"},
    "ObjectFieldSelector": {"fieldPath": "string!"},
    "ConfigMapKeySelector": {"name": "string!", "key": "string!"},
    "SecretKeySelector": {"name": "string!", "key": "string!"},
    "EnvFromSource": {"configMapRef": "v1.ConfigMapEnvSource", "secretRef": "v1.SecretEnvSource", "prefix": "string"},
    "ConfigMapEnvSource": {"name": "string!"},
    "SecretEnvSource": {"name": "string!"},
    "Lifecycle": {"preStop": "v1.LifecycleHandler", "postStart": "v1.LifecycleHandler"},
    "LifecycleHandler": {"exec": "v1.ExecAction"},
    "ContainerPort": {"name": "string", "containerPort": "int32!", "protocol": "string"},
    "VolumeMount": {"name": "string!", "mountPath": "string!", "subPath": "string", "subPathExpr": "string"},
    "Volume": {"name": "string!", "configMap": "v1.ConfigMapVolumeSource", "secret": "v1.SecretVolumeSource",
               "persistentVolumeClaim": "v1.PersistentVolumeClaimVolumeSource", "emptyDir": "v1.EmptyDirVolumeSource",
               "hostPath": "v1.HostPathVolumeSource", "projected": "v1.ProjectedVolumeSource",
               "downwardAPI": "v1.DownwardAPIVolumeSource"},
    "ConfigMapVolumeSource": {"name": "string!", "items": "[]v1.KeyToPath", "defaultMode": "int32"},
    "SecretVolumeSource": {"secretName": "string!", "items": "[]v1.KeyToPath", "defaultMode": "int32"},
    "KeyToPath": {"key": "string!", "path": "string!"},
    "PersistentVolumeClaimVolumeSource": {"claimName": "string!"},
    "HostPathVolumeSource": {"path": "string!"},
    "ProjectedVolumeSource": {"sources": "[]v1.VolumeProjection"},
    "VolumeProjection": {"configMap": "v1.ConfigMapProjection", "secret": "v1.SecretProjection"},
    "ConfigMapProjection": {"name": "string!", "items": "[]v1.KeyToPath"},
    "SecretProjection": {"name": "string!", "items": "[]v1.KeyToPath"},
    "Probe": {"exec": "v1.ExecAction", "httpGet": "v1.HTTPGetAction", "tcpSocket": "v1.TCPSocketAction",
              "initialDelaySeconds": "int32", "timeoutSeconds": "int32", "periodSeconds": "int32",
              "successThreshold": "int32", "failureThreshold": "int32"},
    "ExecAction": {"command": "[]string!"},
    "HTTPGetAction": {"path": "string", "host": "string", "scheme": "string"},
    "StatefulSetSpec": {**_TEMPLATE, "serviceName": "string", "podManagementPolicy": "string",
                        "volumeClaimTemplates": "[]v1.PersistentVolumeClaim",
                        "updateStrategy": "v1.StatefulSetUpdateStrategy",
                        "ordinals": "v1.StatefulSetOrdinals",
                        "persistentVolumeClaimRetentionPolicy": "v1.StatefulSetPersistentVolumeClaimRetentionPolicy"},
    "StatefulSetUpdateStrategy": {"type": "string", "rollingUpdate": "v1.RollingUpdateStatefulSetStrategy"},
    "RollingUpdateStatefulSetStrategy": {"partition": "int32"},
    "StatefulSetOrdinals": {"start": "int32"},
    "StatefulSetPersistentVolumeClaimRetentionPolicy": {"whenDeleted": "string", "whenScaled": "string"},
    "DeploymentStrategy": {"type": "string", "rollingUpdate": "v1.RollingUpdateDeployment"},
    "DeploymentSpec": {**_TEMPLATE, "strategy": "v1.DeploymentStrategy", "paused": "bool"},
    "ReplicaSetSpec": _TEMPLATE,
    "JobSpec": {"template": "v1.PodTemplateSpec", "parallelism": "int32", "completions": "int32",
                "backoffLimit": "int32", "activeDeadlineSeconds": "int64", "suspend": "bool",
                "ttlSecondsAfterFinished": "int32"},
    "JobTemplateSpec": {"metadata": "v1.ObjectMeta", "spec": "v1.JobSpec"},
    "CronJobSpec": {"schedule": "string!", "suspend": "bool", "jobTemplate": "v1.JobTemplateSpec", "timeZone": "string",
                    "startingDeadlineSeconds": "int64", "successfulJobsHistoryLimit": "int32",
                    "failedJobsHistoryLimit": "int32", "concurrencyPolicy": "string"},
    "ServiceSpec": {"selector": _TEXTS, "ports": "[]v1.ServicePort", "type": "string", "clusterIP": "string",
                    "publishNotReadyAddresses": "bool"},
    "ServicePort": {"name": "string", "port": "int32", "nodePort": "int32", "protocol": "string"},
    "PersistentVolumeClaim": {"metadata": "v1.ObjectMeta", "spec": "v1.PersistentVolumeClaimSpec"},
    "PersistentVolumeClaimSpec": {"accessModes": "[]string", "storageClassName": "string", "volumeName": "string",
                                  "resources": "v1.VolumeResourceRequirements"},
    "VolumeResourceRequirements": {"requests": "v1.ResourceList"},
    "CustomResourceDefinitionSpec": {"group": "string", "scope": "string", "names": "v1.CustomResourceDefinitionNames",
                                     "versions": "[]v1.CustomResourceDefinitionVersion"},
    "CustomResourceDefinitionNames": {"plural": "string", "singular": "string", "kind": "string",
                                      "listKind": "string", "shortNames": "[]string", "categories": "[]string"},
    "CustomResourceDefinitionVersion": {"name": "string!", "served": "bool", "storage": "bool",
                                        "schema": "v1.CustomResourceValidation",
                                        "additionalPrinterColumns": "[]v1.CustomResourceColumnDefinition"},
    "CustomResourceColumnDefinition": {"name": "string!", "type": "string!", "jsonPath": "string!"},
    "CustomResourceValidation": {"openAPIV3Schema": "v1.JSONSchemaProps"},
    "JSONSchemaProps": {"type": "string", "properties": "map[string]v1.JSONSchemaProps", "required": "[]string",
                        "items": "v1.JSONSchemaProps", "additionalProperties": "v1.JSONSchemaPropsOrBool",
                        "x-kubernetes-validations": "[]v1.ValidationRule"},
    "ValidationRule": {"rule": "string", "message": "string", "messageExpression": "string"},
}  # fmt: skip
_WITH_SPEC = frozenset(name.removesuffix("Spec") for name in _STRUCTS if name.endswith("Spec"))


def check_shape(resource: Resource, obj: Obj) -> None:
    """Refuse an object with a field of the wrong type; fields that are null are removed from it."""
    _Reader(resource).read(obj)


def missing_parts(resource: Resource, obj: Obj) -> list[Obj]:
    """The missing required fields, as causes of a Status."""
    reader = _Reader(resource)
    reader.read(obj)
    return [cause("FieldValueRequired", "Required value", field) for field in reader.missing]


class _Reader:
    """Walks an object with two paths: `path` as in Go's messages, and `field` as in causes, with item indexes."""

    def __init__(self, resource: Resource) -> None:
        self._resource = resource
        self._what = f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}'
        self.missing: list[str] = []

    def read(self, obj: Obj) -> None:
        if self._resource.custom:
            self._members(obj["metadata"], _STRUCTS["ObjectMeta"], "ObjectMeta", "", "metadata")
            return
        kind = self._resource.kind
        fields = {"metadata": "v1.ObjectMeta"} | _STRUCTS.get(kind, {})
        if kind in _WITH_SPEC:
            fields["spec"] = f"v1.{kind}Spec"
        self._members(obj, fields, kind, "", "")

    def _members(self, value: Obj, fields: dict[str, str], struct: str, path: str, field: str) -> None:
        for name in [name for name in value if value[name] is None]:
            del value[name]
        for name, kind in fields.items():
            below = f"{field}.{name}" if field else name
            if kind.endswith("!") and not value.get(name):
                self.missing.append(below)
            if name in value:
                self._value(value[name], kind.rstrip("!"), struct, f"{path}.{name}", below)

    def _value(self, value: Any, kind: str, struct: str, path: str, field: str) -> None:
        if kind in _SCALARS:
            if not isinstance(value, _SCALARS[kind]) or (isinstance(value, bool) and kind != "bool"):
                raise self._unreadable(value, kind, struct, path)
        elif kind == "time":
            if not is_date_time(value):
                raise bad_request(f'{self._what}: parsing time "{value}": it is no time of RFC 3339')
        elif kind == "v1.JSONSchemaPropsOrBool":
            if not isinstance(value, bool):
                self._value(value, "v1.JSONSchemaProps", struct, path, field)
        elif kind == "[]uint8":
            self._bytes(value, struct, path)
        elif kind.startswith("[]"):
            if not isinstance(value, list):
                raise self._unreadable(value, kind, struct, path)
            for index, item in enumerate(value):
                self._value(item, kind[2:], struct, path, f"{field}[{index}]")
        elif not isinstance(value, dict):
            raise self._unreadable(value, kind, struct, path)
        elif kind == _TEXTS:
            for name, member in value.items():
                value[name] = "" if member is None else member
                self._value(value[name], "string", struct, path, field)
        elif kind.startswith("map[string]"):
            for name, member in value.items():
                self._value(member, kind.removeprefix("map[string]"), struct, path, f"{field}[{name}]")
        else:
            name = kind.removeprefix("v1.")
            self._members(value, _STRUCTS.get(name, {}), name, path, field)

    def _bytes(self, value: Any, struct: str, path: str) -> None:
        if not isinstance(value, str):
            raise self._unreadable(value, "[]uint8", struct, path)
        try:
            base64.b64decode(value.replace("\n", ""), validate=True)
        except binascii.Error as fault:
            raise bad_request(f"{self._what}: illegal base64 data in {path.removeprefix('.')}: {fault}") from None

    def _unreadable(self, value: Any, kind: str, struct: str, path: str) -> ApiError:
        names: tuple[tuple[type | tuple[type, ...], str], ...] = (
            (bool, "bool"), ((int, float), "number"), (str, "string"), (list, "array"), (dict, "object"),
        )  # fmt: skip
        found = next((name for python, name in names if isinstance(value, python)), "null")
        where = f"Go struct field {struct}{path} of type {kind}"
        return bad_request(f"{self._what}: json: cannot unmarshal {found} into {where}")
