"""Makes the decisions about moves of replicas between this broker's directories. PURE.

A move copies the current log into a future log in the destination, tells the controller once it has caught up, and
swaps when the controller has agreed. This decides which request starts, redirects or cancels a move, which move a mover
works on next, what a move's next step is, and whether it converges.
Guarantee: no step swaps before the controller has agreed and the future log is flushed.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING
from uuid import UUID

from ballast_wire.names import TopicPartition

if TYPE_CHECKING:
    from ballast_broker.storage.segment import Segment

CONVERGENCE_WINDOW_S = 10.0
# The swap copies up to this much while appends have to wait: too little for anybody to notice.
FINAL_PIECE_BYTES = 256 * 1024
# After so many pieces that began with no more than FINAL_PIECE_BYTES left, on a log that is being written to, the copy
# has caught up as far as it ever will.
ENOUGH_CHASING = 8


class Request(Enum):
    """What a request to move to a directory means for a replica."""

    NOTHING = "it is there, or on its way there"
    START = "a new move"
    CANCEL = "it is there; the move away ends"
    REDIRECT = "the move in progress ends, another one begins"


def decide_request(current: str, destination: str | None, wanted: str) -> Request:
    """`current` and `wanted` are directories; `destination` is that of a move in progress."""
    if destination is None:
        return Request.NOTHING if wanted == current else Request.START
    if wanted == destination:
        return Request.NOTHING
    return Request.CANCEL if wanted == current else Request.REDIRECT


class Stage(Enum):
    COPYING = "copying"
    ASKING = "waiting for the controller"
    AGREED = "agreed, about to swap"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(slots=True, eq=False)
class Move:
    """One move. Anybody may read the attributes (metrics, DescribeLogDirs); only the mover writes them. `stage` and
    `paused` are set only by methods that tell the queue, since the order of work depends on them."""

    topic_partition: TopicPartition
    topic_id: UUID
    source: str
    destination: str
    goes_on: bool = False  # resumed: the existing future log has yet to be compared with the current one
    stage: Stage = Stage.COPYING
    copied_bytes: int = 0
    flushed: bool = False
    # Sealed segments of the future log that are durable already, so that the flush before the swap is short.
    synced: set[Segment] = field(default_factory=set)
    told_controller: bool = False
    assigned_elsewhere: bool = False  # the metadata has another directory than the source, as before a restart
    paused: str | None = None
    wanted_bytes: int = 0  # while paused: the disk space it waits for
    not_converging: bool = False
    # The offset to which the future log must be truncated, set by truncations of the current log.
    cut_at: int | None = None
    chased: int = 0
    seen_end: int = -1
    convergence: Convergence = field(default_factory=lambda: Convergence())
    pause_ms: float = 0.0
    queue: MoveQueue | None = None

    def enter(self, stage: Stage) -> None:
        self.stage = stage
        self._tell_queue()

    def pause(self, reason: str | None) -> None:
        """Pause for this reason; None resumes."""
        self.paused = reason
        self._tell_queue()

    def _tell_queue(self) -> None:
        if self.queue is not None:
            self.queue.changed(self)

    def note_truncation(self, offset: int) -> None:
        self.cut_at = offset if self.cut_at is None else min(self.cut_at, offset)

    def chases(self, source_end: int, left_bytes: int) -> None:
        """Another piece is about to be copied."""
        written, self.seen_end = source_end > self.seen_end, source_end
        if left_bytes > FINAL_PIECE_BYTES:
            self.chased = 0
        elif written:
            self.chased += 1

    @property
    def ended(self) -> bool:
        return self.stage in (Stage.DONE, Stage.FAILED, Stage.CANCELLED)


class Convergence:
    """Tells whether a move gets closer to its source's end: compares what is left at both ends of a window."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._left_then = 0

    def observe(self, now_s: float, left_bytes: int) -> bool | None:
        """False: nothing was gained over a whole window. None: not known yet."""
        if self._since_s is None:
            self._since_s, self._left_then = now_s, left_bytes
            return None
        if now_s - self._since_s < CONVERGENCE_WINDOW_S:
            return None
        gained = left_bytes < self._left_then
        self._since_s, self._left_then = now_s, left_bytes
        return gained

    def interrupted(self) -> None:
        """The move was paused or waited for its turn: what is left may have grown through no fault of its own."""
        self._since_s = None


class Step(Enum):
    CUT = "cut the future log as the current one was"
    BEGIN = "the future log must begin where the current one does"
    COPY_SEGMENT = "copy what is left of a segment, as bytes"
    COPY_TAIL = "copy some batches"
    ASK = "tell the controller, which may take its time"
    WAIT = "nothing to copy; the controller has not answered"
    FLUSH = "make the future log durable"
    SWAP = "copy the last batches and swap, at once"


