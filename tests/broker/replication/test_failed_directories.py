"""A broker one of whose directories has failed."""

# ruff: noqa: ASYNC240 - a test looks at real files
from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest
from tests.broker.replication.cluster import Cluster, Node, eventually

from ballast_broker.replication.moves import Stage
from ballast_broker.replication.strays import settle_strays
from ballast_broker.storage.directories import LogDirectory
from ballast_broker.storage.disk import RealDisk, RealFile
from ballast_broker.storage.errors import OutOfHandles
from ballast_wire.errors import ErrorCode
from ballast_wire.names import TopicPartition

ORDERS = TopicPartition("orders", 0)


class ReadOnlyDisk(RealDisk):
    """A disk on which nothing under some path can be renamed."""

    read_only = "//"

    def rename(self, old: str, new: str) -> None:
        if old.startswith(self.read_only):
            raise OSError(errno.EROFS, "Read-only file system", old)
        super().rename(old, new)


@pytest.mark.spec("DIR-04", "DIR-41")
async def test_a_replica_taken_away_after_its_disk_failed_may_come_back_to_another_disk(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        (one,) = await cluster.add(1)
        (two,) = await cluster.add(2, directories=2)
        cluster.controller.create_topic("orders", [[1, 2]])
        assert await one.produce_to_all(ORDERS, "a") is ErrorCode.NONE
        failed = two.logs.logs[ORDERS].directory
        failed.fail(OSError(errno.EIO, "EIO"))
        cluster.controller.reassign("orders", [1])
        await eventually(lambda: two.replicas.partition(ORDERS) is None, "taken away")
        cluster.controller.reassign("orders", [1, 2])
        await eventually(lambda: cluster.isr(ORDERS) == {1, 2}, "it follows again")
        assert two.logs.logs[ORDERS].directory is not failed
        assert two.stored(ORDERS) == ["a"]


@pytest.mark.spec("DIR-41")
@pytest.mark.parametrize("moving", [False, True])
async def test_a_disk_found_read_only_when_a_topic_is_deleted_fails_alone(tmp_path: Path, moving: bool) -> None:
    """The deletion is a metadata change: the other changes that come with it are still applied."""
    async with Cluster(tmp_path) as cluster:
        cluster.disk = disk = ReadOnlyDisk()
        (node,) = await cluster.add(1, directories=2)
        cluster.controller.create_topic("orders", [[1]])
        current = node.logs.logs[ORDERS].directory
        (other,) = [each for each in node.logs.directories if each is not current]
        if moving:
            node.logs.create_future(ORDERS, other)
        disk.read_only = (other if moving else current).path
        cluster.controller.delete_topic("orders")
        assert node.replicas.partition(ORDERS) is None
        assert ORDERS not in node.logs.logs
        assert [each.online for each in (current, other)] == [moving, not moving]


async def moving(cluster: Cluster) -> tuple[Node, LogDirectory, LogDirectory]:
    """A broker with a partition whose copy has caught up and waits for the controller."""
    (node,) = await cluster.add(1, directories=2)
    cluster.controller.create_topic("orders", [[1]])
    for number in range(20):
        node.produce(ORDERS, str(number))
    await eventually(lambda: not len(node.replication.assignments))
    source = node.logs.logs[ORDERS].directory
    (destination,) = [each for each in node.logs.directories if each is not source]
    cluster.controller.away = True
    node.replication.directories.alter({ORDERS: destination.path})
    await eventually(lambda: node.replication.movers.moves[ORDERS].stage is Stage.ASKING)
    return node, source, destination


@pytest.mark.spec("DIR-31", "DIR-43")
async def test_a_disk_that_fails_while_it_is_emptied_leaves_what_was_copied(tmp_path: Path) -> None:
    """A failing disk is the usual reason to empty it, and there may be no other replica."""
    async with Cluster(tmp_path) as cluster:
        node, source, destination = await moving(cluster)
        source.fail(OSError(errno.EIO, "EIO"))
        assert node.replication.movers.ended[-1].stage is Stage.FAILED
        await node.crash()
        node.directories = [Path(destination.path)]  # the broken one is taken out of log.dirs
        cluster.controller.away = False
        await node.start()
        assert node.stored(ORDERS) == [str(number) for number in range(20)]


@pytest.mark.spec("DIR-43", "LOG-34")
@pytest.mark.parametrize("away", [False, True])
async def test_a_copy_that_nobody_needs_any_more_goes(tmp_path: Path, away: bool) -> None:
    async with Cluster(tmp_path) as cluster:
        node, source, destination = await moving(cluster)
        source.fail(OSError(errno.EIO, "EIO"))
        if away:
            await node.crash()
        cluster.controller.away = False
        cluster.controller.delete_topic("orders")
        if away:
            node.directories = [Path(destination.path)]
            await node.start()
            settle_strays(node.logs, 1, cluster.controller.image)
        assert not node.logs.future_logs
        (left,) = (path.name for path in Path(destination.path).glob("orders-0*"))
        assert left.endswith("-stray" if away else "-delete")


@pytest.mark.spec("DIR-31", "LOG-34")
@pytest.mark.parametrize("deleted", [False, True])
async def test_what_was_renamed_away_for_a_copy_whose_disk_died_of_the_swap_is_not_removed(
    tmp_path: Path, deleted: bool
) -> None:
    """A rename on a dying disk hangs, and the broker is killed and restarted without that disk: there is no other
    log."""
    async with Cluster(tmp_path) as cluster:
        node, source, destination = await moving(cluster)
        folder = Path(node.log(ORDERS).folder.path)
        await node.crash()
        folder.rename(folder.with_name(f"orders-0.{'0' * 32}-delete"))
        node.directories = [Path(source.path)]  # the broken one is taken out of log.dirs
        shutil.rmtree(destination.path)
        cluster.controller.away = False
        if deleted:
            cluster.controller.delete_topic("orders")
        await node.start()
        settle_strays(node.logs, 1, cluster.controller.image)
        await node.logs.maintenance.remove_everything_waiting()
        left = list(Path(source.path).glob("orders-0.*"))
        if deleted:
            assert left == []
        else:
            assert [str(path) for path in left] == list(node.logs.strays)
            records = b"".join(path.read_bytes() for path in sorted(left[0].glob("*.log")))
            assert all(str(number).encode() in records for number in range(20))


class NothingOpens(RealDisk):
    nothing = False

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> RealFile:
        self._check(path)
        return super().open(path, create=create, writable=writable)

    def empty_file(self, path: str) -> RealFile:
        self._check(path)
        return super().empty_file(path)

    def _check(self, path: str) -> None:
        if self.nothing:
            raise OSError(errno.EMFILE, "Too many open files", path)


@pytest.mark.spec("LOG-35")
async def test_replicas_that_could_not_be_made_for_want_of_handles_are_made_later(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        cluster.disk = disk = NothingOpens()
        (one,) = await cluster.add(1, directories=2)
        (two,) = await cluster.add(2)
        disk.nothing = True
        cluster.controller.create_topic("orders", [[1, 2]])
        cluster.controller.create_topic("gone", [[1]])
        assert not one.logs.logs
        cluster.controller.delete_topic("gone")
        disk.nothing = False
        await eventually(lambda: ORDERS in one.logs.logs, "the leader's log")
        assert await one.produce_to_all(ORDERS, "a") is ErrorCode.NONE
        assert one.stored(ORDERS) == two.stored(ORDERS) == ["a"]
        assert list(one.logs.logs) == [ORDERS]
        disk.nothing = True
        for log in (one.log(ORDERS), two.log(ORDERS)):
            log.active.close()
        with pytest.raises(OutOfHandles):
            one.produce(ORDERS, "b")
        disk.nothing = False
        one.produce(ORDERS, "b")
        await eventually(lambda: two.stored(ORDERS) == ["a", "b"], "the follower goes on")
        assert all(each.online for node in (one, two) for each in node.logs.directories)
