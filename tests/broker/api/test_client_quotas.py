"""Which quota applies to a client, which clients share it, and what a change of quotas does."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pytest
from tests.broker.seams import TurnedClock

from ballast_broker.api.client_quotas import (
    FETCH,
    MOST_CLIENTS,
    MUTATIONS,
    PRODUCE,
    REQUESTS,
    ByteQuotas,
    ClientQuotas,
    Throttle,
)
from ballast_broker.metadata.image import ClientQuotasImage
from ballast_wire.fast.produce import ProduceAnswer, encode_produce_response

ANN_APP = (("client-id", "app"), ("user", "ann"))
ANN_ANY = (("client-id", None), ("user", "ann"))
ANN = (("user", "ann"),)
ANY_APP = (("client-id", "app"), ("user", None))
ANY_ANY = (("client-id", None), ("user", None))
ANYBODY = (("user", None),)
APP = (("client-id", "app"),)
ANY_CLIENT = (("client-id", None),)
IN_ORDER: list[Any] = [ANN_APP, ANN_ANY, ANN, ANY_APP, ANY_ANY, ANYBODY, APP, ANY_CLIENT]


def quotas(limits: dict[Any, float], clock: TurnedClock | None = None) -> ByteQuotas:
    made = ByteQuotas(PRODUCE, clock or TurnedClock())
    made.change({entity: {PRODUCE: limit} for entity, limit in limits.items()})
    return made


@pytest.mark.spec("CLI-11")
@pytest.mark.parametrize("nearest", range(len(IN_ORDER)))
def test_the_nearest_quota_counts(nearest: int) -> None:
    found = quotas({entity: 1000.0 + n for n, entity in enumerate(IN_ORDER) if n >= nearest}).rate_of("ann", "app")
    assert found is not None
    assert found.limit == 1000 + nearest


@pytest.mark.spec("CLI-11")
def test_nobody_else_is_limited() -> None:
    made = quotas({ANN_APP: 10.0, APP: 20.0, (("ip", "10.0.0.1"),): 5.0})
    assert made.rate_of("bob", "other") is None
    assert made.rate_of("ann", "other") is None


@pytest.mark.spec("CLI-11")
def test_what_is_no_number_limits_nobody() -> None:
    """Apache Kafka stores NaN as a quota, so a broker that takes over finds it in the metadata."""
    made = quotas({ANN_APP: float("nan"), APP: 20.0})
    found = made.rate_of("ann", "app")
    assert found is not None
    assert found.limit == 20


@pytest.mark.spec("CLI-11")
@pytest.mark.parametrize(
    ("entity", "shares_client", "shares_user"),
    [(ANY_ANY, False, False), (ANYBODY, True, False), (ANY_CLIENT, False, True)],
)
def test_who_shares_a_quota(entity: Any, shares_client: bool, shares_user: bool) -> None:
    made = quotas({entity: 10.0})
    rate = made.rate_of("ann", "app")
    assert made.rate_of("ann", "app") is rate
    assert (made.rate_of("ann", "other") is rate) == shares_client
    assert (made.rate_of("bob", "app") is rate) == shares_user


@pytest.mark.spec("CLI-11")
def test_a_debt_stays_while_other_quotas_change_and_ends_with_its_own() -> None:
    clock = TurnedClock()
    made = quotas({APP: 1000.0}, clock)
    rate = made.rate_of("ann", "app")
    assert rate is not None
    rate.record(5000)
    assert rate.wait_s() == pytest.approx(4.0, abs=0.01)
    made.change({APP: {PRODUCE: 1000.0}, ANN_ANY: {FETCH: 5.0}})
    assert made.rate_of("ann", "app") is rate
    assert rate.wait_s() == pytest.approx(4.0, abs=0.01)
    made.change({APP: {PRODUCE: 2000.0}})
    again = made.rate_of("ann", "app")
    assert again is not None
    assert again.wait_s() < 0.01
    made.change({})
    assert not made.in_force
    assert made.rate_of("ann", "app") is None


@pytest.mark.spec("CLI-11")
def test_a_debt_of_partitions_is_paid_at_the_new_rate_from_when_there_is_one() -> None:
    clock = TurnedClock()
    all_kinds = ClientQuotas(clock)

    def publish(limit: float) -> None:
        image: Any = SimpleNamespace(client_quotas=ClientQuotasImage({APP: {MUTATIONS: limit}}))
        delta: Any = None
        all_kinds.publish(delta, image)

    publish(0.01)
    bucket = all_kinds.mutations.rate_of("ann", "app")
    assert bucket is not None
    bucket.take(5.0)
    publish(100.0)
    clock.now += 1.0
    assert all_kinds.mutations.rate_of("ann", "app") is bucket
    assert not bucket.exceeded()


@pytest.mark.spec("CLI-11")
@pytest.mark.parametrize("limit", [1e-320, float("inf"), 1e300])
def test_limits_at_the_edges_can_be_reckoned_with(limit: float) -> None:
    all_kinds = ClientQuotas(TurnedClock())
    image: Any = SimpleNamespace(client_quotas=ClientQuotasImage({APP: {MUTATIONS: limit, REQUESTS: limit}}))
    delta: Any = None
    all_kinds.publish(delta, image)
    bucket, rate = all_kinds.mutations.rate_of("ann", "app"), all_kinds.requests.rate_of("ann", "app")
    assert bucket is not None
    assert rate is not None
    bucket.take(1.0)
    rate.record(1.0)
    assert bucket.exceeded() == rate.exceeded() == (limit < 1)


def test_clients_that_owe_nothing_are_forgotten() -> None:
    made = quotas({ANY_CLIENT: 1000.0})
    debtor = made.rate_of("ann", "debtor")
    assert debtor is not None
    debtor.record(100_000)
    for number in range(MOST_CLIENTS + 1):
        made.rate_of("ann", f"client-{number}")
    assert made.rate_of("ann", "debtor") is debtor
    assert len(made._rates) < MOST_CLIENTS


@pytest.mark.spec("CLI-11")
def test_only_what_is_in_the_metadata_is_in_force() -> None:
    clock = TurnedClock()
    both = ClientQuotas(clock)

    def publish(by_entity: dict[Any, dict[str, float]]) -> tuple[bool, bool]:
        image: Any = SimpleNamespace(client_quotas=ClientQuotasImage(by_entity))
        delta: Any = None
        both.publish(delta, image)
        return both.produce.in_force, both.fetch.in_force

    assert publish({}) == (False, False)
    assert publish({APP: {PRODUCE: 10.0}}) == (True, False)
    assert publish({APP: {PRODUCE: 10.0}, ANN: {FETCH: 10.0}}) == (True, True)
    assert publish({}) == (False, False)  # a snapshot without them


def test_a_late_answer_tells_what_is_left() -> None:
    clock = TurnedClock()
    throttle = Throttle(clock, 1.5)
    assert throttle.left_ms == 1500
    clock.now += 1.0
    assert throttle.left_ms == 500
    clock.now += 1.0
    assert throttle.left_ms == 0


@pytest.mark.spec("CLI-11")
@pytest.mark.parametrize("limit", [1, 1e-7])  # the latter is whole enough for the controller
def test_a_debt_of_months_can_be_told(limit: float) -> None:
    """A quota of a byte per second keeps a client out. When the response could not be encoded, the connection broke
    after the append, and the client wrote the same again and again."""
    clock = TurnedClock()
    rate = quotas({APP: limit}, clock).rate_of("ann", "app")
    assert rate is not None
    rate.record(100_000_000)
    throttle = Throttle(clock, rate.wait_s())
    answer = encode_produce_response(9, 1, [("t", [ProduceAnswer(0, 0)])], [], throttle.left_ms)
    assert struct.pack(">i", 2**31 - 1) in bytes(answer)
