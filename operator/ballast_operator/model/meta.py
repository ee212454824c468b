"""Defines what all kinds share: metadata, references, conditions, and the names in the API group. PURE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ballast_operator.model.fields import read

GROUP = "ballast.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
PAUSED = f"{GROUP}/paused"
FINALIZER = f"{GROUP}/finalizer"
MANAGED_BY = "app.kubernetes.io/managed-by"
CLUSTER_LABEL = f"{GROUP}/cluster"


@dataclass(frozen=True, slots=True)
class ClusterRef:
    name: str


@dataclass(frozen=True, slots=True)
class Condition:
    type: str
    status: str
    reason: str
    message: str
    last_transition_time: str = ""
    observed_generation: int = 0


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Names one object of a kind."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class OwnerReference:
    kind: str
    name: str
    uid: str
    controller: bool = False


@dataclass(frozen=True, slots=True)
class Meta:
    """The part of an object's metadata that decisions depend on."""

    name: str
    namespace: str = "default"
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None
    finalizers: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    owner_references: tuple[OwnerReference, ...] = ()

    @property
    def key(self) -> Key:
        return Key(self.namespace, self.name)

    @property
    def deleting(self) -> bool:
        return self.deletion_timestamp is not None

    @property
    def paused(self) -> bool:
        return self.annotations.get(PAUSED) == "true"

    @property
    def finalized(self) -> bool:
        """Whether our finalizer holds the object."""
        return FINALIZER in self.finalizers

    @property
    def age_order(self) -> tuple[str, str, str]:
        """The older object sorts first; the uid decides between equals, the same way every time."""
        return (self.creation_timestamp, self.uid, self.name)


def shortened(name: str) -> str:
    """A name with room for a dash and more. A dash may not follow a dot."""
    return name[:200].rstrip(".")


def owner_reference(kind: str, meta: Meta, *, controller: bool = True) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "name": meta.name,
        "uid": meta.uid,
        "controller": controller,
        "blockOwnerDeletion": False,
    }


def read_meta(body: Mapping[str, Any]) -> Meta:
    return read(Meta, body["metadata"], "metadata")
