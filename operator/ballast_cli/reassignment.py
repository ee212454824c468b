"""The model behind `./ballast reassign`: plans (Kafka's reassignment JSON), a cluster's replicas, and progress.

`Cluster` talks to brokers through kafka-python's admin client; everything else here is computed from its snapshots.
"""

from __future__ import annotations

import json
import posixpath
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ballast_cli import CommandError
from ballast_operator.model.quantity import counted
from ballast_operator.reachability import why_unreachable

ANY = "any"
CLIENT_ID = "ballast-reassign"
ALTER_LOG_DIRS_EVERY_S = 0.1
INTER_BROKER_RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
LOG_DIRS_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
THROTTLED_REPLICAS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
# Transient errors of AlterReplicaLogDirs: the replica is just being created, or its directory is coming back.
TRANSIENT = ("ReplicaNotAvailableError", "NotLeaderForPartitionError", "UnknownTopicOrPartitionError")


class Key(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True)
class Target:
    replicas: tuple[int, ...]
    log_dirs: tuple[str, ...]

    def directories(self) -> dict[int, str]:
        """The explicitly named directories, by broker."""
        return {broker: path for broker, path in zip(self.replicas, self.log_dirs, strict=True) if path != ANY}


Plan = dict[Key, Target]


def read_plan(text: str) -> Plan:
    """Parse Kafka's format, version 1 (DIR-10)."""
    try:
        document = json.loads(text)
        if not isinstance(document, dict):
            raise ValueError("it is not an object with partitions")
        rows = _list(document, "partitions")
        if document.get("version", 1) != 1:
            raise CommandError(f"the plan has version {document['version']}; only 1 is known")
        plan = {Key(str(row["topic"]), _number(row["partition"])): _target(row) for row in rows}
    except KeyError as error:
        raise CommandError(f"the plan is not Kafka's reassignment JSON: {error} is missing") from error
    except (ValueError, TypeError) as error:
        raise CommandError(f"the plan is not Kafka's reassignment JSON: {error}") from error
    if len(plan) != len(rows):
        raise CommandError("the plan names a partition twice")
    return plan


def _target(row: Mapping[str, Any]) -> Target:
    name = f"{row['topic']}-{row['partition']}"
    replicas = tuple(map(_number, _list(row, "replicas")))
    paths = tuple(map(str, _list(row, "log_dirs") if row.get("log_dirs") else [ANY] * len(replicas)))
    if not replicas or len(set(replicas)) != len(replicas):
        raise CommandError(f"{name}: the replica list {list(replicas)} is empty or names a broker twice")
    if len(paths) != len(replicas):
        raise CommandError(f"{name}: {counted(len(replicas), 'replica')} but {counted(len(paths), 'log_dir')}")
    for path in paths:
        if path != ANY and not path.startswith("/"):
            raise CommandError(f"{name}: log_dirs has '{path}', which is neither an absolute path nor 'any'")
    # Normalized as brokers do: progress is determined by comparing with the paths that they report.
    return Target(replicas, tuple(path if path == ANY else posixpath.normpath(path) for path in paths))


def _list(row: Mapping[str, Any], name: str) -> list[Any]:
    found = row[name]
    if not isinstance(found, list):
        raise ValueError(f"{name} is not a list: {found!r}")
    return found


def _number(found: object) -> int:
    """A broker or partition number, which must be an integer."""
    if type(found) is not int:
        raise ValueError(f"{found!r} is not an integer")
    return found


def write_plan(plan: Plan) -> str:
    rows = [
        {"topic": key.topic, "partition": key.partition, "replicas": target.replicas, "log_dirs": target.log_dirs}
        for key, target in sorted(plan.items())
    ]
    return json.dumps({"version": 1, "partitions": rows})


@dataclass(frozen=True)
class Place:
    """One replica on one broker."""

    path: str
    size_bytes: int
    offset_lag: int


