"""The outside world as one value passed to a node: real in production, simulated in tests."""

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
    """Accepts connections of clients and other nodes."""

    def listen(self, name: str, host: str, port: int, dispatch: Dispatch, *, accept: bool = True) -> int:
        """Bind the address; return the port. OSError if it cannot be bound.

        Without `accept`, connections are established but not read before `accept` is called.
        """

    def accept(self, name: str) -> None: ...

    def limit_rates(self, rates: CreationRates) -> None:
        """Limit the rates at which connections may be made."""

    def stop_listening(self) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class World:
    disk: Disk
    clock: Clock
    random: Random
    threads: Threads
    quorum_threads: Threads  # the metadata log's own, so that it does not wait for other disks
    network: Network  # between brokers
    listening: Listening
    cleaner: CleanerRunner | None = None  # None: a separate process
    open_files: int = MOST_FOR_LOGS  # limit for logs
    quorum_network: Network | None = None  # to controllers; None: as between brokers
    probing: Network | None = None  # to test whether a node listens, sending nothing; None: as between brokers

    @property
    def to_controllers(self) -> Network:
        return self.quorum_network or self.network
