"""Implements one client connection: frames in, replies out in order, bounded in every direction.

Raw non-blocking sockets on the event loop. Frames are handled in place, in a buffer shared by all connections. For a
large incomplete frame the connection keeps that buffer, or gets its own one that grows with the data received; the
kernel fills it directly. A produce may be answered later (acks=all) while further produces come in; all other requests
are handled one after the other. Backpressure: nothing is read while replies cannot be written or a request is being
worked on. A turn of the loop handles at most `REQUESTS_PER_TURN` requests of one connection, for at most
`LONGEST_TURN_S`. Loop thread only.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Final

from ballast_broker.net.event_loop import EVENT_READ, EVENT_WRITE
from ballast_broker.net.frame_buffers import BUFFER_BYTES, WORTH_BYTES
from ballast_broker.net_reply import ANONYMOUS, Dispatch, FileData, Part, Parts, Pending, Time
from ballast_broker.turns import LONGEST_TURN_S
from ballast_wire.fast.reader import MalformedRequest

if TYPE_CHECKING:
    from ballast_broker.net.server import Server

log = logging.getLogger(__name__)

MAX_PIPELINED: Final = 64
REQUESTS_PER_TURN: Final = 32
MSG_MORE: Final = getattr(socket, "MSG_MORE", 0)
FRAME_LENGTH_BYTES: Final = 4
_length_of: Final = struct.Struct(">i").unpack_from
BYTES: Final = (bytes, memoryview)


class _Slot:
    """A reply's place in the order of replies."""

    __slots__ = ("parts", "pending", "ready")

    def __init__(self) -> None:
        self.ready = False
        self.parts: Parts | None = None
        self.pending: Pending | None = None


