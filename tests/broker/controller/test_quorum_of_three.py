"""Three combined nodes: the loss of any one is overcome quickly, and nothing committed is lost."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.broker.controller.cluster import Cluster, Node
from tests.broker.raft.memory import InlineThreads, MemoryDisk, MemoryLog

from ballast_broker.controller.service import ServiceTiming
from ballast_broker.metadata.image import Listener, MetadataImage
from ballast_broker.raft import wire
from ballast_broker.raft.messages import BeginEpoch, Fetch, Vote
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.failures import failure_response
from ballast_wire.messages import message


async def settled(cluster: Cluster) -> None:
    """Wait until all live nodes have applied what the active controller has."""

    def same() -> bool:
        try:
            target = cluster.active.image.offset
        except LookupError:
            return False
        return all(node.image.offset == target for node in cluster.live)

    await cluster.until(same)


@pytest.mark.spec("CLU-01", "CLU-03")
async def test_every_node_applies_the_same_metadata() -> None:
    async with Cluster(voters=3, observers=1) as cluster:
        await cluster.create_topic("orders", [1, 2, 3], [2, 3, 4])
        await settled(cluster)
        images = [node.image for node in cluster.nodes.values()]
        assert all(image.topics.by_name("orders") is not None for image in images)
        assert images[0].cluster.brokers.keys() == {1, 2, 3, 4}
        assert len({node.log.batches[-1] for node in cluster.nodes.values()}) == 1


@pytest.mark.spec("CLU-02")
async def test_another_controller_serves_soon_after_the_active_one_dies() -> None:
    async with Cluster(voters=3) as cluster:
        await cluster.create_topic("before", [1, 2, 3])
        dead = cluster.active
        loop = asyncio.get_running_loop()
        began = loop.time()
        await dead.kill()
        await cluster.create_topic("after", [node.id for node in cluster.live])
        assert loop.time() - began < 2.0
        await settled(cluster)
        for node in cluster.live:
            assert [topic.name for topic in node.image.topics] == ["after", "before"]
        assert cluster.active.id != dead.id


def to_group_version(level: int) -> Any:
    kind = message("UpdateFeaturesRequest")
    way = 1 if level else 2
    update = kind.FeatureUpdateKey(feature="group.version", max_version_level=level, upgrade_type=way)
    return kind(timeout_ms=5000, feature_updates=[update], validate_only=False)


@pytest.mark.spec("CLU-04")
async def test_a_level_goes_up_once_every_voter_says_that_it_knows_it() -> None:
    async with Cluster(voters=3) as cluster:
        assert (await cluster.call(to_group_version(0), 2)).error_code == 0
        other = next(node for node in cluster.live if node is not cluster.active)
        new, other.features = other.features, {"metadata.version": (27, 27)}
        refused = await cluster.call(to_group_version(1), 2)
        assert refused.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert refused.error_message.endswith(f"Controller {other.id} does not support this feature.")
        other.features = new
        await other.kill()
        silent = await cluster.call(to_group_version(1), 2)
        assert silent.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert f"voter {other.id}" in silent.error_message
        await other.start()
        assert (await cluster.call(to_group_version(1), 2)).error_code == 0
        assert cluster.active.image.features.level("group.version") == 1


@pytest.mark.spec("CLU-02")
async def test_a_vote_that_could_not_be_written_down_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a restart the voter would not know of it, and might vote for another candidate in the same epoch."""

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    async with Cluster(voters=3) as cluster:
        voter, candidate = [node for node in cluster.live if node is not cluster.active]
        monkeypatch.setattr(voter.store, "persist", fail)
        core = candidate.driver.core
        vote = Vote(core.epoch + 1, candidate.id, core.epoch, core.log_end_offset, pre_vote=False)
        with pytest.raises(ApiError):
            await voter.driver.handle(wire.VOTE, wire.encode_request(vote, voter.id, voter.driver.quorum))
        assert [type(failure) for failure in voter.failures] == [OSError]
        voter.failures.clear()


