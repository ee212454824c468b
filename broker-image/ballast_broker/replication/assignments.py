"""Tells the controller in which directory this broker keeps a replica (AssignReplicasToDirs).

The newest wish for a replica wins; wishes are batched, one request at a time, and retried until the controller accepts
them or says that the replica is gone. A move waits for its agreement. Nobody waits for the assignments of new replicas:
they are held back while topics are being created, since each costs every broker as much as a leader change. Loop thread
only; the one task it owns ends when nothing is left to tell.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any
from uuid import UUID

from ballast_broker.replication.isr import Controller
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message

log = logging.getLogger(__name__)

ASSIGN_VERSION = 0
# Kafka's own bound is 2,250, but the controller handles a request in one turn of its event loop.
MAXIMUM_PER_REQUEST = 200
FIRST_RETRY_S = 0.1
# Wishes that nobody waits for are sent when no new one has come for LULL_S, at the latest after LONGEST_LULL_S.
LULL_S = 1.0
LONGEST_LULL_S = 10.0
LONGEST_RETRY_S = 10.0
GONE = frozenset({ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER})
Key = tuple[UUID, int]


class Wish:
    __slots__ = ("agreed", "directory", "key")

    def __init__(self, key: Key, directory: UUID) -> None:
        self.key = key
        self.directory = directory
        # True: the controller agreed; False: the replica is gone. Cancelled when a newer wish replaces this one.
        self.agreed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()


class Assignments:
    def __init__(self, controller: Controller, broker_id: int, broker_epoch: Callable[[], int]) -> None:
        self._controller = controller
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._wishes: dict[Key, Wish] = {}
        self._task: asyncio.Task[None] | None = None
        self._made = 0
        self._hurry = asyncio.Event()

    def __len__(self) -> int:
        return len(self._wishes)

    def assign(self, topic_id: UUID, partition: int, directory: UUID) -> asyncio.Future[bool]:
        """Send at once: somebody waits for it, or the metadata is wrong until then."""
        self._hurry.set()
        return self.assign_in_time(topic_id, partition, directory)

    def assign_in_time(self, topic_id: UUID, partition: int, directory: UUID) -> asyncio.Future[bool]:
        """Send in the next lull."""
        key = (topic_id, partition)
        before = self._wishes.get(key)
        if before is not None:
            if before.directory == directory:
                return before.agreed
            before.agreed.cancel()
        wish = self._wishes[key] = Wish(key, directory)
        self._made += 1
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._send_all(), name="assign-replicas-to-dirs")
        return wish.agreed

    def known(self, topic_id: UUID, partition: int, directory: UUID) -> None:
        """The metadata has this assignment: a wish for it is fulfilled."""
        wish = self._wishes.get((topic_id, partition))
        if wish is not None and wish.directory == directory:
            self._settle(wish, agreed=True)

    def hurry(self) -> None:
        """A directory failed, or the broker stops: the controller must learn all assignments now."""
        self._hurry.set()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for wish in self._wishes.values():
            wish.agreed.cancel()
        self._wishes.clear()

    async def _send_all(self) -> None:
        await asyncio.sleep(0)  # batch the other wishes of this turn of the loop
        await self._lull()
        retry_s = FIRST_RETRY_S
        while self._wishes:
            if self._broker_epoch() < 0:  # not registered yet; meanwhile the metadata may settle some
                await asyncio.sleep(FIRST_RETRY_S)
                continue
            batch = list(self._wishes.values())[:MAXIMUM_PER_REQUEST]
            try:
                response = await self._controller.call(self._request(batch), ASSIGN_VERSION)
                settled = self._take_in(batch, response)
            except (ApiError, ConnectionError, TimeoutError) as error:
                log.warning(
                    "the directories of %d replicas did not reach the controller, they are sent again: %s",
                    len(batch),
                    error,
                )
                settled = False
            except Exception:  # a bug must not keep moves waiting for ever: nothing else retries
                log.exception(
                    "the directories of %d replicas could not be sent to the controller, they are tried again",
                    len(batch),
                )
                settled = False
            if settled:
                retry_s = FIRST_RETRY_S
                continue
            await asyncio.sleep(retry_s)
            retry_s = min(retry_s * 2, LONGEST_RETRY_S)
        self._hurry.clear()

    async def _lull(self) -> None:
        waited_s, made = 0.0, -1
        while not self._hurry.is_set() and self._made != made and waited_s < LONGEST_LULL_S:
            made = self._made
            # Not `wait_for`: in Python 3.11 it swallows a cancellation that comes together with the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LULL_S):
                    await self._hurry.wait()
            waited_s += LULL_S

    def _request(self, batch: list[Wish]) -> Any:
        request = message("AssignReplicasToDirsRequest")
        directory_data = request.DirectoryData
        topic_data = directory_data.TopicData
        directories: dict[UUID, dict[UUID, list[Any]]] = {}
        for wish in batch:
            topic_id, partition = wish.key
            partitions = directories.setdefault(wish.directory, {}).setdefault(topic_id, [])
            partitions.append(topic_data.PartitionData(partition_index=partition))
        return request(
            broker_id=self._broker_id,
            broker_epoch=self._broker_epoch(),
            directories=[
                directory_data(
                    id=directory,
                    topics=[topic_data(topic_id=topic_id, partitions=found) for topic_id, found in topics.items()],
                )
                for directory, topics in directories.items()
            ],
        )

    def _take_in(self, batch: list[Wish], response: Any) -> bool:
        """Apply the response; True if every wish of the batch is settled."""
        if response.error_code:
            log.warning("the controller refused the directories of replicas: %s", ErrorCode(response.error_code).name)
            return False
        answers = {
            (topic.topic_id, partition.partition_index): ErrorCode(partition.error_code)
            for directory in response.directories
            for topic in directory.topics
            for partition in topic.partitions
        }
        settled = True
        for wish in batch:
            error = answers.get(wish.key, ErrorCode.UNKNOWN_SERVER_ERROR)
            if self._wishes.get(wish.key) is not wish:
                continue
            if error is not ErrorCode.NONE and error not in GONE:
                settled = False
                continue
            self._settle(wish, agreed=error is ErrorCode.NONE)
        return settled

    def _settle(self, wish: Wish, *, agreed: bool) -> None:
        del self._wishes[wish.key]
        if not wish.agreed.done():
            wish.agreed.set_result(agreed)
