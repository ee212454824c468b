"""Hosts of brokers: what is cut off is, one way or both, and nothing of it is left."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest
from e2e import hosts
from e2e.hosts import Hosts
from e2e.processes import until

PORT = 9092
DEADLINE_S = 60.0


@pytest.fixture(autouse=True, scope="module")
def _possible_here() -> None:
    missing = hosts.why_not()
    if missing is not None:
        pytest.skip(missing)


class Ears:
    """A socket on each host."""

    def __init__(self, network: Hosts) -> None:
        self.network = network
        self.sent = 0
        self.sockets = []
        for host in network.hosts:
            with host.inside():
                ears = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                ears.bind((host.address, PORT))
                ears.settimeout(0.2)
                self.sockets.append(ears)

    def hears(self, receiver: int, sender: int) -> bool:
        target = self.network.hosts[receiver - 1].address
        self.sent += 1
        word = str(self.sent).encode()  # one that was late may still come
        self.sockets[sender - 1].sendto(word, (target, PORT))
        try:
            while self.sockets[receiver - 1].recv(100) != word:
                pass
        except TimeoutError:
            return False
        return True


@pytest.fixture
def ears() -> Iterator[Ears]:
    with Hosts(3) as network:
        made = Ears(network)
        yield made
        for each in made.sockets:
            each.close()


def test_one_way_is_lost_and_the_other_is_not(ears: Ears) -> None:
    assert until(lambda: ears.hears(1, 2) and ears.hears(2, 1), DEADLINE_S)
    ears.network.lose([1], [2])
    assert not ears.hears(2, 1)
    assert until(lambda: ears.hears(1, 2) and ears.hears(3, 1), DEADLINE_S)
    ears.network.heal()
    assert until(lambda: ears.hears(2, 1), DEADLINE_S)


def test_who_is_unplugged_hears_nobody_until_it_is_healed(ears: Ears) -> None:
    ears.network.unplug(2)
    assert not ears.hears(2, 1)
    assert not ears.hears(1, 2)
    assert until(lambda: ears.hears(3, 1), DEADLINE_S)
    ears.network.heal()
    assert until(lambda: ears.hears(2, 1), DEADLINE_S), "its neighbours find it again"


def test_nothing_of_the_machine_is_reached_and_nothing_is_left() -> None:
    before = network_of_this_thread()
    with Hosts(1) as network:
        assert network_of_this_thread() != before
        inherited: list[str] = []
        thread = threading.Thread(target=lambda: inherited.append(network_of_this_thread()))
        thread.start()
        thread.join()
        assert inherited == [network_of_this_thread()]
        with pytest.raises(OSError, match="unreachable"):
            socket.create_connection(("192.0.2.1", 80), timeout=5)
        assert network.hosts[0].namespace >= 0
    assert network_of_this_thread() == before
    assert all(host.namespace < 0 for host in network.hosts)


def network_of_this_thread() -> str:
    return os.readlink("/proc/thread-self/ns/net")
