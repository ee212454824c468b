"""Holds what was measured of a cluster, from any source, and checks whether it is enough to plan from.

`check` refuses with a reason rather than let a hole look like free space (REB-08). Driver only; no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ballast_planner import Broker, ClusterLoad, Directory, LoadError, Plan, ReplicaColumns, brokers_with_one_volume
from ballast_rebalance.forecast import predict_sizes

REPLICA_COLUMNS = (
    "topic", "partition", "broker", "log_dir", "size", "leader", "position",
    "bytes_in", "bytes_out", "growth", "peak", "rise",
)  # fmt: skip

EMPTY = "there are no replicas yet: nothing is to be levelled"
# If each directory of a broker has this share of all its replicas' bytes in use, they surely are on one volume.
HELD_TOGETHER = 0.9
# If replicas take less than this share of a volume, a plan cannot be far wrong about it.
NOTABLE_SHARE = 0.01


class Refusal(Exception):
    """No plan is made; `reason` is a CamelCase word for conditions and metrics, the text is for people."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Measured:
    """`replicas` has REPLICA_COLUMNS; `growth`, and where sizes fell `peak` and its `rise`, are the partition's.
    `lacks` says in sentences what is unknown; `all_known`: the brokers themselves have listed the replicas."""

    at_s: float
    brokers: Sequence[Broker]
    directories: Sequence[Directory]
    replicas: pd.DataFrame
    order_known: bool
    lacks: Sequence[str] = field(default_factory=tuple)
    all_known: bool = False

    def load(self, horizon_s: float = 0.0) -> ClusterLoad:
        """The load model, with sizes forecast for the horizon."""
        frame = self.replicas
        now = frame["size"].to_numpy(np.float64)
        whole: NDArray[np.int64] = np.rint(now + self._changes(horizon_s) if horizon_s > 0 else now).astype(np.int64)
        names = {(row.broker, row.path): index for index, row in enumerate(self.directories)}
        keys = zip(frame["broker"].tolist(), frame["log_dir"].tolist(), strict=True)
        directory = np.array([-1 if path is None else names[broker, path] for broker, path in keys], dtype=np.int64)
        topics, topic = np.unique(frame["topic"].to_numpy(str), return_inverse=True)
        growth = np.zeros(len(self.directories), dtype=np.int64)
        np.add.at(growth, directory[directory >= 0], (whole - now.astype(np.int64))[directory >= 0])
        columns = ReplicaColumns(
            topic=topic.astype(np.int64),
            partition=frame["partition"].to_numpy(np.int64),
            broker=frame["broker"].to_numpy(np.int64),
            directory=directory,
            size=whole,
            leader=frame["leader"].to_numpy(np.bool_),
            position=frame["position"].to_numpy(np.int64),
            bytes_in=np.nan_to_num(_floats(frame, "bytes_in")),
            bytes_out=np.nan_to_num(_floats(frame, "bytes_out")),
        )
        grown = [
            row._replace(used_bytes=max(0, row.used_bytes + int(more)))
            for row, more in zip(self.directories, growth, strict=True)
        ]
        try:
            return ClusterLoad.from_columns(self.brokers, grown, [str(name) for name in topics], columns)
        except LoadError as error:
            raise Refusal("MetricsInconsistent", str(error)) from error

    def _changes(self, horizon_s: float) -> NDArray[np.float64]:
        """By how much each replica grows: all of a partition by the same amount, since they get the same writes."""
        frame = self.replicas
        largest = frame.groupby(["topic", "partition"])["size"].transform("max").to_numpy(np.float64)
        growth, peak, rise = (_floats(frame, name) for name in ("growth", "peak", "rise"))
        ahead = predict_sizes(largest, growth, peak, rise, horizon_s)
        changes: NDArray[np.float64] = np.maximum(ahead - largest, -_floats(frame, "size"))
        return changes


def with_capacity(measured: Measured, capacity_bytes: int) -> Measured:
    """The same cluster, as if each directory were a disk of that size with nothing but its replicas on it.

    For directories that share a volume: the volume's fill says nothing about each of them.
    """
    sums = measured.replicas.groupby(["broker", "log_dir"])["size"].sum()
    directories = [
        row._replace(total_bytes=capacity_bytes, used_bytes=int(sums.get((row.broker, row.path), 0)))
        for row in measured.directories
    ]
    return replace(measured, directories=directories)


def with_weights(measured: Measured, weights: Mapping[str, int], cluster: str) -> Measured:
    """The same cluster, as if the directories of these volumes had only that percentage of their capacity.

    A directory is on a volume that is a component of its path, by its name alone or (where pods have no mounts of their
    own) with the name of the broker's pod appended. Where the operator mounts them, `data` is below the volume;
    anything may be above it, so a match at the end of paths goes before one further up. A volume without directories is
    a Refusal: it is a typo.
    """
    places = [row.path.removesuffix("/data").split("/") for row in measured.directories]
    chosen: dict[int, str] = {}
    for volume in weights:
        lies = [{volume, f"{volume}-{cluster}-{row.broker}"} for row in measured.directories]
        at_the_end = [index for index, parts in enumerate(places) if parts[-1] in lies[index]]
        found = at_the_end or [index for index, parts in enumerate(places) if lies[index].intersection(parts)]
        if not found:
            raise Refusal(
                "CapacityUnknown", f"no directory lies on volume {volume}, which has a weight: is that its name?"
            )
        for index in found:
            chosen.setdefault(index, volume)
    directories = [
        row.weighted(weights[chosen[index]]) if index in chosen else row
        for index, row in enumerate(measured.directories)
    ]
    return replace(measured, directories=directories)


