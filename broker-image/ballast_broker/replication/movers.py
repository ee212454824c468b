"""Moves replicas between this broker's directories while they serve clients: the copying and the swap.

`moves` (PURE) decides what to do next; this does it. A partition always has the same mover. File work runs in threads
in bounded pieces, within the rate that all movers share. The swap runs on the loop without yielding, so no append can
interleave. Loop thread only, except what is passed to `Threads`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

from ballast_broker.replication.mover import LONGEST_WAIT_S, Mover
from ballast_broker.replication.moves import Move, MoveQueue, Position, Stage, Step, next_step
from ballast_broker.storage import adoption, slow_append
from ballast_broker.storage.common_end import CommonEnd
from ballast_broker.storage.errors import CorruptFile
from ballast_broker.storage.to_its_end import to_its_end
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.names import TopicPartition, spread

if TYPE_CHECKING:
    from ballast_broker.replication.assignments import Assignments
    from ballast_broker.replication.quotas import ByteRate
    from ballast_broker.replication.replica import Replica
    from ballast_broker.seams import Clock, DiskUsage, Threads
    from ballast_broker.storage.adoption import CopyAhead, FileCopy, SegmentCopy
    from ballast_broker.storage.directories import LogDirectory
    from ballast_broker.storage.log import Log
    from ballast_broker.storage.manager import LogManager

log = logging.getLogger(__name__)

TAIL_READ_BYTES = 1_048_576
SEGMENT_PIECE_BYTES = 16 * 1_048_576
PIECE_S = 1 / 640  # of what a limit allows: 64 KiB at 40 MiB/s
# If less than this is left of the active segment, it is read and appended instead: that takes fewer steps.
SMALLEST_COPY_BYTES = 65_536
COPYING = (Step.COPY_SEGMENT, Step.COPY_TAIL)
# How many ended moves are remembered, to report how they went.
REMEMBERED = 1_000


class Movers:
    def __init__(
        self,
        *,
        count: Callable[[], int],
        logs: LogManager,
        threads: Threads,
        clock: Clock,
        rate: ByteRate,
        assignments: Assignments,
        broker_epoch: Callable[[], int],
    ) -> None:
        self._count = count
        self._logs = logs
        self._threads = threads
        self._clock = clock
        self.rate = rate
        self._assignments = assignments
        self._broker_epoch = broker_epoch
        self._movers: dict[int, Mover] = {}
        self._held: list[Mover] = []  # stuck at a hanging disk; their queues were handed over
        self._replicas: dict[TopicPartition, Replica] = {}
        self.moves: dict[TopicPartition, Move] = {}
        # Disk space reserved for the rest of segments being copied: in the middle of one a mover could only wait.
        self._promised: dict[Move, int] = {}
        self.ended: list[Move] = []
        for directory in logs.directories:
            directory.on_silence.append(self._hand_over)

    # -- beginning and ending -----------------------------------------------------------------------------------------
    def start(self, replica: Replica, destination: LogDirectory) -> Move:
        """Start a move, or resume the one that left a future log. The replica must not have another move."""
        topic_partition = replica.topic_partition
        source = replica.online_log()
        goes_on = topic_partition in self._logs.future_logs
        if not goes_on:
            self._logs.create_future(topic_partition, destination, self._broker_epoch())
        future = self._logs.future_logs[topic_partition]
        move = Move(topic_partition, replica.topic_id, source.directory.path, destination.path, goes_on=goes_on)
        source.cleaning_paused += 1
        future.cleaning_paused += 1
        replica.truncated.append(move.note_truncation)
        self.moves[topic_partition] = move
        self._replicas[topic_partition] = replica
        self._mover(topic_partition).add(move)
        log.info("%s moves from %s to %s", topic_partition, move.source, move.destination)
        return move

    def metadata_says(self, move: Move, assigned: UUID | None) -> None:
        """An assignment for an earlier move may take effect after the controller agreed to this one: correct it."""
        source, destination = self._logs.directory(move.source), self._logs.directory(move.destination)
        move.assigned_elsewhere = source is not None and assigned != source.id
        if move.stage is Stage.AGREED and destination is not None and assigned != destination.id:
            self._assignments.assign(move.topic_id, move.topic_partition.partition, destination.id)

    def cancel(self, move: Move, *, assign_back: bool = True) -> None:
        if not move.ended:
            self._end(move, Stage.CANCELLED, assign_back=assign_back)
            log.info("the move of %s to %s is cancelled", move.topic_partition, move.destination)

    def fail(self, move: Move, reason: str) -> None:
        if not move.ended:
            self._end(move, Stage.FAILED, assign_back=True)
            log.error("the move of %s to %s failed: %s", move.topic_partition, move.destination, reason)

    def disk_failed(self, move: Move, error: OSError) -> None:
        """File access outside the logs' own methods failed: find out whose disk it was."""
        for path in (move.destination, move.source):
            directory = self._logs.directory(path)
            if directory is not None and directory.online and adoption.cannot_write(self._logs.disk, path):
                directory.failure_for(error)
        self.fail(move, str(error))

    def directory_failed(self, directory: LogDirectory) -> None:
        for move in list(self.moves.values()):
            if directory.path in (move.source, move.destination):
                self.fail(move, f"{directory.path} is offline")

    def _end(self, move: Move, stage: Stage, *, assign_back: bool) -> None:
        """End the move: cleaning resumes and the future log is removed, unless it is the current log now, or the source
        has failed, when the copy may be all that can be saved."""
        topic_partition = move.topic_partition
        move.enter(stage)
        self.moves.pop(topic_partition, None)
        replica = self._replicas.pop(topic_partition)
        replica.truncated.remove(move.note_truncation)
        if replica.log is not None:
            replica.log.cleaning_paused -= 1
        for mover in self._all():
            mover.queue.remove(move)
            mover.wake.set()
        self.ended = [*self.ended[-REMEMBERED + 1 :], move]
        if stage is Stage.DONE:
            return
        source = self._logs.directory(move.source)
        if topic_partition in self._logs.future_logs and source is not None and source.online:
            self._logs.abort_future(topic_partition)
        if assign_back and (move.told_controller or move.assigned_elsewhere) and replica.log is not None:
            number = topic_partition.partition
            self._assignments.assign(move.topic_id, number, replica.log.directory.id)

    async def close(self) -> None:
        """Stop. The future logs stay: the next start resumes the moves."""
        for mover in self._all():
            await mover.close()

    def wake(self) -> None:
        """The rate limit changed."""
        for mover in self._all():
            mover.wake.set()

    def now_s(self) -> float:
        return self._clock.monotonic()

    def _all(self) -> list[Mover]:
        return [*self._held, *self._movers.values()]

    def _hand_over(self, silent: LogDirectory) -> None:
        """A mover working on a move there stays with it, and hands all other moves to a new mover."""
        self._held = [mover for mover in self._held if len(mover.queue)]
        for number, mover in list(self._movers.items()):
            move = mover.working_on
            if move is not None and silent.path in (move.source, move.destination):
                self._held.append(mover)
                self._movers[number] = Mover(self, number)
                mover.hand_over(self._movers[number])

    def look_at_paused(self, queue: MoveQueue) -> None:
        """Pause the moves of silent directories; resume others if there is space for them."""
        silent = self._silent()
        for move in queue if silent else queue.paused:
            if move.source in silent or move.destination in silent:
                move.pause(f"a disk does not answer: {move.source} or {move.destination}")
                move.convergence.interrupted()
            elif move.paused and self.has_room(move, move.wanted_bytes):
                move.pause(None)  # if there was room at the last look; the next step asks again
        waiting = {move.destination for move in queue.paused} - silent
        for directory in self._logs.online_directories():
            if directory.path in waiting:
                directory.ask_usage()

    def is_silent(self, move: Move) -> bool:
        """Whether one of its directories is silent."""
        silent = self._silent()
        return move.source in silent or move.destination in silent

    def _silent(self) -> set[str]:
        return {directory.path for directory in self._logs.directories if directory.threads.silent}

    def _mover(self, topic_partition: TopicPartition) -> Mover:
        number = spread(*topic_partition, self._count())
        mover = self._movers.get(number)
        if mover is None:
            mover = self._movers[number] = Mover(self, number)
        return mover

    # -- one step -----------------------------------------------------------------------------------------------------
    async def step(self, mover: Mover, move: Move) -> None:
        replica = self._replicas[move.topic_partition]
        source, future = replica.online_log(), self._logs.future_logs[move.topic_partition]
        if move.goes_on:
            await self._compare(move, source, future)
            return
        step, at = _decide(move, source, future)
        if step in COPYING:
            await self._ask_room(move)
            if move.ended:
                return
            step, at = _decide(move, source, future)  # much may have happened while the disk was asked
        if step in COPYING:
            await self._copy(mover, move, source, future, step, at.left_bytes)
        elif step is Step.ASK:
            self._ask(mover, move)
        elif step is Step.FLUSH:
            await mover.synced()
            if not move.ended:
                synced = frozenset(move.synced)
                await self._threads.run(lambda: future.flush(synced=synced))
                if source.log_start_offset > future.bases[0]:  # otherwise the first segment's name has it
                    adoption.take_over_start(source, future)
                    await self._logs.maintenance.checkpoint_start_offsets()
                move.flushed = True
        elif step is Step.SWAP:
            await self._hold_and_swap(move, replica, source, future)
        elif step in (Step.CUT, Step.BEGIN):
            await mover.synced()  # truncation must not interfere with a running sync
            await mover.drop_unwanted()  # once it is cut, nothing tells that what was copied ahead is outdated
            move.synced = set()
            if move.ended:
                return
            if step is Step.CUT:
                self._cut(move, source, future)
            else:
                future.truncate_fully_and_start_at(adoption.beginning(source))
        else:
            await mover.wait(LONGEST_WAIT_S)

    async def _compare(self, move: Move, source: Log, future: Log) -> None:
        agreed = await to_its_end(self._threads, CommonEnd(source, future).find)
        if agreed is None:
            return
        move.goes_on = False
        if agreed < future.end_offset:  # the current log lost more in a crash, was truncated, or was compacted
            move.note_truncation(agreed)

    async def _copy(self, mover: Mover, move: Move, source: Log, future: Log, step: Step, left_bytes: int) -> None:
        if self.rate.exceeded():
            await mover.wait(self.rate.wait_s())
            return
        self._check_convergence(mover, move, left_bytes)
        if step is Step.COPY_SEGMENT:  # space for all of it: the mover cannot do anything else in the middle
            wanted = source.segments[source.segment_number(future.log_end_offset)].size - future.active.size
        else:
            wanted = self.rate.piece(TAIL_READ_BYTES, PIECE_S)
        if not self.has_room(move, wanted):
            self._pause(move, wanted)
            return
        move.chases(source.log_end_offset, left_bytes)
        if step is Step.COPY_SEGMENT:
            await self._copy_segment(mover, move, source, future)
        else:
            await self._copy_tail(move, source, future, wanted)

    def _pause(self, move: Move, wanted: int) -> None:
        if move.paused:
            return
        move.wanted_bytes = wanted
        move.pause(f"{move.destination} would have less than its reserve left")
        move.convergence.interrupted()
        log.warning("the move of %s pauses: %s", move.topic_partition, move.paused)

    def _piece_bytes(self) -> int:
        """Large only if the rate is unlimited."""
        return self.rate.piece(TAIL_READ_BYTES if self.rate.limited else SEGMENT_PIECE_BYTES, PIECE_S)

    def _check_convergence(self, mover: Mover, move: Move, left_bytes: int) -> None:
        gained = move.convergence.observe(self._clock.monotonic(), left_bytes)
        if gained is None:
            return
        if not gained and not move.not_converging:
            log.warning("the move of %s does not catch up: %d bytes are left", move.topic_partition, left_bytes)
        move.not_converging = not gained
        if not gained:
            mover.queue.defer(move)

    async def _copy_segment(self, mover: Mover, move: Move, source: Log, future: Log) -> None:
        """Copy the rest of a segment in pieces; the future log adopts it once it is complete."""
        ahead = await mover.stopped_ahead(move, source.segments[source.segment_number(future.log_end_offset)])
        if move.ended or move.cut_at is not None:
            return
        copy = adoption.SegmentCopy(source, future, ahead)
        mover.took_ahead()
        adopted = False
        try:
            if self._is_anyone_idle():
                self._begin_ahead(mover, move, copy, future)
            while copy.file.left_bytes:
                self._promised[move] = copy.file.left_bytes
                wanted = min(self._piece_bytes(), copy.file.left_bytes)
                if self.rate.exceeded():
                    await mover.wait(self.rate.wait_s())
                elif not self.has_room(move, wanted):
                    self._pause(move, wanted)
                    await mover.drop_unwanted()
                    if mover.queue.has_other_work():  # which may free space
                        await to_its_end(self._threads, copy.give_up)
                        move.wanted_bytes = copy.size_bytes
                        return
                    await mover.wait(LONGEST_WAIT_S)
                    await self._ask_room(move)
                else:
                    if move.paused:
                        move.pause(None)
                    await self._copy_piece(move, copy.file)
                if await self._is_void(move, copy):
                    return
            try:
                await to_its_end(self._threads, copy.finish_files)
            except (CorruptFile, FileNotFoundError):  # was the source truncated just now?
                if await self._is_void(move, copy):
                    return
                raise
            if await self._is_void(move, copy):
                return
            copy.adopt()
            adopted = True
        finally:
            self._promised.pop(move, None)
            if not adopted:
                copy.close()
        await mover.sync_in_background(self._threads, move, copy)

    def _is_anyone_idle(self) -> bool:
        return sum(1 for mover in self._movers.values() if len(mover.queue)) < self._count()

    def _begin_ahead(self, mover: Mover, move: Move, copy: SegmentCopy, future: Log) -> None:
        """Copy a second segment concurrently: a fast disk takes more than one CPU can copy."""
        segment = copy.following
        if segment is None or segment.size < SMALLEST_COPY_BYTES or self.rate.limited:
            return
        if self.has_room(move, copy.file.left_bytes + segment.size):
            mover.begin_ahead(move, adoption.CopyAhead(segment, future))

    async def copy_ahead(self, move: Move, copy: CopyAhead) -> None:
        """Copy as much as rate and space allow: whoever takes the segment over copies the rest. A cut ends it as well:
        the source may have less now than there is to copy."""
        while copy.file.left_bytes and not self.rate.limited and self.has_room(move, SEGMENT_PIECE_BYTES):
            if move.ended or move.cut_at is not None:
                return
            await self._copy_piece(move, copy.file)

    async def _copy_piece(self, move: Move, copy: FileCopy) -> None:
        wanted = min(self._piece_bytes(), copy.left_bytes)
        self.rate.record(wanted)  # before the write, so that other movers wait meanwhile
        copy_piece, directory = copy.piece(wanted), self._destination(move)

        def copy_and_look() -> tuple[int, DiskUsage | None]:
            return copy_piece(), directory.look_at_usage()

        size, usage = await to_its_end(self._threads, copy_and_look)
        directory.note_usage(usage)
        move.copied_bytes += size
        if size < wanted and not move.ended and move.cut_at is None:
            raise OSError(f"{move.source}: a segment of {move.topic_partition} is shorter than it was")

    async def _is_void(self, move: Move, copy: SegmentCopy) -> bool:
        """Whether the copy is void: the move has ended, or the source was truncated below the copy's end."""
        if move.ended:
            return True
        if move.cut_at is None or move.cut_at >= copy.end_offset:
            return False
        await to_its_end(self._threads, copy.give_up)
        return True

    async def _copy_tail(self, move: Move, source: Log, future: Log, size: int) -> None:
        start = future.log_end_offset
        piece = source.read(start, size, upper_offset=source.log_end_offset, from_first_file=True)
        if not piece.size:
            adoption.skip_gap(source, future)
            return
        self.rate.record(piece.size)  # before the write, so that other movers wait meanwhile
        try:
            data = await self._threads.run(piece.read)
        except OSError:
            if move.cut_at is None:
                raise
            return
        finally:
            piece.release()
        if move.ended or move.cut_at is not None or future.log_end_offset != start:
            return
        move.copied_bytes += len(data)
        if future.append_is_slow():
            await slow_append.append_as_follower(future, memoryview(data))
        else:
            future.append_as_follower(memoryview(data))
        adoption.roll_with(source, future)

    def _cut(self, move: Move, source: Log, future: Log) -> None:
        offset = min(move.cut_at if move.cut_at is not None else source.log_end_offset, source.log_end_offset)
        move.cut_at = None
        if future.log_end_offset > offset:
            future.truncate_to(offset)
            move.flushed = False

    def _ask(self, mover: Mover, move: Move) -> None:
        destination = self._destination(move)
        move.told_controller = True
        move.enter(Stage.ASKING)
        agreed = self._assignments.assign(move.topic_id, move.topic_partition.partition, destination.id)

        def answered(future: asyncio.Future[bool]) -> None:
            if move.ended or future.cancelled():
                return
            if future.result():
                move.enter(Stage.AGREED)
                mover.wake.set()
            else:
                self.cancel(move, assign_back=False)  # the replica is gone

        agreed.add_done_callback(answered)

    async def _hold_and_swap(self, move: Move, replica: Replica, source: Log, future: Log) -> None:
        def can_swap() -> bool:
            return not move.ended and _decide(move, source, future)[0] is Step.SWAP

        finish = None
        async with slow_append.turns_of(source):  # what is in the log, but not synced yet, must not be sent again
            if can_swap() and future.append_is_slow() and future.log_end_offset < source.log_end_offset:
                await self._copy_tail(move, source, future, TAIL_READ_BYTES)
            if can_swap():
                finish = self._swap(move, replica, source, future)
        if finish is not None:
            await self._threads.run(finish)

    def _swap(self, move: Move, replica: Replica, source: Log, future: Log) -> Callable[[], None] | None:
        began_s = self._clock.monotonic()
        while future.log_end_offset < source.log_end_offset:
            piece = source.read(
                future.log_end_offset, TAIL_READ_BYTES, upper_offset=source.log_end_offset, from_first_file=True
            )
            if not piece.size:
                adoption.skip_gap(source, future)
                break
            data = piece.read()
            piece.release()
            self.rate.record(len(data))
            move.copied_bytes += len(data)
            future.append_as_follower(memoryview(data))
            adoption.roll_with(source, future)
        if future.recovery_point < source.recovery_point:
            move.flushed = False
            return None
        adoption.take_over_state(source, future)
        finish = self._logs.swap_future(move.topic_partition)
        slow_append.hand_over(source, future)
        replica.use(future)
        move.pause_ms = (self._clock.monotonic() - began_s) * 1000
        self._end(move, Stage.DONE, assign_back=False)
        log.info("%s is in %s now; appends waited %.1f ms", move.topic_partition, move.destination, move.pause_ms)
        return finish

    # -- room ---------------------------------------------------------------------------------------------------------
    async def _ask_room(self, move: Move) -> None:
        """Ask the destination how full it is: before each step that copies, and after a wait for room within one (each
        piece looks again anyway). This waits for its disk as long as copying would."""
        await asyncio.shield(self._destination(move).ask_usage())

    def _destination(self, move: Move) -> LogDirectory:
        directory = self._logs.directory(move.destination)
        if directory is None:
            raise ApiError(ErrorCode.LOG_DIR_NOT_FOUND, move.destination)
        return directory

    def has_room(self, move: Move, size: int) -> bool:
        """By what `_ask_room` and the last piece found."""
        promised = sum(
            left
            for other, left in self._promised.items()
            if other is not move and other.destination == move.destination
        )
        directory = self._logs.directory(move.destination)
        return directory is None or self._logs.placement.has_room(directory, promised + size)


def _decide(move: Move, source: Log, future: Log) -> tuple[Step, Position]:
    adoption.roll_with(source, future)
    at = position(source, future)
    return next_step(move, at), at


def position(source: Log, future: Log) -> Position:
    end = future.log_end_offset
    by_file, left = False, source.size_bytes
    if end >= source.bases[0]:
        number = source.segment_number(end)
        segment = source.segments[number]
        if future.active.base_offset == segment.base_offset:
            left = sum(later.size for later in source.segments[number:]) - future.active.size
        else:
            left = adoption.bytes_after(source, end)
        sealed = segment is not source.active
        by_file = (sealed or left >= SMALLEST_COPY_BYTES) and adoption.continues_by_file(source, future)
    return Position(adoption.beginning(source), source.log_end_offset, end, max(0, left), by_file)
