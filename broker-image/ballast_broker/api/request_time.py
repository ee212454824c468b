"""How much of the loop's thread the requests of a connection take, where there is a quota of it: `request_percentage`.

It is measured in legs, each within one turn of the loop: reading and handling what came, a step of a handler that waits
in between, writing answers. Whoever begins a leg while one is going on goes on with it. Loop thread only.
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
        """`peer` is not read from while it is over; None where that is somebody else's to do."""
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
            self._peer.time = None  # nobody would ask for it

    def tell_ms(self) -> int:
        """For how long the client is to wait, which an answer tells; from now on nothing is read from it for so long.
        What this leg has taken until now counts."""
        self._count()
        wait_ms = round(self.rate.wait_s() * 1000)
        if wait_ms > 0:
            self._quotas.note(wait_ms)
            if self._peer is not None:
                self._peer.hold(wait_ms / 1000)
        return wait_ms

    def exempt(self) -> None:
        """What this leg has taken until now counts for nobody."""
        self._since_s = None

    def _count(self) -> None:
        if self._since_s is not None:
            now_s = self._now()
            self.rate.record(now_s - self._since_s)
            self._since_s = now_s


class Timed(Coroutine[Any, Any, T]):
    """A coroutine whose steps are legs."""

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


# What only brokers ask of a broker; AddPartitionsToTxn since its version 4, which is for many transactions at once.
WRITE_TXN_MARKERS, ADD_PARTITIONS_TO_TXN = 27, 24
FIRST_OF_BROKERS = 4
# What replicas ask, too, who say then who they are.
OF_REPLICAS = frozenset({2, 23})  # ListOffsets, OffsetForLeaderEpoch


def is_between_brokers(api_key: int, version: int, request: Any) -> bool:
    if api_key == ADD_PARTITIONS_TO_TXN:
        return version >= FIRST_OF_BROKERS
    return api_key == WRITE_TXN_MARKERS or (api_key in OF_REPLICAS and request.replica_id >= 0)
