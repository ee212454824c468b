"""Checks a partition's files with Apache Kafka's dump-log: it must find valid batches that cover every byte."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

JARS_VARIABLE = "BALLAST_KAFKA_JARS"
BATCH = re.compile(
    r"baseOffset: (\d+) lastOffset: (\d+) .* position: (\d+) .* size: (\d+) magic: 2 .* isvalid: (true|false)"
)
DUMPING = "Dumping "


def jars() -> Path | None:
    named = os.environ.get(JARS_VARIABLE)
    return Path(named) if named else None


def check_partition(kafka: Path, folder: Path) -> list[str]:
    """The first fault found, or none: batches must follow each other from the first byte to the last."""
    expected_offset: int | None = None
    position, current = 0, None
    for line in _dumped(kafka, sorted(folder.glob("*.log"))):
        if line.startswith(DUMPING):
            if current is not None and (found := _cut_off(current, position)):
                return found
            current, position = Path(line.removeprefix(DUMPING).strip()), 0
            expected_offset = int(current.stem) if expected_offset is None else expected_offset
        elif (batch := BATCH.match(line)) is not None:
            base, last, at, size = map(int, batch.groups()[:4])
            if (base, at, batch[5]) != (expected_offset, position, "true"):
                due = f"offset {expected_offset} at {position} is due"
                return [f"dump-log of {current}: {due}; it prints {line.strip()}"]
            expected_offset, position = last + 1, at + size
    if current is None:
        return [f"dump-log found no log in {folder}"]
    return _cut_off(current, position)


def _cut_off(log: Path, end: int) -> list[str]:
    size = log.stat().st_size
    return [] if size == end else [f"dump-log of {log}: batches end at {end}, the file at {size}"]


def _dumped(kafka: Path, logs: list[Path]) -> Iterator[str]:
    command = ["java", "-cp", f"{kafka}/*", "kafka.tools.DumpLogSegments", "--files", ",".join(map(str, logs))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        assert running.stdout is not None
        try:
            yield from running.stdout
        finally:
            running.kill()
