"""The broker lifecycle: registration, heartbeats, fencing, controlled shutdown, unregistration. PURE.

A broker's epoch is the offset of its RegisterBrokerRecord, which is therefore the first record of its batch.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Any
from uuid import UUID

from ballast_broker.controller.commands.context import CommandContext, Outcome
from ballast_broker.controller.commands.partition_change import without_broker
from ballast_broker.controller.commands.pieces import (
    PLACES_PER_PIECE,
    Place,
    in_sync_on,
    in_sync_or_eligible_on,
    lead_again,
    leaderless,
    leads_something,
    leave,
    piecewise,
    still,
    where,
)
from ballast_broker.metadata.features import KRAFT_VERSION, METADATA_VERSION
from ballast_broker.metadata.image import (
    FIRST_FREE_DIRECTORY,
    BrokerImage,
    ClusterImage,
    ControllerImage,
    Listener,
    PartitionRegistration,
)
from ballast_broker.metadata.records import known_id, record
from ballast_broker.metadata.snapshot import broker_record, controller_record
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message

NEVER = -1


def check_broker_epoch(context: CommandContext, broker_id: int, epoch: int) -> BrokerImage:
    broker = context.image.cluster.brokers.get(broker_id)
    if broker is None:
        raise ApiError(ErrorCode.STALE_BROKER_EPOCH, f"No broker registration found for broker id {broker_id}")
    if broker.epoch != epoch:
        raise ApiError(
            ErrorCode.STALE_BROKER_EPOCH, f"Expected broker epoch {broker.epoch}, but got broker epoch {epoch}"
        )
    return broker


# ---------------------------------------------------------------------- registration


def register_broker(context: CommandContext, request: Any, *, session_is_valid: bool) -> Outcome:
    """`session_is_valid`: whether a broker with this id has sent a heartbeat within the session timeout."""
    check_registration(context, request, session_is_valid=session_is_valid)
    before = context.image.cluster.brokers.get(request.broker_id)
    incarnation = known_id(request.incarnation_id)
    same = before is not None and before.incarnation_id == incarnation
    registered = BrokerImage(
        id=request.broker_id,
        epoch=before.epoch if before is not None and same else context.next_offset,
        incarnation_id=incarnation,
        listeners=_listeners(request),
        rack=request.rack,
        fenced=before.fenced if before is not None and same else True,
        in_controlled_shutdown=before.in_controlled_shutdown if before is not None and same else False,
        directories=frozenset(known_id(each) for each in request.log_dirs),
        features={each.name: (each.min_supported_version, each.max_supported_version) for each in request.features},
    )
    records = [broker_record(registered)]
    if not same:
        clean = _stopped_cleanly(before, request)
        places = _places_after_restart(context, registered.id, clean=clean)
        records += leave(context, places, registered.id, unclean=not clean)
    response = message("BrokerRegistrationResponse")(broker_epoch=registered.epoch, error_code=0, throttle_time_ms=0)
    return Outcome(records, response)  # atomic: whoever sees the registration also sees that the broker leads nothing


def _listeners(request: Any) -> dict[str, Listener]:
    return {each.name: Listener(each.host, each.port, each.security_protocol) for each in request.listeners}


def listens_where_it_did(context: CommandContext, request: Any) -> bool:
    """Whether the registering broker has the same listeners as the registration it replaces."""
    before = context.image.cluster.brokers.get(request.broker_id)
    return before is not None and dict(before.listeners) == _listeners(request)


def before_registration(context: CommandContext, request: Any) -> Outcome:
    """Remove a broker with many replicas from their ISRs piece by piece, before its new incarnation is registered."""
    before = context.image.cluster.brokers.get(request.broker_id)
    if before is not None and before.incarnation_id == known_id(request.incarnation_id):
        return Outcome()
    clean = _stopped_cleanly(before, request)
    places = _places_after_restart(context, request.broker_id, clean=clean)
    if len(places) <= PLACES_PER_PIECE:
        return Outcome()
    return piecewise(context, places, partial(leave, broker_id=request.broker_id, unclean=not clean))


def _stopped_cleanly(before: BrokerImage | None, request: Any) -> bool:
    """Whether the previous incarnation shut down cleanly, so that its logs are those it was eligible with.

    This is unknown for a broker that was unregistered. It matters even while ELR is off: ELR may be enabled again
    before the eligible replicas are used.
    """
    return before is not None and request.previous_broker_epoch == before.epoch


def _places_after_restart(context: CommandContext, broker_id: int, *, clean: bool) -> list[Place]:
    """A new incarnation leaves every ISR; after an unclean stop it may have lost data, so it leaves the ELR as well."""
    return in_sync_on(context, broker_id) if clean else in_sync_or_eligible_on(context, broker_id)


def check_registration(context: CommandContext, request: Any, *, session_is_valid: bool) -> None:
    """Raise ApiError unless this broker may register."""
    _check_what_it_is(context, request)
    before = context.image.cluster.brokers.get(request.broker_id)
    if before is None or before.incarnation_id == known_id(request.incarnation_id):
        return
    if session_is_valid and not before.in_controlled_shutdown:
        raise ApiError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            "Another broker is registered with that broker id. If the broker was recently restarted this should "
            "self-resolve once the heartbeat manager expires the broker's session.",
        )


def _check_what_it_is(context: CommandContext, request: Any) -> None:
    if request.cluster_id != context.config.cluster_id:
        raise ApiError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"Expected cluster ID {context.config.cluster_id}, but got cluster ID {request.cluster_id}",
        )
    if request.is_migrating_zk_broker:
        raise ApiError(ErrorCode.INVALID_REGISTRATION, "Controller does not support registering ZK brokers.")
    _check_directories(context, request)
    _check_features(context, request)


def _check_directories(context: CommandContext, request: Any) -> None:
    directories = [known_id(each) for each in request.log_dirs or ()]
    if not directories:
        raise ApiError(ErrorCode.INVALID_REGISTRATION, "No directories specified in request")
    if any(each.int < FIRST_FREE_DIRECTORY for each in directories):
        raise ApiError(ErrorCode.INVALID_REGISTRATION, "Reserved directory ID in request")
    if len(set(directories)) != len(directories):
        raise ApiError(ErrorCode.INVALID_REGISTRATION, "Duplicate directory ID in request")
    for broker in context.image.cluster.brokers.values():
        shared = [each for each in directories if broker.id != request.broker_id and each in broker.directories]
        if shared:
            raise ApiError(
                ErrorCode.INVALID_REGISTRATION,
                f"Broker {broker.id} is already registered with directory {kafka_id(shared[0])}",
            )


def _check_features(context: CommandContext, request: Any) -> None:
    ranges = {each.name: (each.min_supported_version, each.max_supported_version) for each in request.features}
    if METADATA_VERSION not in ranges:
        raise ApiError(ErrorCode.INVALID_REGISTRATION, "Request features do not contain 'metadata.version'")
    for name, level in (*context.image.features.levels.items(), (KRAFT_VERSION, context.kraft_version)):
        low, high = ranges.get(name, (0, 0))
        if not low <= level <= high:
            raise ApiError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"Unable to register because the broker does not support finalized version {level} of {name}. "
                f"The broker wants a version between {low} and {high}, inclusive.",
            )


def kafka_id(value: UUID) -> str:
    """An id in Kafka's text form: 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def register_controller(context: CommandContext, request: Any) -> Outcome:
    registered = ControllerImage(
        request.controller_id,
        known_id(request.incarnation_id),
        _listeners(request),
        {each.name: (each.min_supported_version, each.max_supported_version) for each in request.features},
    )
    response = message("ControllerRegistrationResponse")(error_code=0, error_message=None, throttle_time_ms=0)
    if context.image.cluster.controllers.get(registered.id) == registered:
        return Outcome([], response)
    return Outcome([controller_record(registered)], response)


