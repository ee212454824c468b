"""Runs with disks that corrupt data: a bit, or a range, of one replica's log, while the two others are intact.

A reader notices it, by an error or by a wrong checksum, and no records are skipped. Corruption never spreads to other
replicas, and a broker that notices at start that its log is truncated does not lead before it has caught up. Then an
administrator has the replica rebuilt.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator

from tests.sim import transactors
from tests.sim.aimed import LAGGING_S, AimedFaults
from tests.sim.checkers import Broken
from tests.sim.clients import SimClient, move_replica, reassign
from tests.sim.disk import Folder, Inode
from tests.sim.follower_fetching import ELECT_LEADERS, PREFERRED
from tests.sim.machine import Machine
from tests.sim.offsets import TOPIC as OFFSETS
from tests.sim.schedule import Plan, Run

from ballast_broker.storage.log import Log
from ballast_broker.storage.segment import LOG_SUFFIX
from ballast_wire.messages import message
from ballast_wire.names import TopicPartition
from ballast_wire.records import BatchView, CorruptBatch, decode_records, iterate_batches

# A replica that fetches batch by batch over a slow network would be rebuilt too slowly.
PLAN = Plan(seconds=60.0, faults=16, properties={"replica.fetch.max.bytes": "1048576"})
LENGTH, MAGIC = range(8, 12), 16  # their positions in a batch
STOP_S = 40.0
FETCH = 11


class RottenRun(Run):
    def __init__(self, seed: int, plan: Plan) -> None:
        super().__init__(seed, plan)
        self.spoilt: set[tuple[str, TopicPartition]] = set()
        self.times_spoilt = 0

    def _faults(self, hosts: list[str]) -> AimedFaults:
        return RottenFaults(self, hosts)

    def _verdict(self) -> None:
        for machine in self.machines:
            for partition in self.partitions:
                log = _log_of(machine, partition)
                if log is not None and not _is_whole(machine, log):
                    raise Broken(f"what is spoilt spreads to nobody: {machine.host} has it in {log.folder.path}")
        super()._verdict()

    def _recognises(self, host: str, partition: TopicPartition) -> bool:
        """After a restart a broker knows only the last batch of each producer, as Apache Kafka does, and looks for
        earlier ones in the log, where corruption may hide them: a retry of one is then out of sequence. That error is
        for a batch that was never acknowledged, and nothing is lost or duplicated."""
        if not super()._recognises(host, partition):
            return False
        [machine] = [each for each in self.machines if each.host == host]
        log = _log_of(machine, partition)
        return (host, partition) not in self.spoilt or (log is not None and _is_whole(machine, log))

    def _check_rebuilt(self, machine: Machine, partition: TopicPartition) -> None:
        if (machine.host, partition) not in self.spoilt:
            super()._check_rebuilt(machine, partition)


class RottenFaults(AimedFaults):
    run: RottenRun

    def __init__(self, run: RottenRun, hosts: list[str]) -> None:
        super().__init__(run, hosts)
        self._reader = SimClient(run.fabric, "who begins at the beginning", hosts)

    def _kinds(self) -> list[Callable[[], Awaitable[None]]]:
        return [*super()._kinds(), *[self._rots] * 60]

    async def _rots(self) -> None:
        await self._until(self.run.settled)
        machine = self._victim()
        if machine is None or not self.run.settled():
            return
        internal = [TopicPartition(OFFSETS, 0), TopicPartition(OFFSETS, 1), TopicPartition(transactors.STATE, 0)]
        partition = self.rng.choice([*self.run.partitions, *internal])
        meanwhile = self.rng.choice(
            [
                *[self._all_stop] * 4,
                *[self._read, self._another_is_made_anew] * 2,
                self._restarts, self._stops, self._moves, self._leads_again,
            ]
        )  # fmt: skip
        if meanwhile not in (self._stops, self._all_stop) and not self._spoil(machine, partition):
            return
        await meanwhile(machine, partition)
        await asyncio.sleep(self.rng.choice([0.0, 1.0, LAGGING_S]))
        await self._replace(machine, partition)

    def _spoil(self, machine: Machine, partition: TopicPartition) -> bool:
        log, end = _log_of(machine, partition), self._end_of_all(partition)
        segments = [each for each in log.segments if each.size and each.base_offset < end] if log is not None else []
        return bool(segments) and self._spoil_file(machine, partition, self.rng.choice(segments).path(), end)

    def _end_of_all(self, partition: TopicPartition) -> int:
        """The offset up to which all three replicas have the log."""
        logs = [_log_of(each, partition) for each in self.run.machines]
        return min(0 if log is None else log.log_end_offset for log in logs)

    def _spoil_who_is_down(self, machine: Machine, partition: TopicPartition, end_offset: int) -> None:
        for directory in self.run.directories:
            name = f"{directory}/{partition.topic}-{partition.partition}"
            folder = machine.store.find(name)
            if isinstance(folder, Folder):
                files = [each for each in sorted(folder.entries) if each.endswith(LOG_SUFFIX)]
                file = files[-1] if self.rng.random() < 0.7 else self.rng.choice(files)
                self._spoil_file(machine, partition, f"{name}/{file}", end_offset)

    def _spoil_file(self, machine: Machine, partition: TopicPartition, path: str, end_offset: int) -> bool:
        """Corrupt what a reader can notice: not a base offset or a leader epoch, which no checksum covers."""
        file = machine.store.find(path)
        assert isinstance(file, Inode)
        with contextlib.suppress(CorruptBatch):
            batches = list(iterate_batches(memoryview(bytes(file.data[: file.size])), whole=False))
            batches = [each for each in batches if each.last_offset < end_offset]
            if batches:
                first = self.rng.choice(
                    [self.rng.randrange(len(batches)), max(0, len(batches) - self.rng.randint(1, 4))]
                )
                batch, last = batches[first], batches[min(len(batches) - 1, first + self.rng.choice([0, 0, 1, 5]))]
                start = batch.position + self.rng.choice(
                    [self.rng.choice(LENGTH), self.rng.randrange(MAGIC, batch.size_bytes)]
                )
                end = last.position + last.size_bytes
                if start < batch.position + MAGIC or self.rng.random() < 0.5:
                    end = start + 1
                self._overwrite(machine, partition, path, start, end)
                return True
        return False

    def _overwrite(self, machine: Machine, partition: TopicPartition, path: str, start: int, end: int) -> None:
        file = machine.store.find(path)
        assert isinstance(file, Inode)
        data = self.rng.choice([bytes(end - start), self.rng.randbytes(end - start)])
        if end == start + 1 or data == file.data[start:end]:
            data = bytes([file.data[start] ^ 1 << self.rng.randrange(8)]) + file.data[start + 1 : end]
        self.run.note(f"{machine.host}'s {path} is spoilt from {start} to {end}")
        file.write(data, start)
        file.sync()
        self.run.spoilt.add((machine.host, partition))
        self.run.times_spoilt += 1

    # -- meanwhile ------------------------------------------------------------------------------------------------
    async def _read(self, machine: Machine, partition: TopicPartition) -> None:
        if partition not in self.run.partitions:
            return
        if not self.run.leads(machine.host, partition):
            await self._lead(machine, partition)
        if self.run.leads(machine.host, partition):
            await self._read_through(machine, partition)

    async def _restarts(self, machine: Machine, partition: TopicPartition) -> None:
        await self._kill_and_return(machine)

    async def _stops(self, machine: Machine, partition: TopicPartition) -> None:
        end = self._end_of_all(partition)
        self.run.note(f"{machine.host} is stopped in order")
        await self._stop_in_order(machine)
        self._spoil_who_is_down(machine, partition, end)
        machine.start()

    async def _all_stop(self, machine: Machine, partition: TopicPartition) -> None:
        """Usually the broker whose disk gets corrupted stops last; it always starts first."""
        others, end = self._others(machine), self._end_of_all(partition)
        order = [*others, machine] if self.rng.random() < 0.8 else self.rng.sample(self.run.machines, 3)
        self.run.note(f"{[each.host for each in order]} are stopped in order")
        for each in order:
            await self._stop_in_order(each)
        self._spoil_who_is_down(machine, partition, end)
        for each in (machine, *others):
            self.run.note(f"{each.host} starts")
            each.start()
            await asyncio.sleep(self.rng.choice([0.0, 2.0, LAGGING_S]))

    async def _moves(self, machine: Machine, partition: TopicPartition) -> None:
        for path in self.run.directories:
            await move_replica(self._admin, machine.host, partition, path)
        await asyncio.sleep(1.0)

    async def _leads_again(self, machine: Machine, partition: TopicPartition) -> None:
        await self._lead(machine, partition)
        others = self._others(machine)
        await self._kill_and_return(self.rng.choice(others))

    async def _another_is_made_anew(self, machine: Machine, partition: TopicPartition) -> None:
        """Rebuild another replica from this leader: it cannot get past the corruption until somebody else leads."""
        await self._lead(machine, partition)
        one, other = self.rng.sample(self._others(machine), 2)
        for target in ([machine.node_id, one.node_id], [machine.node_id, one.node_id, other.node_id]):
            await reassign(self._admin, {partition: target})
            await asyncio.sleep(1.0)
        await self._lead(one, partition)

    async def _lead(self, machine: Machine, partition: TopicPartition) -> None:
        """Make it the preferred replica and have it elected."""
        order = [machine.node_id, *[each.node_id for each in self._others(machine)]]
        await reassign(self._admin, {partition: order})
        await self._until(self.run.settled)
        kind = message("ElectLeadersRequest")
        topic = kind.TopicPartitions(version=ELECT_LEADERS, topic=partition.topic, partitions=[partition.partition])
        request = kind(election_type=PREFERRED, topic_partitions=[topic], timeout_ms=2000)
        await self._admin.ask_any(request, ELECT_LEADERS)
        await self._until(lambda: self.run.leads(machine.host, partition))

    async def _stop_in_order(self, machine: Machine) -> None:
        await asyncio.wait({self.run.loop.create_task(machine.stop())}, timeout=STOP_S)
        machine.kill()

    async def _read_through(self, machine: Machine, partition: TopicPartition) -> None:
        """Read all that it returns, up to the first error or wrong checksum: no records may be skipped."""
        log = _log_of(machine, partition)
        offset = 0 if log is None else log.log_start_offset
        kind = message("FetchRequest")
        while True:
            asked = kind.FetchTopic.FetchPartition(
                version=FETCH, partition=partition.partition, current_leader_epoch=-1, fetch_offset=offset,
                log_start_offset=-1, partition_max_bytes=self.rng.choice([100, 1000, 1 << 20]),
            )  # fmt: skip
            request = kind(
                replica_id=-1, max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, isolation_level=0, session_id=0,
                session_epoch=-1, topics=[kind.FetchTopic(version=FETCH, topic=partition.topic, partitions=[asked])],
                forgotten_topics_data=[], rack_id="",
            )  # fmt: skip
            try:
                answer = await self._reader.ask(machine.host, request, FETCH)
            except (OSError, TimeoutError):
                return
            result = answer.responses[0].partitions[0]
            if result.error_code or not result.records:
                return
            for batch in _batches(bytes(result.records)):
                if batch is None or not batch.crc_is_right():
                    return
                if not batch.base_offset <= offset <= batch.last_offset:
                    raise Broken(f"nothing is passed over: {partition} at {offset}, given {batch.base_offset}")
                for record in decode_records(batch):
                    value = self.run.ledger.acked.get((partition, record.offset), record.value)
                    if value != record.value:
                        raise Broken(f"read is what was written: {partition} at {record.offset}: {record.value!r}")
                offset = batch.last_offset + 1

    async def _replace(self, machine: Machine, partition: TopicPartition) -> None:
        self.run.note(f"{partition} on {machine.host} is made anew")
        others = [each.node_id for each in self._others(machine)]
        if not machine.is_up:
            machine.start()
        for target in (others, [*others, machine.node_id]):
            if not await self._becomes_so(machine, partition, target):
                raise Broken(f"a spoilt replica can be made anew: {partition} on {target}: {self.run._state()}")
        self.run.spoilt.discard((machine.host, partition))

    async def _becomes_so(self, machine: Machine, partition: TopicPartition, target: list[int]) -> bool:
        """Reassign until done. A follower that lags behind the corruption cannot catch up from this leader, so that the
        reassignment hangs: then another one must lead."""
        for _ in range(4):
            while not await reassign(self._admin, {partition: target}):  # noqa: ASYNC110  (virtual time)
                await asyncio.sleep(0.2)
            await self._until(lambda: self._is_so(machine, partition, target))
            if self._is_so(machine, partition, target):
                return True
            for other in self._others(machine):
                if self.run.leads(machine.host, partition):
                    await self._lead(other, partition)
        return False

    def _is_so(self, machine: Machine, partition: TopicPartition, target: list[int]) -> bool:
        has_it = _log_of(machine, partition) is not None
        return self._serves(machine) and self._is_on(partition, target) and has_it is (machine.node_id in target)


def _is_whole(machine: Machine, log: Log) -> bool:
    for segment in log.segments:
        file = machine.store.find(segment.path())
        assert isinstance(file, Inode)
        if not all(each and each.crc_is_right() for each in _batches(bytes(file.data[: segment.size]))):
            return False
    return True


def _batches(data: bytes) -> Iterator[BatchView | None]:
    """The batches of `data`; None in place of one that cannot be parsed, then the end."""
    try:
        yield from iterate_batches(memoryview(data), whole=False)
    except CorruptBatch:
        yield None


def _log_of(machine: Machine, partition: TopicPartition) -> Log | None:
    return None if machine.process is None else machine.process.node.logs.get(partition)
