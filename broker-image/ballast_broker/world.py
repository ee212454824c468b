"""The outside world as one value: what a node is given, real in production, simulated in tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ballast_broker.handles import MOST_FOR_LOGS
from ballast_broker.net_reply import Dispatch
from ballast_broker.seams import Clock, Disk, Network, Random, Threads

if TYPE_CHECKING:
    from ballast_broker.net.connection_rates import CreationRates
    from ballast_broker.storage.cleaner_process import CleanerRunner


class Listening(Protocol):
    """Where clients and other nodes come in."""

    def listen(self, name: str, host: str, port: int, dispatch: Dispatch, *, accept: bool = True) -> int:
        """Take the address; answers the port. OSError where it cannot be had.

        Without `accept` connections are made but nothing is read from them before `accept` is called.
        """

    def accept(self, name: str) -> None: ...

    def limit_rates(self, rates: CreationRates) -> None:
        """So many connections a second may be made."""

    def stop_listening(self) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class World:
    disk: Disk
    clock: Clock
    random: Random
    threads: Threads
    quorum_threads: Threads  # the metadata log's own: it waits for nobody else's disk
    network: Network  # between brokers
    listening: Listening
    cleaner: CleanerRunner | None = None  # None: a process of its own
    open_files: int = MOST_FOR_LOGS  # that logs may keep open
    quorum_network: Network | None = None  # to controllers; None: as between brokers
    probing: Network | None = None  # to see whether somebody is there, without a word; None: as between brokers

    @property
    def to_controllers(self) -> Network:
        return self.quorum_network or self.network
