"""Makes objects for the planning tests, with defaults for everything that a test does not mention."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ballast_operator.model.actions import Appended, Setting, Subtracted
from ballast_operator.model.cluster import KafkaCluster, read_cluster
from ballast_operator.model.kafka import (
    BrokerView,
    DirectoryId,
    DirectoryView,
    KafkaView,
    LogView,
    OngoingView,
    PartitionView,
    ReplicaId,
    TopicPartition,
    TopicView,
)
from ballast_operator.model.reassignment import Reassignment, read_reassignment
from ballast_operator.model.topic import KafkaTopic, read_topic
from ballast_operator.plan.throttled_lists import split
from ballast_planner import Move, Placement

NOW = "2026-01-02T03:04:05Z"
TOPIC_ID = "6f1ed002-ab5f-4d0a-a08b-0d2ab0ee0a11"
GIB = 1 << 30


def topic(
    name: str = "orders", status: Mapping[str, Any] | None = None, meta: Mapping[str, Any] | None = None, **spec: Any
) -> KafkaTopic:
    body = {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "generation": 1, **(meta or {})},
        "spec": {"clusterRef": {"name": "demo"}, **spec},
        "status": dict(status or {}),
    }
    return read_topic(body)


def reassignment(
    name: str = "move", status: Mapping[str, Any] | None = None, meta: Mapping[str, Any] | None = None, **spec: Any
) -> Reassignment:
    body = {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "generation": 1, **(meta or {})},
        "spec": {"clusterRef": {"name": "demo"}, **spec},
        "status": dict(status or {}),
    }
    return read_reassignment(body)


def cluster(
    status: Mapping[str, Any] | None = None, meta: Mapping[str, Any] | None = None, **spec: Any
) -> KafkaCluster:
    volumes = [{"name": "a", "size": "10Gi"}, {"name": "b", "size": "10Gi"}]
    body = {
        "metadata": {"name": "demo", "namespace": "default", "uid": "uid-demo", "generation": 1, **(meta or {})},
        "spec": {"volumes": volumes, **spec},
        "status": dict(status or {}),
    }
    return read_cluster(body)


def topic_view(
    *replicas: tuple[int, ...], topic_id: str = TOPIC_ID, isr: Mapping[int, tuple[int, ...]] | None = None
) -> TopicView:
    """A topic whose partitions have these replicas, by default all in sync, each led by its first."""
    return TopicView(
        topic_id,
        {index: PartitionView(row[0], row, (isr or {}).get(index, row)) for index, row in enumerate(replicas)},
    )


def move(
    before: tuple[tuple[int, str], ...], after: tuple[tuple[int, str], ...], partition: int = 0, wave: int = 0,
    network: int = 0, disk: int = 0, name: str = "orders",
) -> Move:  # fmt: skip
    return Move(name, partition, _placement(before), _placement(after), network, disk, wave)


def _placement(pairs: tuple[tuple[int, str], ...]) -> Placement:
    return Placement(tuple(broker for broker, _ in pairs), tuple(path for _, path in pairs))


def view(
    topics: Mapping[str, TopicView] | None = None,
    logs: Mapping[tuple[str, int, int], LogView] | None = None,
    ongoing: Mapping[tuple[str, int], OngoingView] | None = None,
    brokers: Iterable[int] = (0, 1, 2),
    offline: Iterable[int] = (),
    directories: Iterable[str] = ("/a", "/b"),
    **more: Any,
) -> KafkaView:
    """A cluster whose brokers each have these directories of 100 GiB, half full."""
    lost = set(offline)
    ids = list(brokers)
    return KafkaView(
        cluster_id="id",
        controller=0,
        brokers={b: BrokerView(b, f"host-{b}", 9092, None, b not in lost) for b in ids},
        lists_fenced=True,
        topics=topics or {},
        logs={ReplicaId(*key): value for key, value in (logs or {}).items()},
        ongoing={TopicPartition(*key): value for key, value in (ongoing or {}).items()},
        directories={
            DirectoryId(b, path): DirectoryView(None, 100 * GIB, 50 * GIB)
            for b in ids
            if b not in lost
            for path in directories
        },
        described=frozenset(b for b in ids if b not in lost),
        **more,
    )


def changed(before: str | None, setting: Setting) -> str | None:
    """The value after a change, as a controller makes it: a list from which all was subtracted is empty, not absent."""
    if isinstance(setting, Appended):
        return ",".join(dict.fromkeys([*split(before), *setting.entries]))
    if isinstance(setting, Subtracted):
        return ",".join(entry for entry in split(before) if entry not in setting.entries)
    return setting