def unregister_broker(context: CommandContext, request: Any) -> Outcome:
    broker = context.image.cluster.brokers.get(request.broker_id)
    if broker is None:
        raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {request.broker_id} is not currently registered")
    response = message("UnregisterBrokerResponse")(error_code=0, error_message=None, throttle_time_ms=0)

    def unregister(later: CommandContext, leaving: Sequence[Place]) -> list[Any]:
        present = later.image.cluster.brokers.get(broker.id)
        if present is None or present.epoch != broker.epoch:
            return []
        gone = record("UnregisterBrokerRecord", broker_id=broker.id, broker_epoch=broker.epoch)
        return [*_leave_joined(later, leaving, broker.id), gone]

    outcome = piecewise(context, in_sync_on(context, broker.id), partial(leave, broker_id=broker.id), finish=unregister)
    outcome.response = response
    return outcome


def _leave_joined(context: CommandContext, leaving: Sequence[Place], broker_id: int) -> list[Any]:
    """The broker was alive while it was removed from ISRs piece by piece: remove it from those it has joined since."""
    return leave(context, sorted(set(in_sync_on(context, broker_id)) - set(leaving)), broker_id)


# ---------------------------------------------------------------------- fencing and shutdown


def _changed(broker: BrokerImage, **fields: Any) -> Any:
    return record("BrokerRegistrationChangeRecord", broker_id=broker.id, broker_epoch=broker.epoch, **fields)


