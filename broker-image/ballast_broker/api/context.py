"""What a handler gets beside its request: who asks, how, and the broker's services."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
