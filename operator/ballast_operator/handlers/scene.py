"""What a cycle knows of a cluster that the operator runs, once Kafka has answered."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ballast_operator.kafka_client import KafkaConnection
from ballast_operator.model.cluster import KafkaCluster
from ballast_operator.model.kafka import KafkaView
from ballast_operator.model.quorum import QuorumView
from ballast_operator.observe import observe_topics
from ballast_operator.plan.kube import KubeFacts
from ballast_operator.plan.layouts import held_layout
from ballast_operator.resources.layout import Identity, Layout
from ballast_operator.worker import Requeue


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything that this cycle knows about the cluster."""

    cluster: KafkaCluster
    identity: Identity
    kube: KubeFacts
    view: KafkaView
    kafka: KafkaConnection
    requeue: Requeue
    quorum: QuorumView | None = None

    @property
    def layout(self) -> Layout:
        """What is to be applied now: the spec, plus what exists and must not go yet."""
        return held_layout(self.cluster, self.identity, self.kube)

    @property
    def voting(self) -> frozenset[int]:
        """The nodes that are voters of the metadata quorum, or may be."""
        found = frozenset() if self.quorum is None else frozenset(self.quorum.voters)
        return found if self.identity.dedicated else found.union(self.identity.controllers)

    async def as_told_by(self, broker: int) -> KafkaView:
        """The view with the topics as this broker itself knows them."""
        topics, _, errors = await observe_topics(self.kafka, None, broker)
        return replace(self.view, topics=topics, topic_errors=errors)
