"""Commits offsets of groups and checks that the acknowledged ones are found when all is quiet, at any coordinator.

A client waits for the answer before the next commit of a group. A commit without an answer may take effect later, even
after the next one.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from typing import Any

from tests.sim.checkers import Broken
from tests.sim.clients import RETRY_S, SimClient

from ballast_wire.errors import ErrorCode
from ballast_wire.messages import message

TOPIC = "__consumer_offsets"
PARTITIONS = 2
GROUPS = [f"group {number}" for number in range(4)]
COMMITS_PER_SECOND = 2.0
NOT_A_MEMBER = -1
FIND, COMMIT, FETCH = 3, 8, 7
PROPERTIES = {
    "offsets.topic.num.partitions": str(PARTITIONS),
    "log.roll.ms": "5000",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "min.insync.replicas": "2",
}


class CommittedOffsets:
    """Commits offsets of partition 0 of `topic`, which exists."""

    def __init__(self, client: SimClient, rng: random.Random, topic: str) -> None:
        self._client = client
        self._rng = rng
        self._topic = topic
        self._coordinators: dict[str, str] = {}
        self._acked: dict[str, int] = {}
        self._unknown: dict[str, set[int]] = defaultdict(set)

    async def run(self) -> None:
        offset = 0
        while True:
            offset += 1
            await self._commit(self._rng.choice(GROUPS), offset)
            await asyncio.sleep(self._rng.expovariate(COMMITS_PER_SECOND))

    async def _commit(self, group: str, offset: int) -> None:
        kind = message("OffsetCommitRequest")
        partition = kind.OffsetCommitRequestTopic.OffsetCommitRequestPartition(
            version=COMMIT, partition_index=0, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=""
        )
        topic = kind.OffsetCommitRequestTopic(version=COMMIT, name=self._topic, partitions=[partition])
        request = kind(
            group_id=group, generation_id_or_member_epoch=NOT_A_MEMBER, member_id="", group_instance_id=None,
            topics=[topic],
        )  # fmt: skip
        answer = await self._ask_coordinator(group, request, COMMIT)
        if answer is not None and answer.topics[0].partitions[0].error_code == ErrorCode.NONE:
            self._acked[group] = offset
        else:
            self._unknown[group].add(offset)
            self._coordinators.pop(group, None)

    async def _ask_coordinator(self, group: str, request: Any, version: int) -> Any:
        """None if there is no answer."""
        try:
            if group not in self._coordinators:
                find = message("FindCoordinatorRequest")
                answer = await self._client.ask_any(find(key=group, key_type=0), FIND)
                if answer.error_code:
                    return None
                self._coordinators[group] = answer.host
            return await self._client.ask(self._coordinators[group], request, version)
        except (OSError, TimeoutError):
            return None

    async def check(self) -> None:
        """Check, once nobody commits any more and every broker knows the leaders."""
        for group, acked in self._acked.items():
            found = await self._committed(group)
            if found < acked and found not in self._unknown[group]:
                raise Broken(f"a group's offset is never lost: {group} committed {acked}, found {found}")

    async def _committed(self, group: str) -> int:
        kind = message("OffsetFetchRequest")
        topic = kind.OffsetFetchRequestTopic(version=FETCH, name=self._topic, partition_indexes=[0])
        while True:
            answer = await self._ask_coordinator(
                group, kind(group_id=group, topics=[topic], require_stable=False), FETCH
            )
            if answer is not None and answer.error_code == ErrorCode.NONE:
                return int(answer.topics[0].partitions[0].committed_offset)
            self._coordinators.pop(group, None)
            await asyncio.sleep(RETRY_S)
