"""Implements Kafka's four compression codecs with cramjam. Decompression is bounded: the bytes come from clients."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any

import cramjam

MAX_DECOMPRESSED_BYTES = 256 * 1024 * 1024
FIRST_GUESS_RATIO = 4
XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_VERSIONS = struct.pack(">ii", 1, 1)
XERIAL_HEADER_BYTES = 16
XERIAL_BLOCK_BYTES = 32 * 1024
# Magic, descriptor (independent blocks of at most 64 KiB, no checksums), and the descriptor's checksum. Kafka's Java
# clients refuse frames with dependent blocks, which the library's own framing produces by default.
LZ4_FRAME_START = bytes.fromhex("04224d18604082")
LZ4_BLOCK_BYTES = 64 * 1024
LZ4_STORED_FLAG = 1 << 31
LZ4_END = bytes(4)
GZIP_DEFAULT = -1  # Kafka's notation for zlib's default level
LZ4_DEFAULT = 9  # stands for the fast compressor; other levels use the level-based one


class Codec(IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class CompressionError(ValueError):
    """The compressed bytes are corrupt."""


class TooLarge(CompressionError):
    """The decompressed data would exceed the limit."""


def decompress(codec: int, data: bytes | bytearray | memoryview, *, limit: int = MAX_DECOMPRESSED_BYTES) -> bytes:
    raw = bytes(data)
    try:
        if codec == Codec.NONE:
            return raw
        if codec == Codec.SNAPPY:
            return _unsnap(raw, limit)
        module = {Codec.GZIP: cramjam.gzip, Codec.LZ4: cramjam.lz4, Codec.ZSTD: cramjam.zstd}[Codec(codec)]
        return _into_growing(module, raw, limit)
    except TooLarge:
        raise
    except (cramjam.DecompressionError, ValueError, struct.error) as error:
        raise CompressionError(f"codec {codec}: {error}") from error


def _into_growing(module: Any, raw: bytes, limit: int) -> bytes:
    """Decompress into a buffer that doubles up to the limit: a small input that claims to be huge gets no memory."""
    size = max(4096, len(raw) * FIRST_GUESS_RATIO)
    while True:
        size = min(size, limit)
        out = bytearray(size)
        try:
            written = module.decompress_into(raw, out)
        except cramjam.DecompressionError as error:
            if "whole buffer" not in str(error):
                raise
            if size == limit:
                raise TooLarge(f"it has more than {limit} bytes when it is unpacked") from error
            size *= 2
            continue
        return bytes(memoryview(out)[:written])


def _unsnap(raw: bytes, limit: int) -> bytes:
    """Snappy in the Java clients' framing (xerial: blocks with a length each), or one raw block."""
    if not raw.startswith(XERIAL_MAGIC):
        return _unsnap_block(raw, limit)
    parts, position, left = [], XERIAL_HEADER_BYTES, limit
    while position < len(raw):
        (size,) = struct.unpack_from(">i", raw, position)
        position += 4
        if size < 0 or position + size > len(raw):
            raise CompressionError("a snappy block reaches past its end")
        parts.append(_unsnap_block(raw[position : position + size], left))
        left -= len(parts[-1])
        position += size
    return b"".join(parts)


def _unsnap_block(raw: bytes, limit: int) -> bytes:
    if int(cramjam.snappy.decompress_raw_len(raw)) > limit:
        raise TooLarge("a snappy block is larger than the bound")
    return bytes(cramjam.snappy.decompress_raw(raw))


def compress(codec: int, data: bytes | bytearray | memoryview, level: int | None = None) -> bytes:
    """Compress with one of Kafka's levels; None is the codec's default."""
    raw = bytes(data)
    if codec == Codec.NONE:
        return raw
    if codec == Codec.GZIP:
        return bytes(cramjam.gzip.compress(raw, None if level == GZIP_DEFAULT else level))
    if codec == Codec.SNAPPY:
        return _snap(raw)
    if codec == Codec.LZ4:
        return _frame_lz4(raw) if level in (None, LZ4_DEFAULT) else _frame_lz4_by_level(raw, level)
    return bytes(cramjam.zstd.compress(raw, level))


def _frame_lz4(raw: bytes) -> bytes:
    parts = [LZ4_FRAME_START]
    for position in range(0, len(raw), LZ4_BLOCK_BYTES):
        plain = raw[position : position + LZ4_BLOCK_BYTES]
        block = bytes(cramjam.lz4.compress_block(plain, store_size=False))
        if len(block) < len(plain):
            parts += [struct.pack("<I", len(block)), block]
        else:
            parts += [struct.pack("<I", len(plain) | LZ4_STORED_FLAG), plain]
    return b"".join([*parts, LZ4_END])


def _frame_lz4_by_level(raw: bytes, level: int) -> bytes:
    compressor = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
    compressor.compress(raw)
    return bytes(compressor.finish())


def _snap(raw: bytes) -> bytes:
    parts = [XERIAL_MAGIC, XERIAL_VERSIONS]
    for position in range(0, len(raw), XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(raw[position : position + XERIAL_BLOCK_BYTES]))
        parts += [struct.pack(">i", len(block)), block]
    return b"".join(parts)
