"""Measures the load by asking the brokers, for clusters without Prometheus: Metadata and DescribeLogDirs.

Blocking; uses only Kafka's protocol, so it works with Apache Kafka, too (from 3.3, KIP-827, for capacities). Driver
only.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Mapping
from typing import Any

import pandas as pd
from kafka.admin import KafkaAdminClient
from kafka.errors import AuthorizationError, KafkaError, KafkaTimeoutError, for_code

from ballast_planner import Broker, Directory
from ballast_rebalance.measured import EMPTY, REPLICA_COLUMNS, Measured, Refusal, counted

UNKNOWN_BYTES = -1
STORAGE_ERROR = 56
CONNECT_SECONDS = 3.0
# A pod's first connections may fail: its network policy may take effect a moment after its start.
PATIENCE_SECONDS = 3.0
RETRY_SECONDS = 0.2
# For each address; the library alone would wait for half a minute, and for the end of a TLS handshake for ever.
ANSWER_SECONDS = 10.0
Place = tuple[str, int]


class Admin(KafkaAdminClient):  # type: ignore[misc]  # the library has no types
    """The library's client, but closed if it cannot connect: its thread and sockets would leak, and add up while the
    job watches a cluster that is away."""

    def __init__(self, **options: Any) -> None:
        try:
            super().__init__(**options)
        except BaseException:
            if hasattr(self, "_client"):
                self._client.close()
            raise


def require_listener(bootstrap: str, patience_s: float = PATIENCE_SECONDS) -> None:
    """Raises Refusal if no address accepts a connection: the library tries for half a minute and gives no cause."""
    deadline = time.monotonic() + patience_s
    while True:
        failures = []
        for address in bootstrap.split(","):
            why = _why_unreachable(address, None)
            if why is None:
                return
            failures.append(why)
        if time.monotonic() >= deadline:
            raise Refusal("ClusterUnavailable", f"no broker answers at {', '.join(failures)}")
        time.sleep(RETRY_SECONDS)


def require_answer(bootstrap: str, client_options: Mapping[str, Any] | None = None) -> None:
    """Raises Refusal if nobody listens at any address, or whoever does speaks with us in vain."""
    require_listener(bootstrap)
    failures = []
    for address in bootstrap.split(","):
        why = _why_in_vain(address, client_options or {})
        if why is None:
            return
        failures.append(why)
    raise Refusal("ClusterUnavailable", "; ".join(failures))


def _why_in_vain(address: str, client_options: Mapping[str, Any]) -> str | None:
    """Connects as for a look; None if the broker there answers."""
    if why := _why_unreachable(address, client_options.get("ssl_context")):
        return why
    limit_ms = int(ANSWER_SECONDS * 1_000)
    limits = {"bootstrap_timeout_ms": limit_ms, "request_timeout_ms": limit_ms}
    try:
        Admin(bootstrap_servers=address, **{**client_options, **limits}).close()
    except KafkaTimeoutError:
        why = "it requires TLS or SASL (--command-config), or it hangs"
        if client_options:
            why = "it requires TLS or SASL in another way, did not authenticate us, or hangs"
        return f"{address} accepts connections, but does not answer Kafka's protocol: {why}"
    except KafkaError as error:
        return f"{address}: {error}"
    return None


def _why_unreachable(address: str, context: ssl.SSLContext | None) -> str | None:
    """Connects, with TLS if there is a context."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        plain = socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS)
    except OSError as error:
        return f"{address}: {error.strerror or error}"
    with plain:
        if context is None:
            return None
        plain.settimeout(ANSWER_SECONDS)
        try:
            context.wrap_socket(plain, server_hostname=host).close()
        except TimeoutError:
            return f"TLS with {address} failed: it does not answer; it requires no TLS, or it hangs"
        except (OSError, ValueError) as error:
            return f"TLS with {address} failed: {error}"
    return None


def measure_by_admin(
    bootstrap: str, client_options: Mapping[str, Any] | None = None, capacity_bytes: int | None = None
) -> Measured:
    """Measure the cluster now. `capacity_bytes` stands in where brokers are too old to report how large a disk is."""
    at_s = time.time()
    try:
        client = Admin(bootstrap_servers=bootstrap, **dict(client_options or {}))
        try:
            # Listed before and after describe_topics: one that is over by the second time may have been seen there.
            moving = client.list_partition_reassignments()
            topics, cluster = client.describe_topics(), client.describe_cluster()
            moving = moving or client.list_partition_reassignments()
            live = sorted(_live(cluster["brokers"]))
            partitions = {each["name"]: [one["partition_index"] for one in each["partitions"]] for each in topics}
            answers = [each for broker in live for each in _log_dirs(client, broker, partitions)]
        finally:
            client.close()
    except AuthorizationError as error:
        text = f"not authorized by {bootstrap}: {error.message}; this needs DESCRIBE on the cluster and the topics"
        raise Refusal("ClusterUnavailable", text) from error
    except KafkaTimeoutError as error:
        why = "it is down, requires TLS or SASL, or did not authenticate us"
        raise Refusal("ClusterUnavailable", f"{bootstrap}: {error}: {why}") from error
    except KafkaError as error:
        raise Refusal("ClusterUnavailable", f"{bootstrap}: {error}") from error
    if moving:
        text = f"a reassignment of {counted(len(moving), 'partition')} is running; ask again after that"
        raise Refusal("ReassignmentInProgress", text)
    return measured_of(topics, cluster["brokers"], answers, at_s, capacity_bytes)


