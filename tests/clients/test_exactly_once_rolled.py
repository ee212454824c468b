"""Consume, transform, produce, by several at once, while their group goes from one protocol to the other and back.

Who was moved on may not commit what somebody else has by then: the sink has what the source has, each once, in order.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from e2e.clients import place_of, value_of
from tests.clients.running import RunningBroker
from tests.clients.test_both_protocols import COOPERATIVE, EAGER, MODERN, SESSION_MS
from tests.clients.test_consumer_protocol import FAST
from tests.clients.test_librdkafka import PATIENCE_S, create
from tests.waiting import eventually

from ballast_wire.records import decode_records, iterate_batches

pytestmark = [pytest.mark.spec("CLI-04", "CLI-05"), pytest.mark.timeout(180)]

GROUP = "transformers"
PARTITIONS = 6
PLACES = 3
PROGRESS = 60


class Transformer(threading.Thread):
    """From `source` to `sink`, with offsets in the transaction. What goes wrong in one is done again."""

    def __init__(self, broker: RunningBroker, name: str, config: dict[str, Any]) -> None:
        super().__init__(name=name)
        common = {"bootstrap.servers": broker.bootstrap}
        self._consumer = Consumer(
            common
            | {"group.id": GROUP, "isolation.level": "read_committed", "auto.offset.reset": "error"}
            | {"enable.auto.commit": False}
            | config
        )
        self._producer = Producer(common | {"transactional.id": name})
        self._stopping = threading.Event()
        self._moved = False
        self.failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._producer.init_transactions(PATIENCE_S)
            self._consumer.subscribe(["source"], on_revoke=self._revoked)
            while not self._stopping.is_set():
                self._one()
        except BaseException as error:
            self.failure = error
        finally:
            self._consumer.close()
            self._producer.close()

    def _revoked(self, *_: Any) -> None:
        self._moved = True

    def _one(self) -> None:
        self._moved = False
        messages = [each for each in self._consumer.consume(20, 0.1) if each.error() is None]
        if self._moved:  # on the way some had been read that are others' now, and would be committed as a member anew
            self._go_back()
            return
        if not messages:
            return
        self._producer.begin_transaction()
        for each in messages:
            self._producer.produce("sink", each.value(), partition=place_of(each)[0])
        ends = {partition: offset + 1 for partition, offset in map(place_of, messages)}
        offsets = [TopicPartition("source", partition, end) for partition, end in ends.items()]
        try:
            group = self._consumer.consumer_group_metadata()
            self._producer.send_offsets_to_transaction(offsets, group, PATIENCE_S)
            self._producer.commit_transaction(PATIENCE_S)
        except KafkaException as error:
            if error.args[0].fatal():
                raise
            self._producer.abort_transaction(PATIENCE_S)
            self._go_back()

    def _go_back(self) -> None:
        for place in self._consumer.committed(self._consumer.assignment(), PATIENCE_S):
            place.offset = max(place.offset, 0)
            try:
                self._consumer.seek(place)
            except KafkaException as error:
                if error.args[0].code() != KafkaError._STATE:  # what has not begun begins there
                    raise

    def stop(self) -> None:
        self._stopping.set()
        self.join(PATIENCE_S)
        assert not self.is_alive()
        assert self.failure is None, self.failure


def begin(broker: RunningBroker) -> None:
    """Nobody has to ask where a partition begins: librdkafka, from which it is taken meanwhile, asks once more half a
    second later, and goes there though it was given the partition anew, and has read on, since."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": GROUP})
    consumer.commit(offsets=[TopicPartition("source", number, 0) for number in range(PARTITIONS)], asynchronous=False)
    consumer.close()


class Feeding(threading.Thread):
    def __init__(self, broker: RunningBroker) -> None:
        super().__init__()
        self._producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
        self._stopping = threading.Event()
        self.fed = 0
        self.start()

    def run(self) -> None:
        while not self._stopping.wait(0.01):
            for partition in range(PARTITIONS):
                self._producer.produce("source", b"%d" % self.fed, partition=partition)
            self.fed += 1
            self._producer.poll(0)
        assert self._producer.flush(PATIENCE_S) == 0
        self._producer.close()

    def stop(self) -> int:
        self._stopping.set()
        self.join(PATIENCE_S)
        return self.fed


class Reader:
    """Of all there is in a topic, and will be."""

    def __init__(self, broker: RunningBroker, topic: str) -> None:
        settings = {"group.id": "unused", "isolation.level": "read_committed", "enable.auto.commit": False}
        self._consumer = Consumer({"bootstrap.servers": broker.bootstrap, **settings})
        self._consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
        self.found: dict[int, list[int]] = defaultdict(list)

    def has(self, each: int) -> Callable[[], bool]:
        def reached() -> bool:
            for message in self._consumer.consume(500, 0.1):
                if message.error() is None:
                    self.found[place_of(message)[0]].append(int(value_of(message)))
            return all(len(self.found[number]) >= each for number in range(PARTITIONS))

        return reached

    def more(self) -> Callable[[], bool]:
        return self.has(min(len(self.found[number]) for number in range(PARTITIONS)) + PROGRESS)

    def close(self) -> None:
        self._consumer.close()


@pytest.mark.parametrize("classic", [COOPERATIVE, EAGER], ids=["cooperative", "eager"])
def test_each_once_while_the_group_goes_over_and_back(
    own_broker: Callable[..., RunningBroker], classic: dict[str, Any]
) -> None:
    broker = own_broker(**FAST | {"group_consumer_session_timeout_ms": SESSION_MS})
    create(broker, "source", partitions=PARTITIONS)
    create(broker, "sink", partitions=PARTITIONS)
    begin(broker)
    feeding, source, sink = Feeding(broker), Reader(broker, "source"), Reader(broker, "sink")
    running = [Transformer(broker, f"{place}-0", classic) for place in range(PLACES)]
    try:
        eventually(sink.more(), "they begin")
        for turn, config in enumerate([MODERN, classic]):
            for place in range(PLACES):
                running[place].stop()
                running[place] = Transformer(broker, f"{place}-{turn + 1}", config)
                eventually(sink.more(), f"{place + 1} of {PLACES} were rolled to {config['group.protocol']}")
        fed = feeding.stop()
        eventually(source.has(fed), "all that was fed is there")
        eventually(sink.has(fed), "all that was fed has come")
    finally:
        feeding.stop()
        for each in running:
            each.stop()
        source.close()
        sink.close()
    for topic, reader in (("source", source), ("sink", sink)):
        for number in range(PARTITIONS):
            same = reader.found[number] == list(range(fed))
            assert same, f"{topic}-{number} has not each once and in order:\n{batches(broker, topic, number)}"


def batches(broker: RunningBroker, topic: str, partition: int) -> str:
    """Who has written what there, and in which transactions."""
    files = [file for volume in broker.log_dirs for file in sorted(volume.glob(f"{topic}-{partition}/*.log"))]
    found = []
    for batch in (batch for file in files for batch in iterate_batches(memoryview(file.read_bytes()))):
        of, records = batch.header, list(decode_records(batch))
        kind = f"end {bytes(records[0].key or b'')[3:]!r}" if batch.is_control else f"{len(records)} records"
        found.append(f"{of.base_offset}: {kind} of {of.producer_id}/{of.producer_epoch} from {of.base_sequence}")
    return "\n".join(found)
