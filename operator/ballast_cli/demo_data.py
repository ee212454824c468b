"""Writes data to the demonstration's topic, in a process of its own: a producer blocks if brokers accept nothing.

python -m ballast_cli.demo_data BOOTSTRAP TOPIC '{"PARTITION": VALUES, ...}'
"""

from __future__ import annotations

import json
import sys

VALUE = bytes(range(256)) * 400


def produce(bootstrap: str, topic: str, values: dict[int, int]) -> None:
    """Send the given number of values to each partition."""
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=bootstrap.split(","), acks="all", batch_size=1 << 20, linger_ms=20)
    sent = []
    for partition, count in values.items():
        sent += [producer.send(topic, VALUE, partition=partition) for _ in range(count)]
    producer.flush()
    producer.close()
    for future in sent:
        future.get(timeout=0)  # raises the error of a record that was not accepted


if __name__ == "__main__":
    produce(sys.argv[1], sys.argv[2], {int(number): count for number, count in json.loads(sys.argv[3]).items()})
