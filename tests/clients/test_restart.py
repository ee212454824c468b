"""What a client was told is true after a restart, however the broker ended."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable

import pytest
from tests.clients.running import RunningBroker
from tests.clients.test_librdkafka import consumer, create, from_beginning, producer, read, send

COUNT = 2000


@pytest.mark.spec("LOG-40", "CLI-01")
@pytest.mark.parametrize("ended", [RunningBroker.stop, RunningBroker.stop_impatiently, RunningBroker.kill])
def test_records_and_offsets_outlive_the_broker(
    own_broker: Callable[..., RunningBroker], topic: str, ended: Callable[[RunningBroker], int]
) -> None:
    broker = own_broker()
    create(broker, topic, 2)
    values = [b"%d" % number for number in range(COUNT)]
    for partition in range(2):
        send(producer(broker, enable_idempotence=True), topic, values, partition=partition)
    reader = consumer(broker, topic)
    reader.subscribe([topic])
    read(reader, 2 * COUNT)
    reader.commit(asynchronous=False)
    send(producer(broker), topic, [b"after"], partition=1)
    reader.close()
    code = ended(broker)
    assert code == (-9 if ended is RunningBroker.kill else 0)
    broker.start()
    reader = consumer(broker)
    reader.assign(from_beginning(topic, 2))
    found = read(reader, 2 * COUNT + 1)
    assert [one.value() for one in found if one.partition() == 0] == values
    assert [one.value() for one in found if one.partition() == 1] == [*values, b"after"]
    reader.close()
    member = consumer(broker, topic)
    member.subscribe([topic])
    assert [one.value() for one in read(member, 1)] == [b"after"]
    member.close()
    assert unclean_elections(broker) == 0, "what only this broker has no other one could have had more of"


def unclean_elections(broker: RunningBroker) -> float:
    with urllib.request.urlopen(broker.metrics, timeout=10) as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("ballast_unclean_elections_total"))
