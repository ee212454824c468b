"""The table of all served resources, with their names, scope and subresources.

Built-in rows are defined here; CustomResourceDefinitions add and remove rows at run time. PURE.
"""

from dataclasses import dataclass, field
from typing import Any

from ballast_local.errors import Obj

_CONDITIONAL_GROUPS = ("apiextensions.k8s.io", "coordination.k8s.io")
VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True, slots=True)
class ScalePaths:
    spec_replicas: str
    status_replicas: str
    label_selector: str | None = None


@dataclass(frozen=True, slots=True)
class Resource:
    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    singular: str = ""
    list_kind: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    status: bool = False
    scale: ScalePaths | None = None
    stored: bool = True
    schema: Obj | None = field(default=None, compare=False)
    columns: tuple[Any, ...] = field(default=(), compare=False)
    custom: bool = False
    storage_version: str = ""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def key(self) -> str:
        """The key under which objects are stored: the same for every served version."""
        return f"{self.plural}.{self.group}"

    @property
    def conditional(self) -> bool:
        """Whether an update (PUT) must contain the resourceVersion that it replaces."""
        return self.custom or self.group in _CONDITIONAL_GROUPS

    @property
    def storage_api_version(self) -> str:
        version = self.storage_version or self.version
        return f"{self.group}/{version}" if self.group else version


_REPLICAS = ScalePaths(".spec.replicas", ".status.replicas", ".status.selector")


def _row(group_version: str, plural: str, kind: str, short: str = "", **more: Any) -> Resource:
    group, _, version = group_version.rpartition("/")
    names = tuple(short.split()) if short else ()
    return Resource(group, version, plural, kind, short_names=names, singular=kind.lower(), **more)


_ALL = ("all",)
_RBAC = "rbac.authorization.k8s.io/v1"

BUILT_IN: tuple[Resource, ...] = (
    _row("v1", "namespaces", "Namespace", "ns", namespaced=False, status=True),
    _row("v1", "nodes", "Node", "no", namespaced=False, status=True),
    _row("v1", "persistentvolumes", "PersistentVolume", "pv", namespaced=False, status=True),
    _row("v1", "pods", "Pod", "po", status=True, categories=_ALL),
    _row("v1", "services", "Service", "svc", status=True, categories=_ALL),
    _row("v1", "endpoints", "Endpoints", "ep"),
    _row("v1", "configmaps", "ConfigMap", "cm"),
    _row("v1", "secrets", "Secret"),
    _row("v1", "serviceaccounts", "ServiceAccount", "sa"),
    _row("v1", "persistentvolumeclaims", "PersistentVolumeClaim", "pvc", status=True),
    _row("v1", "events", "Event", "ev"),
    _row("v1", "resourcequotas", "ResourceQuota", "quota", status=True),
    _row("v1", "limitranges", "LimitRange", "limits"),
    _row("events.k8s.io/v1", "events", "Event", "ev"),
    _row("apps/v1", "deployments", "Deployment", "deploy", status=True, scale=_REPLICAS, categories=_ALL),
    _row("apps/v1", "replicasets", "ReplicaSet", "rs", status=True, scale=_REPLICAS, categories=_ALL),
    _row("apps/v1", "statefulsets", "StatefulSet", "sts", status=True, scale=_REPLICAS, categories=_ALL),
    _row("apps/v1", "controllerrevisions", "ControllerRevision"),
    _row("batch/v1", "jobs", "Job", status=True, categories=_ALL),
    _row("batch/v1", "cronjobs", "CronJob", "cj", status=True, categories=_ALL),
    _row("coordination.k8s.io/v1", "leases", "Lease"),
    _row("discovery.k8s.io/v1", "endpointslices", "EndpointSlice"),
    _row("policy/v1", "poddisruptionbudgets", "PodDisruptionBudget", "pdb", status=True),
    _row("networking.k8s.io/v1", "networkpolicies", "NetworkPolicy", "netpol"),
    _row("storage.k8s.io/v1", "storageclasses", "StorageClass", "sc", namespaced=False),
    _row("scheduling.k8s.io/v1", "priorityclasses", "PriorityClass", "pc", namespaced=False),
    _row(_RBAC, "roles", "Role"),
    _row(_RBAC, "rolebindings", "RoleBinding"),
    _row(_RBAC, "clusterroles", "ClusterRole", namespaced=False),
    _row(_RBAC, "clusterrolebindings", "ClusterRoleBinding", namespaced=False),
    _row(
        "apiextensions.k8s.io/v1",
        "customresourcedefinitions",
        "CustomResourceDefinition",
        "crd crds",
        namespaced=False,
        categories=("api-extensions",),
        status=True,
    ),
    _row("authorization.k8s.io/v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", "", namespaced=False,
         stored=False),
    _row("authorization.k8s.io/v1", "selfsubjectrulesreviews", "SelfSubjectRulesReview", "", namespaced=False,
         stored=False),
    _row("authentication.k8s.io/v1", "selfsubjectreviews", "SelfSubjectReview", "", namespaced=False, stored=False),
)  # fmt: skip

# Kinds whose objects have no metadata.generation.
NO_GENERATION = frozenset(
    {
        "configmaps.", "secrets.", "events.", "endpoints.", "serviceaccounts.", "nodes.", "namespaces.",
        "persistentvolumes.", "persistentvolumeclaims.", "services.", "leases.coordination.k8s.io",
        "storageclasses.storage.k8s.io",
    }
)  # fmt: skip


def storage_key(resource: Resource) -> str:
    """The key under which objects are stored: both event groups share one set of objects, as in Kubernetes."""
    return "events." if resource.plural == "events" and resource.group == "events.k8s.io" else resource.key


class Registry:
    """All resources by group, version and plural. `changes` counts changes, to invalidate cached documents."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str, str], Resource] = {}
        self.changes = 0
        for row in BUILT_IN:
            self.add(row)

    def add(self, row: Resource) -> None:
        self._rows[(row.group, row.version, row.plural)] = row
        self.changes += 1

    def remove(self, group: str, plural: str) -> None:
        for key in [key for key in self._rows if key[0] == group and key[2] == plural]:
            del self._rows[key]
        self.changes += 1

    def find(self, group: str, version: str, plural: str) -> Resource | None:
        return self._rows.get((group, version, plural))

    def by_key(self, key: str) -> Resource | None:
        """The row of the storage version, or of another version if that is not served."""
        rows = [row for row in self._rows.values() if row.key == key]
        return next(
            (row for row in rows if row.version == (row.storage_version or row.version)), next(iter(rows), None)
        )

    def rows(self, group: str | None = None, version: str | None = None) -> list[Resource]:
        return [
            row
            for row in self._rows.values()
            if (group is None or row.group == group) and (version is None or row.version == version)
        ]

    def groups(self) -> dict[str, list[str]]:
        """Group → versions. The core group, the empty string, comes first."""
        found: dict[str, list[str]] = {}
        for row in self._rows.values():
            versions = found.setdefault(row.group, [])
            if row.version not in versions:
                versions.append(row.version)
        return found
