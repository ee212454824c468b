"""Loads everything in one directory: the checkpoints, then every partition folder, in a few threads.

The threads build logs that nobody else has yet; the manager takes them over on the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

from ballast_broker.config.logs import LogConfig
from ballast_broker.seams import Threads
from ballast_broker.storage import checkpoint
from ballast_broker.storage.context import LogContext
from ballast_broker.storage.directories import (
    DELETE_SUFFIX,
    FUTURE_SUFFIX,
    METADATA_TOPIC,
    STRAY_SUFFIX,
    FolderName,
    LogDirectory,
    parse_folder_name,
)
from ballast_broker.storage.loading import create_log, load_log
from ballast_broker.storage.log import Log
from ballast_broker.storage.outdated_checkpoints import effective_offsets
from ballast_wire.names import TopicPartition

METADATA_TOPIC_ID = UUID(int=1)
METADATA_PARTITION = TopicPartition(METADATA_TOPIC, 0)
SLICE = 64  # folders loaded by one call in a thread
WAITS_OF_SLOW_DISK = SLICE // 4  # cached files are read without waiting


@dataclass(slots=True)
class Found:
    """What was found in a directory."""

    logs: list[Log] = field(default_factory=list)
    futures: list[Log] = field(default_factory=list)
    strays: list[tuple[str, TopicPartition]] = field(default_factory=list)
    deleted: list[tuple[str, TopicPartition]] = field(default_factory=list)


@contextmanager
def _naming(folder: str) -> Iterator[None]:
    """Add the folder's name to an OSError: few system calls include one."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = folder
        raise


async def load_directory(
    context: LogContext,
    directory: LogDirectory,
    threads: Threads,
    thread_count: int,
    config_of: Callable[[str], LogConfig],
    turn: asyncio.Lock,
) -> Found:
    """OSError if the directory cannot be read. Directories whose files are cached take turns, slice by slice: threads
    that pass the GIL around at every system call need three times the CPU. One that waits for its disk runs
    concurrently with the others."""
    disk, path = context.disk, directory.path
    clean = await threads.run(directory.read_clean_shutdown_mark)
    await threads.run(directory.remove_clean_shutdown_mark)
    await threads.run(lambda: directory.checkpoints.load(disk, path))
    found = Found()
    folders = []
    for name in await threads.run(lambda: disk.list(path)):
        parsed = parse_folder_name(name)
        if parsed is None or parsed.topic_partition.topic == METADATA_TOPIC:
            continue
        if parsed.suffix == DELETE_SUFFIX:
            found.deleted.append((f"{path}/{name}", parsed.topic_partition))
        elif parsed.suffix == STRAY_SUFFIX:
            found.strays.append((f"{path}/{name}", parsed.topic_partition))
        else:
            folders.append((name, parsed))

    def load(slice_: list[tuple[str, FolderName]]) -> tuple[list[tuple[FolderName, Log]], bool]:
        waits = disk.waits()
        logs = []
        for name, parsed in slice_:
            if directory.given_up:  # nobody would use the logs
                break
            with suppress(NotADirectoryError), _naming(f"{path}/{name}"):  # a foreign file
                logs.append((parsed, _load(context, directory, f"{path}/{name}", parsed, clean, config_of)))
        return logs, disk.waits() - waits >= WAITS_OF_SLOW_DISK

    def take(loaded: list[tuple[FolderName, Log]]) -> None:
        for parsed, log in loaded:
            (found.futures if parsed.suffix == FUTURE_SUFFIX else found.logs).append(log)

    if not clean:  # several threads: there is much to read and check
        shares = [folders[number::thread_count] for number in range(thread_count)]
        for loaded, _ in await asyncio.gather(*(threads.run(partial(load, share)) for share in shares)):
            take(loaded)
        return found
    slow = False
    for start in range(0, len(folders), SLICE):
        work = partial(load, folders[start : start + SLICE])
        async with nullcontext() if slow else turn:
            loaded, slow = await threads.run(work)
        take(loaded)
    return found


def _load(
    context: LogContext,
    directory: LogDirectory,
    path: str,
    parsed: FolderName,
    clean: bool,
    config_of: Callable[[str], LogConfig],
) -> Log:
    """Of a future log only the start offset is checkpointed. After a clean shutdown, which closes future logs too and
    writes all checkpoints, every checkpoint speaks of the present logs, so no marks are needed."""
    partition, future = parsed.topic_partition, parsed.suffix == FUTURE_SUFFIX
    said = effective_offsets([] if clean else context.disk.list(path), directory.checkpoints, partition)
    log = load_log(
        context,
        directory,
        path,
        partition,
        config_of(partition.topic),
        clean=clean,
        recovery_point=0 if future else said[checkpoint.RECOVERY_POINTS],
        start_offset=said[checkpoint.LOG_START_OFFSETS],
        cleaned_to=0 if future else said[checkpoint.CLEANER_OFFSETS],
    )
    if not future:
        log.update_high_watermark(said[checkpoint.HIGH_WATERMARKS])
        cleaned_to = said[checkpoint.CLEANER_OFFSETS]
        log.cleaned_to = cleaned_to if cleaned_to <= log.end_offset else 0
    return log


async def load_metadata_log(
    context: LogContext, directory: LogDirectory, threads: Threads, config: LogConfig, no_copy_below: int
) -> Log:
    """Load or create `__cluster_metadata-0`, which `load_directory` skips."""
    disk, partition = context.disk, METADATA_PARTITION
    folder = f"{directory.path}/{partition}"
    if not disk.exists(folder):
        return create_log(context, directory, folder, partition, METADATA_TOPIC_ID, config)
    clean = directory.was_clean
    said = effective_offsets([] if clean else disk.list(folder), directory.checkpoints, partition)
    return await threads.run(
        lambda: load_log(
            context, directory, folder, partition, config, clean=clean,
            recovery_point=said[checkpoint.RECOVERY_POINTS], no_copy_below=no_copy_below,
        )
    )  # fmt: skip
