"""`./ballast bench moves`: replicas move between directories and between brokers, Ballast beside Apache Kafka and `cp`.

Moves between directories are timed from the request until the last partition serves from its new directory; beside
them the same files are copied with `cp -r` and `sync -f`, and by one thread for each processor that does nothing but
copy and sync: no move that ends on the disk could be much faster. Reassignments go from broker 1 to broker 2. Then a
producer's latency is taken with and without a throttled move, with and without a throttled reassignment, and how long
appends waited at the swap. `--throttles` measures instead how well the three throttles hold, over ten seconds at 1, 10
and 100 MB/s.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from bench.machine import touch_memory
from bench.move_clients import Latencies, configure, create, fill
from bench.pairs import Ratio, ratio_of
from bench.servers import ApacheKafka, Ballast, Cluster, Server, ServerFailed
from e2e import moving

from ballast_broker.storage.page_cache import begin_writing
from ballast_cli.reassignment import INTER_BROKER_RATES, LOG_DIRS_RATE, THROTTLED_REPLICAS

TOPIC = "moved"
MB = 1_000_000
PIECE = 16 << 20
LIMIT_S = 300.0
LOOK_EVERY_S = 0.01
QUIET_S = 2.0
THROTTLE = 40 * MB
SMALL_MOVES = 100
# Tail latencies vary more than rates.
LATENCY_PAIRS = 15
PARTS = ("directories", "brokers", "producing")
WINDOW_S = 10.0
RATES = (1 * MB, 10 * MB, 100 * MB)
WAITED = re.compile(r"appends waited ([\d.]+) ms")
KEPT = {"file.delete.delay.ms": "0", "retention.ms": "-1", "segment.bytes": str(256 << 20)}
UNPACED_NETWORK = True
OVERRIDES = {"log.retention.check.interval.ms": "3600000"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pairs", type=int, default=7, help="pairs of runs (default: 7; with --quick: 1)")
    parser.add_argument(
        "--megabytes", type=int, default=2900, help="megabytes to move (default: 2900; with --quick: 200)"
    )
    parser.add_argument("--part", choices=PARTS, help="run only this part")
    parser.add_argument("--throttles", action="store_true", help="instead, measure the throttles, of Ballast alone")


def run(args: argparse.Namespace) -> int:
    size, pairs = (200 * MB, 1) if args.quick else (args.megabytes * MB, args.pairs)
    if args.throttles:
        return _throttles(RATES[:1] if args.quick else RATES, as_json=args.json)
    ratios: dict[str, Ratio] = {}
    if args.part in (None, "directories"):
        ratios |= _between_directories(size, pairs)
    if args.part in (None, "brokers"):
        ratios |= _between_brokers(size, pairs)
    if args.part in (None, "producing"):
        rounds = 3 if args.quick else max(LATENCY_PAIRS, pairs)
        ratios |= _while_producing(size, rounds)
        ratios |= _while_reassigning(size, rounds)
    for name, ratio in ratios.items():
        print(f"{name:58} {ratio.text()}")
    if args.json:
        print(json.dumps({"bench": "moves", "ratios": {name: ratio.median for name, ratio in ratios.items()}}))
    return 0


# -- between directories


def _between_directories(size: int, pairs: int) -> dict[str, Ratio]:
    rates: dict[str, list[float]] = {"ballast": [], "kafka": [], "cp": [], "threads": []}
    with ApacheKafka(volumes=3, overrides=OVERRIDES) as kafka, Ballast(volumes=3, overrides=OVERRIDES) as ballast:
        for server in (kafka, ballast):
            create(server.bootstrap, TOPIC, [[1]] * 4, KEPT)
            fill(server.bootstrap, TOPIC, 4, size)
        for number in range(pairs):
            for server in (ballast, kafka) if number % 2 == 0 else (kafka, ballast):
                rates[server.name].append(_timed_move(server))
            rates["cp"].append(_timed_copy(ballast, _copy_by_cp))
            rates["threads"].append(_timed_copy(ballast, _copy_by_threads))
    for name, values in rates.items():
        print(f"between directories, {name:8} {statistics.median(values):8.0f} MB/s")
    return {
        "moves between directories, MB/s, Ballast / Kafka": _ratio(rates["ballast"], rates["kafka"]),
        "moves between directories, MB/s, Ballast / cp + sync -f": _ratio(rates["ballast"], rates["cp"]),
        "moves between directories, MB/s, Ballast / bare threads": _ratio(rates["ballast"], rates["threads"]),
        "bare threads / Kafka": _ratio(rates["threads"], rates["kafka"]),
    }


def _ratio(ours: list[float], theirs: list[float]) -> Ratio:
    return ratio_of([a / b for a, b in zip(ours, theirs, strict=True)])


def _timed_move(server: Server) -> float:
    """Move every partition to the next volume; returns MB per second."""
    volumes = list(map(str, server.volumes))
    places = {
        held.place: directory.path
        for directory in moving.describe_log_dirs(server.bootstrap)
        for held in directory.replicas
        if held.place[0] == TOPIC
    }
    size = sum(_log_bytes(Path(path) / f"{topic}-{number}") for (topic, number), path in places.items())
    wanted = {place: volumes[(volumes.index(path) + 1) % len(volumes)] for place, path in places.items()}
    _settle(size)
    began = time.perf_counter()
    _ask_for(server, wanted)
    _await(lambda: _is_at(server, wanted), server)
    took = time.perf_counter() - began
    time.sleep(QUIET_S)  # the old files are removed in the background
    return size / took / MB


def _settle(size: int) -> None:
    """Leave nothing for the disk to write, and have the memory for `size` bytes ready."""
    subprocess.run(["sync"], check=True, timeout=LIMIT_S)
    touch_memory(size * 5 // 4)


def _ask_for(server: Server, wanted: dict[moving.Place, str]) -> None:
    refused = {place: code for place, code in moving.alter_log_dirs(server.bootstrap, wanted).items() if code}
    if refused:
        raise ServerFailed(f"{server.name} refused moves: {refused}")


def _is_at(server: Server, wanted: dict[moving.Place, str]) -> bool:
    """Looks at the disk: asking the server all the time would slow it down."""
    return all((Path(path) / f"{topic}-{number}").is_dir() for (topic, number), path in wanted.items())


def _await(condition: Callable[[], bool], server: Server | Cluster) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise ServerFailed(f"{server.name}: not moved within {LIMIT_S:.0f} s\n{server.tail()}")
        time.sleep(LOOK_EVERY_S)


def _timed_copy(server: Server, copy: Callable[[list[Path], Path], None]) -> float:
    folders = [path for volume in server.volumes for path in volume.glob(f"{TOPIC}-*") if "." not in path.name]
    size = sum(map(_log_bytes, folders))
    target = server.directory / "copy"
    target.mkdir()
    _settle(size)
    began = time.perf_counter()
    copy(folders, target)
    took = time.perf_counter() - began
    shutil.rmtree(target)
    time.sleep(QUIET_S)
    return size / took / MB


def _copy_by_cp(folders: list[Path], target: Path) -> None:
    subprocess.run(["cp", "-r", *map(str, folders), str(target)], check=True, timeout=LIMIT_S)
    subprocess.run(["sync", "-f", str(target)], check=True, timeout=LIMIT_S)


def _copy_by_threads(folders: list[Path], target: Path) -> None:
    """Copy only the logs; the disk starts to write each piece at once, as it does in a move."""

    def copy(source: Path) -> None:
        with source.open("rb") as read, (target / f"{source.parent.name}-{source.name}").open("wb") as written:
            done = 0
            while copied := os.copy_file_range(read.fileno(), written.fileno(), PIECE, done, done):
                begin_writing(written.fileno(), done, copied)
                done += copied
            os.fdatasync(written.fileno())

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for _ in threads.map(copy, (path for folder in folders for path in folder.glob("*.log"))):
            pass


def _log_bytes(folder: Path) -> int:
    total = 0
    for path in folder.glob("*.log"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # renamed meanwhile
            continue
    return total


# -- between brokers


def _between_brokers(size: int, pairs: int) -> dict[str, Ratio]:
    rates: dict[str, list[float]] = {"ballast": [], "kafka": []}
    with Cluster(ApacheKafka, 2, overrides=OVERRIDES) as kafka, Cluster(Ballast, 2, overrides=OVERRIDES) as ballast:
        for cluster in (kafka, ballast):
            create(cluster.bootstrap, TOPIC, [[1]] * 4, KEPT)
            fill(cluster.bootstrap, TOPIC, 4, size)
        for number in range(pairs):
            for cluster in (ballast, kafka) if number % 2 == 0 else (kafka, ballast):
                rates[cluster.name].append(_timed_reassignment(cluster, size, 2 - number % 2))
    for name, values in rates.items():
        print(f"between brokers, {name:12} {statistics.median(values):8.0f} MB/s")
    return {"reassignment, MB/s, Ballast / Kafka": _ratio(rates["ballast"], rates["kafka"])}


def _timed_reassignment(cluster: Cluster, size: int, broker: int) -> float:
    server = cluster.servers[0]
    _settle(size)
    began = time.perf_counter()
    refused = {
        p: c for p, c in moving.reassign(server.bootstrap, {(TOPIC, n): [broker] for n in range(4)}).items() if c
    }
    if refused:
        raise ServerFailed(f"{cluster.name} refused reassignments: {refused}")
    _await(lambda: not moving.reassigning(server.bootstrap), cluster)
    took = time.perf_counter() - began
    time.sleep(QUIET_S)
    return size / took / MB


# -- while producing


def _while_producing(size: int, pairs: int) -> dict[str, Ratio]:
    """Write one record at a time to a partition that stays while others move; then swap that partition many times."""
    with Ballast(volumes=3, overrides=OVERRIDES, log_level="info") as server:  # it logs each swap
        latencies = _latencies_beside(server, min(size, 1000 * MB))
        configure(server.bootstrap, "broker", "1", {LOG_DIRS_RATE: str(THROTTLE)})
        ratios = _compared(latencies, pairs, "a move", lambda: _moving(server))
        configure(server.bootstrap, "broker", "1", {LOG_DIRS_RATE: None})
        pauses = _pauses(server, latencies)
        print(f"appends waited at {len(pauses)} swaps: p50 {statistics.median(pauses):.1f} ms, "
              f"p99 {sorted(pauses)[int(len(pauses) * 0.99)]:.1f} ms, most {max(pauses):.1f} ms")  # fmt: skip
    return ratios


def _while_reassigning(size: int, pairs: int) -> dict[str, Ratio]:
    """Write one record at a time to a partition that stays while another one moves to a second broker."""
    with Cluster(Ballast, 2, overrides=OVERRIDES) as cluster:
        server = cluster.servers[0]
        # More than is copied in three seconds.
        latencies = _latencies_beside(server, max(600 * MB, min(size, 1000 * MB)))
        configure(server.bootstrap, "topic", TOPIC, dict.fromkeys(THROTTLED_REPLICAS, "*"))
        for node in ("1", "2"):
            configure(server.bootstrap, "broker", node, dict.fromkeys(INTER_BROKER_RATES, str(THROTTLE)))
        places = itertools.cycle((TOPIC, number) for number in range(4))
        return _compared(latencies, pairs, "a reassignment", lambda: _reassigning(server, next(places)))


def _latencies_beside(server: Server, size: int) -> Latencies:
    """Latencies of a partition that does not move, beside others that hold `size` bytes."""
    create(server.bootstrap, TOPIC, [[1]] * 4, KEPT)
    fill(server.bootstrap, TOPIC, 4, size)
    create(server.bootstrap, "written", [[1]], KEPT)
    latencies = Latencies(server.bootstrap, "written")
    latencies.p99_ms(1.0)  # warm
    return latencies


def _compared(
    latencies: Latencies, pairs: int, what: str, going_on: Callable[[], AbstractContextManager[None]]
) -> dict[str, Ratio]:
    alone, beside = [], []
    for _ in range(pairs):
        alone.append(latencies.p99_ms(3.0))
        with going_on():
            beside.append(latencies.p99_ms(3.0))
    print(f"producer's p99: {statistics.median(alone):.1f} ms, during {what} {statistics.median(beside):.1f} ms")
    return {f"producer's p99 during {what} at {THROTTLE // MB} MB/s / without": _ratio(beside, alone)}


@contextmanager
def _moving(server: Server) -> Iterator[None]:
    """A replica is moving all through the block; it is called back at the end."""
    here = next(directory for directory in moving.describe_log_dirs(server.bootstrap) if _holds(directory))
    place = next(held.place for held in here.replicas if held.place[0] == TOPIC)
    target = next(str(volume) for volume in server.volumes if str(volume) != here.path)
    _ask_for(server, {place: target})
    yield
    _ask_for(server, {place: here.path})


@contextmanager
def _reassigning(server: Server, place: moving.Place) -> Iterator[None]:
    """The same between brokers."""
    moving.reassign(server.bootstrap, {place: [2]})
    yield
    if place not in moving.reassigning(server.bootstrap):
        raise ServerFailed(f"the reassignment of {place} ended while the producer was at it")
    moving.reassign(server.bootstrap, {place: None})


def _holds(directory: moving.Directory) -> bool:
    return any(held.place[0] == TOPIC for held in directory.replicas)


def _pauses(server: Server, latencies: Latencies) -> list[float]:
    """How long appends waited at swaps, by the broker's log, while records are written to the moving partition."""
    place = ("written", 0)
    with latencies.in_background():
        for number in range(SMALL_MOVES):
            wanted = {place: str(server.volumes[number % len(server.volumes)])}
            _ask_for(server, wanted)
            _await(lambda wanted=wanted: _is_at(server, wanted), server)  # type: ignore[misc]
    text = (server.directory / "server.log").read_text(errors="replace")
    pauses = [float(found) for found in WAITED.findall(text)]
    if len(pauses) < SMALL_MOVES - 1:  # the first may have named the place where it was
        raise ServerFailed(f"{SMALL_MOVES} moves were asked for, the broker tells of {len(pauses)} swaps")
    return pauses