@pytest.mark.spec("CLU-02")
async def test_a_voter_fetches_only_when_what_it_found_on_its_disk_is_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A power failure may take what a killed process left; the offset of a fetch promises that it cannot."""
    may_flush = asyncio.Event()
    run = InlineThreads.run

    async with Cluster(voters=3) as cluster:
        leader = cluster.active
        voter = next(node for node in cluster.live if node is not leader)

        async def run_later(self: InlineThreads, work: Callable[[], Any]) -> Any:
            if self is voter.threads:
                await may_flush.wait()
            return await run(self, work)

        await voter.kill()
        assert leader.driver.core.leadership is not None
        progress = leader.driver.core.leadership.voters[voter.id]
        heard_at = progress.fetched_at
        monkeypatch.setattr(InlineThreads, "run", run_later)
        starting = asyncio.ensure_future(voter.start(broker=False))
        await cluster.until(lambda: voter.alive)
        begin = wire.encode_request(BeginEpoch(leader.driver.epoch, leader.id), voter.id, voter.driver.quorum)
        told = asyncio.ensure_future(voter.driver.handle(wire.BEGIN_QUORUM_EPOCH, begin))
        for _ in range(50):
            await asyncio.sleep(0)
        assert progress.fetched_at == heard_at
        may_flush.set()
        await asyncio.gather(starting, told)
        await cluster.until(lambda: progress.fetched_at > heard_at)


@pytest.mark.spec("CLU-01")
async def test_a_killed_broker_is_fenced_as_soon_as_its_connection_ends() -> None:
    async with Cluster(voters=1, observers=2) as cluster:
        await cluster.create_topic("orders", [2, 3])
        loop = asyncio.get_running_loop()
        began = loop.time()
        await cluster.nodes[2].kill()
        await cluster.until(lambda: cluster.partition("orders", 0).leader == 3)
        assert loop.time() - began < 5.0, "a session lasts nine seconds"
        partition = cluster.partition("orders", 0)
        assert partition.isr == (3,)
        assert partition.leader_epoch == 1
        assert cluster.active.image.cluster.brokers[2].fenced


@pytest.mark.spec("CLU-01", "CLU-02")
async def test_what_died_with_the_active_controller_is_fenced_by_the_next_one_at_once() -> None:
    async with Cluster(voters=3) as cluster:
        dead = cluster.active
        await cluster.create_topic("orders", [dead.id, *(node.id for node in cluster.live if node is not dead)])
        loop = asyncio.get_running_loop()
        began = loop.time()
        await dead.kill()
        await cluster.until(lambda: any(node.service and node.service.is_active for node in cluster.live))
        await cluster.until(lambda: cluster.partition("orders", 0).leader not in (dead.id, -1))
        assert loop.time() - began < 5.0, "a session lasts nine seconds"


@pytest.mark.spec("CLU-01")
async def test_a_silent_broker_keeps_its_session_and_loses_it_after() -> None:
    timing = ServiceTiming(session_timeout_s=1.5)
    async with Cluster(voters=1, observers=1, timing=timing) as cluster:
        loop = asyncio.get_running_loop()
        cluster.nodes[2].lifecycle_task.cancel()  # it listens, but sends no heartbeats any more
        began = loop.time()
        await cluster.until(lambda: cluster.active.image.cluster.brokers[2].fenced)
        assert loop.time() - began > 0.9


@pytest.mark.spec("CLU-01")
async def test_a_bug_in_fencing_one_broker_is_not_the_end_of_fencing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with Cluster(voters=1, observers=1, timing=ServiceTiming(session_timeout_s=1.0)) as cluster:
        service, bugs = cluster.active.service, ["planted"]
        assert service is not None
        fence = service._fencing._fence

        async def fence_at_the_second_try(broker_id: int) -> None:
            if bugs:
                raise RuntimeError(bugs.pop())
            await fence(broker_id)

        monkeypatch.setattr(service._fencing, "_fence", fence_at_the_second_try)
        cluster.nodes[2].lifecycle_task.cancel()
        await cluster.until(lambda: cluster.active.image.cluster.brokers[2].fenced)
        assert not bugs
        assert "planted" in caplog.text


@pytest.mark.spec("CLU-01")
async def test_a_broker_that_speaks_while_another_one_is_fenced_is_not_fenced_with_it() -> None:
    async with Cluster(voters=1, observers=2, timing=ServiceTiming(session_timeout_s=1.0)) as cluster:
        service, fenced, answers = cluster.active.service, set[int](), list[asyncio.Task[Any]]()
        assert service is not None
        silent = {each: cluster.nodes[each].lifecycle for each in (2, 3)}

        def look(_: object, image: MetadataImage) -> None:
            fenced.update(each for each in silent if image.cluster.brokers[each].fenced)
            if len(fenced) == 1 and not answers:
                [other] = silent.keys() - fenced
                request = message("BrokerHeartbeatRequest")(
                    broker_id=other, broker_epoch=silent[other].broker_epoch, current_metadata_offset=image.offset
                )
                answers.append(asyncio.get_running_loop().create_task(service.handle(63, 1, request)))

        cluster.active.replica.add_publisher(look)
        for each in silent:
            cluster.nodes[each].lifecycle_task.cancel()
        sessions = service._fencing._sessions._sessions
        sessions[2].heard_at = sessions[3].heard_at
        await cluster.until(lambda: bool(answers) and answers[0].done())
        await asyncio.sleep(0.2)
        assert len(fenced) == 1


@pytest.mark.spec("CLU-03")
async def test_a_refusal_that_comes_of_what_is_not_committed_is_not_told_before_that_is() -> None:
    """Otherwise a broker that `is not registered` may still be registered at the next controller."""
    async with Cluster(voters=3, observers=1) as cluster:
        active = cluster.active
        assert active.service is not None
        for node in cluster.live:
            if node is not active and node.service is not None:
                await node.kill()
        request = message("UnregisterBrokerRequest")(broker_id=4)
        first = asyncio.get_running_loop().create_task(active.service.handle(64, 0, request))
        await asyncio.sleep(0.01)
        second = await active.service.handle(64, 0, request)
        assert ErrorCode(second.error_code) is ErrorCode.NOT_CONTROLLER
        assert ErrorCode((await first).error_code) is ErrorCode.NOT_CONTROLLER


@pytest.mark.spec("CLU-01")
async def test_a_broker_is_not_dead_because_one_of_its_addresses_leads_nowhere_from_here() -> None:
    """A listener for external clients may have an address that the controller cannot reach, or that refuses it."""
    cluster = Cluster(1, 1)
    cluster.nodes[2].other_listeners = {"OUTSIDE": Listener("outside", 9092)}
    async with cluster:
        broker, network = cluster.nodes[2], cluster.network
        fenced: list[bool] = []
        cluster.active.replica.add_publisher(lambda _, image: fenced.append(image.cluster.brokers[2].fenced))
        controller = cluster.nodes[1].endpoints[1]
        network.stop_listening(controller.host, controller.port)  # else the broker may be back before the check
        await cluster.until(lambda: any(channel.address == broker.address for channel in network.channels))
        assert not any(fenced)


async def test_a_second_broker_with_an_id_in_use_is_refused() -> None:
    async with Cluster(voters=1, observers=1) as cluster:
        request = cluster.nodes[2].lifecycle._registration()
        request.incarnation_id = uuid.uuid4()
        response = await cluster.nodes[2].client.call(request, 4)
        assert response.error_code == 101  # DUPLICATE_BROKER_REGISTRATION


@pytest.mark.spec("CLU-12")
async def test_a_broker_that_leaves_hands_its_leaderships_over_first() -> None:
    async with Cluster(voters=1, observers=2) as cluster:
        await cluster.create_topic("orders", [2, 3], [3, 2])
        leaving = cluster.nodes[2]
        await leaving.leave()
        assert cluster.partition("orders", 0).leader == 3
        assert cluster.partition("orders", 0).isr == (3,)
        broker = cluster.active.image.cluster.brokers[2]
        assert broker.fenced
        assert broker.in_controlled_shutdown


@pytest.mark.spec("CLU-11", "CLU-12")
async def test_all_brokers_leave_and_come_back() -> None:
    async with Cluster(voters=1, observers=1) as cluster:
        await cluster.create_topic("orders", [2])
        node = cluster.nodes[2]
        await node.leave()
        partition = cluster.partition("orders", 0)
        assert (partition.leader, partition.isr, partition.elr) == (-1, (), (2,))
        await node.start()
        await cluster.until(node.lifecycle.running.is_set)
        partition = cluster.partition("orders", 0)
        assert (partition.leader, partition.isr, partition.elr) == (2, (2,), ())


async def rolling(cluster: Cluster, nodes: list[Node]) -> None:
    for number, node in enumerate(nodes):
        await node.leave()
        await cluster.create_topic(f"while-{number}", [other.id for other in cluster.live])
        await node.start()
        await cluster.until(node.lifecycle.running.is_set)


@pytest.mark.spec("CLU-02", "CLU-12")
async def test_a_rolling_restart_never_stops_the_controller_for_long() -> None:
    async with Cluster(voters=3) as cluster:
        await rolling(cluster, list(cluster.nodes.values()))
        await settled(cluster)
        names = [topic.name for topic in cluster.nodes[1].image.topics]
        assert names == ["while-0", "while-1", "while-2"]


@pytest.mark.spec("CLU-02")
async def test_a_node_that_was_away_too_long_gets_a_snapshot() -> None:
    async with Cluster(voters=3) as cluster:
        away = next(node for node in cluster.nodes.values() if node is not cluster.active)
        await away.kill()
        for number in range(4):
            await cluster.create_topic(f"t{number}", [cluster.active.id])
            await settled(cluster)
            for node in cluster.live:
                await node.replica.snapshot()
        assert cluster.active.log.log_start_offset > away.log.log_end_offset
        await away.start()
        await cluster.until(away.lifecycle.running.is_set)
        assert len(away.image.topics) == 4
        assert away.log.log_start_offset > 0
        assert away.image.offset == cluster.active.image.offset


@pytest.mark.spec("CLU-02", "CLU-03")
@pytest.mark.parametrize("error", [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NONE])
async def test_a_node_that_is_refused_a_snapshot_asks_again(error: ErrorCode, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the leader cannot read it at the moment; also if the response is empty."""
    async with Cluster(voters=1, observers=1) as cluster:
        leader, away = cluster.nodes[1], cluster.nodes[2]
        await away.kill()
        for number in range(2):
            await cluster.create_topic(f"t{number}", [1])
            await leader.replica.snapshot()
        refusals = [error] * 2
        handle = leader.driver.answering._fetch_snapshot

        def refuse(request: Any) -> Any:
            return failure_response("FetchSnapshot", request, 1, refusals.pop(), None) if refusals else handle(request)

        monkeypatch.setattr(leader.driver.answering, "_fetch_snapshot", refuse)
        away.log, away.disk = MemoryLog(), MemoryDisk()
        await away.start()
        await cluster.until(lambda: away.failures or away.lifecycle.running.is_set())
        assert not refusals
        assert not away.failures
        assert [topic.name for topic in away.image.topics] == ["t0", "t1"]


