"""Limits the rate of new connections: in total, per listener, and per client address. PURE.

As in Kafka: if a listener's rate or the total is exceeded, the next connection has to wait; a connection from an
address over its rate is refused, after a delay. On the cluster's own listeners only the listener's own rate counts,
since nodes may come from any address.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field

from ballast_broker.rates import DEFAULT_WINDOW, TokenBucket, Window
from ballast_broker.seams import Clock

UNLIMITED = 2**31 - 1
MOST_ADDRESSES = 10_000
SMALLEST_LIMIT = 1e-9  # stands for a rate of 0: no more connections


@dataclass(frozen=True, slots=True)
class CreationRates:
    """The limits that may change at run time. Addresses are in `canonical` form; None is any other address."""

    of_all: int = UNLIMITED
    of_addresses: Mapping[str | None, float] = field(default_factory=dict)


class ConnectionRates:
    def __init__(
        self,
        clock: Clock,
        rates: CreationRates | None = None,
        *,
        of_listeners: Mapping[str, int] | None = None,
        own_listeners: frozenset[str] = frozenset(),
        window: Window = DEFAULT_WINDOW,
    ) -> None:
        self._clock = clock
        self._window = window
        self._own = own_listeners
        self._limits = rates or CreationRates()
        self._of_all = self._bucket(self._limits.of_all)
        limited = {name: limit for name, limit in (of_listeners or {}).items() if limit < UNLIMITED}
        self._of_listeners = {name: self._bucket(limit) for name, limit in limited.items()}
        self._of_addresses: dict[str, TokenBucket] = {}

    def _bucket(self, limit: float) -> TokenBucket:
        return TokenBucket(self._clock, max(limit, SMALLEST_LIMIT), self._window.past_s, least=1.0)

    def change(self, rates: CreationRates) -> None:
        """Set the limits. Connections made before count under the new ones, too."""
        self._limits = rates
        self._of_all.change_limit(max(rates.of_all, SMALLEST_LIMIT))
        for address, rate in list(self._of_addresses.items()):
            limit = self._limit_of(address)
            if limit is None:
                del self._of_addresses[address]
            else:
                rate.change_limit(max(limit, SMALLEST_LIMIT))

    def wait_s(self, listener: str) -> float:
        """How long the next connection has to wait, from any address; then ask again."""
        of_listener = self._of_listeners.get(listener)
        wait_s = 0.0 if of_listener is None else of_listener.wait_s(1)
        if self._limits.of_all < UNLIMITED and listener not in self._own:
            wait_s = max(wait_s, self._of_all.wait_s(1))
        return min(wait_s, self._window.size_s)

    def admit(self, listener: str, address: str) -> float:
        """0 if a connection from this address is admitted, and counted; otherwise after how long to refuse it."""
        if listener not in self._own:
            of_address = self._rate_of(address)
            wait_s = 0.0 if of_address is None else of_address.wait_s(1)
            if wait_s:
                return min(wait_s, self._window.size_s)
            if of_address is not None:
                of_address.take(1)
            if self._limits.of_all < UNLIMITED:
                self._of_all.take(1)
        of_listener = self._of_listeners.get(listener)
        if of_listener is not None:
            of_listener.take(1)
        return 0.0

    def _limit_of(self, address: str) -> float | None:
        limits = self._limits.of_addresses
        return limits.get(address, limits.get(None))

    def _rate_of(self, address: str) -> TokenBucket | None:
        if not self._limits.of_addresses:
            return None
        address = canonical(address)
        rate = self._of_addresses.get(address)
        if rate is None and (limit := self._limit_of(address)) is not None:
            if len(self._of_addresses) >= MOST_ADDRESSES:
                self._forget_some()
            rate = self._of_addresses[address] = self._bucket(limit)
        return rate

    def _forget_some(self) -> None:
        """Forget addresses without recent connections, and of the others the oldest."""
        left = [(address, kept) for address, kept in self._of_addresses.items() if kept.wait_s(1)]
        self._of_addresses = dict(left[-MOST_ADDRESSES // 2 :])


def canonical(address: str) -> str:
    """The canonical form of an address; anything else is returned unchanged."""
    try:
        return str(ipaddress.ip_address(address.partition("%")[0]))
    except ValueError:
        return address
