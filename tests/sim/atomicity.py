"""Checks of transactions when all is quiet: each is there as a whole or not at all, including the offsets that it
commits, for every reader and on every replica, in commit order; and none is left open.
"""

from __future__ import annotations

import asyncio
import struct
from collections import defaultdict
from typing import Any

from tests.sim.checkers import Broken, check_one_log_each
from tests.sim.clients import RETRY_S, SimClient
from tests.sim.diary import Diary, Outcome, Transaction
from tests.sim.disk import Folder, Inode
from tests.sim.isolation import Everything, ReadCommitted
from tests.sim.machine import Machine
from tests.sim.transactors import IDS, PARTITIONS, group_of

from ballast_wire.errors import ErrorCode
from ballast_wire.messages import message
from ballast_wire.names import TopicPartition
from ballast_wire.records import iterate_batches

ABORTED_ENTRY = struct.Struct(">hqqqq")
NEWEST = -1
LIST_OFFSETS, FETCH_OFFSETS, LIST_TRANSACTIONS = 8, 7, 0
ENDED = ("Empty", "CompleteCommit", "CompleteAbort", "Dead")


def everything_of(machine: Machine, partition: TopicPartition) -> Everything:
    found = Everything()
    assert machine.process is not None
    log = machine.process.node.logs.get(partition)
    assert log is not None, f"{machine.host} has no {partition}"
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        piece = log.read(offset, 1 << 24, upper_offset=log.log_end_offset)
        data = piece.read()
        piece.release()
        for batch in iterate_batches(memoryview(data)):
            found.take(batch)
            offset = batch.last_offset + 1
    return found


