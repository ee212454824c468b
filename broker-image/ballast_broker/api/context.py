"""The context a handler gets along with its request: the client, the connection, the broker's services."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from ballast_wire.envelope import Requester

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
        """Whether the requester may perform the operation; a refusal is logged."""
        return self.broker.authorizer.allows(self.connection, operation, resource)

    def may(self, operation: Operation, resource: Resource) -> bool:
        """As `authorize` without logging: to filter or to report."""
        return self.broker.authorizer.would_allow(self.connection, operation, resource)

    def may_for_any(self, operation: Operation, kind: ResourceKind) -> bool:
        """Whether the operation is allowed on at least one resource of this kind."""
        return self.broker.authorizer.allows_for_any(self.connection, operation, kind)

    def fresh_id(self) -> UUID:
        """A random id, for a member without one."""
        return UUID(bytes=self.broker.random.bytes_of(16), version=4)

    @property
    def asker(self) -> Requester:
        """The requester as named to a controller."""
        principal = self.connection.principal
        return Requester(principal.name, self.client_id or "", self.connection.host, principal.by_token)

    @property
    def asker_to_tell(self) -> Requester | None:
        """The requester, if a controller has to know it for the sake of quotas."""
        return self.asker if self.broker.client_quotas.concern_controllers(self.asker) else None

    @property
    def principal(self) -> Principal:
        return self.connection.principal

    @property
    def host(self) -> str:
        """As Kafka prints it in group descriptions: "/127.0.0.1"."""
        return self.connection.host

    @property
    def listener(self) -> str:
        """The listener's name; responses name brokers by their endpoint on the same listener."""
        return self.connection.listener
