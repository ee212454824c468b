"""Resolves what a crash left in a partition's folder, before the log is loaded (LOG-02).

A cleaned segment is written as `.cleaned` and synced, renamed `.swap`, the segments it replaces are renamed
`.deleted`, then `.swap` loses its suffix. So a `.cleaned` is never needed, and a `.swap` is always complete. Where
Kafka split a segment while cleaning it, some of its parts may still be `.cleaned`: then the other parts' `.swap` is
dropped, as long as what it replaces is there.
"""

from __future__ import annotations

from ballast_broker.seams import Disk
from ballast_broker.storage.recovery import scan, scan_segment
from ballast_broker.storage.segment import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    Segment,
)

KINDS = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX, LOG_SUFFIX)
_TEMPORARY = ".tmp"


def resolve_leftovers(disk: Disk, path: str, names: list[str]) -> list[str]:
    """Resolve the leftovers among `names`; returns the names that remain."""
    marked = [name for name in names if name.endswith((DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX, _TEMPORARY))]
    if not marked:
        return names
    unfinished = [_base(name) for name in marked if name.endswith(CLEANED_SUFFIX)]
    for name in marked:
        stale_swap = bool(unfinished) and _base(name) >= min(unfinished) and _log_of(name) in names
        if not name.endswith(SWAP_SUFFIX) or stale_swap:
            disk.remove(f"{path}/{name}")
    swaps = [name for name in disk.list(path) if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)]
    for name in sorted(swaps):
        _complete_swap(disk, path, _base(name))
    for name in disk.list(path):
        if name.endswith(SWAP_SUFFIX):  # an index whose log is renamed already: it will be rebuilt
            disk.remove(f"{path}/{name}")
    return disk.list(path)


def _base(name: str) -> int:
    stem = name.split(".", 1)[0]
    return int(stem) if stem.isdigit() else -1


def _log_of(name: str) -> str:
    return f"{_base(name):020d}{LOG_SUFFIX}"


def _complete_swap(disk: Disk, path: str, base_offset: int) -> None:
    stem = f"{path}/{base_offset:020d}"
    file = disk.open(stem + LOG_SUFFIX + SWAP_SUFFIX, writable=False)
    try:
        end = scan(file, file.size(), base_offset, 1 << 62, check_crc=False).next_offset
    finally:
        file.close()
    for name in disk.list(path):
        base = _base(name)
        replaced = base == base_offset or base_offset < base < end
        if replaced and name.endswith(KINDS):
            disk.remove(f"{path}/{name}")
    for kind in KINDS:
        if disk.exists(stem + kind + SWAP_SUFFIX):
            disk.rename(stem + kind + SWAP_SUFFIX, stem + kind)
    disk.sync_directory(path)


def keep_rest(disk: Disk, segment: Segment, end_offset: int, interval: int) -> list[Segment]:
    """`segment` begins before the end (`end_offset`) of the previous, cleaned one, which is authoritative. Returns what
    lies beyond `end_offset` as a segment of its own, if anything; the rest is what was cleaned."""
    found = scan_segment(segment, interval)
    kept = [_copy_from(disk, segment, end_offset, found.valid_bytes)] if found.next_offset > end_offset else []
    segment.close()
    return kept


def _copy_from(disk: Disk, segment: Segment, offset: int, valid_bytes: int) -> Segment:
    position = valid_bytes
    for start, header in segment.batches(0, valid_bytes):
        if header.base_offset >= offset:
            position = start
            break
    copy = Segment(disk, segment.open_files, segment.folder, offset, valid_bytes - position, segment.index_size_limit)
    source, target = segment.file(), disk.empty_file(copy.path())
    try:
        done = 0
        while done < copy.size:
            piece = source.pread(min(1 << 20, copy.size - done), position + done)
            target.pwrite(piece, done)
            done += len(piece)
        target.sync()
    finally:
        target.close()
    return copy