@dataclass(frozen=True, slots=True)
class Position:
    """The offsets of a move's two logs."""

    source_start: int
    source_end: int
    future_end: int
    left_bytes: int
    # The future log's last segment is a prefix of one of the source's, and enough is left to copy it as a file.
    continues_file: bool


def next_step(move: Move, at: Position) -> Step:
    if move.cut_at is not None:
        return Step.CUT
    if at.future_end < at.source_start:
        return Step.BEGIN
    if move.stage is Stage.AGREED and move.flushed and at.left_bytes <= FINAL_PIECE_BYTES:
        return Step.SWAP
    level = at.future_end >= at.source_end
    if not level and not (move.chased >= ENOUGH_CHASING and at.left_bytes <= FINAL_PIECE_BYTES):
        return Step.COPY_SEGMENT if at.continues_file else Step.COPY_TAIL
    if not move.told_controller:
        return Step.ASK
    if move.stage is Stage.AGREED:
        return Step.FLUSH
    return Step.WAIT


class _InOrder:
    """A set of moves with fast access to the first one, by topic and partition."""

    def __init__(self) -> None:
        self._here: set[Move] = set()
        self._heap: list[tuple[TopicPartition, int, Move]] = []  # discarded moves stay in it until they come first
        self._in_heap: set[Move] = set()
        self._numbers = itertools.count()  # tie breaker: two moves of one partition may be in the heap

    def __len__(self) -> int:
        return len(self._here)

    def __contains__(self, move: Move | None) -> bool:
        return move in self._here

    def add(self, move: Move) -> None:
        self._here.add(move)
        if move not in self._in_heap:
            self._in_heap.add(move)
            heapq.heappush(self._heap, (move.topic_partition, next(self._numbers), move))

    def discard(self, move: Move) -> None:
        self._here.discard(move)

    def first(self) -> Move | None:
        while self._heap:
            move = self._heap[0][-1]
            if move in self._here:
                return move
            heapq.heappop(self._heap)
            self._in_heap.discard(move)
        return None


class MoveQueue:
    """The moves of one mover: agreed ones first (they are nearly done), then in order of topic and partition.

    The one being copied keeps its turn until it waits, pauses, ends, or turns out not to converge. There may be
    thousands: finding the next one does not look at all of them.
    """

    def __init__(self) -> None:
        self._moves: dict[TopicPartition, Move] = {}
        self._copying, self._agreed = _InOrder(), _InOrder()
        self._deferred: set[Move] = set()
        self._let_others_go: set[Move] = set()  # deferred moves that have work to do
        self._paused: dict[Move, None] = {}
        self._current: Move | None = None

    def __len__(self) -> int:
        return len(self._moves)

    def __iter__(self) -> Iterator[Move]:
        return iter(list(self._moves.values()))

    @property
    def paused(self) -> Collection[Move]:
        return list(self._paused)

    def add(self, move: Move) -> None:
        self._moves[move.topic_partition] = move
        move.queue = self
        self.changed(move)

    def remove(self, move: Move) -> None:
        if self._moves.get(move.topic_partition) is move:
            del self._moves[move.topic_partition]
            move.queue = None
            self._deferred.discard(move)
            self._take_out(move)
        if self._current is move:
            self._current = None

    def defer(self, move: Move) -> None:
        """Let all others go first once."""
        self._deferred.add(move)
        self.changed(move)

    def changed(self, move: Move) -> None:
        """The move's stage, its pause, or whether it is deferred has changed."""
        self._take_out(move)
        if move.paused:
            self._paused[move] = None
        elif move.stage not in (Stage.COPYING, Stage.AGREED):
            return  # waits for the controller, or has ended
        elif move in self._deferred:
            self._let_others_go.add(move)
        else:
            (self._agreed if move.stage is Stage.AGREED else self._copying).add(move)

    def _take_out(self, move: Move) -> None:
        self._copying.discard(move)
        self._agreed.discard(move)
        self._let_others_go.discard(move)
        self._paused.pop(move, None)

    def has_other_work(self) -> bool:
        """Whether there is work besides the current move, which is paused."""
        return bool(self._copying or self._agreed or self._let_others_go)

    def next(self) -> Move | None:
        """The move to work on now."""
        if not self._copying and not self._agreed and self._let_others_go:
            self._deferred.clear()
            for move in list(self._let_others_go):
                self.changed(move)
        if not self._agreed and self._current in self._copying:
            return self._current
        following = self._agreed.first() or self._copying.first()
        if following is not self._current:
            if self._current is not None:
                self._current.convergence.interrupted()
            self._current = following
        return following
