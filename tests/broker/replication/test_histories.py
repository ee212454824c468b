"""The two histories of REP-22 and REP-23, step by step with two real brokers.

A and B hold one partition. A record's way: the leader writes it; the follower fetches it; the follower's next fetch
tells the leader; the leader's next answer tells the follower that it is committed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.broker.replication.cluster import Cluster, Node, eventually

from ballast_broker.replication.fetcher import Followed
from ballast_wire.errors import ErrorCode
from ballast_wire.names import TopicPartition

STORY = TopicPartition("story", 0)
A, B, C = 1, 2, 3


def high_watermark(node: Node) -> int:
    return int(node.log(STORY).high_watermark)


@pytest.mark.spec("REP-22")
async def test_the_lost_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower that restarts with a high watermark below its log end, and then has to lead, still has the message."""
    async with Cluster(tmp_path) as cluster:
        a, b = await cluster.add(A, B)
        cluster.controller.create_topic("story", [[B, A]])

        # B leads. m1 and m2 are in both logs, and acknowledged; A has not heard yet that m2 is committed.
        assert await b.produce_to_all(STORY, "m1") is ErrorCode.NONE
        await eventually(lambda: high_watermark(a) == 1)
        hold_back_high_watermark(a, monkeypatch)
        assert await b.produce_to_all(STORY, "m2") is ErrorCode.NONE
        assert a.stored(STORY) == ["m1", "m2"]
        assert (high_watermark(a), high_watermark(b)) == (1, 2)

        # A restarts. Before it can ask B anything, B is gone as well, and A leads.
        cluster.cuts.add(frozenset({A, B}))
        await a.stop()
        await a.start_unnoticed()
        assert high_watermark(a) == 1, "what the checkpoint knew"
        await b.crash()
        assert cluster.leader(STORY) == A

        # m2 is there, and B gets what A writes next.
        assert a.stored(STORY) == ["m1", "m2"]
        cluster.cuts.clear()
        await b.start()
        assert await a.produce_to_all(STORY, "m3") is ErrorCode.NONE
        await eventually(lambda: cluster.isr(STORY) == {A, B})
        assert a.stored(STORY) == b.stored(STORY) == ["m1", "m2", "m3"]
        assert await a.consume(STORY) == ["m1", "m2", "m3"]


