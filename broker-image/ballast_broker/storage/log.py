"""One partition's log in one directory: append, read, look up, truncate.

Guarantees: offsets ascend without overlap; a batch is appended whole or not at all as far as readers see; what a disk
refuses takes the directory offline (`LogDirectoryFailure`) and harms nothing written before. Synchronous; the event
loop's thread only, except `flush` (any thread) and the reading of a `LogSlice` that is held.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from ballast_broker.log_config import LONG_MAX, LogConfig
from ballast_broker.seams import Bytes
from ballast_broker.storage import conversion, truncation
from ballast_broker.storage.batch_header import (
    CONTROL_FLAG,
    HEADER,
    HEADER_SIZE,
    LENGTH_END,
    TRANSACTIONAL_FLAG,
    BatchHeader,
)
from ballast_broker.storage.checkpoint import LEADER_EPOCHS, write_unsynced
from ballast_broker.storage.context import LogContext
from ballast_broker.storage.directories import LogDirectory
from ballast_broker.storage.epochs import LeaderEpochs
from ballast_broker.storage.errors import CorruptFile, LogDirectoryFailure, UnexpectedAppendOffset
from ballast_broker.storage.producers import ProducerStates
from ballast_broker.storage.recovery import rebuild_indexes
from ballast_broker.storage.segment import MAXIMUM_RELATIVE_OFFSET, Folder, Segment
from ballast_broker.storage.slices import AppendInfo, LogSlice
from ballast_broker.storage.validation import CLIENT, check_follower_batch, check_leader_batch, split
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.names import TopicPartition

_KNOWN_POSITIONS = 16
_NEVER = 2**63
_pack_offset_at = __import__("struct").Struct(">q").pack_into
_pack_epoch_at = __import__("struct").Struct(">i").pack_into