@pytest.mark.spec("CLU-04")
async def test_the_quorum_describes_itself() -> None:
    async with Cluster(voters=3, observers=1) as cluster:
        await settled(cluster)
        kind = message("DescribeQuorumRequest")
        topic = kind.TopicData(
            topic_name="__cluster_metadata", partitions=[kind.TopicData.PartitionData(partition_index=0)]
        )
        response = await cluster.active.driver.handle(55, kind(topics=[topic]))
        data = response.topics[0].partitions[0]
        assert data.leader_id == cluster.active.id
        assert {each.replica_id for each in data.current_voters} == {1, 2, 3}
        assert [each.replica_id for each in data.observers] == [4]
        assert all(each.log_end_offset == cluster.active.log.log_end_offset for each in data.current_voters)


@pytest.mark.spec("CLU-04")
@pytest.mark.parametrize(("topic", "partition"), [("other", 0), ("__cluster_metadata", 1)])
async def test_there_is_one_partition_that_a_quorum_is_asked_about(topic: str, partition: int) -> None:
    async with Cluster(voters=1) as cluster:
        driver, vote = cluster.active.driver, message("VoteRequest")
        data = vote.TopicData.PartitionData(
            partition_index=partition, replica_epoch=99, replica_id=2, last_offset_epoch=99, last_offset=99
        )
        with pytest.raises(ApiError) as refused:
            await driver.handle(52, vote(topics=[vote.TopicData(topic_name=topic, partitions=[data])]))
        assert refused.value.code is ErrorCode.INVALID_REQUEST
        assert driver.epoch < 99
        kind = message("FetchSnapshotRequest")
        part = kind.TopicSnapshot.PartitionSnapshot
        wanted = part(partition=partition, snapshot_id=part.SnapshotId(end_offset=1, epoch=1), position=0)
        with pytest.raises(ApiError) as refused:
            await driver.handle(59, kind(topics=[kind.TopicSnapshot(name=topic, partitions=[wanted])]))
        assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.spec("CLU-04")