def fence_broker(context: CommandContext, broker_id: int) -> Outcome:
    """Fence a dead or silent broker: it leads nothing and is in no ISR."""
    broker = context.image.cluster.brokers.get(broker_id)
    if broker is None or broker.fenced:
        return Outcome()

    def fence(later: CommandContext, leaving: Sequence[Place]) -> list[Any]:
        """Unless a new incarnation has registered meanwhile."""
        present = later.image.cluster.brokers.get(broker_id)
        if present is None or present.epoch != broker.epoch or present.fenced:
            return []
        return [*_leave_joined(later, leaving, broker_id), _changed(present, fenced=1)]

    places = in_sync_on(context, broker_id)
    return piecewise(context, places, partial(leave, broker_id=broker_id), finish=fence)


def unfence_broker(context: CommandContext, broker: BrokerImage) -> Outcome:
    unfenced = _changed(broker, fenced=-1)
    outcome = piecewise(context.after([unfenced]), leaderless(context), lead_again)
    outcome.records.insert(0, unfenced)
    return outcome


def enter_controlled_shutdown(context: CommandContext, broker: BrokerImage) -> Outcome:
    outcome = piecewise(context, in_sync_on(context, broker.id), partial(leave, broker_id=broker.id))
    outcome.records.insert(0, _changed(broker, in_controlled_shutdown=1))
    return outcome


def directories_offline(context: CommandContext, broker: BrokerImage, offline: frozenset[UUID]) -> Outcome:
    """Remove replicas on these directories from ISRs and leaderships; the broker's others are unaffected."""
    newly = broker.directories & offline
    if not newly:
        return Outcome(atomic=False)

    def concerned(partition: PartitionRegistration) -> bool:
        return broker.id in partition.isr and partition.directory_of(broker.id) in newly

    def give_up(later: CommandContext, places: Sequence[Place]) -> list[Any]:
        present = later.image.cluster.brokers.get(broker.id)
        if present is None or present.epoch != broker.epoch:
            return []  # a new incarnation has registered meanwhile
        after = _with_broker(later, replace(present, directories=present.directories - newly))
        return without_broker(after, still(after, places, concerned), broker.id)

    def finish(later: CommandContext, leaving: Sequence[Place]) -> list[Any]:
        """Update the registration last: if interrupted, the next controller still sees the directory and retries."""
        present = later.image.cluster.brokers.get(broker.id)
        if present is None or present.epoch != broker.epoch:
            return []
        joined = sorted(set(where(later, concerned)) - set(leaving))
        return [*give_up(later, joined), _changed(present, log_dirs=sorted(present.directories - newly))]

    return piecewise(context, where(context, concerned), give_up, finish=finish)


def _with_broker(context: CommandContext, broker: BrokerImage) -> CommandContext:
    cluster = context.image.cluster
    brokers = {**cluster.brokers, broker.id: broker}
    return replace(context, image=replace(context.image, cluster=ClusterImage(brokers, cluster.controllers)))


