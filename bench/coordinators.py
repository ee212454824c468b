"""`./ballast bench coordinators`: transactions, commits of offsets and groups, Ballast beside Apache Kafka, as ratios.

One broker of each kind runs all the time, and librdkafka's clients take turns between them. A transaction writes three
records to three partitions; with offsets it commits those of a group as well, as who reads, works and writes does. A
commit of offsets is waited for. A group is there when every partition of its topic has an owner, from the first of its
members that starts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from bench.clients import Sample
from bench.servers import ApacheKafka, Ballast, Server, ServerFailed
from bench.table import HEAD, Row, Workload

SETTINGS = {
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "5",
    # How soon a member is told of others is what a group waits for else.
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "100",
}
HEARTBEAT_MS = 100
RUN_S, QUICK_RUN_S = 4.0, 1.0
WARM_S, QUICK_WARM_S = 10.0, 3.0
PARTITIONS = 3
MEMBERS = 20
PARTITIONS_OF_GROUP = 2 * MEMBERS
VALUE = bytes(100)
LIMIT_S = 60.0
MILLION = 1e6
UNPACED_NETWORK = True

Step = Callable[[], None]
_names = (f"bench-{number}" for number in itertools.count())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", metavar="TEXT", default="", help="only workloads whose name contains this")
    parser.add_argument("--pairs", type=int, default=11, help="at most so many pairs of each (default: 11)")


def run(args: argparse.Namespace) -> int:
    rows = [Row(each) for each in workloads(QUICK_RUN_S if args.quick else RUN_S) if args.only in each.name]
    with ApacheKafka(overrides=SETTINGS) as kafka, Ballast(overrides=SETTINGS) as ballast:
        _warm(kafka, QUICK_WARM_S if args.quick else WARM_S)
        _warm(ballast, QUICK_RUN_S)
        print(HEAD)
        for row in rows:
            for number in range(1 if args.quick else args.pairs):
                if row.narrow:
                    break
                for server in (ballast, kafka) if number % 2 == 0 else (kafka, ballast):
                    (row.ours if server is ballast else row.theirs).append(row.workload.run(server))
            print(row.text(), flush=True)
    if args.json:
        ratios = {row.workload.name: row.as_json() for row in rows}
        print(json.dumps({"bench": "coordinators", "ok": not any(row.below() for row in rows), "ratios": ratios}))
    return 0


def _warm(server: Server, seconds: float) -> None:
    """A JVM compiles what it runs often."""
    _steps(server, 4, _transactions_with_offsets, seconds / 2)
    _steps(server, 4, _commits, seconds / 2)


def workloads(seconds: float) -> Iterator[Workload]:
    for name, unit, prepare in (
        ("transactions", "tx/s", _transactions),
        ("transactions with offsets", "tx/s", _transactions_with_offsets),
        ("commits of offsets", "1/s", _commits),
    ):
        for count in (1, 8):
            yield Workload(
                f"{name}, {count} clients", unit, 1.0, 0.8, 1.0,
                run=partial(_steps, count=count, prepare=prepare, seconds=seconds),
            )  # fmt: skip
    for protocol in ("classic", "consumer"):
        yield Workload(f"a group of {MEMBERS}, {protocol}", "mem/s", 1.0, 0.8, run=partial(_group, protocol=protocol))


# -- the same step again and again ------------------------------------------------------------------------------------
def _steps(server: Server, count: int, prepare: Callable[[Server], Any], seconds: float) -> Sample:
    """Steps a second of so many clients together; cost in microseconds of the server's processor for each."""
    with ExitStack() as stack:
        steps = [stack.enter_context(prepare(server)) for _ in range(count)]
        for step in steps:
            step()  # connects, and makes what has to be there
        before, began = server.cpu_seconds(), time.perf_counter()
        with ThreadPoolExecutor(count) as pool:
            took = list(itertools.chain(*pool.map(partial(_repeat, until=began + seconds), steps)))
        used, lasted = server.cpu_seconds() - before, time.perf_counter() - began
    return Sample(len(took) / lasted, used * MILLION / len(took), sorted(took)[len(took) * 99 // 100] * 1000)


def _repeat(step: Step, until: float) -> list[float]:
    took = []
    while (began := time.perf_counter()) < until:
        step()
        took.append(time.perf_counter() - began)
    return took


@contextmanager
def _transactions(server: Server) -> Iterator[Step]:
    producer, topic = _transactional(server), _new_topic(server, PARTITIONS)

    def step() -> None:
        producer.begin_transaction()
        _write(producer, topic)
        producer.commit_transaction(LIMIT_S)

    yield step


@contextmanager
def _transactions_with_offsets(server: Server) -> Iterator[Step]:
    from confluent_kafka import TopicPartition

    producer, topic = _transactional(server), _new_topic(server, PARTITIONS)
    with _consumer(server) as consumer:
        offsets = itertools.count()

        def step() -> None:
            producer.begin_transaction()
            _write(producer, topic)
            places = [TopicPartition(topic, 0, next(offsets))]
            producer.send_offsets_to_transaction(places, consumer.consumer_group_metadata(), LIMIT_S)
            producer.commit_transaction(LIMIT_S)

        yield step


@contextmanager
def _commits(server: Server) -> Iterator[Step]:
    from confluent_kafka import TopicPartition

    topic = _new_topic(server, PARTITIONS)
    with _consumer(server) as consumer:
        offsets = itertools.count()

        def step() -> None:
            offset = next(offsets)
            consumer.commit(offsets=[TopicPartition(topic, n, offset) for n in range(PARTITIONS)], asynchronous=False)

        yield step


def _write(producer: Any, topic: str) -> None:
    for partition in range(PARTITIONS):
        producer.produce(topic, VALUE, partition=partition)


def _transactional(server: Server) -> Any:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": server.bootstrap, "transactional.id": next(_names), "linger.ms": 0})
    producer.init_transactions(LIMIT_S)
    return producer


@contextmanager
def _consumer(server: Server, **settings: Any) -> Iterator[Any]:
    from confluent_kafka import Consumer

    group = {"group.id": next(_names), "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": server.bootstrap, **group, **settings})
    try:
        yield consumer
    finally:
        consumer.close()


def _new_topic(server: Server, partitions: int) -> str:
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    name = next(_names)
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(LIMIT_S)
    return name


# -- groups -----------------------------------------------------------------------------------------------------------
def _group(server: Server, protocol: str) -> Sample:
    """Members a second, until every partition has an owner; cost in milliseconds of the server's processor for each."""
    topic, group = _new_topic(server, PARTITIONS_OF_GROUP), next(_names)
    settings: dict[str, Any] = {"group.id": group, "group.protocol": protocol}
    if protocol == "classic":
        settings |= {"heartbeat.interval.ms": HEARTBEAT_MS}
    owned, complete = [0] * MEMBERS, threading.Event()
    before, began = server.cpu_seconds(), time.perf_counter()

    def live(number: int) -> None:
        with _consumer(server, **settings) as consumer:
            consumer.subscribe([topic])
            while not complete.is_set():
                consumer.poll(0.02)
                owned[number] = len(consumer.assignment())
                if sum(owned) == PARTITIONS_OF_GROUP and all(owned):
                    complete.set()
                if time.perf_counter() - began > LIMIT_S:
                    raise ServerFailed(f"{server.name}: a group of {MEMBERS} is not complete:\n{server.tail()}")

    with ThreadPoolExecutor(MEMBERS) as pool:
        members = [pool.submit(live, number) for number in range(MEMBERS)]
        complete.wait(LIMIT_S)
        took, used = time.perf_counter() - began, server.cpu_seconds() - before
        complete.set()
        for member in members:
            member.result()
    return Sample(MEMBERS / took, used * 1000 / MEMBERS)


__all__ = ["add_arguments", "run"]
