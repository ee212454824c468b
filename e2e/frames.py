"""Sends a given number of mutated requests and record batches to one broker.

No crash, no hang, no memory growth; meanwhile a well-behaved producer is served all the time; the logs stay valid, and
a kill at the end loses nothing that was acknowledged.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from e2e import clients
from e2e.checker import MOST_FINDINGS, History, add_findings, check_complete, check_known, partition_folder
from e2e.ledger import Ledger
from e2e.mutations import Mutator
from e2e.partition_files import Cursor, check_indexes, read_batches
from e2e.processes import BrokerTrouble, Cluster, until

GOOD = "good"
TOPICS = {
    "plain": {"segment.bytes": "1048576", "retention.bytes": "16777216", "file.delete.delay.ms": "1000"},
    "compacted": {"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.01"},
    "stamped": {"message.timestamp.type": "LogAppendTime", "segment.bytes": "1048576", "retention.bytes": "16777216"},
    "squeezed": {"compression.type": "zstd", "segment.bytes": "1048576", "retention.bytes": "16777216"},
}  # fmt: skip
PROPERTIES = {
    "auto.create.topics.enable": "false",  # else a mutated name would become a topic
    "log.cleaner.backoff.ms": "200",
    "log.retention.check.interval.ms": "1000",
}
CONNECTIONS = 16
GIVE_UP_S = 1.0  # on an answer that a mutation has delayed
REPORT_EVERY = 50_000
WARM_SHARE = 0.2  # of the frames, before memory is first measured
MAX_GROWTH_KB = 65_536
MAX_SILENCE_S = 5.0
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Settings:
    seed: int
    frames: int = 1_000_000
    good_per_second: int = 200
    silence_s: float = MAX_SILENCE_S


@dataclass
class Verdict:
    findings: list[str] = field(default_factory=list)
    frames: int = 0
    connections: int = 0
    given_up: int = 0
    answer_bytes: int = 0
    acknowledged: int = 0
    batches: int = 0
    growth_kb: int = 0
    silence_s: float = 0.0


class _Attack:
    """A few frames on one connection; it ends once the broker has handled or refused them."""

    def __init__(self, port: int, data: bytes) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self.deadline = time.monotonic() + GIVE_UP_S
        self._left = memoryview(data)
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # no TIME_WAIT

    def go_on(self) -> int:
        """How many bytes arrived; -1 when it is over."""
        try:
            if self._left:
                self._left = self._left[self.socket.send(self._left) :]
                if not self._left:
                    self.socket.shutdown(socket.SHUT_WR)
            data = self.socket.recv(1 << 16)
        except BlockingIOError:
            return 0
        except OSError:
            return -1
        return len(data) or -1


class Frames:
    def __init__(self, folder: Path, settings: Settings, say: Callable[[str], None]) -> None:
        self.settings = settings
        self.cluster = Cluster(folder, 1, PROPERTIES)
        self.broker = self.cluster.brokers[0]
        self.verdict = Verdict()
        self._mutator = Mutator(settings.seed, list(TOPICS))
        self._ledger = Ledger(1, 1)
        self._history = History(0, 1)
        self._say = say
        self._first_kb = 0

    def run(self) -> Verdict:
        with self.cluster:
            self.cluster.start()
            for topic, config in {**TOPICS, GOOD: {}}.items():
                clients.create_topic(self.cluster.bootstrap, topic, 1, 1, config)
            producer = clients.SequencedProducer(
                self.cluster.bootstrap, GOOD, self._ledger, 0,
                per_second=self.settings.good_per_second, value_bytes=100,
            )  # fmt: skip
            producer.start()
            try:
                self._attack()
                self._finish(producer)
            except (BrokerTrouble, OSError) as trouble:
                self.verdict.findings.append(str(trouble))
            finally:
                producer.stop()
                producer.join()
        self.verdict.findings += self._ledger.problems + self.broker.complaints()[:MOST_FINDINGS]
        self.verdict.acknowledged = self._ledger.acknowledged_count
        return self.verdict

    # -- bad input

    def _attack(self) -> None:
        until(lambda: self._ledger.acknowledged_count > 0, PATIENCE_S)
        self._ledger.acknowledged[0].forget_silence()
        selector = selectors.DefaultSelector()
        running: set[_Attack] = set()
        try:
            while (self.verdict.frames < self.settings.frames or running) and not self.verdict.findings:
                while len(running) < CONNECTIONS and self.verdict.frames < self.settings.frames:
                    attack = self._begin()
                    selector.register(attack.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, attack)
                    running.add(attack)
                for key, _ in selector.select(0.05):
                    self._go_on(key.data, selector, running)
                now = time.monotonic()
                for attack in [each for each in running if each.deadline < now]:
                    self.verdict.given_up += 1
                    self._end(attack, selector, running)
        finally:
            for attack in running:
                attack.socket.close()
            selector.close()

    def _begin(self) -> _Attack:
        if not self.broker.is_running:
            raise BrokerTrouble(f"the broker ended under mutated frames; see {self.broker.folder}")
        frames = self._mutator.frames()
        before, self.verdict.frames = self.verdict.frames, self.verdict.frames + len(frames)
        self.verdict.connections += 1
        if before // REPORT_EVERY != self.verdict.frames // REPORT_EVERY:
            self._look()
        return _Attack(self.broker.port, b"".join(frames))

    def _go_on(self, attack: _Attack, selector: selectors.BaseSelector, running: set[_Attack]) -> None:
        count = attack.go_on()
        if count < 0:
            self._end(attack, selector, running)
        else:
            self.verdict.answer_bytes += count
            if not attack._left:
                selector.modify(attack.socket, selectors.EVENT_READ, attack)

    def _end(self, attack: _Attack, selector: selectors.BaseSelector, running: set[_Attack]) -> None:
        selector.unregister(attack.socket)
        attack.socket.close()
        running.discard(attack)

    # -- looking

    def _look(self) -> None:
        """Check memory and the well-behaved producer."""
        used_kb, known = self._resident_kb(), self._ledger.acknowledged[0]
        if not self._first_kb and self.verdict.frames >= self.settings.frames * WARM_SHARE:
            self._first_kb = used_kb
        silence_s = known.longest_silence_s
        self.verdict.silence_s = max(self.verdict.silence_s, silence_s)
        if silence_s > self.settings.silence_s:
            self.verdict.findings.append(f"another client's producer was not answered for {silence_s:.1f} s")
        self._say(
            f"{self.verdict.frames:,} of {self.settings.frames:,} frames on {self.verdict.connections:,} connections; "
            f"{used_kb // 1024} MiB, {self._files()} files; {self._ledger.acknowledged_count:,} records of another"
        )

    def _resident_kb(self) -> int:
        for line in Path(f"/proc/{self.broker.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1])
        raise BrokerTrouble("the broker has no memory: it ended")

    def _files(self) -> int:
        return len(os.listdir(f"/proc/{self.broker.pid}/fd"))

    # -- the end

    def _finish(self, producer: clients.SequencedProducer) -> None:
        self._look()
        self.verdict.growth_kb = self._resident_kb() - self._first_kb
        if self.verdict.growth_kb > MAX_GROWTH_KB:
            self.verdict.findings.append(f"memory has grown by {self.verdict.growth_kb // 1024} MiB")
        producer.finish()
        if not until(lambda: producer.waiting == 0, PATIENCE_S):
            self.verdict.findings.append(f"{producer.waiting} records of the other client were never acknowledged")
        if not until(lambda: self._sockets() <= 2 + CONNECTIONS, PATIENCE_S):
            self.verdict.findings.append(f"{self._sockets()} sockets are still open after their clients are gone")
        self.broker.kill()
        self._judge()
        self.broker.start()
        self.broker.wait_ready()
        self.broker.stop()
        self._judge()

    def _sockets(self) -> int:
        count = 0
        for name in os.listdir(f"/proc/{self.broker.pid}/fd"):
            with suppress(OSError):
                count += os.readlink(f"/proc/{self.broker.pid}/fd/{name}").startswith("socket:")
        return count

    def _judge(self) -> None:
        found, folder = self.verdict.findings, self._folder(GOOD)
        add_findings(lambda: self._history.read(folder, whole=False), found)
        found += self._history.findings + check_known(
            self._history, self._ledger.acknowledged[0], "was acknowledged at"
        )
        found += check_complete([self._history], self._ledger)
        add_findings(lambda: check_indexes(folder), found)
        for topic in TOPICS:
            add_findings(lambda topic=topic: self._read(self._folder(topic), topic == "compacted"), found)  # type: ignore[misc]

    def _folder(self, topic: str) -> Path:
        return partition_folder(self.broker.volumes, topic, 0)

    def _read(self, folder: Path, compacted: bool) -> None:
        first = min(int(path.stem) for path in folder.glob("*.log"))
        if not compacted:  # compacted logs have gaps in their offsets
            cursor = Cursor(segment=first, next_offset=first)
            self.verdict.batches += sum(1 for _ in read_batches(folder, cursor, whole=False))
        check_indexes(folder)
