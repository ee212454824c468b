"""Broker processes between whose directories replicas are moved; broker 0 is the controller as well."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from e2e.clients import QUIET
from e2e.processes import CLUSTER_ID, BrokerProcess, brokers_told, free_ports
from tests import waiting

PATIENCE_S = 60.0
VALUE_BYTES = 1000
BATCH_BYTES = 16_384


class Brokers:
    """A context manager; the brokers of `started` run, the others after `join`."""

    def __init__(
        self, folder: Path, count: int, started: Iterable[int], racks: Sequence[str] = (), **properties: str
    ) -> None:
        *ports, controller = free_ports(count + 1)
        common = {
            "cluster.id": CLUSTER_ID,
            "controller.quorum.voters": f"0@127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "auto.create.topics.enable": "false",
            "offsets.topic.num.partitions": "1",
            "offsets.topic.replication.factor": "1",
            **{name.replace("_", "."): value for name, value in properties.items()},
        }
        self._started = tuple(started)
        self.brokers = []
        for node_id, port in enumerate(ports):
            listener = f"PLAINTEXT://127.0.0.1:{port}"
            own = {"process.roles": "broker", "listeners": listener}
            if node_id == 0:
                own = {
                    "process.roles": "broker,controller",
                    "listeners": f"{listener},CONTROLLER://127.0.0.1:{controller}",
                }
            if racks:
                own["broker.rack"] = racks[node_id]
            self.brokers.append(BrokerProcess(folder / f"broker-{node_id}", node_id, port, {**common, **own}))

    def __enter__(self) -> Brokers:
        for node_id in self._started:
            self.brokers[node_id].start()
        for node_id in self._started:
            self.brokers[node_id].wait_ready()
        return self

    def __exit__(self, *_: object) -> None:
        for broker in self.brokers:
            broker.kill()
            print(f"--- broker {broker.node_id}", *broker.last_lines(), sep="\n")  # shown if the test fails

    def join(self, node_id: int) -> None:
        self.brokers[node_id].start()
        self.brokers[node_id].wait_ready()

    def __getitem__(self, node_id: int) -> BrokerProcess:
        return self.brokers[node_id]

    @property
    def bootstrap(self) -> str:
        return self.brokers[0].address

    # -- where replicas are -------------------------------------------------------------------------------------------
    def directory_of(self, node_id: int, topic: str, partition: int) -> str | None:
        """The one directory in which this broker has the current log, or None."""
        found = self._directories_of(node_id, topic, partition)
        if len(found) > 1:  # a move may have ended between the two looks; then only one is left now
            found = self._directories_of(node_id, topic, partition)
        assert len(found) < 2, found
        return str(found[0]) if found else None

    def _directories_of(self, node_id: int, topic: str, partition: int) -> list[Path]:
        return [volume for volume in self.brokers[node_id].volumes if (volume / f"{topic}-{partition}").is_dir()]

    def other_directory(self, node_id: int, topic: str, partition: int) -> str:
        """A topic exists before its replicas' folders do: the present one is waited for."""
        now = eventually(lambda: self.directory_of(node_id, topic, partition), f"where {topic}-{partition} is")
        return next(str(volume) for volume in self.brokers[node_id].volumes if str(volume) != now)

    def futures(self) -> list[Path]:
        return [path for broker in self.brokers for volume in broker.volumes for path in volume.glob("*-future")]

    # -- topics and data ----------------------------------------------------------------------------------------------
    def create(self, topic: str, assignment: list[list[int]], **configs: str) -> None:
        admin = AdminClient({**QUIET, "bootstrap.servers": self.bootstrap})
        settings = {name.replace("_", "."): value for name, value in configs.items()}
        wanted = NewTopic(topic, len(assignment), replica_assignment=assignment, config=settings)
        admin.create_topics([wanted], operation_timeout=30)[topic].result(PATIENCE_S)
        eventually(lambda: self._led(topic) == len(assignment), f"every partition of {topic} has a leader")

    def _led(self, topic: str) -> int:
        return sum(partition.leader >= 0 for partition in self.metadata(topic).values())

    def produce(self, topic: str, partitions: Iterable[int], megabytes: float) -> None:
        producer = Producer({**QUIET, "bootstrap.servers": self.bootstrap, "linger.ms": 5, "batch.size": BATCH_BYTES})
        failures: list[str] = []

        def note(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failures.append(str(error))

        for partition in partitions:
            for number in range(int(megabytes * 1e6 / VALUE_BYTES)):
                value = number.to_bytes(4, "big") * (VALUE_BYTES // 4)
                producer.produce(
                    topic,
                    value,
                    partition=partition,
                    on_delivery=note,
                )
                if number % 1000 == 0:
                    producer.poll(0)
            assert producer.flush(PATIENCE_S) == 0
        assert not failures, failures[:3]

    def replicas(self, topic: str) -> list[list[int]]:
        partitions = self.metadata(topic)
        return [list(partitions[number].replicas) for number in sorted(partitions)]

    def in_sync(self, topic: str) -> bool:
        return all(set(each.isrs) == set(each.replicas) for each in self.metadata(topic).values())

    def until_nobody_is_told_of(self, node_id: int) -> None:
        """After a broker was killed, wait until the others no longer list it in Metadata: kafka-python asks any broker
        that it was told of, and leaves a socket open where nobody listens."""
        others = [broker for broker in self.brokers if broker.is_running]
        eventually(lambda: not any(node_id in brokers_told(broker.address) for broker in others))

    def metadata(self, topic: str) -> dict[int, Any]:
        admin = AdminClient({**QUIET, "bootstrap.servers": self.bootstrap})
        found: dict[int, Any] = admin.list_topics(topic, timeout=30).topics[topic].partitions
        return found


eventually = partial(waiting.eventually, seconds=PATIENCE_S)


def plan(rows: Iterable[tuple[str, int, list[int], list[str] | None]]) -> str:
    partitions = [
        {"topic": topic, "partition": partition, "replicas": replicas}
        | ({} if log_dirs is None else {"log_dirs": log_dirs})
        for topic, partition, replicas, log_dirs in rows
    ]
    return json.dumps({"version": 1, "partitions": partitions})


def metric(broker: BrokerProcess, name: str) -> list[str]:
    with urllib.request.urlopen(metrics_page(broker), timeout=PATIENCE_S) as page:
        return [line for line in page.read().decode().splitlines() if name in line and not line.startswith("#")]


def metrics_page(broker: BrokerProcess) -> str:
    text = (broker.folder / "output.log").read_text()
    return next(word for line in reversed(text.splitlines()) for word in line.split() if word.startswith("http://"))