# ---------------------------------------------------------------------- heartbeats


class BrokerState(Enum):
    FENCED = "fenced"
    UNFENCED = "unfenced"
    CONTROLLED_SHUTDOWN = "controlled shutdown"
    SHUTDOWN_NOW = "shutdown now"


@dataclass(frozen=True, slots=True)
class Liveness:
    """Controller state outside the image that a heartbeat response depends on."""

    lowest_active_offset: int
    """The smallest metadata offset that any live broker reports as applied."""
    controlled_shutdown_offset: int
    """The offset of this broker's controlled shutdown record, which every broker must apply before it may stop.

    NEVER: this controller has not written it.
    """


def broker_heartbeat(context: CommandContext, request: Any, liveness: Liveness) -> tuple[Outcome, BrokerState]:
    broker = check_broker_epoch(context, request.broker_id, request.broker_epoch)
    state = state_of(broker)
    offline = frozenset(known_id(each) for each in request.offline_log_dirs or ())
    outcome = directories_offline(context, broker, offline)
    # While offline directories are still being handled, the rest of what it wants waits for its next heartbeat.
    following = state if outcome.rest else _next_state(context, broker, request, liveness)
    if outcome.rest is None and (following is not state or _was_left_alone(context, broker, liveness)):
        transition = _transition(context.after(outcome.records), broker, state, following)
        outcome.records += transition.records
        outcome.rest = transition.rest
    outcome.response = message("BrokerHeartbeatResponse")(
        error_code=0,
        throttle_time_ms=0,
        is_caught_up=request.current_metadata_offset >= broker.epoch,
        is_fenced=following in (BrokerState.FENCED, BrokerState.SHUTDOWN_NOW),
        should_shut_down=following is BrokerState.SHUTDOWN_NOW,
    )
    return outcome, following


def state_of(broker: BrokerImage) -> BrokerState:
    if broker.fenced:
        return BrokerState.FENCED
    return BrokerState.CONTROLLED_SHUTDOWN if broker.in_controlled_shutdown else BrokerState.UNFENCED


def _was_left_alone(context: CommandContext, broker: BrokerImage, liveness: Liveness) -> bool:
    """It is in controlled shutdown, but the previous controller died before it had moved all leaderships."""
    leaves = state_of(broker) is BrokerState.CONTROLLED_SHUTDOWN
    return leaves and liveness.controlled_shutdown_offset == NEVER and leads_something(context, broker.id)


def _next_state(context: CommandContext, broker: BrokerImage, request: Any, liveness: Liveness) -> BrokerState:
    state = state_of(broker)
    if state is BrokerState.FENCED:
        if request.want_shut_down:
            return BrokerState.SHUTDOWN_NOW
        caught_up = request.current_metadata_offset >= broker.epoch
        return BrokerState.UNFENCED if caught_up and not request.want_fence else BrokerState.FENCED
    if state is BrokerState.UNFENCED:
        if request.want_fence:
            return BrokerState.SHUTDOWN_NOW if request.want_shut_down else BrokerState.FENCED
        if request.want_shut_down:
            leads = leads_something(context, broker.id)
            return BrokerState.CONTROLLED_SHUTDOWN if leads else BrokerState.SHUTDOWN_NOW
        return BrokerState.UNFENCED
    if leads_something(context, broker.id):
        return BrokerState.CONTROLLED_SHUTDOWN
    known_by_all = liveness.controlled_shutdown_offset <= liveness.lowest_active_offset
    return BrokerState.SHUTDOWN_NOW if known_by_all else BrokerState.CONTROLLED_SHUTDOWN


def _transition(context: CommandContext, broker: BrokerImage, state: BrokerState, following: BrokerState) -> Outcome:
    if following is BrokerState.UNFENCED:
        return unfence_broker(context, broker)
    if following is BrokerState.CONTROLLED_SHUTDOWN:
        return enter_controlled_shutdown(context, broker)
    if state is BrokerState.FENCED:  # a fenced broker may stop: nothing to write
        return Outcome()
    return fence_broker(context, broker.id)
