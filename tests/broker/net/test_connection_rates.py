"""Limits of the connection creation rate, on a clock that the test sets and on real sockets."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.broker.net.serving import Serving, until
from tests.broker.seams import TurnedClock

from ballast_broker.config.broker import broker_config
from ballast_broker.config_types import ConfigError
from ballast_broker.metadata.image import EMPTY_IMAGE, RESOURCE_BROKER, ClientQuotasImage, ConfigsImage
from ballast_broker.metadata.persistent import PersistentMap
from ballast_broker.net.connection_rates import MOST_ADDRESSES, ConnectionRates, CreationRates, canonical
from ballast_broker.rates import Window
from ballast_broker.real_world import RealClock
from ballast_broker.settings import connection_rates, creation_rates

HERE, THERE = "10.0.0.1", "10.0.0.2"


def let_in(rates: ConnectionRates, address: str = HERE, listener: str = "PLAINTEXT") -> int:
    """How many connections are accepted at once."""
    count = 0
    while count < 100 and not rates.wait_s(listener) and not rates.admit(listener, address):
        count += 1
    return count


@pytest.mark.spec("CLI-11")
def test_over_the_brokers_rate_the_next_one_waits() -> None:
    clock = TurnedClock()
    rates = ConnectionRates(clock, CreationRates(of_all=2), window=Window(6, 1.0))
    assert let_in(rates) == 10
    wait_s = rates.wait_s("PLAINTEXT")
    assert wait_s == pytest.approx(0.5)
    clock.now += wait_s
    assert let_in(rates) == 1


@pytest.mark.spec("CLI-11")
def test_of_an_address_that_is_over_nobody_comes_in_and_others_do() -> None:
    clock = TurnedClock()
    rates = ConnectionRates(clock, CreationRates(of_addresses={HERE: 1.0}), window=Window(6, 1.0))
    assert let_in(rates) == 5
    assert rates.admit("PLAINTEXT", HERE) == 1.0
    assert let_in(rates, THERE) == 100
    assert rates.admit("PLAINTEXT", HERE) == 1.0, "who was sent away does not count"
    clock.now += 1.0
    assert let_in(rates) == 1


@pytest.mark.spec("CLI-11")
def test_the_default_is_that_of_each_other_address() -> None:
    rates = ConnectionRates(TurnedClock(), CreationRates(of_addresses={HERE: 2.0, None: 1.0}), window=Window(6, 1.0))
    assert [let_in(rates, each) for each in (HERE, THERE, "10.0.0.3")] == [10, 5, 5]


@pytest.mark.spec("CLI-11")
def test_a_listener_has_a_rate_of_its_own() -> None:
    rates = ConnectionRates(TurnedClock(), of_listeners={"A": 1}, window=Window(6, 1.0))
    assert [let_in(rates, listener=each) for each in "AB"] == [5, 100]


@pytest.mark.spec("CLI-11")
def test_through_the_clusters_own_listeners_nodes_come_in() -> None:
    """An address with a quota may be that of a machine on which nodes run as well."""
    limits = CreationRates(of_all=1, of_addresses={None: 1.0})
    rates = ConnectionRates(TurnedClock(), limits, of_listeners={"OWN": 3}, own_listeners=frozenset({"OWN", "C"}))
    assert let_in(rates, listener="C") == 100
    assert let_in(rates, listener="OWN") == 30


@pytest.mark.spec("CLI-11")
def test_other_limits_count_at_once() -> None:
    clock = TurnedClock()
    rates = ConnectionRates(clock, CreationRates(1, {HERE: 1.0}))
    assert let_in(rates) == 10
    rates.change(CreationRates(3, {HERE: 2.0}))
    clock.now += 1.0
    assert let_in(rates) == 2
    rates.change(CreationRates())
    assert let_in(rates) == 100


def test_addresses_that_owe_nothing_are_forgotten() -> None:
    rates = ConnectionRates(TurnedClock(), CreationRates(of_addresses={None: 1.0}), window=Window(2, 1.0))
    let_in(rates)
    for number in range(MOST_ADDRESSES + 1):
        rates.admit("PLAINTEXT", f"11.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert len(rates._of_addresses) < MOST_ADDRESSES
    assert rates.admit("PLAINTEXT", "11.0.39.15") == 1.0, "who came last is known"


@pytest.mark.parametrize(
    ("address", "found"), [("10.0.0.1", "10.0.0.1"), ("FE80::0:1%eth0", "fe80::1"), ("::1", "::1"), ("a.b", "a.b")]
)
def test_one_way_to_write_an_address(address: str, found: str) -> None:
    assert canonical(address) == found


@pytest.mark.spec("CLI-11")
def test_where_the_limits_come_from() -> None:
    config = broker_config(
        {
            "node.id": "1",
            "listeners": "PLAINTEXT://:1,EXTERNAL://:2",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,EXTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "max.connection.creation.rate": "50",
            "listener.name.external.max.connection.creation.rate": "3",
        }
    )
    assert not config.warnings
    assert let_in(connection_rates(config, TurnedClock()), listener="EXTERNAL") == 30
    quotas: Any = {
        (("ip", "FE80::0:1"),): {"connection_creation_rate": 5.0},
        (("ip", None),): {"connection_creation_rate": 7.0},
        (("user", "ann"),): {"producer_byte_rate": 5.0},
    }
    image = replace(EMPTY_IMAGE, client_quotas=ClientQuotasImage(quotas))
    assert creation_rates(config, image) == CreationRates(50, {"fe80::1": 5.0, None: 7.0})
    dynamic = {"max.connection.creation.rate": "9"}
    image = replace(EMPTY_IMAGE, configs=ConfigsImage(PersistentMap({(RESOURCE_BROKER, "1"): dynamic})))
    assert creation_rates(config, image) == CreationRates(9, {})


def test_a_listeners_rate_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"listener\.name\.plaintext\.max\.connection\.creation\.rate"):
        broker_config({"node.id": "1", "listener.name.plaintext.max.connection.creation.rate": "-1"})


# -- real sockets -----------------------------------------------------------------------------------------------------
def limited(limits: CreationRates) -> Serving:
    return Serving(rates=ConnectionRates(RealClock(), limits, window=Window(2, 1.0)))


@pytest.mark.spec("CLI-11")
async def test_who_comes_too_soon_waits_and_is_served_then() -> None:
    async with limited(CreationRates(of_all=4)) as serving:
        began = asyncio.get_running_loop().time()
        clients = [await serving.connect() for _ in range(8)]
        answers = await asyncio.gather(*(client.call(b"hello") for client in clients))
        took = asyncio.get_running_loop().time() - began
        assert answers == [b"hello"] * 8
        assert took > 0.7, f"eight at four a second, and a second's beforehand: {took:.2f} s"
        assert serving.server.delayed_count > 0
        assert serving.server.refused_count == 0


@pytest.mark.spec("CLI-11")
async def test_an_address_that_is_over_is_sent_away_late() -> None:
    async with limited(CreationRates(of_addresses={None: 2.0})) as serving:
        loop = asyncio.get_running_loop()
        served = [await serving.connect() for _ in range(2)]
        assert [await client.call(b"hello") for client in served] == [b"hello"] * 2
        began = loop.time()
        late = await serving.connect()
        late.send(b"hello")
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await late.receive()
        assert loop.time() - began > 0.2
        assert serving.server.refused_count == 1
        assert [await client.call(b"still") for client in served] == [b"still"] * 2


async def test_who_waits_for_the_end_goes_with_the_server() -> None:
    async with limited(CreationRates(of_addresses={None: 1e-6})) as serving:
        await serving.connect()
        await serving.connect()
        await until(lambda: serving.server.refused_count == 1, "nobody is let in")
    assert not serving.server._turned_away


@pytest.mark.spec("CLI-09", "CLI-11")
async def test_those_who_are_sent_away_take_few_of_the_connections() -> None:
    rates = ConnectionRates(RealClock(), CreationRates(of_addresses={None: 1e-6}))
    async with Serving(rates=rates, max_connections=20) as serving:
        clients = [await serving.connect() for _ in range(12)]
        await until(lambda: serving.server.refused_count == 11, "one was let in")
        assert len(serving.server._turned_away) == 2
        assert await clients[0].call(b"hello") == b"hello"


async def test_other_limits_reach_the_server() -> None:
    async with limited(CreationRates(of_addresses={None: 1e-6})) as serving:
        serving.server.limit_rates(CreationRates())
        client = await serving.connect()
        assert await client.call(b"hello") == b"hello"


def test_a_server_of_a_node_keeps_to_its_windows() -> None:
    config = broker_config({"node.id": "1", "quota.window.num": "3", "quota.window.size.seconds": "2"})
    rates = connection_rates(config, TurnedClock())
    rates.change(CreationRates(of_all=1))
    assert let_in(rates) == 4
