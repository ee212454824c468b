"""Measures how much time of the loop's thread a connection's requests take, for the `request_percentage` quota.

Time is measured in legs, each within one turn of the loop: reading and handling a request, a step of a waiting handler,
writing responses. Beginning a leg during another continues that one. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from ballast_broker.api.client_quotas import Quotas
    from ballast_broker.net_reply import Peer
    from ballast_broker.rates import WindowedRate

T = TypeVar("T")


class RequestTime:
    def __init__(
        self,
        quotas: Quotas[WindowedRate],
        rate: WindowedRate,
        now: Callable[[], float],
        peer: Peer | None,
    ) -> None:
        """`peer` is not read from while over its quota; None if the caller sees to that."""
        self._quotas = quotas
        self.rate = rate
        self._now = now
        self._peer = peer
        self._since_s: float | None = None

    def begins(self) -> None:
        self.goes_on_since(self._now())

    def goes_on_since(self, began_s: float) -> None:
        if self._since_s is None:
            self._since_s = began_s

    def ends(self) -> None:
        self._count()
        self._since_s = None
        if not self._quotas.in_force and self._peer is not None:
            self._peer.time = None  # no longer needed

    def tell_ms(self) -> int:
        """The throttle time for a response; from now on the client is not read from for that long.

        What this leg has taken so far counts.
        """
        self._count()
        wait_ms = round(self.rate.wait_s() * 1000)
        if wait_ms > 0:
            self._quotas.note(wait_ms)
            if self._peer is not None:
                self._peer.hold(wait_ms / 1000)
        return wait_ms

    def exempt(self) -> None:
        """Charge the time of this leg to nobody."""
        self._since_s = None

    def _count(self) -> None:
        if self._since_s is not None:
            now_s = self._now()
            self.rate.record(now_s - self._since_s)
            self._since_s = now_s


class Timed(Coroutine[Any, Any, T]):
    """A coroutine whose steps are measured as legs."""

    def __init__(self, work: Coroutine[Any, Any, T], time: RequestTime) -> None:
        self._work = work
        self._time = time

    def send(self, value: Any) -> Any:
        self._time.begins()
        try:
            return self._work.send(value)
        finally:
            self._time.ends()

    def throw(self, *thrown: Any) -> Any:
        self._time.begins()
        try:
            return self._work.throw(*thrown)
        finally:
            self._time.ends()

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self

    def __iter__(self) -> Timed[T]:
        return self

    def __next__(self) -> Any:
        return self.send(None)


# Requests that only brokers send; AddPartitionsToTxn from version 4 on, which batches transactions.
WRITE_TXN_MARKERS, ADD_PARTITIONS_TO_TXN = 27, 24
FIRST_OF_BROKERS = 4
# Requests that replicas send as well, with their replica id.
OF_REPLICAS = frozenset({2, 23})  # ListOffsets, OffsetForLeaderEpoch


def is_between_brokers(api_key: int, version: int, request: Any) -> bool:
    if api_key == ADD_PARTITIONS_TO_TXN:
        return version >= FIRST_OF_BROKERS
    return api_key == WRITE_TXN_MARKERS or (api_key in OF_REPLICAS and request.replica_id >= 0)