def _log_dirs(client: Admin, broker: int, partitions: dict[str, list[int]]) -> list[dict[str, Any]]:
    """Asked one by one, as the library does too, so that a refusal can name a broker that hangs unfenced. Without
    partitions the library would ask any broker for them first, which may be the one that hangs."""
    try:
        answers: list[dict[str, Any]] = client.describe_log_dirs(partitions, brokers=[broker])
        return answers
    except AuthorizationError:
        raise
    except KafkaError as error:
        text = f"broker {broker} does not describe its directories: {error}"
        raise Refusal("ClusterUnavailable", text) from error


def measured_of(
    topics: list[dict[str, Any]],
    brokers: list[dict[str, Any]],
    answers: list[dict[str, Any]],
    at_s: float,
    capacity_bytes: int | None = None,
) -> Measured:
    """Combine the answers of Metadata and DescribeLogDirs; raises Refusal if they do not fit each other."""
    places: dict[tuple[str, int, int], Place] = {}
    directories = [
        _directory(answer["broker"], log_dir, places, capacity_bytes)
        for answer in answers
        for log_dir in answer["log_dirs"]
    ]
    if not topics and not places:
        raise Refusal("Balanced", EMPTY)
    lacks = _unknown_sizes(topics, {answer["broker"] for answer in answers}, directories, places)
    rows = []
    for topic in topics:
        for partition in topic["partitions"]:
            rows += _rows(topic["name"], partition, places)
    live = _live(brokers)
    named = live | {row[2] for row in rows}
    racks = {broker["broker_id"]: broker.get("rack") or None for broker in brokers}
    lacks += [
        f"broker {broker} is offline: its directories are unknown, and nothing is moved there"
        for broker in sorted((named | set(racks)) - live)
    ]
    return Measured(
        at_s=at_s,
        brokers=[Broker(broker, racks.get(broker), alive=broker in live) for broker in sorted(named)],
        directories=directories,
        replicas=pd.DataFrame(rows, columns=list(REPLICA_COLUMNS)),
        order_known=True,
        all_known=True,
        lacks=("sizes come from the brokers themselves: there is no history to forecast from, and no traffic", *lacks),
    )


def _live(brokers: list[dict[str, Any]]) -> set[int]:
    """Brokers that can be asked: since version 2 of the response, fenced ones are listed as well."""
    return {broker["broker_id"] for broker in brokers if not broker.get("is_fenced")}


def _unknown_sizes(
    topics: list[dict[str, Any]],
    answered: set[int],
    directories: list[Directory],
    places: Mapping[tuple[str, int, int], Place],
) -> list[str]:
    """Raises Refusal if no broker describes a log that must exist: it would be taken for empty, and stay where it is
    however large it is. Returns a note on logs that nobody can describe, because their brokers or disks are away."""
    healthy = answered - {row.broker for row in directories if not row.online}
    undescribed = [
        (f"{topic['name']}-{partition['partition_index']}", healthy.issuperset(partition["replica_nodes"]))
        for topic in topics
        for partition in topic["partitions"]
        if not any((topic["name"], partition["partition_index"], node) in places for node in partition["replica_nodes"])
    ]
    due = [name for name, certain in undescribed if certain]
    if due:
        raise Refusal(
            "MetricsPartial",
            f"no broker describes a log of {counted(len(due), 'partition')}, first {due[0]}: "
            "just being made or given up; ask again",
        )
    if not undescribed:
        return []
    return [
        f"the size of {counted(len(undescribed), 'partition')} is unknown, first {undescribed[0][0]}: "
        "what has them is away"
    ]


def _directory(
    broker: int, log_dir: Mapping[str, Any], places: dict[tuple[str, int, int], Place], capacity: int | None
) -> Directory:
    path, code = log_dir["log_dir"], log_dir["error_code"]
    if code not in (0, STORAGE_ERROR):
        raise Refusal("ClusterUnavailable", f"broker {broker} does not describe {path}: {for_code(code).__name__}")
    held = 0
    for topic in log_dir["topics"]:
        for partition in topic["partitions"]:
            held += partition["partition_size"]
            name = f"{topic['name']}-{partition['partition_index']}"
            if partition["is_future_key"]:
                raise Refusal("ReassignmentInProgress", f"{name} is moving to {path} on broker {broker}")
            places[topic["name"], partition["partition_index"], broker] = (path, partition["partition_size"])
    total, usable = log_dir.get("total_bytes", UNKNOWN_BYTES), log_dir.get("usable_bytes", UNKNOWN_BYTES)
    if code == STORAGE_ERROR:
        return Directory(broker, path, max(total, 0), 0, online=False)
    if total == UNKNOWN_BYTES and capacity is None:
        raise Refusal(
            "CapacityUnknown",
            f"broker {broker} does not say how large {path} is; give it with --capacity BYTES, or directoryCapacity",
        )
    # Before version 5 of the response there are no cordons.
    cordoned = bool(log_dir.get("is_cordoned", False))
    if total == UNKNOWN_BYTES:
        return Directory(broker, path, int(capacity or 0), held, cordoned)
    return Directory(broker, path, total, max(total - usable, held), cordoned)


def _rows(topic: str, partition: Mapping[str, Any], places: Mapping[tuple[str, int, int], Place]) -> list[Any]:
    number, rows = partition["partition_index"], []
    described = (places.get((topic, number, broker)) for broker in partition["replica_nodes"])
    largest = max((place[1] for place in described if place), default=0)
    nothing = float("nan")
    for position, broker in enumerate(partition["replica_nodes"]):
        place = places.get((topic, number, broker))
        size = place[1] if place else largest
        leads = broker == partition["leader_id"]
        path = place[0] if place else None
        rows.append((topic, number, broker, path, size, leads, position, *[nothing] * 5))
    return rows
