"""Answers the requests of other nodes of the quorum: votes, epochs, records, snapshots. Loop thread only."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ballast_broker.raft import wire
from ballast_broker.raft.describe import describe_quorum
from ballast_broker.raft.messages import NOBODY, AnswerFetch, FetchReply, SnapshotId
from ballast_broker.raft.store import lacks_handles
from ballast_wire.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from ballast_broker.raft.driver import RaftDriver


class Answering:
    def __init__(self, driver: RaftDriver) -> None:
        self._driver = driver
        self._fetches: dict[int, asyncio.Future[tuple[FetchReply, bytes]]] = {}
        self._next_token = 0

    def close(self) -> None:
        for waiting in self._fetches.values():
            waiting.cancel()

    async def handle(self, api_key: int, request: Any) -> Any:
        """The response to a Vote, BeginQuorumEpoch, EndQuorumEpoch, Fetch, FetchSnapshot or DescribeQuorum."""
        driver = self._driver
        core, now = driver.core, driver.now()
        if api_key == wire.FETCH:
            return await self._fetch(request)
        if api_key == wire.FETCH_SNAPSHOT:
            return self._fetch_snapshot(request)
        if api_key == wire.DESCRIBE_QUORUM:
            core.forget_old_observers(now)
            return describe_quorum(request, core, now, driver.clock.wall_ms())
        wire.check_cluster(request, driver.quorum.cluster_id)
        if api_key == wire.VOTE:
            reply = core.handle_vote(now, wire.decode_vote(request))
            name = "VoteResponse"
        elif api_key == wire.BEGIN_QUORUM_EPOCH:
            if said := wire.leader_endpoint(request, driver.quorum.listener_name):
                driver.peers.learn(*said)
            reply = core.handle_begin_epoch(now, wire.decode_begin(request))
            name = "BeginQuorumEpochResponse"
        elif api_key == wire.END_QUORUM_EPOCH:
            reply = core.handle_end_epoch(now, wire.decode_end(request))
            name = "EndQuorumEpochResponse"
        else:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
        driver.run()  # persists the vote before the response leaves
        if driver.stopped:  # the vote may not be persisted: after a restart we could vote otherwise
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
        return self._with_leader(wire.encode_reply(name, reply), reply.leader)

    def _with_leader(self, response: Any, leader: int) -> Any:
        return wire.with_leader(response, leader, self._driver.peers.endpoint(leader) if leader != NOBODY else None)

    async def _fetch(self, request: Any) -> Any:
        driver = self._driver
        wire.check_cluster(request, driver.quorum.cluster_id)
        fetch = wire.decode_fetch(request)
        self._next_token += 1
        token = self._next_token
        answered: asyncio.Future[tuple[FetchReply, bytes]] = asyncio.get_running_loop().create_future()
        self._fetches[token] = answered
        try:
            driver.core.handle_fetch(driver.now(), token, fetch)
            driver.run()
            reply, records = await answered
        finally:
            self._fetches.pop(token, None)
            driver.core.drop_fetch(token)
        response = wire.encode_fetch_reply(replace(reply, records=records), driver.store.start_offset)
        return self._with_leader(response, reply.leader) if reply.error else response

    def fetch_answered(self, effect: AnswerFetch) -> None:
        waiting, store = self._fetches.get(effect.token), self._driver.store
        if waiting is None or waiting.done():
            return
        records = b""
        if effect.from_offset >= 0:
            try:
                records = store.read(effect.from_offset, wire.MAX_FETCH_BYTES, store.end_offset)
            except ApiError as error:
                if not lacks_handles(error):
                    raise
                waiting.set_exception(error)
                return
        waiting.set_result((effect.reply, records))

    def _fetch_snapshot(self, request: Any) -> Any:
        driver = self._driver
        wire.check_cluster(request, driver.quorum.cluster_id)
        data = wire.asked_partition(request)
        wanted = SnapshotId(data.snapshot_id.end_offset, data.snapshot_id.epoch)
        leader, epoch = driver.core.leader, driver.core.epoch
        if not driver.core.is_leader:
            refused = wire.snapshot_response(wanted, leader, epoch, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return self._with_leader(refused, leader)
        size = max(1, min(request.max_bytes, wire.MAX_SNAPSHOT_PIECE_BYTES))
        found = driver.store.read_snapshot(wanted, data.position, size)
        if found is None:
            return wire.snapshot_response(wanted, leader, epoch, ErrorCode.SNAPSHOT_NOT_FOUND)
        piece, whole = found
        if not 0 <= data.position < whole:
            return wire.snapshot_response(wanted, leader, epoch, ErrorCode.POSITION_OUT_OF_RANGE)
        driver.core.progress_of_snapshot(request.replica_id, wire.replica_directory(request), driver.now())
        return wire.snapshot_response(wanted, leader, epoch, ErrorCode.NONE, whole, data.position, piece)
