"""Draws a cluster as text: brokers and volumes with their fill, leaders, under-replicated partitions, moves. PURE."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from ballast_operator.model.kafka import DirectoryId, DirectoryView, KafkaView, ReplicaId
from ballast_operator.model.quantity import bytes_text, counted
from ballast_operator.resources import names

BAR = 24
EIGHTHS = " ▏▎▍▌▋▊▉█"
SHOWN_MOVES = 12
# Directories whose used bytes differ by less than this share of their size are taken to be on the same disk.
ONE_DISK_SHARE = 0.001


def bar(share: float, width: int = BAR) -> str:
    """A bar with a resolution of an eighth of a character."""
    share = min(1.0, max(0.0, share))
    full, rest = divmod(round(share * width * 8), 8)
    return ("█" * full + (EIGHTHS[rest] if rest else "")).ljust(width, "·")


class _Counts:
    """What each broker and directory has, counted once: a large cluster has half a million replicas."""

    def __init__(self, view: KafkaView) -> None:
        partitions = [part for topic in view.topics.values() for part in topic.partitions.values()]
        self.replicas = Counter(broker for part in partitions for broker in part.replicas)
        self.leaders = Counter(part.leader for part in partitions)
        self.logs: Counter[tuple[int, str | None]] = Counter()
        self.bytes: Counter[tuple[int, str | None]] = Counter()
        for replica, log in view.logs.items():
            self.logs[replica.broker, log.path] += 1
            self.bytes[replica.broker, log.path] += log.size_bytes
            self.bytes[replica.broker, log.future_path] += log.future_size_bytes


def summary(view: KafkaView) -> dict[str, Any]:
    """The content of the picture as one JSON object, for programs."""
    partitions = [part for topic in view.topics.values() for part in topic.partitions.values()]
    counts = _Counts(view)
    return {
        "clusterId": view.cluster_id,
        "controller": view.controller,
        "partitions": len(partitions),
        "underReplicated": sum(len(part.isr) < len(part.replicas) for part in partitions),
        "offline": sum(part.leader < 0 for part in partitions),
        "brokers": [_broker(view, counts, broker) for broker in sorted(view.brokers)],
        "moves": _moves(view),
    }


def _broker(view: KafkaView, counts: _Counts, broker: int) -> dict[str, Any]:
    known = view.brokers[broker]
    return {
        "id": broker,
        "address": names.address(known.host, known.port) if known.host else None,
        "rack": known.rack,
        "online": known.online,
        "replicas": counts.replicas[broker],
        "leaders": counts.leaders[broker],
        "directories": [
            _directory(counts, where, found)
            for where, found in sorted(view.directories.items(), key=lambda row: _by_number(row[0].path))
            if where.broker == broker
        ],
    }


def _by_number(path: str) -> list[str | int]:
    """Sort key that puts disk-2 before disk-10."""
    return [int(piece) if index % 2 else piece for index, piece in enumerate(re.split(r"([0-9]+)", path))]


def _directory(counts: _Counts, where: DirectoryId, found: DirectoryView) -> dict[str, Any]:
    known = found.total_bytes > 0
    return {
        "path": where.path,
        "error": found.error,
        "cordoned": found.cordoned,
        "totalBytes": found.total_bytes if known else None,
        "usedBytes": found.total_bytes - found.usable_bytes if known else None,
        "logBytes": counts.bytes[where],
        "replicas": counts.logs[where],
    }


def _moves(view: KafkaView) -> list[dict[str, Any]]:
    moves = []
    for partition, ongoing in sorted(view.ongoing.items()):
        logs = [view.logs.get(ReplicaId(*partition, broker)) for broker in ongoing.adding]
        sizes = [view.logs.get(ReplicaId(*partition, broker)) for broker in ongoing.replicas]
        total = max((log.size_bytes for log in sizes if log), default=0) * len(ongoing.adding)
        done = sum(log.size_bytes for log in logs if log)
        moves.append(
            {
                "partition": str(partition),
                "to": f"brokers {list(ongoing.target)}",
                "doneBytes": done,
                "totalBytes": total,
            }
        )
    for replica, log in sorted(view.logs.items()):
        if log.future_path is not None:
            moves.append(
                {
                    "partition": str(replica.topic_partition),
                    "to": f"{log.future_path} on broker {replica.broker}",
                    "doneBytes": log.future_size_bytes,
                    "totalBytes": log.size_bytes,
                }
            )
    return moves


def draw(view: KafkaView) -> str:
    """Draw the picture."""
    told = summary(view)
    online = sum(broker["online"] for broker in told["brokers"])
    lines = [
        f"cluster {told['clusterId']}: {online} of {len(told['brokers'])} brokers online, "
        f"controller {told['controller'] if told['controller'] >= 0 else 'unknown'}",
        f"{counted(told['partitions'], 'partition')}, {told['underReplicated']} under-replicated, "
        f"{told['offline']} offline",
    ]
    largest = max((d["logBytes"] for broker in told["brokers"] for d in broker["directories"]), default=0)
    for broker in told["brokers"]:
        state = "" if broker["online"] else "  OFFLINE"
        rack = f"  rack {broker['rack']}" if broker["rack"] else ""
        lines.append("")
        lines.append(
            f"broker {broker['id']}  {broker['address'] or 'away'}{rack}  {counted(broker['replicas'], 'replica')}, "
            f"{counted(broker['leaders'], 'leader')}{state}"
        )
        if broker["online"] and not broker["directories"]:
            lines.append("  directories unknown: the broker did not describe them")
        lines += _directory_lines(broker["directories"], largest)
    if told["moves"]:
        lines += ["", f"moving: {len(told['moves'])}"]
        lines += [_move_line(move) for move in told["moves"][:SHOWN_MOVES]]
    return "\n".join(lines)


def _directory_lines(directories: list[dict[str, Any]], largest: int) -> list[str]:
    names = _short_names([d["path"] for d in directories])
    lines = []
    for directory in directories:
        name = names[directory["path"]].ljust(max(map(len, names.values())))
        if directory["error"]:
            lines.append(f"  {name}  {'FAILED'.center(BAR)}  {directory['error']}")
            continue
        cordoned = "  cordoned" if directory["cordoned"] else ""
        count = f"{counted(directory['replicas'], 'replica')}{cordoned}"
        total, used = directory["totalBytes"], directory["usedBytes"]
        if total is None or (used != directory["logBytes"] and _shares_a_disk(directory, directories)):
            # Directories on one disk all report the disk's fill, so show the size of their logs instead.
            share = directory["logBytes"] / largest if largest else 0.0
            lines.append(f"  {name}  {bar(share)}  {bytes_text(directory['logBytes'])} of logs  {count}")
        else:
            text = f"{100 * used / total:3.0f}%  {bytes_text(used)} of {bytes_text(total)}"
            lines.append(f"  {name}  {bar(used / total)}  {text}  {count}")
    return lines


def _shares_a_disk(directory: dict[str, Any], directories: list[dict[str, Any]]) -> bool:
    """Whether another directory is as large and about as full: they were not measured at the same moment."""
    total, used = directory["totalBytes"], directory["usedBytes"]
    return any(
        other is not directory
        and other["totalBytes"] == total
        and abs(other["usedBytes"] - used) < ONE_DISK_SHARE * total
        for other in directories
    )


def _short_names(paths: list[str]) -> Mapping[str, str]:
    """The first path component that differs, for each path."""
    parts = {path: [one for one in path.split("/") if one] for path in paths}
    if len(paths) < 2:
        return {path: path for path in paths}
    columns = defaultdict(set)
    for pieces in parts.values():
        for index, piece in enumerate(pieces):
            columns[index].add(piece)
    telling = next((index for index, values in sorted(columns.items()) if len(values) > 1), None)
    if telling is None or any(len(pieces) <= telling for pieces in parts.values()):
        return {path: path for path in paths}
    return {path: pieces[telling] for path, pieces in parts.items()}


def _move_line(move: Mapping[str, Any]) -> str:
    share = move["doneBytes"] / move["totalBytes"] if move["totalBytes"] else 0.0
    amounts = f"{bytes_text(move['doneBytes'])} of {bytes_text(move['totalBytes'])}"
    return f"  {move['partition']} -> {move['to']}  {bar(share, 12)} {amounts}"