@dataclass(frozen=True)
class Directory:
    broker: int
    path: str
    total_bytes: int
    usable_bytes: int
    online: bool
    cordoned: bool = False


@dataclass(frozen=True)
class Snapshot:
    """The cluster as observed at one time."""

    taken_s: float
    brokers: tuple[tuple[int, str | None], ...]  # (id, rack) of those that are online
    replicas: dict[Key, tuple[int, ...]]
    leaders: dict[Key, int]
    in_sync: dict[Key, frozenset[int]]
    current: dict[tuple[Key, int], Place]
    future: dict[tuple[Key, int], Place]
    directories: tuple[Directory, ...]
    reassigning: frozenset[Key]
    away: tuple[tuple[int, str | None], ...] = ()  # (id, rack) of those that are not
    adding: Mapping[Key, tuple[int, ...]] = field(default_factory=dict)  # of partitions being reassigned

    def directory(self, broker: int, path: str) -> Directory | None:
        return next((each for each in self.directories if (each.broker, each.path) == (broker, path)), None)

    def present(self, keys: Iterable[Key]) -> Plan:
        """The current placement of these partitions, as the plan that restores it."""
        plan = {}
        for key in keys:
            replicas = self.replicas.get(key)
            if replicas is None:
                raise CommandError(f"{key} does not exist")
            places = (self.current.get((key, broker)) for broker in replicas)
            plan[key] = Target(replicas, tuple(ANY if place is None else place.path for place in places))
        return plan


@dataclass(frozen=True)
class State:
    """The progress of one partition of a plan. `left_bytes` is an estimate of what still has to be copied."""

    key: Key
    text: str
    done: bool
    failed: bool
    left_bytes: int
    lacks_room: bool = False


def progress(plan: Plan, seen: Snapshot) -> list[State]:
    return [_state(key, target, seen) for key, target in sorted(plan.items())]


def _state(key: Key, target: Target, seen: Snapshot) -> State:
    replicas = seen.replicas.get(key)
    if replicas is None:
        return State(key, "does not exist", done=True, failed=True, left_bytes=0)
    if key in seen.reassigning:
        size = max(_held(seen.current.get((key, broker))) for broker in replicas)
        behind = [broker for broker in target.replicas if broker not in seen.in_sync[key]]
        left = sum(max(0, size - _held(seen.current.get((key, broker)))) for broker in behind)
        return State(key, f"replicas {list(behind)} are catching up", done=False, failed=False, left_bytes=left)
    if replicas != target.replicas:
        text = f"is on {list(replicas)} and not being moved to {list(target.replicas)}"
        return State(key, text, done=True, failed=True, left_bytes=0)
    return _directory_state(key, target, seen)