@pytest.mark.parametrize("field", ["epoch", "offset", "last_epoch", "max_wait_ms"])
async def test_a_fetch_of_less_than_nothing_is_refused_as_by_apache_kafka(field: str) -> None:
    async with Cluster(voters=1) as cluster:
        driver = cluster.active.driver
        asked = replace(Fetch(driver.epoch, 9, 0, 0, 0), **dict[str, Any]({field: -1}))
        response = await driver.handle(1, wire.encode_request(asked, driver.node_id, driver.quorum))
        [data] = response.responses[0].partitions
        assert (response.error_code, data.error_code) == (0, ErrorCode.INVALID_REQUEST)
        assert (data.high_watermark, data.records) == (-1, b"")
        assert data.current_leader.leader_epoch == driver.epoch


@pytest.mark.spec("CLU-02")
async def test_an_idle_quorum_only_says_that_it_lives() -> None:
    async with Cluster(voters=3) as cluster:
        await settled(cluster)
        for node in cluster.nodes.values():
            node.lifecycle_task.cancel()
        await asyncio.sleep(0.6)
        cluster.network.calls.clear()
        await asyncio.sleep(1.1)
        fetches = cluster.network.calls.count("Fetch")
        assert 2 <= fetches <= 8  # two followers, one request of half a second each
        assert "Vote" not in cluster.network.calls


@pytest.mark.spec("CLU-01", "CLU-33")
async def test_the_death_of_a_broker_that_was_unregistered_and_came_back_is_noticed_at_once() -> None:
    async with Cluster(voters=1, observers=1) as cluster:
        node, brokers = cluster.nodes[2], cluster.active.image.cluster.brokers
        first = brokers[2].epoch
        response = await cluster.call(message("UnregisterBrokerRequest")(broker_id=2), 0)
        assert response.error_code == ErrorCode.NONE

        def here() -> bool:
            broker = cluster.active.image.cluster.brokers.get(2)
            return broker is not None and broker.epoch != first and not broker.fenced

        await cluster.until(here)
        await cluster.until(node.lifecycle.running.is_set)
        await node.kill()
        await cluster.until(lambda: cluster.active.image.cluster.brokers[2].fenced, timeout_s=3.0)
