"""The broker as its handlers see it: one object with everything they may use. `broker_half.py` makes it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ballast_broker.api.authorizer import Authorizer
    from ballast_broker.api.client_quotas import ClientQuotas
    from ballast_broker.config.broker import BrokerConfig
    from ballast_broker.controller.client import ControllerClient
    from ballast_broker.coordinator.service import GroupCoordinator
    from ballast_broker.coordinator.transaction_service import TransactionCoordinator
    from ballast_broker.coordinator.verification import TransactionVerifier
    from ballast_broker.metadata.image import MetadataImage
    from ballast_broker.metrics.traffic import Traffic
    from ballast_broker.replication.directories import Directories
    from ballast_broker.replication.replicas import Replicas
    from ballast_broker.seams import Clock, Random
    from ballast_broker.storage.manager import LogManager
    from ballast_wire.envelope import Asker


@dataclass(slots=True)
class BrokerServices:
    node_id: int
    cluster_id: str
    config: BrokerConfig
    clock: Clock
    random: Random
    image: Callable[[], MetadataImage]
    replicas: Replicas
    directories: Directories
    logs: LogManager
    controller: ControllerClient
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    verifier: TransactionVerifier
    traffic: Traffic
    client_quotas: ClientQuotas
    authorizer: Authorizer
    next_producer_id: Callable[[], Awaitable[int]]
    """The next id out of the block that the controller gave this broker; raises ApiError while it has none."""
    create_internal_topic: Callable[[str], None]
    """Ask the controller for a coordinator's topic, once for all who need it; never raises: they ask again."""
    create_topics_automatically: Callable[[list[str], Asker | None], None]
    """What `auto.create.topics.enable` does for names in a Metadata request that do not exist; and who asked."""
    kraft_version: Callable[[], int]


@dataclass(slots=True)
class ControllerServices:
    """What a controller's listener has of it, which is no broker."""

    node_id: int
    config: BrokerConfig
    authorizer: Authorizer
    image: Callable[[], MetadataImage]
    client_quotas: ClientQuotas
