"""A copy leaves the page cache as it was: pages of readers stay, pages that only the copy read are dropped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ballast_broker.storage.disk import RealDisk
from ballast_broker.storage.page_cache import absent_ranges, within

SIZE = 16 << 20
HOT = (4 << 20, 6 << 20)
TAKEN_BY_THE_KERNEL = 256 << 10  # it may reclaim some pages at any time


def cold_file(disk: RealDisk, path: Path) -> None:
    file = disk.open(str(path), create=True)
    file.pwrite(os.urandom(SIZE), 0)
    file.sync()
    os.posix_fadvise(file.descriptor() or 0, 0, 0, os.POSIX_FADV_DONTNEED)
    file.close()


def present_bytes(disk: RealDisk, path: Path) -> int:
    file = disk.open(str(path), writable=False)
    try:
        return SIZE - sum(end - start for start, end in absent_ranges(file.descriptor() or 0, SIZE))
    finally:
        file.close()


@pytest.mark.spec("DIR-25", "LOG-31")
def test_a_copy_leaves_the_page_cache_as_it_was(tmp_path: Path) -> None:
    disk = RealDisk()
    source, target = tmp_path / "source", tmp_path / "target"
    cold_file(disk, source)
    if present_bytes(disk, source) == SIZE:
        pytest.skip("this file system keeps everything in memory")
    reader = disk.open(str(source), writable=False)
    os.posix_fadvise(reader.descriptor() or 0, 0, 0, os.POSIX_FADV_RANDOM)  # nothing is read ahead
    reader.pread(HOT[1] - HOT[0], HOT[0])
    before = present_bytes(disk, source)
    assert before >= HOT[1] - HOT[0]
    opened, written = disk.open(str(source), writable=False), disk.open(str(target), create=True)
    position = 0
    while position < SIZE:
        position += disk.copy_range(opened, position, written, position, 1_000_001)
    written.sync()
    opened.close()
    after = present_bytes(disk, source)
    assert before <= after + TAKEN_BY_THE_KERNEL
    assert after - before < 1 << 20, "what readers had stays, nothing else does"
    assert present_bytes(disk, target) < before + (2 << 20), "what is hot here is hot there"
    assert target.read_bytes() == source.read_bytes()
    written.close()
    reader.close()


def test_parts_of_ranges() -> None:
    ranges = [(0, 10), (20, 30), (40, 50)]
    assert within(ranges, 5, 45) == [(5, 10), (20, 30), (40, 45)]
    assert within(ranges, 10, 20) == []
    assert within([], 0, 100) == []
