"""`./ballast bench coordinators`: transactions, commits of offsets and groups, Ballast beside Apache Kafka, as ratios.

One broker of each kind runs all the time, and librdkafka's clients take turns between them. A transaction writes three
records to three partitions; with offsets it commits those of a group as well, as who reads, works and writes does. A
commit of offsets is waited for. A group is there when every partition of its topic has an owner, from the first of its
members that starts. What fails ends all clients at once, and is told with the server's name and the end of its log.
"""

from __future__ import annotations

import argparse
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

from bench.clients import Sample
from bench.servers import ApacheKafka, Ballast, Server, ServerFailed
from bench.table import HEAD, Row, Workload

SETTINGS = {
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "5",
    # Otherwise the time that a group takes would be the time until its members' next heartbeats.
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
PIECE_S = 1.0
MILLION = 1e6
UNPACED_NETWORK = True

Step = Callable[[], None]
Prepare = Callable[[Server, threading.Event], AbstractContextManager[Step]]
"""The event is set once another client has failed."""
_names = (f"bench-{number}" for number in itertools.count())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", metavar="TEXT", default="", help="only workloads whose name contains this")
    parser.add_argument("--pairs", type=int, default=11, help="maximum pairs of each workload (default: 11)")


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
    """Let a JVM compile its hot paths."""
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
def _steps(server: Server, count: int, prepare: Prepare, seconds: float) -> Sample:
    """Steps per second of `count` clients together; the cost is the server's CPU time per step, in microseconds."""
    failed = threading.Event()
    with _told_of(server), ExitStack() as stack:
        steps = [stack.enter_context(prepare(server, failed)) for _ in range(count)]
        for step in steps:
            step()  # connects, and makes what has to be there
        before, began = server.cpu_seconds(), time.perf_counter()
        with ThreadPoolExecutor(count) as pool:
            repeated = pool.map(partial(_repeat, until=began + seconds, failed=failed), steps)
            took = list(itertools.chain(*repeated))
        used, lasted = server.cpu_seconds() - before, time.perf_counter() - began
    return Sample(len(took) / lasted, used * MILLION / len(took), sorted(took)[len(took) * 99 // 100] * 1000)


def _repeat(step: Step, until: float, failed: threading.Event) -> list[float]:
    took = []
    while (began := time.perf_counter()) < until and not failed.is_set():
        try:
            step()
        except BaseException:
            failed.set()
            raise
        took.append(time.perf_counter() - began)
    return took


@contextmanager
def _told_of(server: Server) -> Iterator[None]:
    try:
        yield
    except ServerFailed:
        raise
    except Exception as error:
        raise ServerFailed(f"{server.name}: {error}. The end of its log:\n{server.tail()}") from error


def _in_pieces(call: Callable[[float], object], failed: threading.Event) -> None:
    """Make a librdkafka call that may be repeated after a timeout, with short timeouts: so it ends soon after another
    client has failed."""
    from confluent_kafka import KafkaError, KafkaException

    until = time.perf_counter() + LIMIT_S
    while True:
        try:
            call(PIECE_S)
            return
        except KafkaException as error:
            over = failed.is_set() or time.perf_counter() > until
            if over or error.args[0].code() != KafkaError._TIMED_OUT:
                raise


@contextmanager
def _transactions(server: Server, failed: threading.Event) -> Iterator[Step]:
    producer, topic = _transactional(server), _new_topic(server, PARTITIONS)

    def step() -> None:
        producer.begin_transaction()
        _write(producer, topic)
        _in_pieces(producer.commit_transaction, failed)

    yield step


@contextmanager
def _transactions_with_offsets(server: Server, failed: threading.Event) -> Iterator[Step]:
    from confluent_kafka import TopicPartition

    producer, topic = _transactional(server), _new_topic(server, PARTITIONS)
    with _consumer(server) as consumer:
        offsets = itertools.count()

        def step() -> None:
            producer.begin_transaction()
            _write(producer, topic)
            places = [TopicPartition(topic, 0, next(offsets))]
            group = consumer.consumer_group_metadata()
            _in_pieces(partial(producer.send_offsets_to_transaction, places, group), failed)
            _in_pieces(producer.commit_transaction, failed)

        yield step


@contextmanager
def _commits(server: Server, _: threading.Event) -> Iterator[Step]:
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
    """Members per second until every partition has an owner; the cost is the server's CPU time per member, in ms."""
    topic, group = _new_topic(server, PARTITIONS_OF_GROUP), next(_names)
    settings: dict[str, Any] = {"group.id": group, "group.protocol": protocol}
    if protocol == "classic":
        settings |= {"heartbeat.interval.ms": HEARTBEAT_MS}
    owned, complete, ended = [0] * MEMBERS, threading.Event(), threading.Event()

    def take_part(number: int) -> None:
        try:
            live(number)
        finally:
            complete.set()  # also if it fails, so that nobody waits for it

    before, began = server.cpu_seconds(), time.perf_counter()

    def live(number: int) -> None:
        with _consumer(server, **settings) as consumer:
            consumer.subscribe([topic])
            while not complete.is_set() and not ended.is_set():
                consumer.poll(0.02)
                owned[number] = len(consumer.assignment())
                if sum(owned) == PARTITIONS_OF_GROUP and all(owned):
                    complete.set()

    with _told_of(server), ThreadPoolExecutor(MEMBERS) as pool:
        members = [pool.submit(take_part, number) for number in range(MEMBERS)]
        in_time = complete.wait(LIMIT_S)
        took, used = time.perf_counter() - began, server.cpu_seconds() - before
        ended.set()
        for member in members:
            member.result()
        if not in_time:
            raise TimeoutError(f"a group of {MEMBERS} is not complete after {LIMIT_S:g} s")
    return Sample(MEMBERS / took, used * 1000 / MEMBERS)


__all__ = ["add_arguments", "run"]
