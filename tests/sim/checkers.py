"""The invariants that must hold; a violation raises `Broken` with the invariant's name and what was seen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from uuid import UUID

from tests.sim.clients import Ledger
from tests.sim.disk import Folder
from tests.sim.machine import Machine

from ballast_wire.names import TopicPartition
from ballast_wire.records import Record, decode_records, iterate_batches


class Broken(AssertionError):
    pass


class Invariants:
    """Checked again and again during a run; remembers what it has seen."""

    def __init__(self) -> None:
        self._leaders: dict[tuple[UUID, TopicPartition, int], int] = {}
        self._controllers: dict[int, int] = {}

    def check(self, machines: Iterable[Machine]) -> None:
        for machine in machines:
            node = machine.process.node if machine.process is not None else None
            if node is None:
                continue
            self._one_controller_per_epoch(machine)
            if node.broker is not None:
                self._one_leader_per_epoch(machine)

    def _one_leader_per_epoch(self, machine: Machine) -> None:
        assert machine.process is not None
        broker = machine.process.node.broker
        assert broker is not None
        for replica in broker.replicas._replicas.values():
            if replica.state.is_leader:
                key = (replica.topic_id, replica.topic_partition, replica.state.leader_epoch)
                leader = self._leaders.setdefault(key, machine.node_id)
                if leader != machine.node_id:
                    raise Broken(f"one leader per epoch: {key} is led by {leader} and {machine.node_id}")

    def _one_controller_per_epoch(self, machine: Machine) -> None:
        assert machine.process is not None
        driver = getattr(machine.process.node, "driver", None)
        if driver is None or not driver.is_leader:
            return
        leader = self._controllers.setdefault(driver.epoch, machine.node_id)
        if leader != machine.node_id:
            raise Broken(f"one controller per epoch: epoch {driver.epoch} has {leader} and {machine.node_id}")


def contents(machine: Machine, partition: TopicPartition) -> dict[int, bytes]:
    """The values of the partition's records on this machine, by offset."""
    return {record.offset: record.value or b"" for record in records(machine, partition)}


def records(machine: Machine, partition: TopicPartition) -> Iterator[Record]:
    """All records that a reader of this machine's log gets."""
    assert machine.process is not None
    log = machine.process.node.logs.get(partition)
    if log is None:
        return
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        piece = log.read(offset, 1 << 24, upper_offset=log.log_end_offset)
        data = piece.read()
        piece.release()
        for batch in iterate_batches(memoryview(data)):
            for record in decode_records(batch):
                if record.offset >= log.log_start_offset:
                    yield record
            offset = batch.last_offset + 1


def check_replicas_equal(machines: list[Machine], partition: TopicPartition) -> dict[int, bytes]:
    """Return the copy that begins first. Log start offsets may differ: a crash loses them, as with Apache Kafka."""
    copies = {m.host: contents(m, partition) for m in machines}
    longest = min(copies.values(), key=lambda copy: min(copy, default=0))
    for host, copy in copies.items():
        start = min(copy, default=0)
        differing = sorted(o for o in longest.keys() | copy.keys() if o >= start and longest.get(o) != copy.get(o))[:5]
        if differing:
            raise Broken(
                f"replicas are equal: {partition} on {host} differs at {differing}: "
                f"{[(longest.get(o), copy.get(o)) for o in differing]}"
            )
    return longest


def check_one_log_each(machine: Machine, partitions: Iterable[TopicPartition]) -> None:
    """After all moves, cancellations and kills: one current log per partition, and no abandoned future log."""
    names = [name for path in machine.directories for name in entries(machine, path)]
    for partition in partitions:
        current = names.count(f"{partition.topic}-{partition.partition}")
        if current != 1:
            raise Broken(f"one current log: {machine.host} has {current} of {partition}: {sorted(names)}")
    left = [name for name in names if name.endswith("-future")]
    if left:
        raise Broken(f"no copy is left over: {machine.host} has {left}")


def check_where_replicas_are(machine: Machine) -> None:
    """The metadata knows each replica's directory, so that a leader whose directory fails is replaced. Skipped while
    the broker has assignments to report."""
    node = machine.process.node if machine.process is not None else None
    if node is None or node.broker is None or len(node.broker.replication.assignments):
        return
    for partition, log in node.logs.logs.items():
        topic = node.image.topics.by_name(partition.topic)
        registration = None if topic is None else topic.partitions.get(partition.partition)
        told = None if registration is None else registration.directory_of(machine.node_id)
        if told is not None and told != log.directory.id:
            raise Broken(f"it is known where replicas are: {partition} on {machine.host} is in {log.directory.path}")


def check_times(machine: Machine, partition: TopicPartition) -> None:
    """A lookup by timestamp leads to the first record with that timestamp or a later one: reading from the offset that
    it returns, this is the first record."""
    assert machine.process is not None
    log = machine.process.node.logs.get(partition)
    assert log is not None
    there = list(records(machine, partition))
    for timestamp in sorted({record.timestamp + more for record in there for more in (0, 1)}):
        due = next((record.offset for record in there if record.timestamp >= timestamp), None)
        found = log.offset_for_timestamp(timestamp)
        begins = None if found is None else next((each.offset for each in there if each.offset >= found[1]), None)
        if begins != due:
            raise Broken(
                f"a time leads to its record: {partition} on {machine.host} of {timestamp}: {found}, not {due}"
            )


def entries(machine: Machine, path: str) -> list[str]:
    folder = machine.store.find(path)
    return sorted(folder.entries) if isinstance(folder, Folder) else []


def check_ledger(ledger: Ledger, final: dict[TopicPartition, dict[int, bytes]]) -> None:
    for told, promise in ((ledger.acked, "acked is never lost"), (ledger.seen, "read is never undone")):
        for (partition, offset), value in told.items():
            there = final[partition].get(offset)
            if there != value and not (there is None and offset < ledger.deleted.get(partition, 0)):
                raise Broken(f"{promise}: {partition} offset {offset} was {value!r}, is {there!r}")
    everything = [value for records in final.values() for value in records.values()]
    phantoms = set(everything) - ledger.sent
    if phantoms:
        raise Broken(f"no phantom records: {sorted(phantoms)[:5]}")
    if len(everything) != len(set(everything)):
        twice = sorted({value for value in everything if everything.count(value) > 1})
        raise Broken(f"no record twice: {twice[:5]}")
    missing = sorted(ledger.unplaced - set(everything))
    if missing and not ledger.deleted:
        raise Broken(f"acked is never lost: {missing[:5]} are nowhere")
    if ledger.out_of_order:
        raise Broken(f"what is sent in order is in order: {ledger.out_of_order[:5]}")
    for partition, records in final.items():
        _check_order(ledger, partition, records)
        start = min(records, default=0)
        if sorted(records) != list(range(start, start + len(records))) or start > ledger.deleted.get(partition, 0):
            raise Broken(f"no gaps: {partition} has {len(records)} records, offsets {start} to {max(records)}")


def _check_order(ledger: Ledger, partition: TopicPartition, records: dict[int, bytes]) -> None:
    """Each idempotent producer's records are complete and in order, from the first that is still there."""
    due: dict[str, int] = {}
    for offset in sorted(records):
        name, _, number = records[offset].decode().rpartition(":")
        if name.partition(":")[0] not in ledger.in_order:
            continue
        if int(number) != due.get(name, int(number)):
            raise Broken(f"in the producer's order: {partition} has {records[offset]!r} at {offset}, due {due[name]}")
        due[name] = int(number) + 1
