"""Client quotas: limits on what the clients of a user or client id may use of this broker.

They limit bytes produced and fetched per second, the share of the request handler thread's time, and, at the
controller, partitions created and deleted per second. As in Kafka, a client over its quota is told in the response how
long it is throttled, and its connection is not read meanwhile. A produce is always carried out and, like request time,
may overdraw the quota; a fetch while the byte quota is overdrawn gets an empty response. Without quotas nothing is
looked up. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import ceil, isnan
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from ballast_broker.rates import DEFAULT_WINDOW, TokenBucket, Window, WindowedRate
from ballast_broker.replication.quotas import ByteRate

if TYPE_CHECKING:
    from ballast_broker.api.request_time import RequestTime
    from ballast_broker.metadata.delta import MetadataDelta
    from ballast_broker.metadata.image import ClientQuotasImage, MetadataImage, QuotaEntity
    from ballast_broker.seams import Clock
    from ballast_wire.envelope import Requester

PRODUCE, FETCH = "producer_byte_rate", "consumer_byte_rate"
REQUESTS, MUTATIONS = "request_percentage", "controller_mutation_rate"
USER, CLIENT_ID = "user", "client-id"
# A fetch is refused until the quota has recovered, so it need not be held back for all of that time at once.
LONGEST_FETCH_WAIT_S = 1.0
MOST_CLIENTS = 10_000
LONGEST_TOLD_MS = 2**31 - 1  # 24 days: throttle_time_ms is an int32
SMALLEST_LIMIT, LARGEST_LIMIT = 1e-9, 1e15  # avoid calculations with zero and infinity
PERCENT = 100.0
NO_NAME = ""

Scope = tuple[str, str]  # user and client id whose connections share a quota; no name: any


class Rate(Protocol):
    def exceeded(self) -> bool: ...


R = TypeVar("R", bound=Rate)


class Quotas(Generic[R]):
    """The quotas of one kind. `make` creates a rate with a limit, `change_limit` updates its limit."""

    def __init__(self, key: str, make: Callable[[float], R], change_limit: Callable[[R, float], None]) -> None:
        self._key = key
        self._make = make
        self._change_limit = change_limit
        self._limits: Mapping[QuotaEntity, float] = {}
        self._rates: dict[Scope, tuple[R, QuotaEntity]] = {}  # with the entity its limit is from
        self.in_force = False
        self.throttles = 0  # how often a client was throttled
        self.throttled_ms = 0

    def change(self, by_entity: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        """Update the limits; a client over its quota stays so unless its limit changed."""
        limits = {entity: quotas[self._key] for entity, quotas in by_entity.items() if self._key in quotas}
        # NaN, which Apache Kafka stores as well, is no quota.
        self._limits = {entity: limit for entity, limit in limits.items() if not isnan(limit)}
        self.in_force = bool(self._limits)
        if not self.in_force:
            self._rates.clear()
        for rate, entity in self._rates.values():
            if entity in self._limits:  # now, rather than at its next use
                self._change_limit(rate, self._limits[entity])

    def rate_of(self, user: str, client_id: str) -> R | None:
        """The client's rate; None: unlimited."""
        if self.in_force:
            for entity, scope in _candidates(user, client_id):
                limit = self._limits.get(entity)
                if limit is not None:
                    return self._rate(scope, entity, limit)
        return None

    def note(self, throttled_ms: int) -> None:
        self.throttles += 1
        self.throttled_ms += throttled_ms

    def _rate(self, scope: Scope, entity: QuotaEntity, limit: float) -> R:
        rate, place = self._rates.get(scope, (None, entity))
        if rate is None:
            if len(self._rates) >= MOST_CLIENTS:
                self._rates = {known: kept for known, kept in self._rates.items() if kept[0].exceeded()}
            rate = self._make(limit)
            self._rates[scope] = rate, entity
        elif place != entity:
            self._rates[scope] = rate, entity
        self._change_limit(rate, limit)
        return rate


class ByteQuotas(Quotas[ByteRate]):
    """Byte rates; the bucket holds what passes in one window."""

    def __init__(self, key: str, clock: Clock, window: Window = DEFAULT_WINDOW) -> None:
        def whole(limit: float) -> int:
            return max(1, int(limit))  # 0 would mean waiting forever

        super().__init__(
            key,
            lambda limit: ByteRate(clock, whole(limit), burst_s=window.size_s, full=True),
            lambda rate, limit: rate.change_limit(whole(limit)),
        )


