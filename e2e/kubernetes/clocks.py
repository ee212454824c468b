"""Steps the wall clocks of brokers in pods; the node's clock is this machine's and is left alone.

The broker's image gets an extra layer with a module that Python imports at startup; the regular image has none of it. A
step takes a file in the pod and a signal, and is gone with the pod.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Producer
from e2e import stepped_broker
from e2e.clients import QUIET
from e2e.kubernetes.world import World, topic

from ballast_cli.image_archive import write_layer
from ballast_cli.image_contents import PLACE

HOUR_MS = 3_600_000
# Less than an hour back: a broker rightly refuses records that are an hour ahead of its clock.
STEPS_MS = (36 * HOUR_MS, 60_000, -60_000, -HOUR_MS // 2)
STAMPED = "stamped"
OFFSET = "/tmp/clock-offset-ms"
# Becomes sitecustomize.py, which Python imports at startup from anywhere on its path.
AT_THE_START = f"""import pathlib, stepped_broker
stepped_broker.install(pathlib.Path("{OFFSET}"))
"""


def write_clock_layer(path: Path) -> None:
    """A layer on top of the current image, for brokers whose clocks can be stepped."""
    with tempfile.TemporaryDirectory(dir=path.parent) as place:
        packages = Path(place) / "packages"
        packages.mkdir()
        shutil.copy(stepped_broker.__file__, packages)
        (packages / "sitecustomize.py").write_text(AT_THE_START)
        write_layer(path, Path(place), PLACE)


@contextmanager
def brokers_with_clocks(world: World) -> Iterator[None]:
    """Clusters created within the block have such brokers."""
    before = world.image
    world.image = world.provider.image_with("stepped-clock", write_clock_layer)
    try:
        yield
    finally:
        world.image = before


def stamped_topic(brokers: int) -> dict[str, Any]:
    """A topic with one partition on each broker, whose records get that broker's time."""
    rows = [[broker] for broker in range(brokers)]
    config = {"message.timestamp.type": "LogAppendTime"}
    return topic(STAMPED, partitions=brokers, replicas=1, replicaAssignment=rows, config=config)


def clock_offset_ms(world: World, broker: int) -> int:
    """How far a broker's clock is from this machine's, by the stamp of a record."""
    stamps: list[int] = []

    def told(error: Any, message: Any) -> None:
        if error is None:
            kind, stamp = message.timestamp()
            assert kind == TIMESTAMP_LOG_APPEND_TIME
            stamps.append(stamp)

    producer = Producer({**QUIET, "bootstrap.servers": world.bootstrap, "acks": "all"})
    producer.produce(STAMPED, b"", partition=broker, on_delivery=told)
    producer.flush(60)
    assert stamps, f"broker {broker} has stamped nothing"
    return stamps[0] - int(time.time() * 1000)


def step_clock(world: World, pod: str, offset_ms: int) -> None:
    """Step the broker's clock to this offset from the machine's."""
    world.kubectl("exec", pod, "--", "sh", "-c", f"echo {offset_ms} > {OFFSET} && kill -USR1 1")
