"""Defines the kind KafkaTopic. PURE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ballast_operator.model.fields import FieldError, read
from ballast_operator.model.meta import ClusterRef, Condition, Key, Meta, read_meta

KIND = "KafkaTopic"
PLURAL = "kafkatopics"
CLAIM = ("clusterRef", "topicName", "deletionPolicy")


class DeletionPolicy(StrEnum):
    RETAIN = "Retain"
    DELETE = "Delete"


class AdoptionPolicy(StrEnum):
    FAIL = "Fail"
    ADOPT = "Adopt"


class ConfigPolicy(StrEnum):
    MERGE = "Merge"
    EXACT = "Exact"


@dataclass(frozen=True, slots=True)
class TopicSpec:
    cluster_ref: ClusterRef
    topic_name: str | None = None
    partitions: int | None = None
    replicas: int | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    replica_assignment: tuple[tuple[int, ...], ...] = ()
    deletion_policy: DeletionPolicy = DeletionPolicy.RETAIN
    adoption_policy: AdoptionPolicy = AdoptionPolicy.FAIL
    config_policy: ConfigPolicy = ConfigPolicy.MERGE


@dataclass(frozen=True, slots=True)
class TopicStatus:
    observed_generation: int | None = None
    topic_name: str | None = None
    topic_id: str | None = None
    partitions: int | None = None
    replicas: int | None = None
    managed_config: tuple[str, ...] = ()
    reassignment: str | None = None
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class KafkaTopic:
    meta: Meta
    spec: TopicSpec
    status: TopicStatus

    @property
    def key(self) -> Key:
        return self.meta.key

    @property
    def cluster(self) -> Key:
        return Key(self.meta.namespace, self.spec.cluster_ref.name)

    @property
    def topic(self) -> str:
        """The topic's name in Kafka."""
        return self.spec.topic_name or self.meta.name


def read_topic(body: Mapping[str, Any]) -> KafkaTopic:
    """One that is being deleted is read as far as that needs: a wrong value elsewhere must not hold it."""
    try:
        return _read(body, body.get("spec"))
    except FieldError:
        if read_meta(body).deleting:
            return read_claim(body)
        raise


def read_claim(body: Mapping[str, Any]) -> KafkaTopic:
    """Which topic of which cluster it describes, and what is to become of that, whatever else the spec says."""
    spec = body.get("spec")
    return _read(body, {name: spec[name] for name in CLAIM if name in spec} if isinstance(spec, Mapping) else spec)


def _read(body: Mapping[str, Any], spec: Any) -> KafkaTopic:
    return KafkaTopic(
        read_meta(body), read(TopicSpec, spec, "spec"), read(TopicStatus, body.get("status") or {}, "status")
    )
