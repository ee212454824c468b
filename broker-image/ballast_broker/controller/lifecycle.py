"""The broker's side of cluster membership: registration, heartbeats, controlled shutdown. Loop thread only.

States: registering, fenced (catching up with the metadata), running, leaving, gone. The broker is unfenced when it has
applied its own registration and `set_ready` was called.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any
from uuid import UUID

from ballast_broker.controller.client import ControllerClient
from ballast_broker.metadata.delta import MetadataDelta
from ballast_broker.metadata.features import SUPPORTED
from ballast_broker.metadata.image import Listener, MetadataImage
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message

logger = logging.getLogger(__name__)

REGISTRATION_VERSION = 4
HEARTBEAT_VERSION = 1
REGISTRATION_RETRY_S = 0.1
REGISTRATION_RETRY_MAX_S = 1.0
REGISTRATION_TIMEOUT_S = 4.0
REGISTRATION_TIMEOUT_MAX_S = 32.0
HEARTBEAT_TIMEOUT_S = 4.0
UNANSWERED_PAUSE_S = 0.02
FENCED_INTERVAL_S = 0.05
LEAVING_INTERVAL_S = 0.02
NO_EPOCH = -1


class LifecycleState(Enum):
    REGISTERING = "registering"
    FENCED = "fenced"
    RUNNING = "running"
    LEAVING = "leaving"
    GONE = "gone"


class RegistrationRefused(Exception):
    """The controller will never accept this broker as it is (wrong cluster, unsupported features, its directories)."""


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    node_id: int
    cluster_id: str
    incarnation_id: UUID
    listeners: Mapping[str, Listener]
    rack: str | None = None
    previous_epoch: int = NO_EPOCH
    """The epoch of the previous incarnation if that one shut down cleanly: it tells that no data was lost."""
    features: Mapping[str, tuple[int, int]] = field(default_factory=lambda: SUPPORTED)


_FINAL = frozenset(
    {
        ErrorCode.INCONSISTENT_CLUSTER_ID,
        ErrorCode.INVALID_REGISTRATION,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    }
)

_REASONS = {  # Kafka's response has only a code
    ErrorCode.UNSUPPORTED_VERSION: (
        "UNSUPPORTED_VERSION: a feature of the cluster has a level that this release does not know "
        "(kafka-features.sh describe shows them); start a newer release here, or lower the level first"
    ),
}


class BrokerLifecycle:
    def __init__(
        self,
        *,
        identity: BrokerIdentity,
        client: ControllerClient,
        directories: Callable[[], list[UUID]],
        metadata_offset: Callable[[], int],
        heartbeat_interval_s: float = 2.0,
    ) -> None:
        """`directories`: ids of the online ones; `metadata_offset`: of the last record applied."""
        self.identity = identity
        self.state = LifecycleState.REGISTERING
        self.broker_epoch = NO_EPOCH
        self.registered = asyncio.Event()
        self.running = asyncio.Event()
        self.seen_active = asyncio.Event()
        self.gone = asyncio.Event()
        self._client = client
        self._directories = directories
        self._metadata_offset = metadata_offset
        self._interval_s = heartbeat_interval_s
        self._ready = False
        self._leaving = False
        self._nudge = asyncio.Event()
        self._offline: dict[UUID, asyncio.Event] = {}

    # ------------------------------------------------------------------ what others tell us

    def publish(self, _delta: MetadataDelta, image: MetadataImage) -> None:
        """A metadata publisher: our registration, or its unfencing, may have been applied."""
        own = image.cluster.brokers.get(self.identity.node_id)
        if own is not None and own.active and own.epoch == self.broker_epoch:
            self.seen_active.set()
        if self.state is LifecycleState.FENCED and self._ready and image.offset >= self.broker_epoch:
            self._nudge.set()

    def set_ready(self) -> None:
        """The broker can serve: logs are loaded, listeners are open."""
        self._ready = True
        self._nudge.set()

    async def report_offline_directory(self, directory: UUID) -> None:
        """Return when the controller has acknowledged it (and elected other leaders)."""
        acknowledged = self._offline.setdefault(directory, asyncio.Event())
        self._nudge.set()
        await acknowledged.wait()

    # ------------------------------------------------------------------ the task

    async def run(self) -> None:
        """Run until the broker has left; raise RegistrationRefused if it can never join."""
        await self._register()
        while True:
            answered = await self._heartbeat()
            if self.gone.is_set():
                return
            # After a timeout the next heartbeat is already due.
            await (self._pause() if answered else asyncio.sleep(UNANSWERED_PAUSE_S))

    async def leave(self) -> None:
        """Controlled shutdown: hand over leaderships, return when the controller lets go."""
        if self.state is LifecycleState.REGISTERING:
            self._set_gone()
            return
        self._leaving = True
        self._nudge.set()
        await self.gone.wait()

    async def _pause(self) -> None:
        if self._leaving:
            interval = LEAVING_INTERVAL_S
        elif self.state is LifecycleState.FENCED:
            interval = FENCED_INTERVAL_S if self._ready else self._interval_s
        else:
            interval = self._interval_s
        if not self._nudge.is_set():
            try:
                async with asyncio.timeout(interval):
                    await self._nudge.wait()
            except TimeoutError:
                pass
        self._nudge.clear()

    async def _register(self) -> None:
        wait, timeout_s = REGISTRATION_RETRY_S, REGISTRATION_TIMEOUT_S
        while True:
            try:
                response = await self._client.call(self._registration(), REGISTRATION_VERSION, timeout_s=timeout_s)
            except ApiError as error:
                logger.warning("this broker could not register, it tries again: %s", error)
                # The response comes after the commit: if that is slow, retrying sooner only makes it slower.
                timeout_s = min(timeout_s * 2, REGISTRATION_TIMEOUT_MAX_S)
                await asyncio.sleep(UNANSWERED_PAUSE_S)
                continue
            code = ErrorCode(response.error_code)
            if code is ErrorCode.NONE:
                self.broker_epoch = response.broker_epoch
                self.state = LifecycleState.FENCED
                self.registered.set()
                logger.info("broker %d registered with epoch %d", self.identity.node_id, self.broker_epoch)
                return
            if code in _FINAL:
                why = _REASONS.get(code, code.name)
                raise RegistrationRefused(f"the controller refuses broker {self.identity.node_id}: {why}")
            logger.info("the controller does not register this broker yet: %s", code.name)
            await asyncio.sleep(wait)
            wait = min(wait * 2, REGISTRATION_RETRY_MAX_S)

    def _registration(self) -> Any:
        kind = message("BrokerRegistrationRequest")
        identity = self.identity
        return kind(
            broker_id=identity.node_id,
            cluster_id=identity.cluster_id,
            incarnation_id=identity.incarnation_id,
            listeners=[
                kind.Listener(name=name, host=each.host, port=each.port, security_protocol=each.security_protocol)
                for name, each in identity.listeners.items()
            ],
            features=[
                kind.Feature(name=name, min_supported_version=low, max_supported_version=high)
                for name, (low, high) in identity.features.items()
            ],
            rack=identity.rack,
            is_migrating_zk_broker=False,
            log_dirs=self._directories(),
            previous_broker_epoch=identity.previous_epoch,
        )

    async def _heartbeat(self) -> bool:
        """Send one heartbeat; return whether a controller answered."""
        offline = list(self._offline)
        request = message("BrokerHeartbeatRequest")(
            broker_id=self.identity.node_id,
            broker_epoch=self.broker_epoch,
            current_metadata_offset=self._metadata_offset(),
            want_fence=not self._ready,
            want_shut_down=self._leaving,
            offline_log_dirs=offline,
        )
        try:
            response = await self._client.call(request, HEARTBEAT_VERSION, timeout_s=HEARTBEAT_TIMEOUT_S)
        except ApiError as error:
            logger.warning("a heartbeat did not reach the controller: %s", error)
            if self._leaving:
                self._set_gone()  # there is nobody to hand leaderships to
            return False
        code = ErrorCode(response.error_code)
        if code is not ErrorCode.NONE:
            await self._heartbeat_refused(code)
            return True
        for directory in offline:
            self._offline[directory].set()
        self._follow(response)
        return True

    def _follow(self, response: Any) -> None:
        if response.should_shut_down:
            self._set_gone()
        elif self._leaving:
            self.state = LifecycleState.LEAVING
        elif response.is_fenced:
            if self.state is LifecycleState.RUNNING:
                logger.warning("broker %d is fenced: it leads no partitions meanwhile", self.identity.node_id)
            self.state = LifecycleState.FENCED
            self.running.clear()
        else:
            if self.state is not LifecycleState.RUNNING:
                logger.info("broker %d is unfenced", self.identity.node_id)
            self.state = LifecycleState.RUNNING
            self.running.set()

    async def _heartbeat_refused(self, code: ErrorCode) -> None:
        logger.warning("the controller refused a heartbeat: %s", code.name)
        if self._leaving:
            self._set_gone()
        elif code in (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED):
            # Unregistered, or the registration was lost with a controller: start over.
            self.running.clear()
            self.state = LifecycleState.REGISTERING
            await self._register()

    def _set_gone(self) -> None:
        self.state = LifecycleState.GONE
        self.running.clear()
        self.gone.set()
