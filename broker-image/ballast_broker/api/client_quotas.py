"""Client quotas: how many bytes a second the clients of a user or of a client id may produce and fetch at this broker.

As in Kafka, who is over is told for how long in the answer, and nothing is read from that connection meanwhile. A
produce is taken first and makes a debt; a fetch while there is a debt is answered with nothing. Without quotas nothing
is looked up. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil, isnan
from typing import TYPE_CHECKING

from ballast_broker.replication.quotas import ByteRate

if TYPE_CHECKING:
    from ballast_broker.metadata.delta import MetadataDelta
    from ballast_broker.metadata.image import ClientQuotasImage, MetadataImage, QuotaEntity
    from ballast_broker.seams import Clock

PRODUCE, FETCH = "producer_byte_rate", "consumer_byte_rate"
USER, CLIENT_ID = "user", "client-id"
BURST_S = 1.0
# A fetch is refused again and again until the debt is paid, so nobody has to wait for all of it in silence.
LONGEST_FETCH_WAIT_S = 1.0
MOST_CLIENTS = 10_000
LONGEST_TOLD_MS = 2**31 - 1  # 24 days; more does not fit into an answer
NO_NAME = ""

Scope = tuple[str, str]  # user and client id, of whom all connections share a quota; no name: whoever it is


class ByteQuotas:
    """The quotas of one kind."""

    def __init__(self, key: str, clock: Clock) -> None:
        self._key = key
        self._clock = clock
        self._limits: Mapping[QuotaEntity, float] = {}
        self._rates: dict[Scope, ByteRate] = {}
        self.in_force = False

    def change(self, by_entity: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        """Whoever is in debt stays in debt, unless the limit is another one."""
        limits = {entity: quotas[self._key] for entity, quotas in by_entity.items() if self._key in quotas}
        # What is no number, as Apache Kafka stores it, too, is no quota.
        self._limits = {entity: limit for entity, limit in limits.items() if not isnan(limit)}
        self.in_force = bool(self._limits)
        if not self.in_force:
            self._rates.clear()

    def rate_of(self, user: str, client_id: str) -> ByteRate | None:
        """None: as much as they like."""
        for entity, scope in _candidates(user, client_id):
            limit = self._limits.get(entity)
            if limit is not None:
                return self._rate(scope, max(1, int(limit)))  # a quota that rounds to nothing has no end of waiting
        return None

    def _rate(self, scope: Scope, limit: int) -> ByteRate:
        rate = self._rates.get(scope)
        if rate is None:
            if len(self._rates) >= MOST_CLIENTS:
                self._rates = {known: kept for known, kept in self._rates.items() if kept.exceeded()}
            rate = self._rates[scope] = ByteRate(self._clock, limit, burst_s=BURST_S, full=True)
        rate.change_limit(limit)
        return rate


def _candidates(user: str, client_id: str) -> Iterable[tuple[QuotaEntity, Scope]]:
    """What may hold a quota for them, the nearest first, and who shares it."""
    both, of_user, of_client = (user, client_id), (user, NO_NAME), (NO_NAME, client_id)
    for named in (user, None):
        yield ((CLIENT_ID, client_id), (USER, named)), both
        yield ((CLIENT_ID, None), (USER, named)), both
        yield ((USER, named),), of_user
    yield ((CLIENT_ID, client_id),), of_client
    yield ((CLIENT_ID, None),), of_client


class ClientQuotas:
    def __init__(self, clock: Clock) -> None:
        self.produce = ByteQuotas(PRODUCE, clock)
        self.fetch = ByteQuotas(FETCH, clock)
        self._known: ClientQuotasImage | None = None

    def publish(self, _delta: MetadataDelta, image: MetadataImage) -> None:
        if image.client_quotas is not self._known:
            self._known = image.client_quotas
            for quotas in (self.produce, self.fetch):
                quotas.change(image.client_quotas.by_entity)


class Throttle:
    """Until when somebody is not read from, which an answer that comes later tells as well."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._until_s = clock.monotonic() + seconds

    @property
    def left_ms(self) -> int:
        return min(max(0, ceil((self._until_s - self._clock.monotonic()) * 1000)), LONGEST_TOLD_MS)
