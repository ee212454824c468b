"""Reads and writes Kafka's small text files: offset checkpoints, leader epochs, partition.metadata, properties.

Parsing is pure and strict: `CorruptFile` for anything incomplete or malformed. Writing goes through the disk given.
"""

from __future__ import annotations

import base64
import binascii
import itertools
from collections.abc import Iterable, Mapping
from uuid import UUID

from ballast_broker.seams import Disk
from ballast_broker.storage.errors import CorruptFile
from ballast_wire.names import TopicPartition

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"


def _entries(data: bytes, fields: int) -> list[list[str]]:
    """The common shape: version 0, number of lines, then that many lines of `fields` words."""
    try:
        lines = data.decode("utf-8").splitlines()
        version, count = int(lines[0]), int(lines[1])
    except (UnicodeDecodeError, ValueError, IndexError) as error:
        raise CorruptFile(f"checkpoint header: {error}") from error
    rows = [line.split() for line in lines[2:] if line.strip()]
    if version != 0:
        raise CorruptFile(f"checkpoint version {version}")
    if len(rows) != count or not data.endswith(b"\n"):
        raise CorruptFile(f"checkpoint announces {count} entries and has {len(rows)}")
    if any(len(row) != fields for row in rows):
        raise CorruptFile("checkpoint line of another shape")
    return rows


def _render(lines: list[str]) -> bytes:
    return ("\n".join(["0", str(len(lines)), *lines]) + "\n").encode()


def parse_offsets(data: bytes) -> dict[TopicPartition, int]:
    try:
        return {TopicPartition(topic, int(number)): int(offset) for topic, number, offset in _entries(data, 3)}
    except ValueError as error:
        raise CorruptFile(f"offset checkpoint: {error}") from error


def render_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    return _render([f"{partition.topic} {partition.partition} {offset}" for partition, offset in offsets.items()])


def parse_epochs(data: bytes) -> list[tuple[int, int]]:
    try:
        entries = [(int(epoch), int(offset)) for epoch, offset in _entries(data, 2)]
    except ValueError as error:
        raise CorruptFile(f"epoch checkpoint: {error}") from error
    if any(a[0] >= b[0] or a[1] > b[1] for a, b in itertools.pairwise(entries)):
        raise CorruptFile("epoch checkpoint is not ascending")
    return entries


def render_epochs(entries: Iterable[tuple[int, int]]) -> bytes:
    return _render([f"{epoch} {offset}" for epoch, offset in entries])


def uuid_text(value: UUID) -> str:
    """Kafka writes UUIDs as URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")


def parse_uuid(text: str) -> UUID:
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        return UUID(bytes=raw)
    except (binascii.Error, ValueError) as error:
        raise CorruptFile(f"not a UUID: {text!r}") from error


_PARTITION_METADATA_START = b"version: 0\ntopic_id: "


def parse_partition_metadata(data: bytes) -> UUID:
    if data.startswith(_PARTITION_METADATA_START) and len(data) == len(_PARTITION_METADATA_START) + 22:
        return parse_uuid(data[-22:].decode("latin-1"))
    fields = dict(line.split(": ", 1) for line in data.decode("utf-8", "replace").splitlines() if ": " in line)
    if fields.get("version") != "0" or "topic_id" not in fields:
        raise CorruptFile("partition.metadata is not whole")
    return parse_uuid(fields["topic_id"].strip())


def render_partition_metadata(topic_id: UUID) -> bytes:
    return f"version: 0\ntopic_id: {uuid_text(topic_id)}".encode()


def parse_properties(data: bytes) -> dict[str, str]:
    """The subset of Java's properties that Kafka writes: comments, key=value, backslash before a special character."""
    result = {}
    for line in data.decode("utf-8", "replace").splitlines():
        stripped = line.strip()
        if not stripped or stripped[0] in "#!" or "=" not in stripped:
            continue
        key, value = stripped.split("=", 1)
        result[key.strip()] = value.strip().replace("\\:", ":").replace("\\=", "=").replace("\\\\", "\\")
    return result


def render_properties(values: Mapping[str, str]) -> bytes:
    return "".join(f"{key}={value}\n" for key, value in sorted(values.items())).encode()


def read_offsets(disk: Disk, path: str) -> dict[TopicPartition, int]:
    """Empty for a missing or truncated checkpoint: nothing is known then, and the log files themselves decide."""
    try:
        return parse_offsets(disk.read_bytes(path))
    except (FileNotFoundError, CorruptFile):
        return {}


def write_new_unsynced(disk: Disk, path: str, data: bytes) -> None:
    """Like `write_unsynced`, where there is no complete file that could be lost."""
    file = disk.empty_file(path)
    try:
        file.pwrite(data, 0)
    finally:
        file.close()


def write_unsynced(disk: Disk, path: str, data: bytes) -> None:
    """Replace a file atomically but without fsync, so that the loop does not stall; a later flush makes it durable."""
    sibling = f"{path}.tmp"
    write_new_unsynced(disk, sibling, data)
    disk.rename(sibling, path)
