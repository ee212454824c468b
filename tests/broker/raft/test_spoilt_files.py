"""A node whose metadata is corrupt on disk says in which file, and serves nothing of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e.asking import ask, message
from e2e.processes import BrokerTrouble, Cluster, until
from tests.broker.raft.memory import static_voters
from tests.broker.raft.test_store import batch, open_store
from tests.broker.seams import SeededRandom

from ballast_broker.raft.core import RaftCore
from ballast_broker.raft.flushed_end import FLUSHED_END
from ballast_broker.raft.terms import Persisted
from ballast_wire.records import iterate_batches

FOLDER = "__cluster_metadata-0"
Damage = Callable[[Path], Path]


def create_topic(address: str, name: str) -> int:
    kind = message("CreateTopicsRequest")
    topic = kind.CreatableTopic(name=name, num_partitions=3, replication_factor=1, assignments=[], configs=[])
    answer = ask(address, kind(topics=[topic], timeout_ms=45_000, validate_only=False), 7)
    code: int = answer.topics[0].error_code
    return code


def snapshots(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.checkpoint"))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A broker after a clean shutdown; both its newest snapshot and the log after it have topics."""
    folder = tmp_path_factory.mktemp("spoilt")
    with Cluster(folder, 1, {"metadata.log.max.record.bytes.between.snapshots": "4000"}) as cluster:
        [broker] = cluster.brokers
        cluster.start()
        names = iter(range(1000))
        metadata = next(each / FOLDER for each in broker.volumes if (each / FOLDER).exists())
        while not snapshots(metadata):
            assert create_topic(broker.address, f"t{next(names)}") == 0
        broker.stop()
        for volume in broker.volumes:
            shutil.copytree(volume, folder / "kept" / volume.name)
        yield cluster


def restored(cluster: Cluster) -> Path:
    [broker] = cluster.brokers
    broker.kill()
    for volume in broker.volumes:
        shutil.rmtree(volume)
        shutil.copytree(cluster.folder / "kept" / volume.name, volume)
    return next(each / FOLDER for each in broker.volumes if (each / FOLDER).exists())


def flip(path: Path, at: int) -> Path:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)
    return path


def a_bit_of_the_snapshot(folder: Path) -> Path:
    newest = snapshots(folder)[-1]
    return flip(newest, newest.stat().st_size // 2)


def all_of_the_snapshot(folder: Path) -> Path:
    os.truncate(snapshots(folder)[-1], 0)
    return snapshots(folder)[-1]


def the_end_of_the_snapshot(folder: Path) -> Path:
    """Cut the snapshot after a whole batch."""
    newest = snapshots(folder)[-1]
    *_, footer = iterate_batches(memoryview(newest.read_bytes()))
    os.truncate(newest, footer.position)
    return newest


def a_length_inside_the_log(folder: Path) -> Path:
    log = max(folder.glob("*.log"))
    batches = [*iterate_batches(memoryview(log.read_bytes()))]
    return flip(log, batches[len(batches) // 2].position + 11)


def the_last_record_of_the_log(folder: Path) -> Path:
    flip(max(folder.glob("*.log")), -5)
    return folder


def all_of_the_quorum_state(folder: Path) -> Path:
    os.truncate(folder / "quorum-state", 0)
    return folder / "quorum-state"


def the_epoch_of_the_quorum_state(folder: Path) -> Path:
    (folder / "quorum-state").write_text("{}")
    return folder / "quorum-state"


@pytest.mark.spec("CLU-03")
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "damage",
    [
        a_bit_of_the_snapshot,
        all_of_the_snapshot,
        the_end_of_the_snapshot,
        the_last_record_of_the_log,
        all_of_the_quorum_state,
        the_epoch_of_the_quorum_state,
    ],
)
def test_a_node_ends_and_says_what_is_spoilt(stopped: Cluster, damage: Damage) -> None:
    """Taken at face value, an empty snapshot was a cluster without topics, and a flipped bit another topic name."""
    spoilt = damage(restored(stopped))
    [broker] = stopped.brokers
    broker.start()
    with pytest.raises(BrokerTrouble):
        broker.wait_ready()
    assert until(lambda: broker.ended_by_itself, 60)
    told = broker.last_lines(1)[0]
    assert told.startswith("broker 1: ")
    assert str(spoilt) in told
    assert "spoilt" in told
    assert not broker.complaints()


@pytest.mark.spec("CLU-03", "CLU-06")
@pytest.mark.timeout(120)
def test_what_follows_the_damage_is_not_cut_off(stopped: Cluster) -> None:
    """Nobody but the only voter has it. Where the first start had ended, the second one, which no longer found the
    mark, took the damage for a torn end and cut off all topics since."""
    spoilt = a_length_inside_the_log(restored(stopped))
    (spoilt.parents[1] / ".kafka_cleanshutdown").unlink()
    size = spoilt.stat().st_size
    [broker] = stopped.brokers
    broker.start()
    with pytest.raises(BrokerTrouble):
        broker.wait_ready()
    assert until(lambda: broker.ended_by_itself, 60)
    assert f"{spoilt} is spoilt at byte" in broker.last_lines(1)[0]
    assert spoilt.stat().st_size == size
    (spoilt.parent / FLUSHED_END).unlink()
    broker.start()
    broker.wait_ready()


@pytest.mark.spec("CLU-03")
@pytest.mark.timeout(120)
def test_what_is_not_spoilt_is_served(stopped: Cluster) -> None:
    restored(stopped)
    [broker] = stopped.brokers
    broker.start()
    broker.wait_ready()
    assert create_topic(broker.address, "t0") == 36, "it is there"


@pytest.mark.spec("CLU-02")
async def test_an_epoch_that_is_in_the_log_is_led_by_nobody_else(tmp_path: Path) -> None:
    """Its vote in that epoch was lost with the quorum state file."""
    manager, store = await open_store(tmp_path)
    store.configured(static_voters((1,)))
    store.append(batch(2), 7, 5)
    core = RaftCore(1, store.load_persisted(), store, SeededRandom())
    assert store.load_persisted() == Persisted()
    assert core.epoch == 7
    core.start(0.0)
    assert (core.is_leader, core.epoch) == (True, 8)
    await manager.shutdown()
