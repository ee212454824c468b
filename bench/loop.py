"""Measures the longest turn of Ballast's event loop, under load and with everything going on that might block it.

Uses a broker of its own, since measuring costs a little: produce at full speed, a compacted topic that the cleaner
works on without a pause, retention, rolling segments and their flushes, scrapes; then a kill and the recovery.
"""

from __future__ import annotations

import re
import signal
import threading
import time
import urllib.request
from dataclasses import dataclass

from bench.clients import Clients
from bench.servers import Ballast, free_port

LIMIT_MS = 20.0
SEGMENT_BYTES = 8 << 20
BUSY = {
    "log.cleaner.backoff.ms": "1",
    "log.retention.check.interval.ms": "500",
    "log.segment.bytes": str(SEGMENT_BYTES),
    "log.retention.bytes": str(8 * SEGMENT_BYTES),
    "log.cleaner.min.cleanable.ratio": "0.01",
}
_LONGEST = re.compile(r"^ballast_event_loop_longest_turn_seconds\{.*\} (\S+)$", re.MULTILINE)
_LONGEST_CPU = re.compile(r"^ballast_event_loop_longest_turn_cpu_seconds\{.*\} (\S+)$", re.MULTILINE)
_BUCKET = re.compile(r'^ballast_event_loop_lag_seconds_bucket\{.*le="([^"]+)"\} (\d+)$', re.MULTILINE)
_CLEANED = re.compile(r"^ballast_cleaner_read_bytes_total\{.*\} (\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class LoopFigures:
    longest_ms: float
    longest_cpu_ms: float
    turns: int
    over_10_ms: int
    cleaned_mb: float
    after_kill_ms: float

    def text(self) -> str:
        verdict = "" if max(self.longest_ms, self.after_kill_ms) <= LIMIT_MS else "  ABOVE"
        return (
            f"event loop under load: longest turn {self.longest_ms:.1f} ms ({self.longest_cpu_ms:.1f} ms of processor "
            f"time at most), {self.over_10_ms} of {self.turns:,} over 10 ms, {self.cleaned_mb:.0f} MB were cleaned; "
            f"after a kill and recovery {self.after_kill_ms:.1f} ms  goal <= {LIMIT_MS:g} ms{verdict}"
        )


def measure(clients: Clients, seconds: float) -> LoopFigures:
    port = free_port()
    with Ballast(volumes=2, overrides={**BUSY, "metrics.port": str(port)}) as server:
        plain = clients.new_topic(server, 8)
        compacted = clients.new_topic(server, 2, {"cleanup.policy": "compact", "segment.bytes": str(1 << 20)})
        keyed, middle = clients.keyed_batch_file(), clients.batch_file(16_384, 1000)
        work = [
            ["produce", compacted, "2", "2", "2", "1", str(keyed), str(seconds)],
            ["produce", plain, "8", "16", "4", "1", str(middle), str(seconds)],
        ]
        threads = [threading.Thread(target=clients.generate, args=(server, each), daemon=True) for each in work]
        for thread in threads:
            thread.start()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            _page(port)
            time.sleep(0.5)
        for thread in threads:
            thread.join()
        page = _page(port)
        buckets = {bound: int(count) for bound, count in _BUCKET.findall(page)}
        assert server.process is not None
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        server.start()
        clients.await_writable(server, plain, 8)
        after = _page(port)
        return LoopFigures(
            float(_LONGEST.findall(page)[0]) * 1000,
            float(_LONGEST_CPU.findall(page)[0]) * 1000,
            buckets["+Inf"],
            buckets["+Inf"] - buckets["0.01"],
            int(_CLEANED.findall(page)[0]) / 1e6,
            float(_LONGEST.findall(after)[0]) * 1000,
        )


def _page(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        return str(answer.read().decode())