def shared_volumes(measured: Measured) -> list[str]:
    """A note for each broker whose directories look like one volume."""
    return [
        f"directories of broker {broker} seem to share a volume: --capacity levels by their bytes"
        for broker in brokers_with_one_volume(measured.directories)
    ]


def unkept_racks(measured: Measured) -> list[str]:
    """A note if a live broker has no rack but others have one: plans ignore racks then."""
    alive = [broker for broker in measured.brokers if broker.alive]
    without = [str(broker.id) for broker in alive if broker.rack is None]
    if not without or len(without) == len(alive):
        return []
    return [f"racks are not kept to: of broker {', '.join(without)} none is known"]


def require_volumes(measured: Measured, plan: Plan) -> None:
    """Raises Refusal for a plan that moves bytes to or from a broker whose directories surely are on one volume.

    Each would be taken for as full as all of them, so a multiple of the excess would leave, and then come back.
    """
    touched = {broker for move in plan.moves for broker in {*move.from_.replicas} ^ {*move.to.replicas}}
    held = measured.replicas.groupby("broker")["size"].sum()
    for broker in brokers_with_one_volume(measured.directories):
        volume = next(row for row in measured.directories if row.broker == broker and row.online)
        bytes_held = int(held.get(broker, 0))
        together = volume.used_bytes >= HELD_TOGETHER * bytes_held
        if broker in touched and together and bytes_held >= NOTABLE_SHARE * volume.total_bytes:
            raise Refusal(
                "CapacityUnknown",
                f"the directories of broker {broker} lie on one volume, whose level says nothing about each of them: "
                "say with --capacity BYTES, or directoryCapacity, what each may hold",
            )


def check(measured: Measured) -> None:
    """Raises Refusal if something is missing that a cluster must have."""
    frame = measured.replicas
    if not measured.directories:
        raise Refusal("MetricsMissing", "there are no log directories in the metrics: are the brokers scraped?")
    if frame.empty:
        raise Refusal("MetricsMissing", "there are no replicas in the metrics: are they switched off on the brokers?")
    known = {(row.broker, row.path) for row in measured.directories}
    placed = frame[frame["log_dir"].notna()]
    for broker, path in placed[["broker", "log_dir"]].drop_duplicates().itertuples(index=False):
        if (broker, path) not in known:
            raise Refusal(
                "MetricsPartial",
                f"the capacity of {path} on broker {broker} is not in the metrics, but replicas there are: "
                "does a rule of the scrape drop it?",
            )
    _check_partitions(frame, measured.all_known)
    if measured.order_known:
        _check_positions(frame)


def _check_positions(frame: pd.DataFrame) -> None:
    """Raises Refusal for a gap in an assignment: a replica is not in the metrics, even if no partition of the topic has
    more, and a plan without it would drop it."""
    places = frame.groupby(["topic", "partition"], sort=True)["position"].agg(["size", "nunique", "max"])
    holes = places[(places["nunique"] != places["size"]) | (places["max"] + 1 != places["size"])]
    if not holes.empty:
        raise Refusal(
            "MetricsPartial",
            f"replicas of {counted(len(holes), 'partition')} are not in the metrics, first {_name(holes.index[0])}: "
            "a broker is not scraped, or they are being reassigned",
        )


def _check_partitions(frame: pd.DataFrame, all_known: bool) -> None:
    counts = frame.groupby(["topic", "partition"], sort=True).agg(
        replicas=("broker", "size"), leaders=("leader", "sum"), different=("broker", "nunique")
    )
    twice = counts[counts["different"] != counts["replicas"]]
    if not twice.empty:
        raise Refusal(
            "MetricsPartial",
            f"{_name(twice.index[0])} is in two directories of one broker: it is moving; ask again after that",
        )
    several = counts[counts["leaders"] > 1]
    if not several.empty:
        raise Refusal(
            "MetricsPartial",
            f"{_name(several.index[0])} has two leaders in the metrics: it has just got another; ask again in a minute",
        )
    usual = counts.groupby(level="topic")["replicas"].transform("max")
    fewer = counts[counts["replicas"] < usual]
    if not fewer.empty and not all_known:
        raise Refusal(
            "MetricsPartial",
            f"fewer replicas of {counted(len(fewer), 'partition')} are in the metrics than of others of the topic, "
            f"first {_name(fewer.index[0])}: a broker is not scraped, or they are being reassigned; where they are to "
            "have fewer, --bootstrap says so",
        )
    numbers = counts.reset_index().groupby("topic")["partition"].agg(["max", "size"])
    gaps = numbers[numbers["max"] + 1 != numbers["size"]]
    if not gaps.empty:
        topic = gaps.index[0]
        missing = int(gaps.iloc[0]["max"] + 1 - gaps.iloc[0]["size"])
        raise Refusal(
            "MetricsPartial",
            f"{counted(missing, 'partition')} of {topic} cannot be found in the metrics: is a broker not scraped?",
        )


def counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _name(index: Any) -> str:
    topic, partition = index
    return f"{topic}-{partition}"


def _floats(frame: pd.DataFrame, column: str) -> NDArray[np.float64]:
    values: NDArray[np.float64] = frame[column].to_numpy(np.float64)
    return values
