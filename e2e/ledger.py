"""Records what the clients of a run sent, what was acknowledged to them, and what they read. Any thread.

A record's value begins with its token: the producer's number and its sequence in one integer. A producer sends
sequence s to partition s modulo the number of partitions, so the token says where the record must be. A token and an
offset take 16 bytes: half an hour of records fits in memory.
"""

from __future__ import annotations

import struct
import threading
import time
from array import array
from dataclasses import dataclass, field

TOKEN = struct.Struct(">q")
SEQUENCE_BITS = 40
SEQUENCE_MASK = (1 << SEQUENCE_BITS) - 1


def token_of(producer: int, sequence: int) -> int:
    return producer << SEQUENCE_BITS | sequence


def describe(token: int) -> str:
    return f"record {token & SEQUENCE_MASK} of producer {token >> SEQUENCE_BITS}"


def read_token(value: bytes | None) -> int:
    if value is None or len(value) < TOKEN.size:
        return -1
    (token,) = TOKEN.unpack_from(value)
    return int(token)


def _integers() -> array[int]:
    return array("q")


@dataclass
class KnownRecords:
    """Tokens of one partition and their offsets, in the order in which the client learned of them."""

    tokens: array[int] = field(default_factory=_integers)
    offsets: array[int] = field(default_factory=_integers)

    longest_silence_s: float = 0.0  # between two notes, since `forget_silence`
    _last_s: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def forget_silence(self) -> None:
        with self._lock:
            self.longest_silence_s, self._last_s = 0.0, time.monotonic()

    def note(self, token: int, offset: int) -> None:
        now = time.monotonic()
        with self._lock:  # both lists together, even with another producer on another thread
            self.longest_silence_s = max(self.longest_silence_s, now - self._last_s)
            self._last_s = now
            self.tokens.append(token)
            self.offsets.append(offset)


class Ledger:
    def __init__(self, partitions: int, producers: int) -> None:
        self.partitions = partitions
        self.sent = [0] * producers  # per producer: sequences below this one were handed to the client
        self.acknowledged = [KnownRecords() for _ in range(partitions)]
        self.unplaced = [_integers() for _ in range(partitions)]  # acknowledged without an offset
        self.consumed = [KnownRecords() for _ in range(partitions)]
        self.group_read = [bytearray() for _ in range(partitions)]  # per offset: whether the group has read it
        self._problems: list[str] = []
        self._lock = threading.Lock()

    @property
    def acknowledged_count(self) -> int:
        return sum(len(known.offsets) for known in self.acknowledged) + self.unplaced_count

    @property
    def unplaced_count(self) -> int:
        return sum(map(len, self.unplaced))

    @property
    def consumed_count(self) -> int:
        return sum(len(known.offsets) for known in self.consumed)

    def note_group_read(self, partition: int, offset: int) -> None:
        with self._lock:
            read = self.group_read[partition]
            if offset >= len(read):
                read.extend(bytes(offset + 1 - len(read)))
            read[offset] = 1

    def note_problem(self, text: str) -> None:
        with self._lock:
            self._problems.append(text)

    @property
    def problems(self) -> list[str]:
        """What the clients themselves found wrong."""
        with self._lock:
            return list(self._problems)
