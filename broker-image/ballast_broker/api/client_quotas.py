"""Client quotas: how much the clients of a user or of a client id may have of this broker.

Bytes a second that they produce and fetch, part of the time of the thread that handles requests, and partitions a
second that they make and delete, at the controller. As in Kafka, who is over is told for how long in the answer, and
nothing is read from that connection meanwhile. A produce is taken first and makes a debt, and so is the time that any
request takes; a fetch while there is a debt of bytes is answered with nothing. Without quotas nothing is looked up.
Loop thread only.
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
    from ballast_wire.envelope import Asker

PRODUCE, FETCH = "producer_byte_rate", "consumer_byte_rate"
REQUESTS, MUTATIONS = "request_percentage", "controller_mutation_rate"
USER, CLIENT_ID = "user", "client-id"
# A fetch is refused again and again until the debt is paid, so nobody has to wait for all of it in silence.
LONGEST_FETCH_WAIT_S = 1.0
MOST_CLIENTS = 10_000
LONGEST_TOLD_MS = 2**31 - 1  # 24 days; more does not fit into an answer
SMALLEST_LIMIT, LARGEST_LIMIT = 1e-9, 1e15  # nothing at all, and all there is, cannot be reckoned with
PERCENT = 100.0
NO_NAME = ""

Scope = tuple[str, str]  # user and client id, of whom all connections share a quota; no name: whoever it is


class Rate(Protocol):
    def exceeded(self) -> bool: ...


R = TypeVar("R", bound=Rate)


class Quotas(Generic[R]):
    """The quotas of one kind. `make` begins the rate of somebody with a limit, `change_limit` gives it another one."""

    def __init__(self, key: str, make: Callable[[float], R], change_limit: Callable[[R, float], None]) -> None:
        self._key = key
        self._make = make
        self._change_limit = change_limit
        self._limits: Mapping[QuotaEntity, float] = {}
        self._rates: dict[Scope, tuple[R, QuotaEntity]] = {}  # and where its limit stands
        self.in_force = False
        self.throttles = 0  # how often somebody was told to wait
        self.throttled_ms = 0

    def change(self, by_entity: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        """Whoever is in debt stays in debt, unless the limit is another one."""
        limits = {entity: quotas[self._key] for entity, quotas in by_entity.items() if self._key in quotas}
        # What is no number, as Apache Kafka stores it, too, is no quota.
        self._limits = {entity: limit for entity, limit in limits.items() if not isnan(limit)}
        self.in_force = bool(self._limits)
        if not self.in_force:
            self._rates.clear()
        for rate, entity in self._rates.values():
            if entity in self._limits:  # from now on, and not from when it is next asked for
                self._change_limit(rate, self._limits[entity])

    def rate_of(self, user: str, client_id: str) -> R | None:
        """None: as much as they like."""
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
    """A bucket holds what passes in one window."""

    def __init__(self, key: str, clock: Clock, window: Window = DEFAULT_WINDOW) -> None:
        def whole(limit: float) -> int:
            return max(1, int(limit))  # a quota that rounds to nothing has no end of waiting

        super().__init__(
            key,
            lambda limit: ByteRate(clock, whole(limit), burst_s=window.size_s, full=True),
            lambda rate, limit: rate.change_limit(whole(limit)),
        )


def _candidates(user: str, client_id: str) -> Iterable[tuple[QuotaEntity, Scope]]:
    """What may hold a quota for them, the nearest first, and who shares it."""
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
    """`on_...` says, to whoever asks at each request, whether there is anything to look up."""

    def __init__(self, clock: Clock, windows: QuotaWindows | None = None) -> None:
        windows = windows or QuotaWindows()
        self.produce = ByteQuotas(PRODUCE, clock, windows.of_clients)
        self.fetch = ByteQuotas(FETCH, clock, windows.of_clients)
        # Kafka's percentage is one of a thread: seconds of it that pass in a second.
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

    def concern_controllers(self, asker: Asker) -> bool:
        """Whether a controller has to know who asks."""
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
    """Until when somebody is not read from, which an answer that comes later tells as well."""

    def __init__(self, clock: Clock, seconds: float, time: RequestTime | None = None) -> None:
        self._clock = clock
        self._until_s = clock.monotonic() + seconds
        self.time = time

    @property
    def left_ms(self) -> int:
        return min(max(0, ceil((self._until_s - self._clock.monotonic()) * 1000)), LONGEST_TOLD_MS)

    def tell_ms(self) -> int:
        """What an answer is to tell, which is being made: what it took until now counts."""
        return self.left_ms if self.time is None else max(self.left_ms, self.time.tell_ms())
