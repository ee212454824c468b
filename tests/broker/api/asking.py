"""Calls a broker's handlers as its dispatcher does, on a real image, with the controller's real commands behind them.

Requests and responses are encoded and decoded, so that fields that a version lacks are missing here, too.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from tests.broker.controller.scene import Scene
from tests.contract.compare import build, plain

from ballast_broker.api.authorizer import ALLOWS_EVERYTHING
from ballast_broker.api.client_quotas import ClientQuotas
from ballast_broker.api.context import RequestContext
from ballast_broker.api.registry import BROKER_APIS, handler_of
from ballast_broker.config.broker import broker_config
from ballast_broker.config_rules import Rules
from ballast_broker.controller.service import COMMANDS
from ballast_broker.net_reply import ANONYMOUS, Principal
from ballast_broker.real_world import RealClock
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.failures import failure_response
from ballast_wire.messages import message

APIS = {api.name: api for api in BROKER_APIS.values()}
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
PROPERTIES = {"node.id": "1", "log.dirs": "/data/d1,/data/d2", "num.partitions": "3", "log.retention.hours": "24"}


class Peer:
    host = "/127.0.0.1"
    listener = "PLAINTEXT"
    time: Any = None
    is_known = True

    def __init__(self, principal: Principal = ANONYMOUS) -> None:
        self.principal = principal

    def on_close(self, callback: Any) -> None:
        """Nobody disconnects here."""

    def hold(self, seconds: float) -> None:
        """Nobody exceeds a quota here."""


class Asker:
    """Asks handlers of a broker in the cluster `scene`; `replicas` are needed only by some handlers."""

    def __init__(
        self, scene: Scene, *, replicas: Any = None, image: Any = None, authorizer: Any = None, **properties: str
    ) -> None:
        self.scene = scene
        self.created: list[str] = []
        self.config = broker_config(PROPERTIES | properties)
        self.away = False
        self.principal = ANONYMOUS
        self._next_producer_id = 1000
        self.services: Any = SimpleNamespace(
            node_id=1,
            cluster_id=CLUSTER_ID,
            config=self.config,
            image=image or (lambda: scene.image),
            replicas=replicas,
            controller=self,
            next_producer_id=self._producer_id,
            create_topics_automatically=self._create,
            client_quotas=ClientQuotas(RealClock()),
            authorizer=authorizer or ALLOWS_EVERYTHING,
            kraft_version=lambda: 0,
        )

    async def _producer_id(self) -> int:
        self._next_producer_id += 1
        return self._next_producer_id

    def _create(self, names: list[str], _asker: Any = None) -> None:
        self.created += names

    async def call(self, request: Any, version: int, *, timeout_s: float | None = None, asker: Any = None) -> Any:
        """Act as the controller: run its real commands, with the real table of configs."""
        if self.away:
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, "No controller answered in time.")
        _, command = COMMANDS[request.API_KEY]
        outcome = command(replace(self.scene.context, rules=Rules(self.config), asker=asker), request)
        self.scene.apply(outcome.records)
        return outcome.response

    async def ask(self, name: str, version: int, correlation_id: int = 0, **fields: Any) -> Any:
        """The response in plain values, as a client decodes it."""
        api = APIS[name]
        sent = build(message(name + "Request"), fields, version)
        request = message(name + "Request").decode(sent.encode(version), version=version)
        context = RequestContext(self.services, api.key, version, correlation_id, "tests", Peer(self.principal))
        try:
            response = await handler_of(api.module)(request, context)
        except ApiError as error:
            response = failure_response(name, request, version, error.code, error.message)
        received = message(name + "Response").decode(response.encode(version=version), version=version)
        return plain(received, version)