def _lacks_room(seen: Snapshot, broker: int, path: str, missing: int) -> str:
    """A note that the destination lacks room, or an empty string.

    Brokers pause a move before its destination is full, but report this only in their logs and metrics.
    """
    there = seen.directory(broker, path)
    if there is None or there.usable_bytes < 0:
        return ""
    kept_free = min(max(1 << 30, there.total_bytes // 50), there.total_bytes // 10)  # the brokers' default
    if not missing or there.usable_bytes - missing >= kept_free:
        return ""
    return f", which has {size_text(there.usable_bytes)} free for the remaining {size_text(missing)}"


def size_text(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def _held(place: Place | None) -> int:
    return 0 if place is None else place.size_bytes


def _directory_state(key: Key, target: Target, seen: Snapshot) -> State:
    moving: list[str] = []
    wrong: list[str] = []
    left = waiting = 0
    away = {broker for broker, _ in seen.away}
    for broker, path in target.directories().items():
        if broker in away:
            moving.append(f"on broker {broker}, which is offline: cannot tell whether it is in {path}")
            continue
        current, future = seen.current.get((key, broker)), seen.future.get((key, broker))
        if current is not None and current.path == path and future is None:
            continue
        if future is not None and future.path == path:
            missing = max(0, _held(current) - future.size_bytes)
            lacks_room = _lacks_room(seen, broker, path, missing)
            moving.append(f"on broker {broker} to {path}{lacks_room}")
            waiting += bool(lacks_room)
            left += missing
        else:
            where = "nowhere" if current is None else current.path
            wrong.append(f"on broker {broker} is in {where} and not being moved to {path}")
    if moving:
        return State(key, "; ".join(moving), done=False, failed=False, left_bytes=left, lacks_room=waiting > 0)
    if wrong:
        return State(key, "; ".join(wrong), done=True, failed=True, left_bytes=0)
    return State(key, "complete", done=True, failed=False, left_bytes=0)


class Cluster:
    """A client for any Kafka cluster, through the admin protocol."""

    def __init__(self, bootstrap: str, options: Mapping[str, Any] | None = None) -> None:
        """`options` are passed to kafka-python."""
        from kafka.errors import KafkaError, KafkaTimeoutError

        from ballast_operator.kafka_client import BOOTSTRAP_TIMEOUT_MS, Admin

        how: dict[str, Any] = {"client_id": CLIENT_ID, "bootstrap_timeout_ms": BOOTSTRAP_TIMEOUT_MS}
        how |= options or {}
        try:
            self._admin: Any = Admin(bootstrap_servers=bootstrap.split(","), **how)
        except KafkaTimeoutError as error:
            shown = "whom --command-config names" if "sasl_mechanism" in how else None
            why = why_unreachable(bootstrap, how.get("ssl_context"), shown)
            raise CommandError(f"cannot connect to {bootstrap}: {why}") from error
        except (KafkaError, OSError, ValueError) as error:
            raise CommandError(f"cannot connect to {bootstrap}: {error}") from error

    def close(self) -> None:
        self._admin.close()

    # -- seeing -------------------------------------------------------------------------------------------------------
    def look(self) -> Snapshot:
        """Take a snapshot.

        Ongoing reassignments are listed first: one that completes meanwhile is then seen at its destination, and not
        as one that has stopped half-way.
        """
        ongoing = self._admin.list_partition_reassignments()
        adding = {Key(*found): tuple(state["adding_replicas"]) for found, state in ongoing.items()}
        replicas: dict[Key, tuple[int, ...]] = {}
        leaders: dict[Key, int] = {}
        in_sync: dict[Key, frozenset[int]] = {}
        for topic in self._admin.describe_topics():
            for partition in topic["partitions"]:
                key = Key(topic["name"], partition["partition_index"])
                replicas[key] = tuple(partition["replica_nodes"])
                leaders[key] = partition["leader_id"]
                in_sync[key] = frozenset(partition["isr_nodes"])
        listed = self._admin.describe_cluster()["brokers"]
        brokers = tuple((broker["broker_id"], broker.get("rack")) for broker in listed if not broker.get("is_fenced"))
        away = {broker["broker_id"]: broker.get("rack") for broker in listed if broker.get("is_fenced")}
        # Before version 2, DescribeCluster did not list fenced brokers.
        unlisted = {broker for ids in replicas.values() for broker in ids} - {broker for broker, _ in brokers}
        away = dict.fromkeys(unlisted) | away
        current: dict[tuple[Key, int], Place] = {}
        future: dict[tuple[Key, int], Place] = {}
        directories = []
        for answer in self._log_dirs((broker for broker, _ in brokers), replicas):
            for found in answer["log_dirs"]:
                directories.append(_directory(answer["broker"], found))
                _add_places(answer["broker"], found, current, future)
        return Snapshot(
            time.monotonic(), brokers, replicas, leaders, in_sync, current, future, tuple(directories),
            frozenset(adding), tuple(sorted(away.items())), adding,
        )  # fmt: skip

    def _log_dirs(self, brokers: Iterable[int], of: Iterable[Key]) -> Iterator[dict[str, Any]]:
        """Asked one by one, as the library does too, so that an error can name a broker that hangs unfenced. Without
        partitions the library would ask any broker for them first, which may be the one that hangs."""
        from kafka.errors import AuthorizationError, KafkaError

        partitions: dict[str, list[int]] = defaultdict(list)
        for key in of:
            partitions[key.topic].append(key.partition)
        for broker in brokers:
            try:
                yield from self._admin.describe_log_dirs(partitions, brokers=[broker])
            except AuthorizationError:
                raise
            except KafkaError as error:
                raise type(error)(f"broker {broker} does not describe its directories") from error

    # -- doing --------------------------------------------------------------------------------------------------------
    def reassign(self, replicas: Mapping[Key, tuple[int, ...] | None]) -> dict[Key, str]:
        """Start reassignments, or cancel where the value is None. Returns what was refused, and why."""
        from kafka import TopicPartition

        if not replicas:
            return {}
        wanted = {TopicPartition(*key): None if ids is None else list(ids) for key, ids in replicas.items()}
        results = self._admin.alter_partition_reassignments(wanted)
        return {Key(*key): _words(error) for key, error in results.items() if error is not None}

    def move_directories(self, wanted: Mapping[tuple[Key, int], str], timeout_s: float) -> dict[tuple[Key, int], str]:
        """Ask each broker, retrying every 100 ms what it has not accepted (DIR-11); returns what is left at the end."""
        left: dict[tuple[Key, int], str] = dict(wanted)
        refused: dict[tuple[Key, int], str] = {}
        deadline = time.monotonic() + timeout_s
        while left:
            refused = {}
            asked = {(key.topic, key.partition, broker): path for (key, broker), path in left.items()}
            for (topic, partition, broker), error in self._admin.alter_replica_log_dirs(asked).items():
                place = (Key(topic, partition), broker)
                if error.errno == 0:
                    left.pop(place, None)
                else:
                    refused[place] = _words(error)
            if not left or time.monotonic() >= deadline:
                break
            if all(reason.split(":")[0] not in TRANSIENT for reason in refused.values()):
                break
            time.sleep(ALTER_LOG_DIRS_EVERY_S)
        return {place: refused.get(place, "no answer") for place in left}

    def set_configs(self, kind: str, changes: Mapping[str, Mapping[str, str | None]]) -> dict[str, str]:
        """Set configs; None deletes one. `kind` is 'topic' or 'broker'. Returns what was refused, and why."""
        from kafka.admin import AlterConfigOp, ConfigResource, ConfigResourceType

        resources = []
        for name, configs in changes.items():
            operations = {
                key: (AlterConfigOp.DELETE if value is None else AlterConfigOp.SET, value)
                for key, value in configs.items()
            }
            resources.append(ConfigResource(ConfigResourceType[kind.upper()], name, configs=operations))
        if not resources:
            return {}
        answers = self._admin.alter_configs(resources, raise_on_unknown=False, incremental=True)
        return {
            f"{kind} {name}": str(answer).splitlines()[0]
            for results in answers.values()
            for name, answer in results.items()
            if answer != "OK"
        }


def _directory(broker: int, found: Mapping[str, Any]) -> Directory:
    total, usable = found.get("total_bytes", -1), found.get("usable_bytes", -1)
    # Before version 5 of the response there was no cordoning.
    cordoned = bool(found.get("is_cordoned", False))
    return Directory(broker, found["log_dir"], total, usable, found["error_code"] == 0, cordoned)


def _add_places(
    broker: int,
    found: Mapping[str, Any],
    current: dict[tuple[Key, int], Place],
    future: dict[tuple[Key, int], Place],
) -> None:
    for topic in found["topics"]:
        for partition in topic["partitions"]:
            place = Place(found["log_dir"], partition["partition_size"], partition["offset_lag"])
            side = future if partition["is_future_key"] else current
            side[Key(topic["name"], partition["partition_index"]), broker] = place


def _words(error: Any) -> str:
    return f"{error.__name__}: {getattr(error, 'description', '') or getattr(error, 'message', '')}".rstrip(": ")
