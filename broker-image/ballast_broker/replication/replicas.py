"""All replicas on this broker: becomes leader and follower as the metadata says, and answers for what it leads.

The hot path (`append`, `fetch` with data there, a commit that needs no waiting) is synchronous: no task, no future.
What cannot be answered yet comes back as a future. Refusals of single partitions are `ApiError` or an error code in
their result. Loop thread only.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from ballast_broker.metadata.image import (
    DIRECTORY_UNASSIGNED,
    RESOURCE_BROKER,
    RESOURCE_TOPIC,
    MetadataImage,
    PartitionRegistration,
)
from ballast_broker.replication import offsets
from ballast_broker.replication.assignments import Assignments
from ballast_broker.replication.directories import Directories, LogDirectoryInfo
from ballast_broker.replication.fetchers import Fetchers
from ballast_broker.replication.isr import Controller, IsrChanges
from ballast_broker.replication.movers import Movers
from ballast_broker.replication.nearest import Nearest
from ballast_broker.replication.nudging import Nudges
from ballast_broker.replication.partition import Partition, Transition
from ballast_broker.replication.quotas import UNLIMITED, ByteRate, LeaderThrottle, throttles_partition
from ballast_broker.replication.reading import CONSUMER, FetchEntry, FetchParams, FetchResult, Reader
from ballast_broker.replication.replica import Replica
from ballast_broker.replication.roles import Roles
from ballast_broker.replication.settings import ReplicationSettings
from ballast_broker.replication.waiting import Deadlines, PendingCommit
from ballast_broker.storage.errors import DirectoryStalls
from ballast_broker.turns import InTurns
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.names import TopicPartition

if TYPE_CHECKING:
    from ballast_broker.config.logs import LogConfig
    from ballast_broker.metadata.delta import MetadataDelta
    from ballast_broker.replication.watching import Watch
    from ballast_broker.seams import Clock, Network, Threads
    from ballast_broker.storage.directories import LogDirectory
    from ballast_broker.storage.log import Log
    from ballast_broker.storage.manager import LogManager
    from ballast_broker.storage.producers import Verification
    from ballast_broker.storage.slices import AppendInfo

log = logging.getLogger(__name__)

CORDONED: Final = "cordoned.log.dirs"
REPLICAS_PER_SLICE: Final = 1_000  # that periodic work looks at in one turn of the loop: about a millisecond


class Replicas:
    def __init__(
        self,
        settings: ReplicationSettings,
        *,
        logs: LogManager,
        clock: Clock,
        controller: Controller,
        broker_epoch: Callable[[], int],
        log_config: Callable[[MetadataImage, str], LogConfig],
        network: Network,
        threads: Threads,
    ) -> None:
        self._settings = settings
        self._broker_id = settings.broker_id
        self._logs = logs
        self._clock = clock
        self._log_config = log_config
        self._replicas: dict[TopicPartition, Replica] = {}
        self._deadlines = Deadlines()
        self.leader_rate = ByteRate(clock)
        self.follower_rate = ByteRate(clock)
        self.moves_rate = ByteRate(clock)
        self._rates = {
            "replica.alter.log.dirs.io.max.bytes.per.second": self.moves_rate,
            "leader.replication.throttled.rate": self.leader_rate,
            "follower.replication.throttled.rate": self.follower_rate,
        }
        self.fetchers = Fetchers(settings, network, broker_epoch, self.follower_rate)
        self.isr_changes = IsrChanges(controller, settings.broker_id, broker_epoch)
        self._nearest = Nearest()
        self._reader = Reader(
            self._replicas,
            self._deadlines,
            LeaderThrottle(self.leader_rate),
            self._nearest,
            self._propose_expand,
            lambda: int(clock.monotonic() * 1000),
        )
        self.assignments = Assignments(controller, settings.broker_id, broker_epoch)
        self.movers = Movers(
            count=lambda: settings.num_replica_alter_log_dirs_threads or len(logs.directories),
            logs=logs,
            threads=threads,
            clock=clock,
            rate=self.moves_rate,
            assignments=self.assignments,
            broker_epoch=broker_epoch,
        )
        self._directories = Directories(logs, self._replicas, self.movers)
        self._roles = Roles(self._take_role)
        self._nudges = Nudges(self._reader.answer_follower)
        self.on_gone: list[Callable[[TopicPartition], None]] = []
        self._eligible: dict[int, int] = {}
        self._shrink_task: asyncio.Task[None] | None = None
        self._published = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = threading.get_ident()
        logs.on_directory_failure.append(self._directory_failed)

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._shrink_task = asyncio.get_running_loop().create_task(self._shrink_isrs(), name="isr-shrink")

    async def stop(self) -> None:
        if self._shrink_task is not None:
            self._shrink_task.cancel()
            await asyncio.gather(self._shrink_task, return_exceptions=True)
        self._nudges.close()
        await self.movers.close()
        await self.assignments.close()
        await self.fetchers.close()
        await self.isr_changes.close()
        for replica in self._replicas.values():
            replica.refuse_waiting(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            replica.wake_all()
        self._deadlines.close()

    # -- looking ----------------------------------------------------------------------------------------------------
    def partition(self, topic_partition: TopicPartition) -> Partition | None:
        replica = self._replicas.get(topic_partition)
        return None if replica is None else replica.state

    def partitions(self) -> list[Partition]:
        return [replica.state for replica in self._replicas.values()]

    def local_log(self, topic_partition: TopicPartition) -> Log | None:
        replica = self._replicas.get(topic_partition)
        return None if replica is None or replica.offline else replica.log

    def _replica(self, topic_partition: TopicPartition) -> Replica:
        replica = self._replicas.get(topic_partition)
        if replica is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return replica

    # -- producing --------------------------------------------------------------------------------------------------
    def append(
        self,
        topic_partition: TopicPartition,
        topic_id: UUID | None,
        batches: bytearray | memoryview,
        acks: int,
        *,
        origin: str = "client",
        verified: Verification | None = None,
    ) -> AppendInfo:
        """Write to the leader's log, at once. With acks=-1 ask `await_committed` for `last_offset + 1` next.

        `verified`: what the coordinator was asked for, where a transaction begins in the partition.
        `DirectoryStalls` where it is not to be done at once: then `append_by_thread`.
        """
        replica = self._replicas.get(topic_partition)
        if replica is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if topic_id is not None and topic_id is not replica.topic_id and topic_id != replica.topic_id:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
        return replica.append(batches, acks, origin, verified)

    def append_by_thread(
        self,
        topic_partition: TopicPartition,
        batches: bytearray,
        acks: int,
        *,
        origin: str = "client",
        verified: Verification | None = None,
    ) -> Coroutine[Any, Any, AppendInfo]:
        """After `DirectoryStalls`. In the order of these calls, and before whatever comes in after them."""
        return self._replica(topic_partition).append_by_thread(batches, acks, origin, verified)

    def await_committed(
        self, topic_partition: TopicPartition, offset: int, timeout_ms: int
    ) -> ErrorCode | asyncio.Future[ErrorCode]:
        """Whether the whole ISR has everything before `offset`: the answer, or a future of it."""
        replica = self._replicas.get(topic_partition)
        if replica is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        error = replica.state.committed(offset)
        if error is not None:
            return error
        return PendingCommit(self._deadlines, timeout_ms, replica.state.waiting, offset).future

    def append_own(
        self, topic_partition: TopicPartition, batches: bytearray, acks: int, *, verified: Verification | None = None
    ) -> asyncio.Future[AppendInfo]:
        """The coordinators' way to write: several batches at once, and by a thread where the disk stalls. They lie in
        the order of these calls, whenever each is awaited."""
        origin, loop = "coordinator", asyncio.get_running_loop()
        written: asyncio.Future[AppendInfo] = loop.create_future()
        try:
            written.set_result(self.append(topic_partition, None, batches, acks, origin=origin, verified=verified))
        except DirectoryStalls:
            written = loop.create_task(
                self.append_by_thread(topic_partition, batches, acks, origin=origin, verified=verified)
            )
        return written

    # -- fetching and offsets -----------------------------------------------------------------------------------------
    def fetch(
        self, params: FetchParams, entries: list[FetchEntry]
    ) -> list[FetchResult] | asyncio.Future[list[FetchResult]]:
        """One result per entry, in order; a list where it can be answered now, else a future."""
        return self._reader.fetch(params, entries)

    def fetch_watched(self, params: FetchParams, watch: Watch) -> list[FetchResult] | asyncio.Future[list[FetchResult]]:
        """A request of a session: a result for each partition that is due in it."""
        return self._reader.fetch_watched(params, watch)

    def list_offset(
        self,
        topic_partition: TopicPartition,
        timestamp: int,
        isolation: int = 0,
        current_leader_epoch: int = -1,
        replica_id: int = CONSUMER,
    ) -> offsets.FoundOffset | asyncio.Task[offsets.FoundOffset]:
        return self._reader.cold.look(
            offsets.list_offset, self._replica(topic_partition), timestamp, isolation, current_leader_epoch, replica_id
        )

    def offset_for_leader_epoch(
        self, topic_partition: TopicPartition, leader_epoch: int, current_leader_epoch: int = -1
    ) -> tuple[int, int]:
        """(epoch, end offset) of the largest epoch not above the one asked for; (-1, -1) where there is none."""
        return offsets.offset_for_leader_epoch(self._replica(topic_partition), leader_epoch, current_leader_epoch)

    async def delete_records(
        self, entries: Mapping[TopicPartition, int], timeout_ms: int
    ) -> dict[TopicPartition, tuple[ErrorCode, int]]:
        """Per partition the error and the new low watermark, after all replicas have taken it over."""
        results: dict[TopicPartition, tuple[ErrorCode, int]] = {}
        waits: list[tuple[TopicPartition, asyncio.Future[ErrorCode]]] = []
        async for topic_partition, offset in InTurns(entries.items()):
            try:
                answer = offsets.delete_records(self._replica(topic_partition), offset, timeout_ms, self._deadlines)
            except ApiError as error:
                results[topic_partition] = (error.code, -1)
                continue
            if isinstance(answer, int):
                results[topic_partition] = (ErrorCode.NONE, answer)
            else:
                waits.append((topic_partition, answer))
        for topic_partition, future in waits:
            outcome = await future
            found = self.local_log(topic_partition)
            low = -1 if found is None or outcome is not ErrorCode.NONE else found.log_start_offset
            results[topic_partition] = (outcome, low)
        return results

    # -- metadata -----------------------------------------------------------------------------------------------------
    def publish(self, delta: MetadataDelta, image: MetadataImage) -> Iterator[None]:
        """In steps. Whoever comes between two finds each replica as it was or as it is to be, never in the middle."""
        if any(resource_type == RESOURCE_BROKER for resource_type, _ in delta.configs_changed):
            self._logs.placement.cordon(self._dynamic(image, CORDONED))  # first: replicas may come with it
        for topic in delta.topics_deleted.values():
            for number in topic.partitions:
                self._stop(TopicPartition(topic.name, number), topic.id)
                yield
        if delta.brokers_changed:
            self._brokers_changed(image)
        for changed in delta.topics_changed.values():
            config = None
            for number, registration in changed.partitions.items():
                yield
                topic_partition = TopicPartition(changed.name, number)
                if self._broker_id not in registration.replicas:
                    self._stop(topic_partition, changed.id)
                    continue
                if self._only_lies_elsewhere(topic_partition, changed.id, registration):
                    continue
                config = config or self._log_config(image, changed.name)
                before = changed.previous(number)
                added = self._published and (before is None or self._broker_id not in before.replicas)
                self._roles.take(topic_partition, (changed.id, registration, config, added))
        if delta.brokers_changed:
            for replica in list(self._replicas.values()):
                replica.state.update_eligible(self._eligible)
                replica.reconsider()
                yield
        yield from self._configure(delta, image)
        self._published = True

    def _brokers_changed(self, image: MetadataImage) -> None:
        brokers = image.cluster.brokers.values()
        self._eligible = {broker.id: broker.epoch for broker in brokers if broker.active}
        if self._settings.reads_in_rack:
            self._nearest.racks = {broker.id: broker.rack for broker in brokers if broker.active and broker.rack}
        listener = self._settings.inter_broker_listener_name
        self.fetchers.update_endpoints(
            {
                broker.id: (broker.listeners[listener].host, broker.listeners[listener].port)
                for broker in brokers
                if listener in broker.listeners
            }
        )

    def _configure(self, delta: MetadataDelta, image: MetadataImage) -> Iterator[None]:
        """Topic configs that changed, or all of them where a default of the broker did."""
        topics = {name for resource_type, name in delta.configs_changed if resource_type == RESOURCE_TOPIC}
        everything = any(resource_type == RESOURCE_BROKER for resource_type, _ in delta.configs_changed)
        if everything:
            self._configure_rates(image)
        configs: dict[str, LogConfig] = {}
        for (topic, _), replica in list(self._replicas.items()) if topics or everything else ():
            if everything or topic in topics:
                config = configs.get(topic) or configs.setdefault(topic, self._log_config(image, topic))
                self._apply_config(replica, config)
                yield

    def _dynamic(self, image: MetadataImage, name: str) -> str | None:
        """What was set for this broker while it runs, or for all of them."""
        own = image.configs.of(RESOURCE_BROKER, str(self._broker_id))
        return own.get(name, image.configs.of(RESOURCE_BROKER, "").get(name))

    def _configure_rates(self, image: MetadataImage) -> None:
        for name, rate in self._rates.items():
            rate.change_limit(int(self._dynamic(image, name) or UNLIMITED))
        self.movers.wake()

    def _apply_config(self, replica: Replica, config: LogConfig) -> None:
        replica.configure(config)
        number = replica.topic_partition.partition
        replica.leader_throttled = throttles_partition(
            config.leader_replication_throttled_replicas, number, self._broker_id
        )
        replica.follower_throttled = throttles_partition(
            config.follower_replication_throttled_replicas, number, self._broker_id
        )

    def _only_lies_elsewhere(
        self, topic_partition: TopicPartition, topic_id: UUID, registration: PartitionRegistration
    ) -> bool:
        """Each replica of a new partition is told to be in a directory: as many changes that give nobody a role."""
        replica = self._replicas.get(topic_partition)
        if replica is None or replica.topic_id != topic_id or replica.log is None or replica.offline:
            return False
        if not replica.state.take_epoch(registration):
            return False
        self._settle_directory(replica, registration.directory_of(self._broker_id))
        return True

    def _take_role(
        self,
        topic_partition: TopicPartition,
        topic_id: UUID,
        registration: PartitionRegistration,
        config: LogConfig,
        added: bool,
    ) -> None:
        replica = self._replicas.get(topic_partition)
        if replica is not None and replica.topic_id != topic_id:
            self._stop(topic_partition, replica.topic_id)
            replica = None
        if replica is None:
            state = Partition(topic_partition, self._broker_id, max_lag_ms=self._settings.replica_lag_time_max_ms)
            replica = Replica(topic_id, state, self._clock, self._reader.wakeups)
            self._replicas[topic_partition] = replica
        if replica.log is None:
            self._open_log(replica, registration, config, added)
        if not replica.offline:
            self._settle_directory(replica, registration.directory_of(self._broker_id))
        self._apply_config(replica, config)
        is_known, isr, elr = replica.state.leader_epoch >= 0, replica.state.isr, replica.state.elr
        transition = replica.become(registration)
        if transition is Transition.STALE:
            return
        if transition is Transition.STILL_LEADER:
            self.isr_changes.count(replica, isr)
        elif transition is Transition.NEW_LEADER and is_known:
            self.isr_changes.count_election(replica, registration, isr | elr)
        if replica.state.is_leader:
            replica.state.update_eligible(self._eligible)
            self.fetchers.unfollow(replica)
            if replica.state.followers and transition is Transition.NEW_LEADER:
                self._nudges.expect(replica)
        else:
            self.fetchers.follow(replica)

    def _open_log(self, replica: Replica, registration: PartitionRegistration, config: LogConfig, added: bool) -> None:
        """The log as it is on disk, or a new one. None is made where its own may be on a disk that is away."""
        topic_partition = replica.topic_partition
        assigned = registration.directory_of(self._broker_id)
        known = None if assigned is None else self._logs.directory(assigned)
        self._logs.set_aside_namesakes(topic_partition, replica.topic_id)
        try:
            if self._logs.get_future(topic_partition) is not None:
                self._logs.use_lone_future(topic_partition)
                if self._logs.get(topic_partition) is None:
                    raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "only the copy of an unfinished move is here")
            opened = self._logs.get_or_create(
                topic_partition,
                replica.topic_id,
                config,
                is_new=added or (known is not None and known.online),
                assigned_directory=assigned,
            )
        except ApiError as error:
            log.error("no log for %s: %s", topic_partition, error)
            replica.go_offline()
            raise
        replica.use(opened)
        replica.offline = False

    def _settle_directory(self, replica: Replica, assigned: UUID | None) -> None:
        """Go on with a move that a restart interrupted; tell the controller where the replica is, if it errs."""
        number = replica.topic_partition.partition
        directory = replica.online_log().directory
        if assigned is not None:
            self.assignments.known(replica.topic_id, number, assigned)
        if replica.topic_partition in self.movers.moves:
            return
        future = self._logs.get_future(replica.topic_partition)
        if future is not None:
            self.movers.start(replica, future.directory)
        elif assigned == DIRECTORY_UNASSIGNED:
            self.assignments.assign_in_time(replica.topic_id, number, directory.id)
        elif assigned != directory.id:
            self.assignments.assign(replica.topic_id, number, directory.id)

    def _stop(self, topic_partition: TopicPartition, topic_id: UUID) -> None:
        """The partition is no longer here: its log goes, be it that it is out of reach and only forgotten."""
        replica = self._replicas.get(topic_partition)
        if replica is None or replica.topic_id != topic_id:
            return
        del self._replicas[topic_partition]
        self._roles.forget(topic_partition)
        self.fetchers.unfollow(replica)
        move = self.movers.moves.get(topic_partition)
        if move is not None:
            self.movers.cancel(move, assign_back=False)
        replica.go()
        self._logs.delete(topic_partition)
        for tell in self.on_gone:
            tell(topic_partition)

    def _directory_failed(self, directory: LogDirectory) -> None:
        # A flush may find out, in its thread.
        if threading.get_ident() != self._loop_thread and self._loop is not None:
            self._loop.call_soon_threadsafe(self._directory_failed, directory)
            return
        self.movers.directory_failed(directory)
        self.assignments.hurry()
        for replica in self._replicas.values():
            if replica.log is not None and replica.log.directory is directory:
                replica.go_offline()
                self.fetchers.unfollow(replica)

    # -- directories --------------------------------------------------------------------------------------------------
    def alter_replica_log_dirs(self, entries: Mapping[TopicPartition, str]) -> dict[TopicPartition, ErrorCode]:
        return self._directories.alter(entries)

    def describe_log_dirs(self, wanted: Collection[TopicPartition] | None = None) -> list[LogDirectoryInfo]:
        return self._directories.describe(wanted)

    # -- the ISR ------------------------------------------------------------------------------------------------------
    def _propose_expand(self, replica: Replica, broker_id: int) -> None:
        change = replica.state.propose_expand(broker_id)
        if change is not None:
            self.isr_changes.submit(replica, change)

    async def _shrink_isrs(self) -> None:
        interval_s = self._settings.replica_lag_time_max_ms / 2000
        while True:
            await asyncio.sleep(interval_s)
            for number, replica in enumerate(list(self._replicas.values())):
                if number % REPLICAS_PER_SLICE == 0:
                    await asyncio.sleep(0)
                try:
                    self._shrink_isr(replica)
                except Exception:  # a bug must not end this for all of them
                    log.exception("the ISR of %s could not be looked at", replica.topic_partition)

    def _shrink_isr(self, replica: Replica) -> None:
        replica.reconsider()
        change = replica.state.propose_shrink(replica.now_ms())
        if change is not None and self._replicas.get(replica.topic_partition) is replica:
            log.info("%s: ISR shrinks to %s", replica.topic_partition, sorted(change.members))
            self.isr_changes.submit(replica, change)
