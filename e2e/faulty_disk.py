"""A file system that fails on demand: FUSE shows the contents of one directory in another.

`python -m e2e.faulty_disk SOURCE MOUNT FAULT`: while the file FAULT holds the name of an error (EIO, ENOSPC, EROFS),
every change fails with it, and with EIO and ENODEV so does every read. With SLOW each change takes half a second, one
after the other; with HUNG nothing is answered. Needs only root and /dev/fuse: it speaks the kernel's protocol itself.
One thread; ends when it is unmounted.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import stat
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

HEADER = struct.Struct("<IIQQIIII")
REPLY = struct.Struct("<IiQ")
INIT_REPLY = struct.Struct("<IIIIHHIIHHI28x")
ATTRIBUTES = struct.Struct("<QQQQQQIIIIIIIIII")
ENTRY = struct.Struct("<QQQQII")
SET_ATTRIBUTES = struct.Struct("<IIQQQQQQIIIIIIII")
ROOT = 1
MAJOR, MINOR = 7, 31
BIG_WRITES, MAX_PAGES = 1 << 5, 1 << 22
PAGES = 256
WRITE_BYTES = PAGES * 4096
BUFFER_BYTES = WRITE_BYTES + 65_536
SIZE_IS_SET = 1 << 3
MAXIMUM_NAME = 255
SLOW, SLOW_SECONDS = "SLOW", 0.5
HUNG = "HUNG"
READS_FAIL = (errno.EIO, errno.ENODEV)


class FaultyDisk:
    """Node ids belong to paths; renaming a directory moves the ids of everything in it along."""

    def __init__(self, source: str, fault: str) -> None:
        self._source = source
        self._fault = Path(fault)
        self._paths = {ROOT: source}
        self._numbers = {source: ROOT}
        self._next = ROOT + 1
        self._listings: dict[int, list[str]] = {}
        self._handles = 0
        self._handle_of: dict[int, int] = {}  # the handle that was opened last, for each node
        self._operations: dict[int, Callable[[int, bytes], bytes]] = {
            1: self._lookup, 3: self._attributes_of, 4: self._change, 9: self._make_directory, 10: self._unlink,
            11: self._remove_directory, 12: self._rename, 14: self._open, 15: self._read, 16: self._write,
            17: self._usage, 18: self._release, 20: self._sync, 25: self._nothing, 26: self._begin,
            27: self._open_directory, 28: self._read_directory, 29: self._release_directory, 30: self._sync_directory,
            34: self._nothing, 35: self._create, 45: self._rename_with_flags,
        }  # fmt: skip

    # -- the protocol -------------------------------------------------------------------------------------------------
    def serve(self, device: int) -> None:
        while True:
            select.select([device], [], [])
            while self._told() == HUNG:  # a process that waits for a request that was not even read can be killed
                time.sleep(0.01)
            try:
                request = os.read(device, BUFFER_BYTES)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.ENOENT):
                    continue
                if error.errno == errno.ENODEV:
                    return  # unmounted
                raise
            _, operation, unique, node, *_ = HEADER.unpack_from(request)
            if operation in (2, 36, 42):  # forget, interrupt: nobody waits for an answer
                continue
            code, answer = self._answer(operation, node, request[HEADER.size :])
            with contextlib.suppress(FileNotFoundError):  # the process that asked is gone
                os.write(device, REPLY.pack(REPLY.size + len(answer), -code, unique) + answer)

    def _answer(self, operation: int, node: int, body: bytes) -> tuple[int, bytes]:
        handler = self._operations.get(operation)
        if handler is None:
            return errno.ENOSYS, b""
        try:
            return 0, handler(node, body)
        except KeyError:
            return errno.ESTALE, b""
        except OSError as error:
            return error.errno or errno.EIO, b""

    def _told(self) -> str:
        try:
            return self._fault.read_text().strip()
        except FileNotFoundError:
            return ""

    def _fail_if_told(self, *, reading: bool = False) -> None:
        word = self._told()
        if word == SLOW and not reading:
            time.sleep(SLOW_SECONDS)
        number = getattr(errno, word, 0)
        if number and (not reading or number in READS_FAIL):
            raise OSError(number, os.strerror(number))

    @staticmethod
    def _begin(_: int, body: bytes) -> bytes:
        (readahead,) = struct.unpack_from("<8xI", body)
        return INIT_REPLY.pack(
            MAJOR, MINOR, readahead, BIG_WRITES | MAX_PAGES, 12, 9, WRITE_BYTES, 1, PAGES, 0, 0
        )  # fmt: skip

    @staticmethod
    def _nothing(_: int, body: bytes) -> bytes:
        return b""

    # -- names --------------------------------------------------------------------------------------------------------
    def _child(self, node: int, name: bytes) -> str:
        return f"{self._paths[node]}/{name.rstrip(bytes(1)).decode()}"

    def _number(self, path: str) -> int:
        if path not in self._numbers:
            self._numbers[path] = self._next
            self._paths[self._next] = path
            self._next += 1
        return self._numbers[path]

    def _forget(self, path: str) -> None:
        """Open handles keep the old file, under another path; a new file of this name gets another number."""
        number = self._numbers.pop(path, None)
        if number in self._handle_of:
            self._paths[number] = f"/proc/self/fd/{self._handle_of[number]}"

    def _opened(self, number: int, handle: int) -> bytes:
        self._handle_of[number] = handle
        return struct.pack("<QII", handle, 0, 0)

    def _attributes(self, path: str) -> bytes:
        found = os.stat(path)
        seconds = (int(found.st_atime), int(found.st_mtime), int(found.st_ctime))
        nanoseconds = (found.st_atime_ns % 10**9, found.st_mtime_ns % 10**9, found.st_ctime_ns % 10**9)
        return ATTRIBUTES.pack(
            found.st_ino, found.st_size, found.st_blocks, *seconds, *nanoseconds, found.st_mode, found.st_nlink,
            found.st_uid, found.st_gid, 0, 4096, 0,
        )  # fmt: skip

    def _entry(self, path: str) -> bytes:
        attributes = self._attributes(path)
        return ENTRY.pack(self._number(path), 0, 0, 0, 0, 0) + attributes

    def _lookup(self, node: int, body: bytes) -> bytes:
        return self._entry(self._child(node, body))

    def _attributes_of(self, node: int, body: bytes) -> bytes:
        return struct.pack("<QII", 0, 0, 0) + self._attributes(self._paths[node])

    def _change(self, node: int, body: bytes) -> bytes:
        self._fail_if_told()
        valid, _, _, size, *_ = SET_ATTRIBUTES.unpack_from(body)
        if valid & SIZE_IS_SET:
            os.truncate(self._paths[node], size)
        return self._attributes_of(node, body)

    def _make_directory(self, node: int, body: bytes) -> bytes:
        self._fail_if_told()
        path = self._child(node, body[8:])
        os.mkdir(path)
        return self._entry(path)

    def _unlink(self, node: int, body: bytes) -> bytes:
        self._fail_if_told()
        os.unlink(self._child(node, body))
        self._forget(self._child(node, body))
        return b""

    def _remove_directory(self, node: int, body: bytes) -> bytes:
        self._fail_if_told()
        os.rmdir(self._child(node, body))
        self._forget(self._child(node, body))
        return b""

    def _rename(self, node: int, body: bytes, skip: int = 8) -> bytes:
        self._fail_if_told()
        (target,) = struct.unpack_from("<Q", body)
        old_name, new_name = body[skip:].split(b"\0")[:2]
        old, new = self._child(node, old_name), self._child(target, new_name)
        os.rename(old, new)
        self._forget(new)
        for path, number in list(self._numbers.items()):
            if path == old or path.startswith(f"{old}/"):
                moved = new + path[len(old) :]
                del self._numbers[path]
                self._numbers[moved], self._paths[number] = number, moved
        return b""

    def _rename_with_flags(self, node: int, body: bytes) -> bytes:
        (flags,) = struct.unpack_from("<8xI", body)
        if flags:
            raise OSError(errno.EINVAL, "flags")
        return self._rename(node, body, 16)

    # -- files --------------------------------------------------------------------------------------------------------
    def _open(self, node: int, body: bytes) -> bytes:
        (flags,) = struct.unpack_from("<I", body)
        self._fail_if_told(reading=flags & os.O_ACCMODE == os.O_RDONLY)
        # The kernel handles O_APPEND and truncation: it sends positions and a change of size.
        return self._opened(node, os.open(self._paths[node], flags & (os.O_ACCMODE | os.O_TRUNC)))

    def _create(self, node: int, body: bytes) -> bytes:
        self._fail_if_told()
        flags, mode = struct.unpack_from("<II", body)
        path = self._child(node, body[16:])
        self._forget(path)
        handle = os.open(path, flags & (os.O_ACCMODE | os.O_TRUNC | os.O_EXCL) | os.O_CREAT, stat.S_IMODE(mode))
        entry = self._entry(path)
        return entry + self._opened(self._numbers[path], handle)

    def _read(self, _: int, body: bytes) -> bytes:
        self._fail_if_told(reading=True)
        handle, position, size = struct.unpack_from("<QQI", body)
        return os.pread(handle, size, position)

    def _write(self, _: int, body: bytes) -> bytes:
        self._fail_if_told()
        handle, position, size = struct.unpack_from("<QQI", body)
        return struct.pack("<II", os.pwrite(handle, body[40 : 40 + size], position), 0)

    def _sync(self, _: int, body: bytes) -> bytes:
        self._fail_if_told()
        (handle,) = struct.unpack_from("<Q", body)
        os.fdatasync(handle)
        return b""

    def _release(self, node: int, body: bytes) -> bytes:
        (handle,) = struct.unpack_from("<Q", body)
        if self._handle_of.get(node) == handle:
            del self._handle_of[node]
        os.close(handle)
        return b""

    def _usage(self, _: int, body: bytes) -> bytes:
        self._fail_if_told(reading=True)
        found = os.statvfs(self._source)
        return struct.pack(
            "<QQQQQIII28x", found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree,
            found.f_bsize, MAXIMUM_NAME, found.f_frsize,
        )  # fmt: skip

    # -- directories --------------------------------------------------------------------------------------------------
    def _open_directory(self, node: int, body: bytes) -> bytes:
        self._fail_if_told(reading=True)
        self._handles += 1
        self._listings[self._handles] = [".", "..", *sorted(os.listdir(self._paths[node]))]
        return struct.pack("<QII", self._handles, 0, 0)

    def _read_directory(self, node: int, body: bytes) -> bytes:
        handle, position, size = struct.unpack_from("<QQI", body)
        answer = b""
        for number, name in enumerate(self._listings[handle][position:], position + 1):
            raw = name.encode()
            row = struct.pack("<QQII", number, number, len(raw), 0) + raw
            row += bytes(-len(row) % 8)
            if len(answer) + len(row) > size:
                break
            answer += row
        return answer

    def _release_directory(self, _: int, body: bytes) -> bytes:
        (handle,) = struct.unpack_from("<Q", body)
        self._listings.pop(handle, None)
        return b""

    def _sync_directory(self, _: int, body: bytes) -> bytes:
        self._fail_if_told()
        return b""


def main(source: str, mount: str, fault: str) -> None:
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},allow_other"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"faulty", mount.encode(), b"fuse.faulty", 0, options.encode()):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), mount)
    FaultyDisk(os.path.abspath(source), fault).serve(device)


if __name__ == "__main__":
    main(*sys.argv[1:])
