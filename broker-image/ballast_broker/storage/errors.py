"""Defines the exceptions of storage: disk failures, corrupt files, refused directories.

Those that a client may see are `ApiError`s and carry an error code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ballast_broker.handles import NothingOpened
from ballast_wire.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from ballast_broker.storage.directories import LogDirectory


class LogDirectoryFailure(ApiError):
    """A read or write failed with an OSError; `directory` is offline from now on, except for `OutOfHandles`."""

    def __init__(self, directory: LogDirectory, cause: BaseException | None = None) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, f"Log directory {directory.path} is offline: {cause}")
        self.directory = directory


class OutOfHandles(LogDirectoryFailure, NothingOpened):
    """No file descriptor was free. The disk is not to blame: the caller may retry, as clients do."""

    def __init__(self, directory: LogDirectory, cause: BaseException) -> None:
        super().__init__(directory, cause)
        self.message = f"Nothing more can be opened in {directory.path}: {cause}"


class DirectoryStalls(Exception):
    """Nothing was appended yet: use a thread (`slow_append`), so that the loop does not wait."""


class UnexpectedAppendOffset(ApiError):
    """A follower was given batches that do not continue its log."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.UNKNOWN_SERVER_ERROR, message)


class InvalidRecords(ApiError):
    """Some records of a batch are invalid; the client is told which (ProduceResponse.record_errors)."""

    def __init__(self, code: ErrorCode, message: str, record_errors: list[tuple[int, str]]) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


class CorruptFile(Exception):
    """A checkpoint, index or snapshot does not follow its format; its reader decides how to go on without it."""


class OlderFormat(OSError):
    """The log has batches of an old format. Recovery must not truncate them as if a crash had torn them: the directory
    stays as it is, offline."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} has messages in a format from before Kafka 0.11, which Ballast does not read. "
            "Start Apache Kafka on this directory, copy the topic to a new one and delete it."
        )


class DirectoryRefused(Exception):
    """A log directory cannot be used: another process has it, or it belongs to another cluster or broker."""
