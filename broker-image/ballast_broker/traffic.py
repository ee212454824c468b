"""Bytes that went in and out of each partition: counted on the hot path, read by the metrics. Loop thread only."""

from __future__ import annotations

from ballast_wire.names import TopicPartition


class Traffic:
    __slots__ = ("bytes_in", "bytes_out")

    def __init__(self) -> None:
        self.bytes_in: dict[TopicPartition, int] = {}
        self.bytes_out: dict[TopicPartition, int] = {}

    def produced(self, partition: TopicPartition, size_bytes: int) -> None:
        self.bytes_in[partition] = self.bytes_in.get(partition, 0) + size_bytes

    def fetched(self, partition: TopicPartition, size_bytes: int) -> None:
        self.bytes_out[partition] = self.bytes_out.get(partition, 0) + size_bytes

    def forget(self, partition: TopicPartition) -> None:
        self.bytes_in.pop(partition, None)
        self.bytes_out.pop(partition, None)
