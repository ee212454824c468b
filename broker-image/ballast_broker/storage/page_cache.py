"""Controls the page cache of files: which pages are cached, dropping pages, starting writeback.

A move reads and writes much data that nobody else wants; without this it would evict what readers need. Any thread.
Nothing here touches a mapped page, so a failing disk cannot raise SIGBUS. Where the kernel does not tell which pages
are cached, none are dropped.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable

Range = tuple[int, int]  # first byte, end; both at page boundaries except for the end of the file
PAGE = mmap.PAGESIZE

_libc = ctypes.CDLL(None, use_errno=True)
_begin_writing = getattr(_libc, "sync_file_range", None)  # Linux only
_SYNC_FILE_RANGE_WRITE = 2
_LOWEST_BIT = bytes(flags & 1 for flags in range(256))  # the other bits are reserved


def absent_ranges(descriptor: int, size: int) -> list[Range]:
    """The ranges of the file's first `size` bytes that are not in the page cache."""
    if size <= 0:
        return []
    pages = (size + PAGE - 1) // PAGE
    present = bytearray(pages)
    try:
        mapped = mmap.mmap(descriptor, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    except (OSError, ValueError):
        return []
    with mapped:
        start = ctypes.c_char.from_buffer(mapped)
        vector = (ctypes.c_ubyte * pages).from_buffer(present)
        failed = _libc.mincore(ctypes.byref(start), ctypes.c_size_t(size), vector)
        del start, vector
    return [] if failed else _runs_of_zero(present.translate(_LOWEST_BIT), size)


def _runs_of_zero(flags: bytearray, size: int) -> list[Range]:
    runs = []
    first = flags.find(0)
    while first >= 0:
        end = flags.find(1, first)
        end = len(flags) if end < 0 else end
        runs.append((first * PAGE, min(end * PAGE, size)))
        first = flags.find(0, end)
    return runs


def within(ranges: Iterable[Range], first: int, end: int) -> list[Range]:
    """The parts of the ranges that lie in [first, end)."""
    cut = [(max(first, start), min(end, stop)) for start, stop in ranges if start < end and stop > first]
    return [(start, stop) for start, stop in cut if start < stop]


def begin_writing(descriptor: int, first: int, size: int) -> None:
    """Start writeback of these bytes now, so that a later sync has less to wait for. Only a hint."""
    if _begin_writing is not None:
        _begin_writing(descriptor, ctypes.c_int64(first), ctypes.c_int64(size), _SYNC_FILE_RANGE_WRITE)


def give_back(descriptor: int, ranges: Iterable[Range]) -> None:
    """Drop the ranges from the page cache. Only a hint, and only for whole, clean pages."""
    if hasattr(os, "posix_fadvise"):  # not on macOS
        for start, end in ranges:
            os.posix_fadvise(descriptor, start, end - start, os.POSIX_FADV_DONTNEED)


def write_back(descriptor: int) -> None:
    """Sync the whole file system of this file: one commit of its journal instead of one per file."""
    if hasattr(_libc, "syncfs"):
        _libc.syncfs(descriptor)  # errors are ignored: the later sync of the file concerned reports them again
