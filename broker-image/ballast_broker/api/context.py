"""What a handler gets beside its request: who asks, how, and the broker's services."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from ballast_wire.envelope import Asker

if TYPE_CHECKING:
    from ballast_broker.api.authorizer import Operation, Resource, ResourceKind
    from ballast_broker.api.services import BrokerServices
    from ballast_broker.net_reply import Peer, Principal


@dataclass(frozen=True, slots=True)
class RequestContext:
    broker: BrokerServices
    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    connection: Peer

    def authorize(self, operation: Operation, resource: Resource) -> bool:
        """Whether who asks may do what he asks for; a refusal is logged."""
        return self.broker.authorizer.allows(self.connection, operation, resource)

    def may(self, operation: Operation, resource: Resource) -> bool:
        """Of what is only left out or told."""
        return self.broker.authorizer.would_allow(self.connection, operation, resource)

    def may_for_any(self, operation: Operation, kind: ResourceKind) -> bool:
        """Whether there is at least one resource of this kind to which he may do it."""
        return self.broker.authorizer.allows_for_any(self.connection, operation, kind)

    def fresh_id(self) -> UUID:
        """For somebody who has no id yet."""
        return UUID(bytes=self.broker.random.bytes_of(16), version=4)

    @property
    def asker(self) -> Asker:
        """As who asks is named to a controller."""
        principal = self.connection.principal
        return Asker(principal.name, self.client_id or "", self.connection.host, principal.by_token)

    @property
    def asker_to_tell(self) -> Asker | None:
        """Who asks, where a controller has to know it for the sake of quotas."""
        return self.asker if self.broker.client_quotas.concern_controllers(self.asker) else None

    @property
    def principal(self) -> Principal:
        return self.connection.principal

    @property
    def host(self) -> str:
        """As Kafka writes it in group descriptions: "/127.0.0.1"."""
        return self.connection.host

    @property
    def listener(self) -> str:
        """The listener's name: answers name brokers by the same one."""
        return self.connection.listener
