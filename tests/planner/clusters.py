"""Made-up clusters for the planner's tests."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from ballast_planner import Broker, ClusterLoad, Directory, Move, PlanOptions, Replica
from ballast_planner.parallel import BrokerTask, Moves, solve_task


@st.composite
def cluster_loads(draw: st.DrawFn, cordons: bool = True) -> ClusterLoad:
    """Small clusters of any shape: racks, cordons, offline directories, other files on disks, odd capacities."""
    broker_count = draw(st.integers(1, 5))
    per_broker = draw(st.integers(1, 4))
    rack_count = draw(st.integers(0, 3))
    brokers = [Broker(10 + i, f"rack{i % rack_count}" if rack_count else None) for i in range(broker_count)]
    replicas: list[Replica] = []
    sums: dict[tuple[int, str], int] = {(b.id, f"/d{d}"): 0 for b in brokers for d in range(per_broker)}
    for partition in range(draw(st.integers(0, 30))):
        factor = draw(st.integers(1, min(3, broker_count)))
        ids = draw(st.permutations([broker.id for broker in brokers]))[:factor]
        size = draw(st.integers(0, 400))
        for position, broker in enumerate(ids):
            path = f"/d{draw(st.integers(0, per_broker - 1))}"
            sums[broker, path] += size
            replicas.append(Replica(f"t{partition % 3}", partition, broker, path, size, position == 0, position))
    directories = [
        Directory(
            broker,
            path,
            used + draw(st.integers(0, 100)) + draw(st.sampled_from([50, 200, 2_000])),
            used + draw(st.integers(0, 50)),
            cordoned=cordons and draw(st.integers(0, 9)) == 0,
            online=not cordons or draw(st.integers(0, 9)) > 0,
        )
        for (broker, path), used in sums.items()
    ]
    return ClusterLoad.from_rows(brokers, directories, replicas)


def skewed_disks(disks: int = 3, partitions: int = 60) -> ClusterLoad:
    """One broker with several disks and everything on the first."""
    replicas = [Replica("t", p, 0, "/d0", 5 + p % 7, True) for p in range(partitions)]
    used = sum(replica.size_bytes for replica in replicas)
    directories = [Directory(0, f"/d{d}", 2 * used, used if d == 0 else 0) for d in range(disks)]
    return ClusterLoad.from_rows([Broker(0)], directories, replicas)


def apply_moves(load: ClusterLoad, moves: tuple[Move, ...]) -> ClusterLoad:
    """The cluster after these moves."""
    target = {(move.topic, move.partition): move.to for move in moves}
    ids = load.brokers.ids.tolist()
    rows: list[Replica] = []
    used = {load.directory_name(index): int(value) for index, value in enumerate(load.directories.used)}
    for directory, size in zip(load.replicas.directory, load.replicas.size, strict=True):
        if directory >= 0:
            used[load.directory_name(directory)] -= int(size)
    used = {where: max(0, size) for where, size in used.items()}  # bytes that are not of replicas stay
    for index in range(load.partitions.topic.size):
        topic, number = load.partition_name(index)
        span = range(int(load.partitions.first[index]), int(load.partitions.first[index + 1]))
        size = max(int(load.replicas.size[replica]) for replica in span)
        if (topic, number) in target:
            pairs = list(target[topic, number].as_pairs().items())
        else:
            pairs = [
                (ids[int(load.replicas.broker[r])], load.directories.paths[int(load.replicas.directory[r])])
                for r in span
            ]
        for position, (broker, path) in enumerate(pairs):
            used[broker, path] += size
            rows.append(Replica(topic, number, broker, path, size, position == 0, position))
    columns = load.directories
    directories = [
        Directory(*load.directory_name(i), int(columns.total[i]), used[load.directory_name(i)],
                  bool(columns.cordoned[i]), bool(columns.online[i]))
        for i in range(columns.total.size)
    ]  # fmt: skip
    brokers = [
        Broker(ids[i], load.brokers.racks[i], bool(load.brokers.alive[i]), bool(load.brokers.cordoned[i]))
        for i in range(len(ids))
    ]
    return ClusterLoad.from_rows(brokers, directories, rows)


def solve_in_turn(tasks: Sequence[BrokerTask], options: PlanOptions) -> Moves:
    """Solve all tasks one after another, in this process."""
    return [move for task in tasks for move in solve_task(task, options)]