def _candidates(user: str, client_id: str) -> Iterable[tuple[QuotaEntity, Scope]]:
    """The entities that may hold a quota for the client, most specific first, each with the scope that shares it."""
    both, of_user, of_client = (user, client_id), (user, NO_NAME), (NO_NAME, client_id)
    for named in (user, None):
        yield ((CLIENT_ID, client_id), (USER, named)), both
        yield ((CLIENT_ID, None), (USER, named)), both
        yield ((USER, named),), of_user
    yield ((CLIENT_ID, client_id),), of_client
    yield ((CLIENT_ID, None),), of_client


@dataclass(frozen=True, slots=True)
class QuotaWindows:
    of_clients: Window = DEFAULT_WINDOW  # quota.window.*
    of_controllers: Window = DEFAULT_WINDOW  # controller.quota.window.*


class ClientQuotas:
    """All client quotas. The `on_...` flags tell, at every request, whether there is anything to look up."""

    def __init__(self, clock: Clock, windows: QuotaWindows | None = None) -> None:
        windows = windows or QuotaWindows()
        self.produce = ByteQuotas(PRODUCE, clock, windows.of_clients)
        self.fetch = ByteQuotas(FETCH, clock, windows.of_clients)
        # Kafka's percentage refers to one thread: seconds of it per second.
        self.requests: Quotas[WindowedRate] = Quotas(
            REQUESTS,
            lambda percentage: WindowedRate(clock, _share(percentage), windows.of_clients),
            lambda rate, percentage: rate.change_limit(_share(percentage)),
        )
        self.mutations: Quotas[TokenBucket] = Quotas(
            MUTATIONS,
            lambda limit: TokenBucket(clock, _bounded(limit), windows.of_controllers.all_s),
            lambda bucket, limit: bucket.change_limit(_bounded(limit)),
        )
        self.on_produce = self.on_fetch = self.on_requests = self.at_controllers = False
        self._known: ClientQuotasImage | None = None

    def publish(self, _delta: MetadataDelta, image: MetadataImage) -> None:
        if image.client_quotas is self._known:
            return
        self._known = image.client_quotas
        for quotas in (self.produce, self.fetch, self.requests, self.mutations):
            quotas.change(image.client_quotas.by_entity)
        self.on_requests = self.requests.in_force
        self.on_produce = self.produce.in_force or self.on_requests
        self.on_fetch = self.fetch.in_force or self.on_requests
        self.at_controllers = self.mutations.in_force or self.on_requests

    def concern_controllers(self, asker: Requester) -> bool:
        """Whether a controller has to know the requester for the sake of quotas."""
        if not self.at_controllers:
            return False
        kinds: tuple[Quotas[TokenBucket] | Quotas[WindowedRate], ...] = (self.mutations, self.requests)
        return any(quotas.rate_of(asker.user, asker.client_id) is not None for quotas in kinds)

    def by_name(self) -> Mapping[str, Quotas[ByteRate] | Quotas[WindowedRate] | Quotas[TokenBucket]]:
        return {"produce": self.produce, "fetch": self.fetch, "request": self.requests, "mutation": self.mutations}


def _share(percentage: float) -> float:
    return _bounded(percentage / PERCENT)


def _bounded(limit: float) -> float:
    return min(max(limit, SMALLEST_LIMIT), LARGEST_LIMIT)


class Throttle:
    """How long a client is throttled; a response sent later tells the time left."""

    def __init__(self, clock: Clock, seconds: float, time: RequestTime | None = None) -> None:
        self._clock = clock
        self._until_s = clock.monotonic() + seconds
        self.time = time

    @property
    def left_ms(self) -> int:
        return min(max(0, ceil((self._until_s - self._clock.monotonic()) * 1000)), LONGEST_TOLD_MS)

    def tell_ms(self) -> int:
        """The throttle time for the response being built, which includes the time used until now."""
        return self.left_ms if self.time is None else max(self.left_ms, self.time.tell_ms())
