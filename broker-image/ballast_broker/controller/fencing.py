"""Fences dead brokers, detected by missing heartbeats or closed connections. Active controller; loop thread only."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from ballast_broker.controller.commands.brokers import BrokerState, fence_broker
from ballast_broker.controller.sessions import NOT_YET, Sessions

if TYPE_CHECKING:
    from ballast_broker.controller.commands.brokers import Liveness
    from ballast_broker.controller.commands.context import CommandContext, Outcome
    from ballast_broker.metadata.image import MetadataImage
    from ballast_broker.seams import Clock, Network

logger = logging.getLogger(__name__)

PROBE_DELAYS_S = (0.0, 0.05, 0.2)
PROBE_TIMEOUT_S = 1.0
STALL_S = 0.1


class Fencing:
    """`image`: including everything appended, None while this controller is not active. `run`: executes a command."""

    def __init__(
        self,
        session_timeout_s: float,
        inter_broker_listener: str,
        clock: Clock,
        network: Network,
        *,
        image: Callable[[], MetadataImage | None],
        run: Callable[[Callable[[CommandContext], Outcome]], Awaitable[Any]],
        spawn: Callable[..., object],
    ) -> None:
        self._session_timeout_s = session_timeout_s
        self._inter_broker_listener = inter_broker_listener
        self._clock = clock
        self._network = network
        self._image = image
        self._run = run
        self._spawn = spawn
        self._sessions = Sessions(session_timeout_s)
        self._watched: dict[int, tuple[object, int]] = {}

    def begin(self, image: MetadataImage) -> None:
        self._sessions.begin(image, self._clock.monotonic())

    def end(self) -> None:
        """This controller is no longer active."""
        self._watched.clear()

    # ------------------------------------------------------------------ sessions

    def holds_id(self, broker_id: int, *, at_its_place: bool) -> bool:
        """Whether to reject the registration of another process with this id."""
        return self._sessions.holds_id(broker_id, self._clock.monotonic(), at_its_place=at_its_place)

    def liveness(self, image: MetadataImage, broker_id: int) -> Liveness:
        return self._sessions.liveness(image, broker_id)

    def heard(self, heartbeat: Any, following: BrokerState, origin: Any, *, begins_to_leave: bool) -> None:
        """`following`: the broker's state from now on; `origin`: where the heartbeat came from."""
        broker_id, epoch = heartbeat.broker_id, heartbeat.broker_epoch
        self._sessions.heard(broker_id, epoch, self._clock.monotonic(), heartbeat.current_metadata_offset)
        if begins_to_leave:
            self._sessions.shutting_down(broker_id, NOT_YET)
        if following is BrokerState.SHUTDOWN_NOW:
            self._sessions.forget(broker_id)
        elif origin is not None:
            self._watch_connection(broker_id, epoch, origin)

    def leaves_after(self, broker_id: int, offset: int) -> None:
        """The records of its shutdown end at `offset`: it may stop when every broker has applied them."""
        self._sessions.shutting_down(broker_id, offset)

    async def watch_sessions(self) -> None:
        while (image := self._image()) is not None:
            now = self._clock.monotonic()
            due = self._sessions.next_deadline(image)
            wake = now + self._session_timeout_s / 2 if due is None else max(due, now + 0.01)
            await asyncio.sleep(wake - now)
            late = self._clock.monotonic() - wake
            if late > STALL_S:
                # This process stalled, so heartbeats may be unread: read them first.
                await asyncio.sleep(min(late, 1.0))
            image = self._image()
            for broker_id in () if image is None else self._sessions.expired(image, self._clock.monotonic()):
                if self._sessions.is_valid(broker_id, self._clock.monotonic()):
                    continue  # a heartbeat arrived while another broker was being fenced
                logger.warning(
                    "broker %d has sent no heartbeat for %g s: it is fenced", broker_id, self._session_timeout_s
                )
                await self._fence(broker_id)

    async def _fence(self, broker_id: int) -> None:
        self._sessions.forget(broker_id)
        await self._run(lambda context: fence_broker(context, broker_id))

    # ------------------------------------------------------------------ broken connections

    def _watch_connection(self, broker_id: int, epoch: int, origin: Any) -> None:
        """Get notified when the connection that carried this heartbeat closes."""
        connection = getattr(origin, "connection", None)
        if connection is None:
            return
        before = self._watched.get(broker_id)
        self._watched[broker_id] = connection, epoch  # it may have re-registered over the same connection
        if before is not None and before[0] is connection:
            return

        def closed() -> None:
            last, its_epoch = self._watched.get(broker_id, (None, -1))
            if last is connection:
                del self._watched[broker_id]
                self._connection_lost(broker_id, its_epoch)

        connection.on_close(closed)

    def _connection_lost(self, broker_id: int, epoch: int) -> None:
        """Probe whether anything still listens there: refused means dead; if it is silent, its session decides."""
        if self._image() is not None:
            self._sessions.disconnected(broker_id)
            self._spawn(self.probe, broker_id, epoch)

    async def probe(self, broker_id: int, epoch: int) -> None:
        for delay in PROBE_DELAYS_S:
            await asyncio.sleep(delay)
            image = self._image()
            broker = None if image is None else image.cluster.brokers.get(broker_id)
            if broker is None or broker.epoch != epoch or broker.fenced or broker_id in self._watched:
                return
            # Other listeners may be for clients elsewhere: a refusal there says nothing about the broker.
            between = broker.listeners.get(self._inter_broker_listener)
            listener = between or next(iter(broker.listeners.values()))
            try:
                channel = await self._network.connect(listener.host, listener.port, timeout_s=PROBE_TIMEOUT_S)
            except ConnectionRefusedError:
                logger.warning("broker %d no longer takes connections: it is fenced", broker_id)
                await self._fence(broker_id)
                return
            except (OSError, TimeoutError):
                return
            channel.close()
