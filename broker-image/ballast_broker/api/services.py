"""The broker's services as its handlers see them, in one object. `broker_half.py` creates it."""

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
    from ballast_wire.envelope import Requester


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
    """The next id of the block allocated by the controller; raises ApiError while there is none."""
    create_internal_topic: Callable[[str], None]
    """Request a coordinator's topic, once for all who need it; never raises: they retry."""
    create_topics_automatically: Callable[[list[str], Requester | None], None]
    """Auto-create missing topics of a Metadata request, on behalf of the requester."""
    kraft_version: Callable[[], int]


@dataclass(slots=True)
class ControllerServices:
    """The services available on a listener of a controller."""

    node_id: int
    config: BrokerConfig
    authorizer: Authorizer
    image: Callable[[], MetadataImage]
    client_quotas: ClientQuotas
