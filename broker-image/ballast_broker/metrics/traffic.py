"""Counts bytes in and out of each partition on the hot path, for the metrics. Loop thread only."""

from __future__ import annotations

from collections import defaultdict

from ballast_wire.names import TopicPartition


class Traffic:
    __slots__ = ("bytes_in", "bytes_out")

    def __init__(self) -> None:
        self.bytes_in: defaultdict[TopicPartition, int] = defaultdict(int)
        self.bytes_out: defaultdict[TopicPartition, int] = defaultdict(int)

    def forget(self, partition: TopicPartition) -> None:
        self.bytes_in.pop(partition, None)
        self.bytes_out.pop(partition, None)