# -- throttles


def _throttles(rates: tuple[int, ...], *, as_json: bool) -> int:
    """Measure which share of the limit is used: three throttles at each rate."""
    shares: dict[str, float] = {}

    def note(what: str, rate: int, share: float) -> None:
        shares[name := f"{what} {rate // MB} MB/s"] = share
        print(f"{name:28} {share:7.3f} of the limit over {WINDOW_S:.0f} s", flush=True)

    for rate in rates:
        size = int(rate * (WINDOW_S + 6))
        note("directories", rate, _directory_share(rate, size))
        for side in ("leader", "follower"):
            note(side, rate, _broker_share(side, rate, size))
    good = all(0.95 <= share <= 1.05 for share in shares.values())
    if as_json:
        print(json.dumps({"bench": "throttles", "ok": good, "shares": shares}))
    return 0 if good else 1


def _directory_share(rate: int, size: int) -> float:
    with Ballast(volumes=2, overrides=OVERRIDES) as server:
        create(server.bootstrap, TOPIC, [[1]], KEPT)
        fill(server.bootstrap, TOPIC, 1, size)
        configure(server.bootstrap, "broker", "1", {LOG_DIRS_RATE: str(rate)})
        here = next(volume for volume in server.volumes if (volume / f"{TOPIC}-0").is_dir())
        target = next(volume for volume in server.volumes if volume != here)
        _ask_for(server, {(TOPIC, 0): str(target)})
        return _share(rate, lambda: sum(map(_log_bytes, target.glob(f"{TOPIC}-0.*-future"))), server)


def _broker_share(side: str, rate: int, size: int) -> float:
    with Cluster(Ballast, 2, overrides=OVERRIDES) as cluster:
        create(cluster.bootstrap, TOPIC, [[1]], KEPT)
        fill(cluster.bootstrap, TOPIC, 1, size)
        configure(cluster.bootstrap, "topic", TOPIC, {f"{side}.replication.throttled.replicas": "*"})
        for node in ("1", "2"):
            configure(cluster.bootstrap, "broker", node, {f"{side}.replication.throttled.rate": str(rate)})
        moving.reassign(cluster.servers[0].bootstrap, {(TOPIC, 0): [2]})
        target = cluster.servers[1].volumes[0] / f"{TOPIC}-0"
        return _share(rate, lambda: _log_bytes(target), cluster)


def _share(rate: int, held: Callable[[], int], server: Server | Cluster) -> float:
    """The share of `rate` used within WINDOW_S, which begins once bytes are flowing."""
    _await(lambda: held() > rate // 2, server)
    began, before = time.perf_counter(), held()
    time.sleep(WINDOW_S)
    after, ended = held(), time.perf_counter()
    return (after - before) / (ended - began) / rate
