"""Creates topics on demand: `auto.create.topics.enable`, and the coordinators' topics.

Nothing here waits or raises: the requester is told at once to retry, and then finds the topic. Concurrent requests for
one name share one creation.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from ballast_broker.config.broker import BrokerConfig
from ballast_broker.controller.client import ControllerClient
from ballast_broker.coordinator.store import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from ballast_broker.metadata.image import MetadataImage
from ballast_broker.seldom import Seldom
from ballast_wire.envelope import Requester
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message

log = logging.getLogger(__name__)

VERSION = 7
TIMEOUT_MS = 10_000
INTERNAL = (OFFSETS_TOPIC, TRANSACTIONS_TOPIC)
MOST_IN_FLIGHT = 10_000  # beyond that, requesters have to retry
RECORDS_AT_ONCE = 1_000  # per request: the controller rejects more than 10,000, and others wait meanwhile


class _Internal(NamedTuple):
    """A coordinator's topic as configured, and who waits for it."""

    partitions: int
    replicas: int
    segment_bytes: int
    property_of_replicas: str
    who_waits: str


Spawn = Callable[[Coroutine[Any, Any, None], str], object]


class AutomaticTopics:
    def __init__(
        self, config: BrokerConfig, image: Callable[[], MetadataImage], controller: ControllerClient, spawn: Spawn
    ) -> None:
        self._config = config
        self._image = image
        self._controller = controller
        self._spawn = spawn
        self._internal = {
            OFFSETS_TOPIC: _Internal(
                config.offsets_topic_num_partitions,
                config.offsets_topic_replication_factor,
                config.offsets_topic_segment_bytes,
                "offsets.topic.replication.factor",
                "groups",
            ),
            TRANSACTIONS_TOPIC: _Internal(
                config.transaction_state_log_num_partitions,
                config.transaction_state_log_replication_factor,
                config.transaction_state_log_segment_bytes,
                "transaction.state.log.replication.factor",
                "transactions",
            ),
        }
        self._in_flight: set[str] = set()
        self._too_few: dict[str, int] = {}  # live brokers at the last warning that there are too few
        self._failures = Seldom()  # every client keeps asking

    def create(self, names: list[str], asker: Requester | None = None) -> None:
        """Create topics; they count against the quota of `asker`, the first requester."""
        new = [name for name in names if name not in self._in_flight][: MOST_IN_FLIGHT - len(self._in_flight)]
        self._begin(new, asker)

    def create_internal(self, name: str) -> None:
        if name in self._in_flight:
            return
        alive = sum(1 for broker in self._image().cluster.brokers.values() if not broker.fenced)
        wanted = self._internal[name]
        if alive < wanted.replicas:
            if alive != self._too_few.get(name):  # every client keeps asking
                self._too_few[name] = alive
                log.warning(
                    "%s needs %d live brokers (%s), there are %d: %s have to wait",
                    name,
                    wanted.replicas,
                    wanted.property_of_replicas,
                    alive,
                    wanted.who_waits,
                )
            return
        self._begin([name])

    def _begin(self, names: list[str], asker: Requester | None = None) -> None:
        if names:
            self._in_flight.update(names)
            self._spawn(self._create(names, asker), f"creation of {len(names)} topics")

    def _wanted(self, name: str) -> Any:
        kind = message("CreateTopicsRequest").CreatableTopic
        if name not in INTERNAL:
            return kind(  # this broker's defaults: a standalone controller may have others
                name=name,
                num_partitions=self._config.num_partitions,
                replication_factor=self._config.default_replication_factor,
                assignments=[],
                configs=[],
            )
        wanted = self._internal[name]
        configs = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(wanted.segment_bytes),
        }
        if name == TRANSACTIONS_TOPIC:
            configs |= {
                "compression.type": "uncompressed",
                "min.insync.replicas": str(self._config.transaction_state_log_min_isr),
                "unclean.leader.election.enable": "false",
            }
        return kind(
            name=name,
            num_partitions=wanted.partitions,
            replication_factor=wanted.replicas,
            assignments=[],
            configs=[kind.CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
        )

    async def _create(self, names: list[str], asker: Requester | None) -> None:
        at_once = max(1, RECORDS_AT_ONCE // (1 + self._config.num_partitions))
        left = names
        try:
            while left:
                await self._create_at_once(left[:at_once], asker)
                left = left[at_once:]
        except ApiError as error:
            self._tell(left, str(error))
        finally:
            self._in_flight.difference_update(names)

    async def _create_at_once(self, names: list[str], asker: Requester | None) -> None:
        topics = [self._wanted(name) for name in names]
        request = message("CreateTopicsRequest")(topics=topics, timeout_ms=TIMEOUT_MS, validate_only=False)
        response = await self._controller.call(request, VERSION, timeout_s=TIMEOUT_MS / 1000, asker=asker)
        for result in response.topics:
            if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                self._tell([result.name], result.error_message or ErrorCode(result.error_code).name)

    def _tell(self, names: list[str], why: str) -> None:
        told = [name for name in sorted(names) if self._failures.is_due((name, why))]
        if told:
            log.warning("topics that clients asked for could not be created: %s: %s", ", ".join(told), why)