class Judge:
    def __init__(self, diary: Diary) -> None:
        self._diary = diary
        self._offsets = {value: offset for (_, offset), value in diary.acked.items()}

    def check(self, machines: list[Machine]) -> dict[str, list[Transaction]]:
        """Return, by transactional id, the transactions that are there."""
        if self._diary.broken:
            raise Broken(self._diary.broken[0])
        visible: dict[TopicPartition, dict[int, bytes]] = {}
        for partition in PARTITIONS:
            visible[partition] = self._check_replicas(machines, partition)
            self._check_readers(partition, visible[partition])
        return self._check_whole(visible)

    def _check_replicas(self, machines: list[Machine], partition: TopicPartition) -> dict[int, bytes]:
        first: Everything | None = None
        for machine in machines:
            check_one_log_each(machine, [partition])
            found = everything_of(machine, partition)
            if found.wrong:
                raise Broken(f"markers fit to what they end: {partition} on {machine.host} {found.wrong[0]}")
            if found.open:
                raise Broken(f"no transaction is left open: {partition} on {machine.host} {found.open}")
            check_index(machine, partition, found)
            first = found if first is None else first
            start = max(min(each.records, default=0) for each in (first, found))
            for what in ("records", "visible"):
                one, other = (
                    {offset: value for offset, value in getattr(each, what).items() if offset >= start}
                    for each in (first, found)
                )
                if one != other:
                    raise Broken(
                        f"replicas are equal: {what} of {partition} on {machine.host}: {_difference(one, other)}"
                    )
            if len(found.records) > len(first.records):
                first = found
        assert first is not None
        for (place, offset), value in self._diary.acked.items():
            if place == partition and first.records.get(offset) != value and not self._may_be_gone(partition, offset):
                raise Broken(
                    f"acked is never lost: {partition} offset {offset} was {value!r}, is {first.records.get(offset)!r}"
                )
        return first.visible

    def _check_readers(self, partition: TopicPartition, visible: dict[int, bytes]) -> None:
        """read_committed consumers have read everything that is committed, and nothing else."""
        seen = {offset: value for (place, offset), value in self._diary.seen.items() if place == partition}
        for offset in sorted(seen.keys() | visible.keys()):
            if seen.get(offset) != visible.get(offset) and not self._may_be_gone(partition, offset):
                raise Broken(
                    f"read is what is committed: {partition} offset {offset} is {visible.get(offset)!r}, "
                    f"{seen.get(offset)!r} was read"
                )

    def _check_whole(self, visible: dict[TopicPartition, dict[int, bytes]]) -> dict[str, list[Transaction]]:
        found: dict[str, dict[TopicPartition, list[bytes]]] = defaultdict(lambda: defaultdict(list))
        for partition, records in visible.items():
            for _, value in sorted(records.items()):
                name = value.decode().rpartition(f":{partition.partition}:")[0]
                if name:
                    found[name][partition].append(value)
                elif value not in self._diary.plain:
                    raise Broken(f"no phantom records: {value!r} in {partition}")
        there: dict[str, list[Transaction]] = {name: [] for name in IDS}
        for transaction in self._diary.transactions:
            if self._is_there(transaction, found.pop(f"{transaction.name}:{transaction.number}", {})):
                there[transaction.name].append(transaction)
        if found:
            raise Broken(f"no phantom records: {dict(found)}")
        self._check_order(visible)
        return there

    def _is_there(self, transaction: Transaction, found: dict[TopicPartition, list[bytes]]) -> bool:
        """Whether it is there; `Broken` if it must not be, must be but is not, or is there in part."""
        if not any(found.values()):
            must = transaction.outcome is Outcome.COMMITTED and any(self._due(transaction).values())
            if must:
                raise Broken(f"committed is never lost: nothing is there of {transaction}")
            return transaction.outcome is Outcome.COMMITTED
        if transaction.outcome is Outcome.NOT:
            raise Broken(f"nothing is seen of what was not committed: {transaction}: {found}")
        for partition, values in transaction.values.items():
            due = self._due(transaction)[partition]
            there = [value for value in found.get(partition, []) if value in due]
            if there != due or not set(found.get(partition, [])) <= set(values):
                raise Broken(f"all or nothing, once, in order: {transaction}: {partition} has {there}, due are {due}")
        asked_s = transaction.commit_asked_s
        if asked_s is None or self._diary.is_fenced(transaction.name, transaction.identity, asked_s):
            raise Broken(f"who is fenced commits nothing: {transaction} as {transaction.identity}")
        return True

    def _due(self, transaction: Transaction) -> dict[TopicPartition, list[bytes]]:
        """The records that must be there if the transaction is."""
        return {
            partition: [value for value in values if not self._may_be_gone(partition, self._offsets.get(value, 0))]
            for partition, values in transaction.values.items()
        }

    def _check_order(self, visible: dict[TopicPartition, dict[int, bytes]]) -> None:
        for partition, records in visible.items():
            newest: dict[str, int] = {}
            for _, value in sorted(records.items()):
                name, _, rest = value.decode().partition(":")
                if name in IDS:
                    number = int(rest.partition(":")[0])
                    if number < newest.get(name, 0):
                        raise Broken(f"in the order of commits: {partition} has {value!r} after one of {newest[name]}")
                    newest[name] = number

    def _may_be_gone(self, partition: TopicPartition, offset: int) -> bool:
        return offset < self._diary.deleted.get(partition, 0)


def check_index(machine: Machine, partition: TopicPartition, found: Everything) -> None:
    """The .txnindex files of a replica name exactly the aborted transactions in its log."""
    assert machine.process is not None
    log = machine.process.node.logs.get(partition)
    assert log is not None
    start = log.log_start_offset
    entries = aborted_index(machine, partition)  # producer, first and last offset, the LSO at the end
    cut = {(producer, last) for producer, first, last, _ in entries if first < start}  # their beginning is deleted
    due: list[tuple[int, ...]] = [each for each in found.aborted if (each[0], each[2]) not in cut]
    written = [each for each in entries if each[1] >= start]
    if start:  # the LSO may depend on transactions that are deleted
        due, written = [each[:3] for each in due], [each[:3] for each in written]
    if sorted(written) != sorted(due):
        raise Broken(
            f"the index of aborted transactions is right: {partition} on {machine.host} has {written}, due are {due}"
        )


def aborted_index(machine: Machine, partition: TopicPartition) -> list[tuple[int, ...]]:
    entries: list[tuple[int, ...]] = []
    log = machine.process.node.logs.get(partition) if machine.process is not None else None
    folder = None if log is None else machine.store.find(log.folder.path)
    for name, file in sorted(folder.entries.items()) if isinstance(folder, Folder) else ():
        if name.endswith(".txnindex") and isinstance(file, Inode):
            data = file.read(file.size, 0)
            entries += [entry[1:] for entry in ABORTED_ENTRY.iter_unpack(data)]
    return entries


