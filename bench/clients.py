"""The clients of the broker benchmark: each drives one workload against one server and measures it.

The same client, with the same settings, runs against both servers; the cost is the CPU time of the server meanwhile.
The C load generator is built on demand, with the machine's own `cc`.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.servers import ROOT, Server, ServerFailed, cpu_seconds, kafka_jars

from ballast_wire.records import Record, encode_batch

CLIENT_LIMIT_S = 180
WRITABLE_LIMIT_S = 120  # Apache Kafka with 10,000 partitions, on a busy machine
GIGABYTE = 1e9
FETCH_BYTES = 1 << 20
_LAST_LINE = re.compile(r"(\d+) records sent, .*?\(([\d.]+) MB/sec\).*?([\d.]+) ms 99th")


@dataclass(frozen=True, slots=True)
class Sample:
    """One run: the rate, the server's CPU time per unit, and the p99 latency (0: not measured)."""

    rate: float
    cpu: float
    p99_ms: float = 0.0


class Clients:
    """Builds what the workloads need under `directory`, and runs them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._generator = directory / "loadgen"
        self._answerer = directory / "answerer"
        self._topics = 0

    @classmethod
    @contextmanager
    def built(cls) -> Iterator[Clients]:
        """Clients in a temporary directory, which is removed with them."""
        with tempfile.TemporaryDirectory(prefix="bench-clients-", ignore_cleanup_errors=True) as directory:
            clients = cls(Path(directory))
            clients._build()
            yield clients

    def _build(self) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None:
            raise ServerFailed("no C compiler (cc): the load generator cannot be built")
        for program in (self._generator, self._answerer):
            source = ROOT / "bench" / f"{program.name}.c"
            subprocess.run([compiler, "-O2", "-o", str(program), str(source)], check=True, timeout=120)

    def batch_file(self, size_bytes: int, record_bytes: int) -> Path:
        path = self._directory / f"batch-{size_bytes}-{record_bytes}"
        if not path.exists():
            count = max(1, size_bytes // (record_bytes + 8))
            path.write_bytes(encode_batch([Record(None, bytes(record_bytes), 1_700_000_000_000)] * count))
        return path

    def keyed_batch_file(self) -> Path:
        """For a compacted topic: few keys, so that there is much to clean."""
        path = self._directory / "batch-keyed"
        if not path.exists():
            records = [Record(b"key-%d" % number, bytes(1000), 1_700_000_000_000) for number in range(16)]
            path.write_bytes(encode_batch(records))
        return path

    def new_topic(self, server: Server, partitions: int, settings: dict[str, str] | None = None) -> str:
        """Create a topic; returns its name once it can be written to."""
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        self._topics += 1
        name = f"bench-{self._topics}"
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        config = {"file.delete.delay.ms": "0", "retention.ms": "-1", **(settings or {})}
        admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(30)
        compacted = config.get("cleanup.policy") == "compact"
        self.await_writable(server, name, partitions, self.keyed_batch_file() if compacted else None)
        return name

    def await_writable(self, server: Server, topic: str, partitions: int, batch: Path | None = None) -> None:
        """Wait until the broker leads the partitions, which it may not yet do when the controller has answered."""
        batch = batch or self.batch_file(100, 100)
        probe = ["produce", topic, str(partitions), str(partitions), "1", "1", str(batch), "0.05"]
        deadline = time.monotonic() + WRITABLE_LIMIT_S
        while True:
            try:
                if self.generate(server, probe)["requests"] > partitions:
                    return
            except ServerFailed:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def warm(self, server: Server, seconds: float) -> None:
        """Run small requests, batches and fetches so that a JVM compiles its hot paths and the first run is fair."""
        topic = self.new_topic(server, 4)
        small, middle = self.batch_file(100, 100), self.batch_file(16_384, 1000)
        self.generate(server, ["produce", topic, "4", "8", "2", "1", str(small), str(seconds * 0.5)])
        result = self.generate(server, ["produce", topic, "4", "4", "4", "1", str(middle), str(seconds * 0.3)])
        most = str(result["bytes"] * 6 // 10)
        self.generate(server, ["fetch", topic, "4", "4", "1", "65536", most, str(seconds * 0.2)])
        self.delete_topic(server, topic)

    def delete_topic(self, server: Server, name: str) -> None:
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        admin.delete_topics([name])[name].result(30)

    # -- the C load generator -------------------------------------------------------------------------------------
    def generate(self, server: Server, arguments: list[str]) -> dict[str, Any]:
        done = self._run_generator(server.port, arguments)
        if done.returncode != 0:
            raise ServerFailed(f"{server.name}: {done.stderr.strip()}\n{server.tail()}")
        result: dict[str, Any] = json.loads(done.stdout)
        return result

    def _run_generator(self, port: int, arguments: list[str]) -> subprocess.CompletedProcess[str]:
        kind, *rest = arguments
        command = [str(self._generator), kind, "127.0.0.1", str(port), *rest]
        return subprocess.run(command, capture_output=True, text=True, timeout=CLIENT_LIMIT_S, check=False)

    def only_answered(self, batch: Path, *, connections: int, seconds: float) -> Sample:
        """Small produce requests to a program that does nothing but answer: no broker on this machine is faster."""
        work = ["produce", "floor", "1", str(connections), "1", "1", str(batch), str(seconds)]
        result, cpu_s = self._ask_answerer([], work)
        return Sample(result["requests"] / result["seconds"], cpu_s * 1e6 / result["requests"])

    def only_sent(self, seconds: float) -> Sample:
        """The same for fetches: it sends the same 1 MiB again and again, and looks at nothing."""
        batch = self.batch_file(16_384, 1000).read_bytes()
        batches = self._directory / "batches"
        batches.write_bytes(batch * (FETCH_BYTES // len(batch)))
        work = ["fetch", "floor", "4", "4", "1", str(FETCH_BYTES), str(1 << 62), str(seconds)]
        result, cpu_s = self._ask_answerer([str(batches)], work)
        return Sample(result["bytes"] / result["seconds"] / 1e6, cpu_s * GIGABYTE / result["bytes"])

    def _ask_answerer(self, arguments: list[str], work: list[str]) -> tuple[dict[str, Any], float]:
        """The result of the load generator, and the CPU seconds of the program that only answers."""
        command = [str(self._answerer), "floor", *arguments]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as answerer:
            assert answerer.stdin is not None
            assert answerer.stdout is not None
            port = int(answerer.stdout.readline())
            done = self._run_generator(port, work)
            cpu_s = cpu_seconds(answerer.pid)
            answerer.stdin.close()
        if done.returncode != 0:
            raise ServerFailed(f"the program that only answers: {done.stderr.strip()}")
        return json.loads(done.stdout), cpu_s

    def produce(
        self, server: Server, batch: Path, *, connections: int, depth: int, seconds: float, by_request: bool
    ) -> Sample:
        """Rate in requests or MB per second; cost in microseconds per request or seconds per GB."""
        topic = self.new_topic(server, partitions := min(connections, 8))
        arguments = ["produce", topic, *map(str, (partitions, connections, depth, 1, batch))]
        self.generate(server, [*arguments, str(seconds / 4)])  # warm
        before = server.cpu_seconds()
        result = self.generate(server, [*arguments, str(seconds)])
        used = server.cpu_seconds() - before
        self.delete_topic(server, topic)
        requests, size, took = result["requests"], result["bytes"], result["seconds"]
        if by_request:
            return Sample(requests / took, used * 1e6 / requests, result["p99_us"] / 1000)
        return Sample(size / took / 1e6, used * GIGABYTE / size, result["p99_us"] / 1000)

    def fill(self, server: Server, size_bytes: int, record_bytes: int) -> tuple[str, int]:
        """A topic of four partitions with at least that much in it; returns its name and its size in bytes."""
        topic = self.new_topic(server, 4)
        batch = self.batch_file(256 * 1024, record_bytes)
        has = 0
        while has < size_bytes:
            result = self.generate(server, ["produce", topic, "4", "4", "2", "1", str(batch), "0.2"])
            has += result["bytes"]
        return topic, has

    def fetch(self, server: Server, topic: str, has: int, seconds: float) -> Sample:
        """Six tenths of the topic (partitions are not filled evenly), again and again."""
        before, size, took = server.cpu_seconds(), 0, 0.0
        while took < seconds:
            result = self.generate(server, ["fetch", topic, "4", "4", "1", str(FETCH_BYTES), str(has * 6 // 10), "60"])
            size, took = size + result["bytes"], took + result["seconds"]
        return Sample(size / took / 1e6, (server.cpu_seconds() - before) * GIGABYTE / size)

    # -- Apache Kafka's own tools ---------------------------------------------------------------------------------
    def java_produce(self, server: Server, record_bytes: int, batch_bytes: int, size_bytes: int) -> Sample:
        topic = self.new_topic(server, 4)
        count = size_bytes // record_bytes
        settings = [f"bootstrap.servers={server.bootstrap}", f"batch.size={batch_bytes}", "linger.ms=5"]
        if batch_bytes > 100_000:
            settings += ["buffer.memory=67108864", f"max.request.size={4 * batch_bytes}"]
        before = server.cpu_seconds()
        text = self._java(
            "ProducerPerformance", "--topic", topic, "--num-records", str(count), "--record-size", str(record_bytes),
            "--throughput", "-1", "--producer-props", *settings,
        )  # fmt: skip
        used = server.cpu_seconds() - before
        found = _LAST_LINE.findall(text)
        self.delete_topic(server, topic)
        if not found or int(found[-1][0]) != count:
            raise ServerFailed(f"ProducerPerformance against {server.name} said: {text[-500:]}")
        return Sample(float(found[-1][1]), used * GIGABYTE / size_bytes, float(found[-1][2]))

    def java_consume(self, server: Server, topic: str, has: int, record_bytes: int) -> Sample:
        before = server.cpu_seconds()
        count = has * 9 // 10 // (record_bytes + 8)
        text = self._java(
            "ConsumerPerformance", "--bootstrap-server", server.bootstrap, "--topic", topic, "--messages", str(count),
            "--hide-header",
        )  # fmt: skip
        used = server.cpu_seconds() - before
        fields = text.strip().splitlines()[-1].split(", ")
        return Sample(float(fields[8]), used * 1000 / float(fields[2]))

    def _java(self, tool: str, *arguments: str) -> str:
        command = ["java", "-Xmx512m", "-cp", f"{kafka_jars()}/*", f"org.apache.kafka.tools.{tool}", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=CLIENT_LIMIT_S, check=False)
        if done.returncode != 0:
            raise ServerFailed(f"{tool}: {done.stdout[-500:]}{done.stderr[-500:]}")
        return done.stdout

    # -- librdkafka -----------------------------------------------------------------------------------------------
    def librdkafka_produce(self, server: Server, record_bytes: int, size_bytes: int) -> Sample:
        from confluent_kafka import Producer

        topic = self.new_topic(server, 4)
        producer = Producer(
            {"bootstrap.servers": server.bootstrap, "linger.ms": 5, "queue.buffering.max.kbytes": 1 << 20}
        )
        count, value = size_bytes // record_bytes, bytes(record_bytes)
        before, began = server.cpu_seconds(), time.perf_counter()
        for _ in range(count):
            while not _accepted(lambda: producer.produce(topic, value)):
                producer.poll(0.01)
        left = producer.flush(CLIENT_LIMIT_S)
        took = time.perf_counter() - began
        used = server.cpu_seconds() - before
        self.delete_topic(server, topic)
        if left:
            raise ServerFailed(f"librdkafka against {server.name}: {left} records were not taken")
        return Sample(size_bytes / took / 1e6, used * GIGABYTE / size_bytes)

    def librdkafka_consume(self, server: Server, topic: str, has: int) -> Sample:
        from confluent_kafka import Consumer, TopicPartition

        settings = {"bootstrap.servers": server.bootstrap, "group.id": "bench", "enable.auto.commit": False}
        # By default it pauses fetching for a second whenever its queue is full, which would slow the faster side more.
        consumer = Consumer({**settings, "fetch.queue.backoff.ms": 5})
        consumer.assign([TopicPartition(topic, number, 0) for number in range(4)])
        before, began, size = server.cpu_seconds(), time.perf_counter(), 0
        while size < has * 9 // 10:
            messages = consumer.consume(10_000, 1.0)
            if not messages and time.perf_counter() - began > CLIENT_LIMIT_S:
                raise ServerFailed(f"librdkafka from {server.name}: only {size} of {has} bytes came")
            size += sum(len(message.value() or b"") for message in messages)
        took, used = time.perf_counter() - began, server.cpu_seconds() - before
        consumer.close()
        return Sample(size / took / 1e6, used * GIGABYTE / size)


def _accepted(produce: Callable[[], None]) -> bool:
    try:
        produce()
    except BufferError:  # the client's queue is full: let it send
        return False
    return True
