"""Applies metadata to this broker's replicas: creates and removes them, makes them leaders or followers.

Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final
from uuid import UUID

from ballast_broker.replication.late_roles import LateRoles
from ballast_broker.replication.nudging import Nudges
from ballast_broker.replication.partition import Partition, Transition
from ballast_wire.names import TopicPartition

if TYPE_CHECKING:
    from ballast_broker.config.logs import LogConfig
    from ballast_broker.metadata.delta import MetadataDelta
    from ballast_broker.metadata.image import MetadataImage, PartitionRegistration
    from ballast_broker.replication.configs import ReplicaConfigs
    from ballast_broker.replication.directories import Directories
    from ballast_broker.replication.fetchers import Fetchers
    from ballast_broker.replication.isr import IsrChanges
    from ballast_broker.replication.nearest import Nearest
    from ballast_broker.replication.replicas import Replicas
    from ballast_broker.replication.settings import ReplicationSettings
    from ballast_broker.storage.directories import LogDirectory


class Roles:
    """`on_gone`: called when a partition is no longer on this broker."""

    def __init__(
        self,
        settings: ReplicationSettings,
        replicas: Replicas,
        directories: Directories,
        fetchers: Fetchers,
        isr_changes: IsrChanges,
        configs: ReplicaConfigs,
        nearest: Nearest,
    ) -> None:
        self._settings: Final = settings
        self._broker_id: Final = settings.broker_id
        self._replicas: Final = replicas
        self._directories: Final = directories
        self._fetchers: Final = fetchers
        self._isr_changes: Final = isr_changes
        self._configs: Final = configs
        self._nearest: Final = nearest
        self._late: Final = LateRoles(self._take_role)
        self._nudges: Final = Nudges(replicas.answer_follower)
        self._eligible: dict[int, int] = {}
        self._published = False
        self.on_gone: list[Callable[[TopicPartition], None]] = []

    def close(self) -> None:
        self._nudges.close()

    # -- what the metadata says ---------------------------------------------------------------------------------------
    def publish(self, delta: MetadataDelta, image: MetadataImage) -> Iterator[None]:
        """Apply the delta in steps. Between two steps each replica is in its old or its new state, never halfway."""
        self._configs.cordon(delta, image)  # first: the delta may add replicas
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
                config = config or self._configs.of_topic(image, changed.name)
                before = changed.previous(number)
                added = self._published and (before is None or self._broker_id not in before.replicas)
                self._late.take(topic_partition, (changed.id, registration, config, added))
        if delta.brokers_changed:
            for replica in self._replicas.all():
                replica.state.update_eligible(self._eligible)
                replica.reconsider()
                yield
        yield from self._configs.publish(delta, image, self._replicas)
        self._published = True

    def _brokers_changed(self, image: MetadataImage) -> None:
        brokers = image.cluster.brokers.values()
        self._eligible = {broker.id: broker.epoch for broker in brokers if broker.active}
        if self._settings.reads_in_rack:
            self._nearest.racks = {broker.id: broker.rack for broker in brokers if broker.active and broker.rack}
        listener = self._settings.inter_broker_listener_name
        self._fetchers.update_endpoints(
            {
                broker.id: (broker.listeners[listener].host, broker.listeners[listener].port)
                for broker in brokers
                if listener in broker.listeners
            }
        )

    def _only_lies_elsewhere(
        self, topic_partition: TopicPartition, topic_id: UUID, registration: PartitionRegistration
    ) -> bool:
        """Fast path: handle a change of directories alone, else False. Each replica of a new partition causes one."""
        replica = self._replicas.find(topic_partition)
        if replica is None or replica.topic_id != topic_id or replica.log is None or replica.offline:
            return False
        if not replica.state.take_epoch(registration):
            return False
        self._directories.settle(replica, registration.directory_of(self._broker_id))
        return True

    # -- one replica --------------------------------------------------------------------------------------------------
    def _take_role(
        self,
        topic_partition: TopicPartition,
        topic_id: UUID,
        registration: PartitionRegistration,
        config: LogConfig,
        added: bool,
    ) -> None:
        replica = self._replicas.find(topic_partition)
        if replica is not None and replica.topic_id != topic_id:
            self._stop(topic_partition, replica.topic_id)
            replica = None
        if replica is None:
            state = Partition(topic_partition, self._broker_id, max_lag_ms=self._settings.replica_lag_time_max_ms)
            replica = self._replicas.add(topic_id, state)
        assigned = registration.directory_of(self._broker_id)
        if replica.log is None:
            self._directories.open_log(replica, assigned, config, is_new=added)
        if not replica.offline:
            self._directories.settle(replica, assigned)
        self._configs.apply(replica, config)
        is_known, isr, elr = replica.state.leader_epoch >= 0, replica.state.isr, replica.state.elr
        transition = replica.become(registration)
        if transition is Transition.STALE:
            return
        if transition is Transition.STILL_LEADER:
            self._isr_changes.count(replica, isr)
        elif transition is Transition.NEW_LEADER and is_known:
            self._isr_changes.count_election(replica, registration, isr | elr)
        if replica.state.is_leader:
            replica.state.update_eligible(self._eligible)
            self._fetchers.unfollow(replica)
            if replica.state.followers and transition is Transition.NEW_LEADER:
                self._nudges.expect(replica)
        else:
            self._fetchers.follow(replica)

    def _stop(self, topic_partition: TopicPartition, topic_id: UUID) -> None:
        """The partition is no longer here: delete its log, or only forget it if it is out of reach."""
        replica = self._replicas.find(topic_partition)
        if replica is None or replica.topic_id != topic_id:
            return
        self._replicas.remove(topic_partition)
        self._late.forget(topic_partition)
        self._fetchers.unfollow(replica)
        self._directories.delete_replica(replica)
        for tell in self.on_gone:
            tell(topic_partition)

    def directory_failed(self, directory: LogDirectory) -> None:
        """Take its replicas offline: no serving, no fetching."""
        self._directories.failed(directory)
        for replica in self._replicas.all():
            if replica.log is not None and replica.log.directory is directory:
                replica.go_offline()
                self._fetchers.unfollow(replica)
