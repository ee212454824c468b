"""Encodes plans for ConfigMaps and back: all moves with from, to, wave and size, compressed. PURE.

What is stored is what runs: an operator that takes over reads it back and checks the hash.
"""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ballast_operator.model.kafka import ConfigId
from ballast_operator.plan.throttled_lists import all_entries
from ballast_planner import Move, Placement, Plan, Unplaced, plan_hash

CHUNK_BYTES = 512 * 1024
# Some two hundred thousand moves. The limit protects the operator's memory from whoever may write ConfigMaps.
MOST_BYTES = 64 * 1024 * 1024
GZIP = 16 + zlib.MAX_WBITS
KEY = "plan.json.gz"
SHOWN_MOVES = 20


class StoredPlanError(ValueError):
    """What is stored is not the plan whose hash the status has, or the plan is too long to store."""


@dataclass(frozen=True)
class StoredPlan:
    """The moves that run, in the order of their waves."""

    hash: str
    moves: tuple[Move, ...]
    unplaced: tuple[Unplaced, ...] = ()

    @property
    def bytes(self) -> int:
        return sum(move.bytes_network + move.bytes_disk for move in self.moves)

    @property
    def waves(self) -> int:
        return len({move.wave for move in self.moves})

    @property
    def topics(self) -> frozenset[str]:
        return frozenset(move.topic for move in self.moves)

    @cached_property
    def throttled_entries(self) -> Mapping[ConfigId, Sequence[str]]:
        """The entries of topics' lists of throttled replicas that may be its own."""
        return all_entries(self.moves)


def keep(plan: Plan) -> StoredPlan:
    ordered = tuple(sorted(plan.moves, key=lambda move: (move.wave, move.topic, move.partition)))
    return StoredPlan(plan_hash(plan), ordered, plan.unplaced)


def encode(plan: StoredPlan) -> list[dict[str, Any]]:
    """The contents of the ConfigMaps that hold the plan; StoredPlanError if it is too long for them."""
    document = {
        "version": 1,
        "moves": [_row(move) for move in plan.moves],
        "unplaced": [[u.topic, u.partition, u.broker, u.reason] for u in plan.unplaced],
    }
    text = json.dumps(document, separators=(",", ":")).encode()
    if len(text) > MOST_BYTES:
        raise StoredPlanError(f"{len(plan.moves)} moves are too many for one plan; divide them among Reassignments")
    packed = gzip.compress(text, compresslevel=6, mtime=0)
    chunks = [packed[start : start + CHUNK_BYTES] for start in range(0, len(packed), CHUNK_BYTES)]
    return [{"binaryData": {KEY: base64.b64encode(chunk).decode()}} for chunk in chunks]


def decode(config_maps: Sequence[Mapping[str, Any]], expected_hash: str) -> StoredPlan:
    """The plan back; raises StoredPlanError unless it is exactly the one with this hash."""
    try:
        packed = b"".join(base64.b64decode(one["binaryData"][KEY]) for one in config_maps)
        document = json.loads(_unpacked(packed))
        moves = tuple(_move(row) for row in document["moves"])
        unplaced = tuple(Unplaced(*row) for row in document["unplaced"])
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError, zlib.error) as error:
        raise StoredPlanError(f"the ConfigMaps cannot be read: {error}") from error
    if plan_hash(moves) != expected_hash:
        raise StoredPlanError(f"the moves have the hash {plan_hash(moves)}, not {expected_hash}")
    return StoredPlan(expected_hash, moves, unplaced)


def _unpacked(packed: bytes) -> bytes:
    unpacking = zlib.decompressobj(GZIP)
    text = unpacking.decompress(packed, MOST_BYTES)
    if not unpacking.eof:
        raise ValueError(f"they end early, or have more than {MOST_BYTES} bytes when they are unpacked")
    return text


def _row(move: Move) -> list[Any]:
    return [
        move.topic,
        move.partition,
        [list(move.from_.replicas), list(move.from_.log_dirs)],
        [list(move.to.replicas), list(move.to.log_dirs)],
        move.wave,
        move.bytes_network,
        move.bytes_disk,
    ]


def _move(row: Sequence[Any]) -> Move:
    topic, partition, before, after, wave, network, disk = row
    return Move(topic, partition, _placement(before), _placement(after), network, disk, wave)


def _placement(row: Sequence[Any]) -> Placement:
    return Placement(tuple(row[0]), tuple(row[1]))


def preview(moves: Sequence[Move]) -> tuple[str, ...]:
    """The first moves as lines for people."""
    lines = [f"{m.topic}-{m.partition}: {_side(m.from_)} -> {_side(m.to)}" for m in moves[:SHOWN_MOVES]]
    if len(moves) > SHOWN_MOVES:
        lines.append(f"and {len(moves) - SHOWN_MOVES} more")
    return tuple(lines)


def _side(placement: Placement) -> str:
    return "[" + ", ".join(f"{b}:{p}" for b, p in zip(placement.replicas, placement.log_dirs, strict=True)) + "]"
