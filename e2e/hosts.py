"""A network of hosts on this machine: a network namespace for each broker, and one with a bridge for the clients.

It is not connected to the machine's own network: no packet leaves it. The kernel removes all of it when the last
process in it has ended, however this one ends. A thread that enters `Hosts` is among the clients until it leaves, and
so are the threads that it starts meanwhile; others stay where they were. Needs only root and `ip`: to lose what one
host sends to another, its neighbour entry gets a hardware address that nobody has.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence

CLONE_NEWNET = 0x40000000
NETWORK = "10.0.0"
NOBODYS_ADDRESS = "02:00:00:00:ff:ff"
COMMAND_S = 60
_libc = ctypes.CDLL(None, use_errno=True)


def why_not() -> str | None:
    """What this machine lacks for `Hosts`, or None."""
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    if shutil.which("ip") is None:
        return "there is no command ip (package iproute2)"
    try:
        with Hosts(1):
            return None
    except (OSError, AttributeError) as error:
        return f"network namespaces cannot be made here: {error}"


class Host:
    """The host of one broker, with the same number."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.address = f"{NETWORK}.{number}"
        self.port = f"port{number}"  # the bridge's
        self.namespace = -1

    def inside(self) -> contextlib.AbstractContextManager[None]:
        """Puts the calling thread into the host until the block ends; processes that it starts there stay there."""
        return _inside(self.namespace)


class Hosts:
    def __init__(self, count: int) -> None:
        self.hosts = [Host(number) for number in range(1, count + 1)]
        self._lost: set[tuple[int, int]] = set()
        self._unplugged: set[int] = set()
        self._outside = -1

    def __enter__(self) -> Hosts:
        self._outside = _namespace_of_this_thread()
        try:
            _check(_libc.unshare(CLONE_NEWNET))
            _ip("link", "set", "lo", "up")
            _ip("link", "add", "bridge", "type", "bridge")
            _ip("address", "add", f"{NETWORK}.254/24", "dev", "bridge")
            _ip("link", "set", "bridge", "up")
            for host in self.hosts:
                self._connect(host)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        _enter(self._outside)
        for descriptor in (self._outside, *(host.namespace for host in self.hosts)):
            if descriptor >= 0:
                os.close(descriptor)
        self._outside = -1
        for host in self.hosts:
            host.namespace = -1

    @staticmethod
    def _connect(host: Host) -> None:
        with _returning() as here:
            _check(_libc.unshare(CLONE_NEWNET))
            host.namespace = _namespace_of_this_thread()
            _ip("link", "set", "lo", "up")
            here_too = f"/proc/{os.getpid()}/fd/{here}"
            _ip("link", "add", "eth0", "type", "veth", "peer", "name", host.port, "netns", here_too)
            _ip("address", "add", f"{host.address}/24", "dev", "eth0")
            _ip("link", "set", "eth0", "up")
        _ip("link", "set", host.port, "master", "bridge", "up")

    # -- faults: they stay until `heal`

    def lose(self, senders: Sequence[int], receivers: Sequence[int]) -> None:
        """Silently drop what `senders` send to `receivers`. The other direction is another call."""
        for sender in senders:
            for receiver in receivers:
                if sender != receiver:
                    self._neighbour(sender, receiver, "replace", "lladdr", NOBODYS_ADDRESS, "nud", "permanent")
                    self._lost.add((sender, receiver))

    def unplug(self, number: int) -> None:
        """Nothing reaches this host, not even clients."""
        _ip("link", "set", self._host(number).port, "down")
        self._unplugged.add(number)

    def heal(self) -> None:
        while self._unplugged:
            _ip("link", "set", self._host(self._unplugged.pop()).port, "up")
        while self._lost:
            self._neighbour(*self._lost.pop(), "del")

    def _neighbour(self, sender: int, receiver: int, change: str, *values: str) -> None:
        with self._host(sender).inside():
            _ip("neighbour", change, self._host(receiver).address, *values, "dev", "eth0")

    def _host(self, number: int) -> Host:
        return self.hosts[number - 1]


@contextlib.contextmanager
def _inside(namespace: int) -> Iterator[None]:
    with _returning():
        _enter(namespace)
        yield


@contextlib.contextmanager
def _returning() -> Iterator[int]:
    """Yields the thread's current network namespace, and returns the thread to it at the end."""
    here = _namespace_of_this_thread()
    try:
        yield here
    finally:
        _enter(here)
        os.close(here)


def _namespace_of_this_thread() -> int:
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _enter(namespace: int) -> None:
    _check(_libc.setns(namespace, CLONE_NEWNET))


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False, timeout=COMMAND_S)
    if done.returncode != 0:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
