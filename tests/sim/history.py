"""An observer that reads the committed metadata log from outside and checks every leader election in it.

Nothing here uses the election code itself: a new leader must be in the ISR or the ELR; where unclean election is
allowed, anybody else may lead only if none of those is alive.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from tests.sim.checkers import Broken
from tests.sim.machine import Machine

from ballast_broker.metadata.batches import read_batches
from ballast_broker.metadata.delta import MetadataDelta
from ballast_broker.metadata.image import (
    EMPTY_IMAGE,
    RECOVERED,
    BrokerImage,
    MetadataImage,
    PartitionRegistration,
    TopicImage,
)
from ballast_broker.metadata.records import MalformedRecord
from ballast_broker.raft.driver import RaftDriver

Place = tuple[UUID, int]
PIECE = 1 << 20


def driver_of(machine: Machine) -> RaftDriver | None:
    return None if machine.process is None else getattr(machine.process.node, "driver", None)


def driver(machine: Machine) -> RaftDriver:
    """The driver of a running machine."""
    found = driver_of(machine)
    assert found is not None
    return found


@dataclass(frozen=True)
class Unclean:
    """An election of a leader that may lack committed records."""

    epoch: int
    leader: int


class MetadataHistory:
    def __init__(self) -> None:
        self.image = EMPTY_IMAGE
        self.next_offset = 0
        self.unclean: dict[Place, list[Unclean]] = {}
        self.from_the_elr = 0
        self._forgetful: dict[int, int] = {}  # eligible brokers dropped as if they had lost data: epochs, by id
        self._committed: dict[int, bytes] = {}

    def look(self, machines: Iterable[Machine]) -> None:
        """Check that all machines have committed the same records, and read the new ones."""
        for machine in machines:
            driver = driver_of(machine)
            if driver is None or machine.store.failing:
                continue
            mark = driver.high_watermark
            if (
                mark > max(self.next_offset, driver.store.start_offset - 1)
                and self.next_offset >= driver.store.start_offset
            ):
                self._read(driver, mark)
            self._compare(machine, driver, mark)

    def _compare(self, machine: Machine, driver: RaftDriver, mark: int) -> None:
        if mark <= driver.store.start_offset:
            return
        batch = driver.store.read(mark - 1, 1, mark)
        before = self._committed.setdefault(mark, batch)
        if before != batch:
            raise Broken(f"committed metadata stays: up to {mark} {machine.host} has {batch!r}, it was {before!r}")

    def check_everywhere(self, machines: Iterable[Machine]) -> None:
        newest = max(self._committed)
        self._look_who_registered()
        if self._forgetful:
            raise Broken(f"who is taken for forgetful comes back: {self._forgetful} did not")
        for machine in machines:
            driver = driver_of(machine)
            assert driver is not None
            if driver.high_watermark < newest:
                raise Broken(f"committed metadata is everywhere: {machine.host} ends at {driver.high_watermark}")
            for mark, batch in self._committed.items():
                if mark > driver.store.start_offset and driver.store.read(mark - 1, 1, mark) != batch:
                    raise Broken(f"committed metadata stays: {machine.host} has something else up to {mark}")

    def _read(self, driver: RaftDriver, mark: int) -> None:
        while self.next_offset < mark:
            for batch in read_batches(driver.store.read(self.next_offset, PIECE, mark)):
                if batch.last_offset < self.next_offset:
                    continue
                delta = MetadataDelta(self.image)
                try:
                    for each in batch.records:
                        delta.replay(each)
                except MalformedRecord as error:
                    raise Broken(f"what is committed follows from what was: at {batch.last_offset} {error}") from error
                before, self.image = self.image, delta.apply(batch.last_offset, batch.epoch)
                self._check(before, delta)
                self.next_offset = batch.last_offset + 1

    # -- elections ------------------------------------------------------------------------------------------------
    def _check(self, before: MetadataImage, delta: MetadataDelta) -> None:
        self._look_who_registered()
        for broker_id in delta.brokers_changed:
            self._check_broker(before.cluster.brokers.get(broker_id), self.image.cluster.brokers.get(broker_id))
        for changed in delta.topics_changed.values():
            was, now = before.topics.by_id(changed.id), self.image.topics.by_id(changed.id)
            if was is None or now is None:
                continue
            for number in changed.partitions:
                if number in was.partitions:
                    registered = frozenset(delta.brokers_changed)
                    self._check_partition(now, number, was.partitions[number], now.partitions[number], registered)

    def _look_who_registered(self) -> None:
        self._forgetful = {each: epoch for each, epoch in self._forgetful.items() if self._epoch(each) == epoch}

    def _epoch(self, broker_id: int) -> int:
        broker = self.image.cluster.brokers.get(broker_id)
        return -1 if broker is None else broker.epoch

    def _check_broker(self, was: BrokerImage | None, now: BrokerImage | None) -> None:
        """When a broker or a directory is recorded as gone, its partitions must have been taken from it before: nobody
        would do it afterwards. Without ELR it may stay the only member of an ISR."""
        if was is None or now is None:
            return
        silent = now.epoch != was.epoch or (now.fenced and not was.fenced)
        gone = was.directories - now.directories
        for topic in self.image.topics:
            for number, partition in topic.partitions.items():
                there = silent or partition.directory_of(now.id) in gone
                if there and (partition.leader == now.id or {now.id} < {*partition.isr}):
                    raise Broken(f"who is gone leads nothing: {topic.name}-{number} is {partition}, {was} is {now}")

    def _check_partition(
        self,
        topic: TopicImage,
        number: int,
        was: PartitionRegistration,
        now: PartitionRegistration,
        registered: frozenset[int],
    ) -> None:
        """The brokers in `registered` may have lost data since, and are no longer eligible."""
        where = f"{topic.name}-{number} became {now}, it was {was}"
        if {*now.elr} & {*now.isr} or not {*now.elr, *now.isr} <= {*now.replicas}:
            raise Broken(f"who is eligible is a replica, and not in sync: {where}")
        if now.elr and len(now.isr) >= self._minimum(topic, now):
            raise Broken(f"somebody is eligible only where too few are in sync: {where}")
        if now.leader >= 0 and now.leader not in now.isr:
            raise Broken(f"who leads is in sync: {where}")
        if now.leader == was.leader:
            return
        if now.leader_epoch != was.leader_epoch + 1:
            raise Broken(f"each leader has an epoch: {where}")
        if now.leader in was.isr or now.leader < 0:
            return
        if now.leader in was.elr:
            self.from_the_elr += 1
            return
        if now.leader_recovery_state == RECOVERED and self._lives(was.leader, was):
            return  # a live leader expanded the ISR, and is itself replaced in the same change
        self.unclean.setdefault((topic.id, number), []).append(Unclean(now.leader_epoch, now.leader))
        better = [each for each in (*was.isr, *was.elr) if self._lives(each, was)]
        if better:
            raise Broken(f"nobody leads before those that have everything: {better} live, {where}")
        returned = not was.isr and not now.elr and was.last_known_elr == (now.leader,)
        if returned:  # eligible brokers leave the ELR one by one, before their registration
            self._forgetful.update({each: self._epoch(each) for each in was.elr if each not in registered})
        if not returned and not self._may_lose(topic):
            raise Broken(f"nobody leads that may lack something: {where}")

    def _minimum(self, topic: TopicImage, partition: PartitionRegistration) -> int:
        found = self._setting(topic, "min.insync.replicas") or "1"
        return min(int(found), len(partition.replicas))

    def _may_lose(self, topic: TopicImage) -> bool:
        return self._setting(topic, "unclean.leader.election.enable") == "true"

    def _setting(self, topic: TopicImage, name: str) -> str | None:
        configs = self.image.configs
        return configs.of(2, topic.name).get(name) or configs.of(4, "").get(name)

    def _lives(self, node: int, partition: PartitionRegistration) -> bool:
        broker = self.image.cluster.brokers.get(node)
        directory = partition.directory_of(node)
        return broker is not None and broker.active and directory is not None and broker.has_directory(directory)
