"""Implements the leader's rules for changing voters: AddRaftVoter, RemoveRaftVoter, UpdateRaftVoter, upgrade. PURE.

One voter at a time, only after the previous change is committed, and after something was committed in this epoch: then
any two majorities of consecutive voter sets intersect. Refusals are ApiErrors with Kafka's messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

from ballast_broker.raft.voters import DYNAMIC, Endpoint, Voter, VoterSet, key_text, voter_set
from ballast_wire.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from ballast_broker.raft.leader import Leadership
    from ballast_broker.raft.terms import LogView

VOTER_FETCHES_WITHIN_S = 300.0
"""A new voter must have been caught up within this time."""


def check_committed(leadership: Leadership, log: LogView) -> None:
    """Check that earlier epochs and voter changes are settled for good."""
    mark = leadership.high_watermark
    if mark <= leadership.epoch_start_offset:
        raise _later("Request timed out waiting for leader to establish HWM and fence previous voter changes")
    if log.voters_offset >= mark:
        at = log.voters_offset
        raise _later(f"Request timed out waiting for voters to commit the latest voter change at {at} with HWM {mark}")


def check_dynamic(log: LogView, doing: str) -> None:
    if log.voters.version < DYNAMIC:
        text = f"Cluster doesn't support {doing} voter because the kraft.version feature is {log.voters.version}"
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, text)


def check_new(leadership: Leadership, log: LogView, voter_id: int, directory: UUID) -> None:
    """Check what can be checked before the new voter itself is asked."""
    check_committed_in_order(leadership, log, "adding")
    if voter_id in log.voters.ids:
        key = key_text(voter_id, directory)
        text = f"The voter id for {key} is already part of the set of voters {log.voters}."
        raise ApiError(ErrorCode.DUPLICATE_VOTER, text)


def check_committed_in_order(leadership: Leadership, log: LogView, doing: str) -> None:
    """Check in Kafka's order, which decides which of several errors is reported."""
    if leadership.high_watermark > leadership.epoch_start_offset:
        check_dynamic(log, doing)
    check_committed(leadership, log)


def added(leadership: Leadership, log: LogView, voter: Voter, now: float) -> VoterSet:
    assert voter.directory is not None
    check_new(leadership, log, voter.id, voter.directory)
    low, high = voter.versions
    if not low <= log.voters.version <= high:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"Aborted add voter operation for {voter} since the kraft.version range (min: {low}, max: {high}) "
            f"doesn't support the finalized version {log.voters.version}",
        )
    progress = leadership.known(voter.id, voter.directory)
    if progress is None or not progress.caught_up_at >= now - VOTER_FETCHES_WITHIN_S:
        raise _later(f"Aborted add voter operation for {voter} since it is lagging behind")
    return log.voters.with_voter(voter)


def removed(leadership: Leadership, log: LogView, voter_id: int, directory: UUID) -> VoterSet:
    check_committed_in_order(leadership, log, "removing")
    if not log.voters.has(voter_id, directory) or len(log.voters.voters) == 1:
        key = key_text(voter_id, directory)
        raise ApiError(ErrorCode.VOTER_NOT_FOUND, f"Cannot remove voter {key} from the set of voters {log.voters}")
    return log.voters.without(voter_id)


def updated(leadership: Leadership, log: LogView, voter: Voter) -> VoterSet:
    """A voter's endpoints and supported versions may have changed with a restart."""
    check_committed(leadership, log)
    check_dynamic(log, "updating")
    if not log.voters.has(voter.id, voter.directory):
        raise ApiError(ErrorCode.VOTER_NOT_FOUND)
    low, high = voter.versions
    if not low <= log.voters.version <= high:
        raise ApiError(ErrorCode.INVALID_REQUEST)
    return log.voters.with_voter(voter)


def upgraded(leadership: Leadership, log: LogView, own_endpoints: Mapping[str, Endpoint]) -> VoterSet:
    """The voter set that makes a static quorum dynamic: its voters, with the directories that they fetch with."""
    check_committed(leadership, log)
    voters = []
    for voter in log.voters.voters:
        directory = leadership.directory_of(voter.id)
        if directory is None:
            raise ApiError(ErrorCode.INVALID_UPDATE_VERSION, f"The directory id of voter {voter.id} is not known yet")
        mine = voter.id == leadership.me and own_endpoints
        voters.append(replace(voter, directory=directory, endpoints=own_endpoints if mine else voter.endpoints))
    return voter_set(DYNAMIC, voters)


def _later(text: str) -> ApiError:
    return ApiError(ErrorCode.REQUEST_TIMED_OUT, text)
