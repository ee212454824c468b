"""Proposes ISR changes and sends them to the controller: all of one turn of the loop in one AlterPartition.

One request is in flight at a time; proposals made meanwhile go with the next. `Partition.isr_answered` drops a proposal
that newer metadata has overtaken. Loop thread only; the one task it owns ends when nothing is left to ask.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from ballast_broker.metadata.image import RECOVERING, PartitionRegistration
from ballast_broker.replication.partition import IsrAnswer, IsrChange
from ballast_broker.replication.replica import Replica
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message

if TYPE_CHECKING:
    from ballast_broker.replication.replicas import Replicas

log = logging.getLogger(__name__)

ALTER_PARTITION_VERSION = 3
RETRY_S = 0.05
MAXIMUM_PER_REQUEST = 200  # handled in one turn of the event loop, here and at the controller
REPLICAS_PER_SLICE = 1_000  # examined in one turn of the loop: about a millisecond


class Controller(Protocol):
    async def call(self, request: Any, version: int) -> Any:
        """Send to the active controller and await the response; ApiError REQUEST_TIMED_OUT if none answers in time."""


class IsrChanges:
    def __init__(self, controller: Controller, broker_id: int, broker_epoch: Callable[[], int]) -> None:
        self._controller = controller
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._proposed: dict[Replica, IsrChange] = {}
        self._task: asyncio.Task[None] | None = None
        self.shrinks = 0
        self.expands = 0
        self.failed_updates = 0
        self.unclean_elections = 0

    # -- proposing ----------------------------------------------------------------------------------------------------
    def propose_expand(self, replica: Replica, broker_id: int) -> None:
        change = replica.state.propose_expand(broker_id)
        if change is not None:
            self.submit(replica, change)

    async def keep_shrinking(self, replicas: Replicas, interval_s: float) -> None:
        """Propose to shrink ISRs with lagging followers, periodically, until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            for number, replica in enumerate(replicas.all()):
                if number % REPLICAS_PER_SLICE == 0:
                    await asyncio.sleep(0)
                try:
                    self._propose_shrink(replica, replicas)
                except Exception:  # a bug must not end this for all partitions
                    log.exception("the ISR of %s could not be checked", replica.topic_partition)

    def _propose_shrink(self, replica: Replica, replicas: Replicas) -> None:
        replica.reconsider()
        change = replica.state.propose_shrink(replica.now_ms())
        if change is not None and replicas.find(replica.topic_partition) is replica:
            log.info("%s: the ISR is to shrink to %s", replica.topic_partition, sorted(change.members))
            self.submit(replica, change)

    # -- asking -------------------------------------------------------------------------------------------------------
    def submit(self, replica: Replica, change: IsrChange) -> None:
        self._proposed[replica] = change
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._send_all(), name="isr-changes")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _send_all(self) -> None:
        await asyncio.sleep(0)  # batch the other proposals of this turn of the loop
        while self._proposed:
            some = [(each, self._proposed.pop(each)) for each in [*islice(self._proposed, MAXIMUM_PER_REQUEST)]]
            batch = {replica: change for replica, change in some if replica.state.pending is change}
            if not batch:
                continue
            try:
                response = await self._controller.call(self._request(batch), ALTER_PARTITION_VERSION)
                retry = self._take_in(batch, response)
            except (ApiError, ConnectionError, TimeoutError) as error:
                log.warning("%d changes of ISR did not reach the controller, sent again: %s", len(batch), error)
                retry = batch
            except Exception:  # a bug must not leave them pending for ever: that blocks further proposals
                log.exception("%d changes of ISR could not be sent, tried again", len(batch))
                retry = batch
            for replica, change in retry.items():
                self._proposed.setdefault(replica, change)
            if retry:
                self.failed_updates += len(retry)
                await asyncio.sleep(RETRY_S)

    def _request(self, batch: dict[Replica, IsrChange]) -> Any:
        request = message("AlterPartitionRequest")
        topic_data, partition_data, broker_state = (
            request.TopicData, request.TopicData.PartitionData, request.TopicData.PartitionData.BrokerState,
        )  # fmt: skip
        epoch = self._broker_epoch()
        topics: dict[UUID, list[Any]] = {}
        for replica, change in batch.items():
            members = [
                broker_state(broker_id=member, broker_epoch=epoch if member == self._broker_id else member_epoch)
                for member, member_epoch in change.isr
            ]
            partition = partition_data(
                partition_index=replica.topic_partition.partition,
                leader_epoch=change.leader_epoch,
                new_isr_with_epochs=members,
                partition_epoch=change.partition_epoch,
            )
            topics.setdefault(replica.topic_id, []).append(partition)
        topic_list = [topic_data(topic_id=topic_id, partitions=found) for topic_id, found in topics.items()]
        return request(broker_id=self._broker_id, broker_epoch=epoch, topics=topic_list)

    def _take_in(self, batch: dict[Replica, IsrChange], response: Any) -> dict[Replica, IsrChange]:
        """Apply the response; returns the changes to ask for again."""
        if response.error_code:
            log.warning("the controller refused changes of ISR: %s", ErrorCode(response.error_code).name)
            return batch
        answers = {
            (topic.topic_id, partition.partition_index): partition
            for topic in response.topics
            for partition in topic.partitions
        }
        retry = {}
        for replica, change in batch.items():
            answer = answers.get((replica.topic_id, replica.topic_partition.partition))
            if answer is None or self._settle(replica, change, answer) is IsrAnswer.RETRY:
                retry[replica] = change
        return retry

    def _settle(self, replica: Replica, change: IsrChange, answer: Any) -> IsrAnswer:
        state = replica.state
        before = state.isr
        error = ErrorCode(answer.error_code)
        outcome = state.isr_answered(
            change, error, isr=tuple(answer.isr), leader_epoch=answer.leader_epoch,
            partition_epoch=answer.partition_epoch,
        )  # fmt: skip
        if outcome is IsrAnswer.ACCEPTED:
            self.count(replica, before)
        elif error is not ErrorCode.NONE:
            log.info("%s: ISR %s refused: %s", replica.topic_partition, sorted(change.members), error.name)
        replica.reconsider()
        return outcome

    # -- counting -----------------------------------------------------------------------------------------------------
    def count_election(self, replica: Replica, registration: PartitionRegistration, in_line: frozenset[int]) -> None:
        """Count an unclean election: this broker leads now in state RECOVERING, without having been in the ISR or ELR
        (`in_line`), and is not the only replica."""
        unsure = registration.leader_recovery_state == RECOVERING
        if unsure and replica.state.followers and self._broker_id not in in_line:
            self.unclean_elections += 1
            log.warning(
                "%s: this broker leads it without having been in sync: records that it lacks are lost",
                replica.topic_partition,
            )

    def count(self, replica: Replica, before: frozenset[int]) -> None:
        """The ISR of a partition led here has changed; the metadata may tell before the controller's response does."""
        after = replica.state.isr
        if after == before:
            return
        if len(after) < len(before):
            self.shrinks += 1
        else:
            self.expands += 1
        log.info("%s: ISR is %s, was %s", replica.topic_partition, sorted(after), sorted(before))
