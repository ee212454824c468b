"""Compares what is on disk with what the clients were told. Findings are sentences; none means that all is well.

Nothing acknowledged is lost; nothing is there twice; in each partition the records of a producer are in the order it
sent them; nothing is there that nobody sent; replicas are equal; consumers saw what is there.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from e2e.ledger import SEQUENCE_BITS, SEQUENCE_MASK, KnownRecords, Ledger, describe, read_token
from e2e.partition_files import Cursor, Damaged, beginning, read_batches

from ballast_wire.records import BatchView, decode_records

MOST_FINDINGS = 10


class History:
    """One partition's records in log order, read piece by piece. `tokens[offset]` is what is there."""

    def __init__(self, partition: int, partitions: int) -> None:
        self.partition = partition
        self.tokens: array[int] = array("q")
        self.counts: dict[int, int] = {}  # per producer
        self.cursor = Cursor()
        self.findings: list[str] = []
        self._partitions = partitions
        self._last: dict[int, int] = {}  # per producer
        self._leader_epoch = -1

    def begin(self, folder: Path, told: Sequence[int]) -> None:
        """If the start of the log has been deleted, take its tokens from what a consumer read there."""
        self.cursor = beginning(folder)
        for token in told[: self.cursor.next_offset]:
            self._record(len(self.tokens), token)

    def read(self, folder: Path, *, whole: bool) -> None:
        """Read what has been appended since the last time."""
        for batch in read_batches(folder, self.cursor, whole=whole):
            self._take(batch)

    def _take(self, batch: BatchView) -> None:
        if batch.header.leader_epoch < self._leader_epoch:
            self._find(f"leader epoch {batch.header.leader_epoch} after {self._leader_epoch} at {batch.base_offset}")
        self._leader_epoch = batch.header.leader_epoch
        for record in decode_records(batch):
            self._record(record.offset, read_token(record.value))

    def _record(self, offset: int, token: int) -> None:
        if offset != len(self.tokens):
            self._find(f"offset {offset} where {len(self.tokens)} is due")
        producer, sequence = token >> SEQUENCE_BITS, token & SEQUENCE_MASK
        last = self._last.get(producer, self.partition - self._partitions)
        if token < 0 or sequence % self._partitions != self.partition:
            self._find(f"offset {offset} holds what nobody sent there")
        elif sequence <= last:
            what = "is there twice" if sequence == last else f"comes after its record {last}"
            self._find(f"{describe(token)} {what}, at offset {offset}")
        elif sequence != last + self._partitions:
            self._find(f"{describe(token)} comes right after its record {last}, at offset {offset}")
        self._last[producer] = max(sequence, last)
        self.counts[producer] = self.counts.get(producer, 0) + 1
        self.tokens.append(token)

    def _find(self, text: str) -> None:
        if len(self.findings) < MOST_FINDINGS:
            self.findings.append(f"partition {self.partition}: {text}")


def check_known(history: History, known: KnownRecords, what: str, first: int = 0, end: int | None = None) -> list[str]:
    """Whether each record that a client was told of is there; only entries `first` to `end` of its list."""
    findings = []
    for index in range(first, len(known.tokens) if end is None else end):
        token, offset = known.tokens[index], known.offsets[index]
        there = history.tokens[offset] if 0 <= offset < len(history.tokens) else None
        if there != token:
            instead = "nothing" if there is None else describe(there)
            findings.append(
                f"partition {history.partition}: {describe(token)} {what} offset {offset}; there is {instead}"
            )
            if len(findings) == MOST_FINDINGS:
                break
    return findings


def check_unplaced(history: History, tokens: Sequence[int]) -> list[str]:
    """Records that were acknowledged without an offset must be somewhere in the partition."""
    missing = sorted(set(tokens).difference(history.tokens))
    return [
        f"partition {history.partition}: {describe(token)} was acknowledged, and is nowhere"
        for token in missing[:MOST_FINDINGS]
    ]


def check_complete(histories: Sequence[History], ledger: Ledger) -> list[str]:
    """After all producers have finished: exactly what was sent must be there."""
    findings = []
    for producer, sent in enumerate(ledger.sent):
        for history in histories:
            due = len(range(history.partition, sent, ledger.partitions))
            found = history.counts.get(producer, 0)
            if found != due:
                findings.append(
                    f"partition {history.partition}: {found} records of producer {producer} are there; it sent {due}"
                )
    strangers = {producer for history in histories for producer in history.counts} - set(range(len(ledger.sent)))
    return findings + [f"there are records of producer {producer}, whom nobody knows" for producer in strangers]


def check_readers(histories: Sequence[History], ledger: Ledger) -> list[str]:
    """After the consumers have reached the end: both the consumer and the group must have read every offset."""
    findings = []
    for history in histories:
        end = len(history.tokens)
        seen = ledger.consumed[history.partition]
        findings += check_known(history, seen, "was read at")
        if len(seen.offsets) != end:
            findings.append(f"partition {history.partition}: the consumer read {len(seen.offsets)} records of {end}")
        read = ledger.group_read[history.partition]
        missed = [offset for offset in range(end) if offset >= len(read) or not read[offset]]
        if missed:
            findings.append(
                f"partition {history.partition}: the group was never given {len(missed)} records, "
                f"the first at offset {missed[0]}"
            )
    return findings


def check_replicas(folders: Sequence[Path]) -> list[str]:
    """Whether all copies have the same batches. Compares headers: the CRC, checked when reading, covers the rest.

    Copies whose start has been deleted may begin at different segments; only what all of them have is compared.
    """
    try:
        start = max(beginning(folder).next_offset for folder in folders)
        readers = [_headers(folder, start) for folder in folders]
        for copies in itertools.zip_longest(*readers):
            if len(set(copies)) != 1:
                where = next(header.base_offset for header in copies if header is not None)
                said = "; ".join(
                    f"{folder.parent.parent.name}: {header}" for folder, header in zip(folders, copies, strict=True)
                )
                return [f"the replicas of {folders[0].name} differ at offset {where}: {said}"]
    except Damaged as damage:
        return [str(damage)]
    return []


def _headers(folder: Path, start: int) -> Iterator[Any]:
    for batch in read_batches(folder, beginning(folder), whole=True):
        if batch.base_offset >= start:
            yield batch.header


def partition_folder(volumes: Sequence[Path], topic: str, partition: int) -> Path:
    """The only folder of this partition on a broker; raises Damaged if there is none, or more than one."""
    found = [volume / f"{topic}-{partition}" for volume in volumes if (volume / f"{topic}-{partition}").is_dir()]
    if len(found) != 1:
        raise Damaged(f"{topic}-{partition} is in {len(found)} directories of {volumes[0].parent.name}")
    return found[0]


def add_findings(check: Callable[[], list[str] | int | None], into: list[str]) -> None:
    """Run one check; damage that it runs into is a finding like any other."""
    try:
        found = check()
        into += found if isinstance(found, list) else []  # a count means that all was well
    except Damaged as damage:
        into.append(str(damage))
