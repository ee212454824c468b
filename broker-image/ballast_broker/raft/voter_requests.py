"""Handles AddRaftVoter, RemoveRaftVoter and UpdateRaftVoter as leader, and sends UpdateRaftVoter as voter.

`voter_changes` decides what is allowed, at the moment of the change and against the log as it is then. This does what
takes time: asking a new voter for its features, waiting until a change is committed. Loop thread only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from ballast_broker.raft import voter_changes, wire
from ballast_broker.raft.leader import Leadership
from ballast_broker.raft.links import PeerLink
from ballast_broker.raft.messages import NOBODY
from ballast_broker.raft.terms import LogView, Role
from ballast_broker.raft.voters import DYNAMIC, STATIC, SUPPORTED, Endpoint, Voter, VoterSet
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message

if TYPE_CHECKING:
    from ballast_broker.raft.driver import RaftDriver

logger = logging.getLogger(__name__)

ADD_RAFT_VOTER, REMOVE_RAFT_VOTER, UPDATE_RAFT_VOTER = 80, 81, 82
VOTER_KEYS = frozenset({ADD_RAFT_VOTER, REMOVE_RAFT_VOTER, UPDATE_RAFT_VOTER})
ANSWERS = {ADD_RAFT_VOTER: "AddRaftVoterResponse", REMOVE_RAFT_VOTER: "RemoveRaftVoterResponse"}
API_VERSIONS_VERSION = 4  # the first in which Apache Kafka reports features with level 0
COMMIT_TIMEOUT_S = 2.0
MOST_TIMEOUT_S = 60.0
LOOK_S = 1.0
KRAFT_VERSION = "kraft.version"

Change = Callable[[Leadership, LogView], VoterSet]
Features = Mapping[str, tuple[int, int]]


class VoterRequests:
    def __init__(self, driver: RaftDriver) -> None:
        self._driver = driver
        self._busy = False
        self._waiting: tuple[int, asyncio.Future[None]] | None = None
        self._registration: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------ what the driver tells

    def committed_up_to(self, end_offset: int) -> None:
        if self._waiting is not None and self._waiting[0] < end_offset and not self._waiting[1].done():
            self._waiting[1].set_result(None)

    def leads_no_more(self) -> None:
        if self._waiting is not None and not self._waiting[1].done():
            self._waiting[1].set_exception(ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER))

    def look(self) -> None:
        """Once the quorum is dynamic, keep this voter's entry in the voter set up to date."""
        if self._registration is None and self._driver.core.voter_set.version >= DYNAMIC:
            self._registration = self._driver.spawn(self._keep_registered())

    # ------------------------------------------------------------------ requests

    async def handle(self, api_key: int, request: Any) -> Any:
        error, text = ErrorCode.NONE, None
        try:
            self._check(request)
            if api_key == ADD_RAFT_VOTER:
                await self._add(request)
            elif api_key == REMOVE_RAFT_VOTER:
                await self._remove(request)
            else:
                await self._update(request)
        except ApiError as refusal:
            error, text = refusal.code, refusal.message
        if api_key == UPDATE_RAFT_VOTER:
            return self._update_response(error)
        return message(ANSWERS[api_key])(throttle_time_ms=0, error_code=int(error), error_message=text)

    def _check(self, request: Any) -> None:
        own = self._driver.quorum.cluster_id
        if request.cluster_id is not None and request.cluster_id != own:
            text = f'The given id "{request.cluster_id}" doesn\'t match the cluster id "{own}"'
            raise ApiError(ErrorCode.INCONSISTENT_CLUSTER_ID, text)
        if not self._driver.core.is_leader:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    async def _add(self, request: Any) -> None:
        voter_id, directory = _key(request, "Add")
        endpoints = _endpoints(request.listeners)
        name = self._driver.quorum.listener_name
        if name not in endpoints:
            listed = ", ".join(f"ListenerName({n})={e.host}/<unresolved>:{e.port}" for n, e in endpoints.items())
            text = (
                f"Add voter request didn't include the endpoint (Endpoints(endpoints={{{listed}}})) "
                f"for the default listener ListenerName({name})"
            )
            raise ApiError(ErrorCode.INVALID_REQUEST, text)
        self._one_at_a_time()
        leadership = self._driver.core.leadership
        assert leadership is not None
        voter_changes.check_new(leadership, self._driver.store, voter_id, directory)
        self._busy = True
        try:
            async with asyncio.timeout(_seconds(request.timeout_ms)):
                versions = await self._understood_by(endpoints[name], "add voter operation for")
                voter = Voter(voter_id, directory, endpoints, versions)
                now = self._driver.now()
                await self._change(lambda leadership, log: voter_changes.added(leadership, log, voter, now))
        except TimeoutError:
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT) from None
        finally:
            self._busy = False

    async def _remove(self, request: Any) -> None:
        voter_id, directory = _key(request, "Remove")
        self._one_at_a_time()
        await self._change_in_time(lambda leadership, log: voter_changes.removed(leadership, log, voter_id, directory))

    async def _update(self, request: Any) -> None:
        core = self._driver.core
        if request.current_leader_epoch != core.epoch:
            stale = request.current_leader_epoch < core.epoch
            raise ApiError(ErrorCode.FENCED_LEADER_EPOCH if stale else ErrorCode.UNKNOWN_LEADER_EPOCH)
        voter_id, directory = _key(request, "Update")
        endpoints = _endpoints(request.listeners)
        supported = request.k_raft_version_feature
        versions = (supported.min_supported_version, supported.max_supported_version)
        if self._driver.quorum.listener_name not in endpoints:
            raise ApiError(ErrorCode.INVALID_REQUEST)
        self._one_at_a_time()
        voter = Voter(voter_id, directory, endpoints, versions)
        await self._change_in_time(lambda leadership, log: voter_changes.updated(leadership, log, voter))

    def _update_response(self, error: ErrorCode) -> Any:
        kind = message("UpdateRaftVoterResponse")
        core = self._driver.core
        endpoint = self._driver.peers.endpoint(core.leader) if core.leader != NOBODY else None
        leader = kind.CurrentLeader(
            leader_id=core.leader,
            leader_epoch=core.epoch,
            host="" if endpoint is None else endpoint.host,
            port=0 if endpoint is None else endpoint.port,
        )
        return kind(throttle_time_ms=0, error_code=int(error), current_leader=leader)

    # ------------------------------------------------------------------ from a static quorum to one that can change

    async def upgrade(self, *, validate_only: bool) -> None:
        """Make a static quorum dynamic: from then on the log names the voters. All of them must be known with their
        directories and support it."""
        core = self._driver.core
        if not core.is_leader:
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        self._one_at_a_time()
        self._busy = True
        try:
            for voter in core.voter_set.voters:
                if voter.id != core.me:
                    doing = f"upgrade of {KRAFT_VERSION} with voter {voter.id}"
                    low, high = await self._understood_by(self._address_of(voter), doing)
                    if not low <= DYNAMIC <= high:
                        raise ApiError(
                            ErrorCode.INVALID_UPDATE_VERSION,
                            f"Invalid upgrade of {KRAFT_VERSION} to {DYNAMIC} because not all of the voters support it",
                        )
            if validate_only:
                return
            own = dict(self._driver.quorum.own_endpoints())
            await self._change_in_time(lambda leadership, log: voter_changes.upgraded(leadership, log, own))
        except ApiError as error:
            if error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                raise ApiError(ErrorCode.NOT_CONTROLLER) from None
            raise
        finally:
            self._busy = False

    def _address_of(self, voter: Voter) -> Endpoint:
        return voter.endpoints[self._driver.quorum.listener_name]

    # ------------------------------------------------------------------ one change

    def _one_at_a_time(self) -> None:
        if self._busy or self._waiting is not None:
            text = "Request timed out waiting for leader to handle previous voter change request"
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, text)

    async def _change_in_time(self, change: Change) -> None:
        try:
            async with asyncio.timeout(COMMIT_TIMEOUT_S):
                await self._change(change)
        except TimeoutError:
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT) from None

    async def _change(self, change: Change) -> None:
        """Change the voters and wait for the commit. After a timeout the change may still be committed."""
        committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        offset = self._driver.change_voters(change)
        self._waiting = offset, committed
        try:
            self.committed_up_to(self._driver.core.high_watermark)
            if not self._driver.core.is_leader:
                self.leads_no_more()
            await committed
        finally:
            self._waiting = None

    async def features_of_others(self) -> dict[int, Features]:
        """The supported features of each other voter; ApiError if one does not answer."""
        others = [voter for voter in self._driver.core.voter_set.voters if voter.id != self._driver.node_id]
        asked = (self._features_of(self._address_of(one), f"asking voter {one.id} for its features") for one in others)
        return dict(zip([voter.id for voter in others], await asyncio.gather(*asked), strict=True))

    async def _understood_by(self, endpoint: Endpoint, doing: str) -> tuple[int, int]:
        """The range of kraft.version levels that a node supports."""
        return (await self._features_of(endpoint, doing)).get(KRAFT_VERSION, (STATIC, STATIC))

    async def _features_of(self, endpoint: Endpoint, doing: str) -> Features:
        driver = self._driver
        link = PeerLink(driver.network, endpoint, COMMIT_TIMEOUT_S)
        request = message("ApiVersionsRequest")(client_software_name="ballast", client_software_version="1")
        try:
            response = await link.call(request, API_VERSIONS_VERSION)
        except (OSError, TimeoutError, ValueError) as error:
            logger.info("%s:%d did not say which features it supports: %s", endpoint.host, endpoint.port, error)
            came = ErrorCode.REQUEST_TIMED_OUT if isinstance(error, TimeoutError) else ErrorCode.BROKER_NOT_AVAILABLE
            text = f"Aborted {doing} since API_VERSIONS returned an error {came.name}"
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, text) from error
        finally:
            link.close()
        return {each.name: (each.min_version, each.max_version) for each in response.supported_features or ()}

    # ------------------------------------------------------------------ as a voter

    async def _keep_registered(self) -> None:
        """Update this voter's entry if it differs: its endpoints may have changed with a restart."""
        while True:
            await asyncio.sleep(LOOK_S)
            described = self._as_it_is()
            if described is None:
                continue
            try:
                await self._describe(described)
            except (OSError, TimeoutError, ValueError, ApiError) as error:
                logger.info("this voter's new endpoints could not be recorded yet: %s", error)

    async def _describe(self, voter: Voter) -> None:
        core = self._driver.core
        if core.is_leader:
            self._one_at_a_time()
            await self._change_in_time(lambda leadership, log: voter_changes.updated(leadership, log, voter))
        elif core.role is Role.FOLLOWER:
            await self._driver.peers.link(core.leader, "voters").call(self._update_request(voter), 0)

    def _as_it_is(self) -> Voter | None:
        """This voter's actual entry; None if the log already has it, or if this is not a voter."""
        driver = self._driver
        own = driver.quorum.own_endpoints()
        voters = driver.core.voter_set
        known = voters.find(driver.node_id)
        if known is None or voters.version < DYNAMIC or not driver.core.is_voter or not own:
            return None
        as_it_is = Voter(driver.node_id, driver.directory, own, SUPPORTED)
        return None if (dict(known.endpoints), known.versions) == (dict(own), SUPPORTED) else as_it_is

    def _update_request(self, voter: Voter) -> Any:
        kind = message("UpdateRaftVoterRequest")
        return kind(
            cluster_id=self._driver.quorum.cluster_id,
            current_leader_epoch=self._driver.core.epoch,
            voter_id=voter.id,
            voter_directory_id=voter.directory,
            listeners=[kind.Listener(name=name, host=e.host, port=e.port) for name, e in voter.endpoints.items()],
            k_raft_version_feature=kind.KRaftVersionFeature(
                min_supported_version=voter.versions[0], max_supported_version=voter.versions[1]
            ),
        )


def _key(request: Any, what: str) -> tuple[int, UUID]:
    if request.voter_id < 0 or request.voter_directory_id in (None, wire.NO_DIRECTORY):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{what} voter request didn't include a valid voter")
    return request.voter_id, request.voter_directory_id


def _endpoints(listeners: Iterable[Any]) -> dict[str, Endpoint]:
    return {each.name: Endpoint(each.host, each.port) for each in listeners or ()}


def _seconds(timeout_ms: int) -> float:
    return min(max(timeout_ms, 0) / 1000, MOST_TIMEOUT_S)