def _difference(one: dict[int, bytes], other: dict[int, bytes]) -> str:
    differing = [offset for offset in sorted(one.keys() | other.keys()) if one.get(offset) != other.get(offset)]
    return str([(offset, one.get(offset), other.get(offset)) for offset in differing[:5]])


# -- by requests to brokers ---------------------------------------------------------------------------------------
async def wait_until_stable(
    client: SimClient, hosts: list[str], readers: list[ReadCommitted], seconds: float
) -> None:  # fmt: skip
    """Wait until the last stable offset is the high watermark, read_committed consumers have read up to it, and no
    coordinator has an ongoing transaction."""
    unstable: list[str] = []
    try:
        async with asyncio.timeout(seconds):
            while unstable := [  # noqa: ASYNC110  (virtual time)
                *await _unstable(client, readers),
                *await _going_on(client, hosts),
            ]:
                await asyncio.sleep(1.0)
    except TimeoutError:
        raise Broken(f"no transaction hangs: after {seconds} s of quiet {unstable}") from None


async def _unstable(client: SimClient, readers: list[ReadCommitted]) -> list[str]:
    told = []
    for reader in readers:
        end, stable = [await newest_offset(client, reader.partition, isolation_level) for isolation_level in (0, 1)]
        if not end == stable == reader.offset:
            told.append(f"{reader.partition} is stable to {stable} of {end} and read to {reader.offset}")
    return told


async def newest_offset(client: SimClient, partition: TopicPartition, isolation_level: int) -> int:
    """-1 if nobody answers."""
    kind = message("ListOffsetsRequest")
    part = kind.ListOffsetsTopic.ListOffsetsPartition(
        version=LIST_OFFSETS, partition_index=partition.partition, current_leader_epoch=-1, timestamp=NEWEST
    )
    topic = kind.ListOffsetsTopic(version=LIST_OFFSETS, name=partition.topic, partitions=[part])
    leader = await client.leader_of(partition)
    if leader is not None:
        try:
            answer = await client.ask(
                leader, kind(replica_id=-1, isolation_level=isolation_level, topics=[topic]), LIST_OFFSETS
            )
        except (OSError, TimeoutError):
            answer = None
        if answer is not None and answer.topics[0].partitions[0].error_code == ErrorCode.NONE:
            return int(answer.topics[0].partitions[0].offset)
    client.forget_leader(partition)
    return -1


async def _going_on(client: SimClient, hosts: list[str]) -> list[str]:
    kind = message("ListTransactionsRequest")
    told = []
    for host in hosts:
        try:
            answer = await client.ask(host, kind(state_filters=[], producer_id_filters=[]), LIST_TRANSACTIONS)
        except (OSError, TimeoutError):
            told.append(f"{host} does not answer")
            continue
        if answer.error_code:
            told.append(f"{host} answers {answer.error_code}")
        told += [
            f"{each.transactional_id} is {each.transaction_state} at {host}"
            for each in answer.transaction_states
            if each.transaction_state not in ENDED
        ]
    return told


async def check_offsets(client: SimClient, there: dict[str, list[Transaction]]) -> None:
    """A group's committed offset is that of the last committed transaction that had one."""
    for name in IDS:
        offsets = [each.offset for each in there[name] if each.offset is not None]
        found = await _committed_offset(client, name)
        if found != max(offsets, default=-1):
            raise Broken(f"offsets go with their transaction: of {name} {found} is committed, due of {offsets}")


async def _committed_offset(client: SimClient, name: str) -> int:
    group = group_of(name)
    kind, find = message("OffsetFetchRequest"), message("FindCoordinatorRequest")
    topic = kind.OffsetFetchRequestTopic(
        version=FETCH_OFFSETS, name=group.partition.topic, partition_indexes=[group.partition.partition]
    )
    while True:
        where: Any = await client.ask_any(find(key=group.name, key_type=0), 3)
        if not where.error_code:
            try:
                answer = await client.ask(
                    where.host, kind(group_id=group.name, topics=[topic], require_stable=True), FETCH_OFFSETS
                )
            except (OSError, TimeoutError):
                answer = None
            if answer is not None and not answer.error_code:
                part = answer.topics[0].partitions[0]
                if not part.error_code:
                    return int(part.committed_offset)
        await asyncio.sleep(RETRY_S)