class Connection:
    __slots__ = (
        "_backlog",
        "_close_callbacks",
        "_dispatch",
        "_file_sent",
        "_frame",
        "_frame_filled",
        "_frame_size",
        "_frame_start",
        "_head",
        "_held",
        "_loop",
        "_out",
        "_server",
        "_slots",
        "_socket",
        "_unsent",
        "_warmed",
        "_warming",
        "_working",
        "closed",
        "events",
        "fd",
        "host",
        "is_known",
        "last_active",
        "listener",
        "max_frame_bytes",
        "principal",
        "time",
    )

    def __init__(self, server: Server, sock: socket.socket, host: str, listener: str, dispatch: Dispatch) -> None:
        self._server = server
        self._dispatch = dispatch
        self._loop = server.loop
        self._socket = sock
        self.fd = sock.fileno()
        self.host = host
        self.listener = listener
        self.principal = ANONYMOUS
        self.is_known = True
        self.time: Time | None = None  # measures the time used, if there is a request quota
        self.max_frame_bytes = server.max_request_bytes
        self.closed = False
        self.last_active = self._loop.time()
        self._head = b""  # the first bytes of an incomplete length field
        self._frame: bytearray | None = None  # the buffer of an incomplete frame
        self._frame_start = 0  # where the frame begins in its buffer
        self._frame_size = 0
        self._frame_filled = 0
        self._backlog: memoryview | None = None  # received while busy, in a buffer of its own
        self._slots: deque[_Slot] = deque()
        self._out: deque[Part] = deque()
        self._unsent: list[bytes] = []  # replies of this turn of the loop, to be sent before `_out`
        self._file_sent = 0
        self._working = False  # a request that must not run beside others
        self._held: asyncio.TimerHandle | None = None  # set while the client is over its quota
        self._warming = False
        self._warmed: FileData | None = None  # read by a thread; send it without another check of the page cache
        self._close_callbacks: list[Callable[[], None]] = []
        self.events = 0
        self._loop.wait_for(self, EVENT_READ)

    # -- reading --------------------------------------------------------------------------------------------------
    @property
    def busy(self) -> bool:
        return self._working or bool(self._out) or self._held is not None or len(self._slots) >= MAX_PIPELINED

    @property
    def awaited(self) -> bool:
        """Whether the client waits for us: then it does not count as idle."""
        return not self._out and (self._working or self._held is not None or bool(self._slots))

    def on_readable(self) -> None:
        if (
            self._working
            or self._out
            or self._backlog is not None
            or self._held is not None
            or len(self._slots) >= MAX_PIPELINED
        ):
            self._pause()
            return
        if self.time is not None:
            self.time.begins()
        try:
            if self._frame is not None:
                self._fill_frame(self._frame)
            elif self._head:
                self._read_on(self._head)
            else:
                self._read_small()
        except (BlockingIOError, InterruptedError):
            pass
        if self.time is not None:
            self.time.ends()

    def _read_small(self) -> None:
        """The hot path: one read, which usually brings one complete frame."""
        buffers = self._server.buffers
        scratch = buffers.scratch
        count = self._socket.recv_into(scratch, buffers.read_bytes)
        if count == 0:
            self.close(None)
            return
        self.last_active = self._loop.turn_began_s
        if count > FRAME_LENGTH_BYTES and _length_of(scratch)[0] == count - FRAME_LENGTH_BYTES:
            self._handle(scratch[FRAME_LENGTH_BYTES:count])
        else:
            self._take(scratch[:count], own=False)

    def _read_on(self, head: bytes) -> None:
        """Read on after the first bytes of a length field."""
        buffers = self._server.buffers
        scratch = buffers.scratch
        count = self._socket.recv_into(scratch[len(head) :], buffers.read_bytes - len(head))
        if count == 0:
            self.close(None)
            return
        scratch[: len(head)] = head
        self._head = b""
        self.last_active = self._loop.turn_began_s
        self._take(scratch[: len(head) + count], own=False)

    def _fill_frame(self, frame: bytearray) -> None:
        start, size = self._frame_start, self._frame_size
        if start + self._frame_filled == len(frame):  # only in a buffer of its own, where start is 0
            frame += bytes(min(len(frame), size - len(frame)))
        with memoryview(frame) as view:
            count = self._socket.recv_into(view[start + self._frame_filled : start + size])
        if count == 0:
            self.close(None)
            return
        self.last_active = self._loop.turn_began_s
        self._frame_filled += count
        if self._frame_filled == size:
            self._frame = None
            try:
                self._handle(memoryview(frame)[start : start + size])
            finally:
                self._server.give_back(size, frame)

    def _take(self, data: memoryview, *, own: bool) -> None:
        """Handle the complete frames in `data`, keep the rest. `own`: nobody else will write into `data`."""
        position, end, handled = 0, len(data), 0
        until_s = monotonic() + LONGEST_TURN_S
        while end - position >= FRAME_LENGTH_BYTES:
            if (  # `busy`, inlined
                self._working
                or self._out
                or self._held is not None
                or len(self._slots) >= MAX_PIPELINED
                or handled == REQUESTS_PER_TURN
                or (handled and monotonic() > until_s)
            ):
                self._keep(data[position:], own=own)
                if not self.busy:
                    self._loop.call_soon(self.resume)
                return
            (size,) = _length_of(data, position)
            body = position + FRAME_LENGTH_BYTES
            if size < 0 or size > self.max_frame_bytes:
                raise MalformedRequest(f"a request of {size} bytes{_seems(data, position)}")
            if end - body < size:
                if not self._server.take_memory(size, self):
                    self._keep(data[position:], own=own)
                elif not own and size >= WORTH_BYTES and body + size <= BUFFER_BYTES:
                    self._frame, self._frame_start = self._server.buffers.adopt(), body
                    self._frame_size, self._frame_filled = size, end - body
                else:
                    self._begin_frame(size, data[body:])
                return
            self._handle(data[body : body + size])
            if self.closed:
                return
            handled += 1
            position = body + size
        if position < end:
            self._head = bytes(data[position:])

    def _keep(self, data: memoryview, *, own: bool) -> None:
        self._backlog = data if own else memoryview(bytearray(data))  # writable: produce stamps in place
        self._pause()

    def _begin_frame(self, size: int, start: memoryview) -> None:
        if size <= BUFFER_BYTES:
            frame = self._server.buffers.take(size)
        else:
            frame = bytearray(min(size, max(BUFFER_BYTES, len(start))))
        frame[: len(start)] = start
        self._frame, self._frame_start, self._frame_size, self._frame_filled = frame, 0, size, len(start)

    def _handle(self, frame: memoryview) -> None:
        reply = self._dispatch(self, frame)
        if type(reply) is bytes:
            if self._slots or self._out:
                self._answer((reply,))
            else:
                if not self._unsent:
                    self._server.send_soon(self)
                self._unsent.append(reply)
        elif isinstance(reply, Pending):
            self._expect(reply)
        elif reply is not None:
            self._answer((reply,) if isinstance(reply, bytes) else reply)

    def _expect(self, pending: Pending) -> None:
        slot = _Slot()
        slot.pending = pending
        self._slots.append(slot)
        if not pending.pipelined:
            self._working = True

        def done(future: asyncio.Future[Parts | None]) -> None:
            if not pending.pipelined:
                self._working = False
            self._settle(slot, future)

        pending.future.add_done_callback(done)
        if pending.begun is not None:
            self._working = True
            pending.begun.add_done_callback(self._has_begun)

    def _has_begun(self, _: asyncio.Future[None]) -> None:
        self._working = False
        self.resume()

    def _settle(self, slot: _Slot, future: asyncio.Future[Parts | None]) -> None:
        slot.pending = None
        if future.cancelled() or future.exception() is not None:
            self.close(None if future.cancelled() else future.exception())
            return
        slot.ready, slot.parts = True, future.result()
        if self.closed:
            _release(slot.parts or ())
            return
        while self._slots and self._slots[0].ready:
            self._out.extend(self._slots.popleft().parts or ())
        self.last_active = self._loop.time()
        self._flush()
        self.resume()

    def resume(self) -> None:
        """Handle what came in meanwhile, then listen again."""
        if self.closed or self.busy:
            return
        waiting = self._backlog
        if waiting is not None:
            self._backlog = None
            try:
                self._take(waiting, own=True)
            except Exception as error:
                self.close(error)
                return
        self._listen()

    def _listen(self) -> None:
        if not self.closed and not self.busy and self._backlog is None:
            self._loop.wait_for(self, self.events | EVENT_READ)

    def _pause(self) -> None:
        self._loop.wait_for(self, self.events & ~EVENT_READ)

    def hold(self, seconds: float) -> None:
        if self.closed:
            return
        if self._held is not None:
            if self._held.when() >= self._loop.time() + seconds:
                return
            self._held.cancel()
        self._held = self._loop.call_later(seconds, self._let_go)
        self._pause()

    def _let_go(self) -> None:
        self._held = None
        self.last_active = self._loop.time()
        self.resume()

    # -- writing --------------------------------------------------------------------------------------------------
    def _answer(self, parts: Parts) -> None:
        if self._slots:
            slot = _Slot()
            slot.ready, slot.parts = True, parts
            self._slots.append(slot)
            return
        self._out.extend(parts)
        self._flush()

    def send_unsent(self) -> None:
        """Send the small replies of this turn together; usually they fit into the socket. The rest is queued."""
        unsent = self._unsent
        if not unsent:
            return
        reply = unsent[0] if len(unsent) == 1 else b"".join(unsent)
        unsent.clear()
        if self.time is not None:
            self.time.begins()
        try:
            sent = self._socket.send(reply)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self.close(error)
            return
        if self.time is not None:
            self.time.ends()
        if sent < len(reply):
            self._out.append(memoryview(reply)[sent:])
            self._flush()

    def _flush(self) -> None:
        """Write what the socket accepts; the rest once it is writable again."""
        out = self._out
        if self._unsent:
            out.appendleft(b"".join(self._unsent))
            self._unsent.clear()
        if self._warming:
            return
        if self.time is not None:
            self.time.begins()
        try:
            while out:
                part = out[0]
                if isinstance(part, BYTES):
                    sent = self._socket.send(part, MSG_MORE if len(out) > 1 else 0)
                    if sent < len(part):
                        out[0] = memoryview(part)[sent:]
                        break
                    out.popleft()
                elif not self._send_file(part):
                    break
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            if error.errno == errno.EIO and not isinstance(part, BYTES):  # a socket never raises EIO, so it is the file
                self._loop.call_soon(part.failed, error)
            self.close(error)
            return
        if self.time is not None:
            self.time.ends()
        wanted = EVENT_WRITE if out and not self._warming else 0
        self._loop.wait_for(self, self.events & ~EVENT_WRITE | wanted)

    def _send_file(self, part: FileData) -> bool:
        """Send more of a file; True when all of it is sent."""
        if self._file_sent == 0 and part is not self._warmed and not self._server.is_warm(part):
            self._warm(part)
            return False
        left = part.size - self._file_sent
        sent = os.sendfile(self.fd, descriptor_of(part), part.position + self._file_sent, left)
        if sent == 0:
            raise ConnectionAbortedError("the file ended before the reply did")
        self._file_sent += sent
        if self._file_sent < part.size:
            return False
        self._file_sent, self._warmed = 0, None
        self._out.popleft()
        part.release()
        return True

    def _warm(self, part: FileData) -> None:
        """The data is not cached: let a thread read it first, so that the loop does not wait for the disk."""
        self._warming = True

        def done(warmed: asyncio.Future[None]) -> None:
            self._warming = False
            if self.closed:
                part.release()
                warmed.cancelled() or warmed.exception()  # mark as retrieved
            elif warmed.cancelled() or warmed.exception() is not None:
                self.close(None if warmed.cancelled() else warmed.exception())
            else:
                self._warmed = part
                self._flush()
                self.resume()

        self._server.warm(part).add_done_callback(done)

    def on_writable(self) -> None:
        self.last_active = self._loop.time()
        self._flush()
        self.resume()

    # -- the end --------------------------------------------------------------------------------------------------
    def on_close(self, callback: Callable[[], None]) -> None:
        self._close_callbacks.append(callback)

    def close(self, error: BaseException | None) -> None:
        if self.closed:
            return
        self.closed = True
        self.send_unsent()  # replies already made are still sent
        if isinstance(error, MalformedRequest):
            log.info("closing the connection from %s: %s", self.host, error)
        elif error is not None and not isinstance(error, OSError):
            log.error("a request from %s failed", self.host, exc_info=error)
        if self._held is not None:
            self._held.cancel()
        self._loop.wait_for(self, 0)
        if self._warming:
            self._out.popleft()  # a thread reads it: let go of when that is done
        _release(self._out)
        self._out.clear()
        slots, self._slots = self._slots, deque()
        for slot in slots:
            _release(slot.parts or ())
            if slot.pending is not None and slot.pending.for_this_client_only:
                slot.pending.future.cancel()
        self._backlog = None
        if self._frame is not None:
            frame, self._frame = self._frame, None
            self._server.give_back(self._frame_size, frame)
        self._socket.close()
        self._server.forget(self)
        for callback in self._close_callbacks:
            callback()


def _seems(data: memoryview, position: int) -> str:
    """A hint, if the bytes look like those of another protocol."""
    start = bytes(data[position : position + FRAME_LENGTH_BYTES])
    if start.startswith(b"\x16\x03"):
        return ", which seems to be TLS: this listener has none"
    return ", which seems to be HTTP" if start in (b"GET ", b"HEAD", b"POST", b"PUT ") else ""


def descriptor_of(part: FileData) -> int:
    descriptor = part.file.descriptor() if part.file is not None else None
    if descriptor is None:
        raise ConnectionAbortedError("the data of a reply is gone")
    return descriptor


def _release(parts: Sequence[Part] | deque[Part]) -> None:
    for part in parts:
        if not isinstance(part, BYTES):
            part.release()
