"""A Kafka Streams application, unchanged, with exactly-once processing: its groups, its internal topics, its offsets.

Each word's counts have to be told as 1, 2, 3 and so on: one that is lost, or told twice, is a gap or a repetition.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from e2e.processes import until
from tests.apache_java import java
from tests.clients.running import RunningBroker
from tests.clients.test_java_tools import run
from tests.clients.test_librdkafka import create, producer

pytestmark = [pytest.mark.java, pytest.mark.timeout(180), pytest.mark.spec("CLI-14")]

LINES_PARTITIONS, WORDS_PARTITIONS = 4, 2
WORDS_OF_A_LINE = 3
LINES = 300  # before, while and after something is killed
PATIENCE_S = 60.0


class Application:
    """One of its processes; what its state becomes is printed into a file."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        folder.mkdir()
        self._printed = folder / "printed"
        program = Path(__file__).with_name("WordCount.java")
        with self._printed.open("w") as printed:
            self._process = subprocess.Popen(
                java(program, bootstrap, "lines", "words", folder / "state"),
                stdout=printed,
                stderr=subprocess.STDOUT,
            )

    def states(self) -> list[str]:
        return self._printed.read_text().split()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE_S)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE_S)


class Counts:
    """What a reader of committed records has been told of each word."""

    def __init__(self, bootstrap: str) -> None:
        settings = {"group.id": "unused", "isolation.level": "read_committed", "enable.auto.commit": False}
        self._consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
        self._consumer.assign([TopicPartition("words", n, OFFSET_BEGINNING) for n in range(WORDS_PARTITIONS)])
        self.told: dict[str, list[int]] = defaultdict(list)

    def reach(self, wanted: Counter[str]) -> bool:
        return until(lambda: self._reaches(wanted), PATIENCE_S)

    def _reaches(self, wanted: Counter[str]) -> bool:
        for each in self._consumer.consume(500, 0.1):
            if each.error() is None:
                self.told[(each.key() or b"").decode()].append(int(each.value() or b""))
        return {word: counts[-1] for word, counts in self.told.items()} == wanted

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture
def applications(tmp_path: Path) -> Iterator[Callable[[str], Application]]:
    with contextlib.ExitStack() as stack:
        made: list[Application] = []

        def make(bootstrap: str) -> Application:
            made.append(Application(tmp_path / f"application-{len(made)}", bootstrap))
            stack.callback(made[-1].kill)
            return made[-1]

        yield make


def test_words_are_counted_exactly_once(
    own_broker: Callable[..., RunningBroker], applications: Callable[[str], Application]
) -> None:
    """One of its two processes is killed in the middle of its transactions, then the broker is."""
    broker = own_broker(**{"transaction.abort.timed.out.transaction.cleanup.interval.ms": 200})
    broker.stays_where_it_is()
    create(broker, "lines", LINES_PARTITIONS)
    create(broker, "words", WORDS_PARTITIONS)
    random, wanted = Random(1), Counter[str]()

    def feed() -> None:
        sender = producer(broker)
        for _ in range(LINES):
            words = [f"word-{random.randrange(30)}" for _ in range(WORDS_OF_A_LINE)]
            wanted.update(words)
            sender.produce("lines", " ".join(words))
        assert sender.flush(PATIENCE_S) == 0

    first, second = applications(broker.bootstrap), applications(broker.bootstrap)
    counts = Counts(broker.bootstrap)
    try:
        feed()
        assert counts.reach(wanted), (first.states(), second.states())
        assert until(lambda: "RUNNING" in second.states(), PATIENCE_S)
        feed()
        second.kill()
        feed()
        broker.kill()
        broker.start()
        feed()
        assert counts.reach(wanted), (first.states(), broker.log_text())
    finally:
        counts.close()
    first.stop()
    assert first.states()[-1] == "NOT_RUNNING"
    assert "ERROR" not in first.states()
    assert {word: told for word, told in counts.told.items() if told != list(range(1, wanted[word] + 1))} == {}
    whole = ("--application-id", "word-count", "--input-topics", "lines", "--force")
    reset = run("streams-application-reset", "--bootstrap-server", broker.bootstrap, *whole)
    assert "Deleting inferred internal topics" in reset
    assert "ERROR" not in reset
    listed = run("topics", "--bootstrap-server", broker.bootstrap, "--list").split()
    assert [name for name in listed if name.startswith("word-count-")] == []