def hold_back_high_watermark(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the node takes records, but does not learn the high watermark."""
    known = high_watermark(node)
    (group,) = node.replication.fetchers._groups.values()
    append = group._append

    async def deaf(followed: Followed, data: Any) -> None:
        await append(followed, data._replace(high_watermark=min(known, data.high_watermark)))

    monkeypatch.setattr(group, "_append", deaf)


@pytest.mark.spec("REP-23", "REP-21")
async def test_the_logs_diverge_and_an_unclean_leader_is_allowed(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        a, b = await cluster.add(A, B)
        cluster.controller.create_topic("story", [[A, B]], {"unclean.leader.election.enable": "true"})

        # A leads; B has only m1 and drops out of the ISR; A takes m2 alone. Then A fails, too.
        assert await a.produce_to_all(STORY, "m1") is ErrorCode.NONE
        await b.crash()
        assert await a.produce_to_all(STORY, "m2") is ErrorCode.NONE
        await a.crash()
        assert cluster.leader(STORY) == -1

        # B comes back first. It may lead although it is not in sync, and takes m3 where m2 was.
        await b.start()
        await cluster.controller.elect_uncleanly()
        assert cluster.leader(STORY) == B
        assert b.replication.isr_changes.unclean_elections == 1
        assert await b.produce_to_all(STORY, "m3") is ErrorCode.NONE

        # A returns, finds that its log diverges from B's after m1, truncates it and follows. The loss is counted.
        await a.start()
        await eventually(lambda: cluster.isr(STORY) == {A, B})
        assert a.stored(STORY) == b.stored(STORY) == ["m1", "m3"]
        assert a.log(STORY).epochs.entries == b.log(STORY).epochs.entries
        assert a.replication.fetchers.totals.truncated_records == 1
        assert await b.consume(STORY) == ["m1", "m3"]


@pytest.mark.spec("REP-21", "REP-07", "REP-24")
async def test_what_diverged_before_the_log_of_the_leader_begins_does_not_come_back(tmp_path: Path) -> None:
    """Found by the simulation: after records are deleted the leader does not know any more where A left it. A crash
    loses where logs begin, and A still had other records there than B."""
    async with Cluster(tmp_path) as cluster:
        a, b = await cluster.add(A, B)
        cluster.controller.create_topic("story", [[A, B]], {"unclean.leader.election.enable": "true"})
        assert await a.produce_to_all(STORY, "m1") is ErrorCode.NONE
        await b.crash()
        for value in ("a2", "a3", "a4"):
            assert await a.produce_to_all(STORY, value) is ErrorCode.NONE
        await a.crash()
        await b.start()
        await cluster.controller.elect_uncleanly()
        for value in ("b2", "b3", "b4"):
            assert await b.produce_to_all(STORY, value) is ErrorCode.NONE
        assert await b.replicas.delete_records({STORY: 3}, 5000) == {STORY: (ErrorCode.NONE, 3)}
        await a.start()
        await eventually(lambda: cluster.isr(STORY) == {A, B})
        assert a.stored(STORY) == b.stored(STORY) == ["b4"]

        for node in (a, b):
            await node.crash()
        for node in (b, a):
            await node.start()
        await cluster.controller.elect_uncleanly()
        await eventually(lambda: cluster.isr(STORY) == {A, B})
        assert b.stored(STORY) == ["m1", "b2", "b3", "b4"]
        assert a.stored(STORY) == ["b4"]


@pytest.mark.spec("REP-23")
async def test_the_logs_would_diverge_but_the_partition_waits_for_its_leader(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        a, b = await cluster.add(A, B)
        cluster.controller.create_topic("story", [[A, B]])
        assert await a.produce_to_all(STORY, "m1") is ErrorCode.NONE
        await b.crash()
        assert await a.produce_to_all(STORY, "m2") is ErrorCode.NONE
        await a.crash()

        # B is back, but must not lead: the partition is offline until A returns.
        await b.start()
        await cluster.controller.elect_uncleanly()
        assert cluster.leader(STORY) == -1
        assert await b.produce_to_all(STORY, "m3") is ErrorCode.NOT_LEADER_OR_FOLLOWER

        await a.start()
        assert cluster.leader(STORY) == A
        await eventually(lambda: cluster.isr(STORY) == {A, B})
        assert a.stored(STORY) == b.stored(STORY) == ["m1", "m2"]
        assert [node.replication.isr_changes.unclean_elections for node in (a, b)] == [0, 0]


@pytest.mark.spec("REP-23")
async def test_who_leads_by_the_end_of_a_reassignment_has_everything(tmp_path: Path) -> None:
    """A single metadata change takes it into the ISR and makes it the leader."""
    async with Cluster(tmp_path) as cluster:
        a, b, c = await cluster.add(A, B, C)
        cluster.controller.create_topic("story", [[A, B]])
        assert await a.produce_to_all(STORY, "m1") is ErrorCode.NONE
        cluster.controller.reassign("story", [C, B])
        await eventually(lambda: cluster.leader(STORY) == C)
        assert await c.produce_to_all(STORY, "m2") is ErrorCode.NONE
        assert c.stored(STORY) == ["m1", "m2"]
        assert [node.replication.isr_changes.unclean_elections for node in (a, b, c)] == [0, 0, 0]


@pytest.mark.spec("REP-21")
async def test_logs_that_left_each_other_several_epochs_ago_find_together(tmp_path: Path) -> None:
    """Each has epochs that the other never saw: it takes more than one round trip."""
    async with Cluster(tmp_path) as cluster:
        a, b = await cluster.add(A, B)
        cluster.controller.create_topic("story", [[A, B]], {"unclean.leader.election.enable": "true"})
        assert await a.produce_to_all(STORY, "both") is ErrorCode.NONE
        await b.crash()
        for turn in range(3):  # A alone, each time as the leader of another epoch
            assert await a.produce_to_all(STORY, f"a{turn}") is ErrorCode.NONE
            await a.crash()
            await a.start()
        assert await a.produce_to_all(STORY, "a3") is ErrorCode.NONE
        await a.crash()
        await b.start()
        await cluster.controller.elect_uncleanly()
        for turn in range(3):
            assert await b.produce_to_all(STORY, f"b{turn}", f"b{turn}'") is ErrorCode.NONE
            await b.crash()
            await b.start()
            await cluster.controller.elect_uncleanly()
        await a.start()
        await eventually(lambda: cluster.isr(STORY) == {A, B})
        assert a.stored(STORY) == b.stored(STORY) == ["both", "b0", "b0'", "b1", "b1'", "b2", "b2'"]
        end = b.log(STORY).log_end_offset
        epochs = [entry for entry in b.log(STORY).epochs.entries if entry[1] < end]
        assert a.log(STORY).epochs.entries == epochs, "all epochs that have records"
