"""The reserve that is kept free on each disk: new replicas go where there is more room than that."""

from __future__ import annotations

import pytest
from tests.broker.storage.managing import BadDisk, World, create, partition, run
from tests.sim.disk import Usage

from ballast_broker.storage.room import GIB, reserve_bytes, room_for

TOTAL = 100 * GIB


@pytest.mark.spec("DIR-45")
def test_how_much_room_a_disk_keeps() -> None:
    assert reserve_bytes(None, 1000 * GIB) == 20 * GIB
    assert reserve_bytes(None, 20 * GIB) == GIB
    assert reserve_bytes(None, 5 * GIB) == GIB // 2
    assert reserve_bytes(0, 5 * GIB) == 0
    assert room_for(10, Usage(1000, 110), 100)
    assert not room_for(11, Usage(1000, 110), 100)
    assert room_for(1 << 60, None, None), "what cannot be told does not keep anybody away"


class UnevenDisks(BadDisk):
    def __init__(self, usable_bytes: dict[str, int]) -> None:
        super().__init__()
        self.usable_bytes = usable_bytes

    def usage(self, path: str) -> Usage:
        return Usage(TOTAL, self.usable_bytes[path])


@pytest.mark.spec("DIR-02", "DIR-45")
def test_a_new_replica_goes_to_a_full_disk_only_where_all_are(world: World) -> None:
    """One large partition fills its disk, which has the fewest replicas: all new ones went there, until it failed."""
    disk = world.disk = UnevenDisks(dict.fromkeys(world.paths, TOTAL // 2))

    async def story() -> None:
        manager = await world.started()
        full, *others = world.paths
        assert create(manager, 0).directory.path == full
        assert [create(manager, number).directory.path for number in (1, 2)] == others
        disk.usable_bytes[full] = GIB
        assert [create(manager, number).directory.path for number in range(3, 7)] == others * 2
        named = manager.directory(full)
        assert named is not None
        assert create(manager, 7, assigned_directory=named.id).directory is named, "whoever names it means it"
        disk.usable_bytes |= dict.fromkeys(others, 0)
        assert create(manager, 8).directory is named
        assert manager.logs[partition(8)].directory.path == full

    run(story())
