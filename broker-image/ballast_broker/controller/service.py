"""The active controller: turns each request into records, commits them, and only then answers.

Commands see everything appended, committed or not, and a response waits until all it may have seen is committed. A
controller that ceases to be active drops what was not committed and answers NOT_CONTROLLER; the client asks the next
one. Loop thread only; the commands are PURE and run without interruption.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

from ballast_broker.controller.commands.acls import create_acls, delete_acls
from ballast_broker.controller.commands.brokers import (
    BrokerState,
    before_registration,
    broker_heartbeat,
    check_registration,
    listens_where_it_did,
    register_broker,
    register_controller,
    unregister_broker,
)
from ballast_broker.controller.commands.configs import alter_configs, incremental_alter_configs
from ballast_broker.controller.commands.context import (
    MAX_RECORDS_PER_BATCH,
    CommandContext,
    ConfigRules,
    ControllerConfig,
    Outcome,
)
from ballast_broker.controller.commands.delegation_tokens import (
    create_delegation_token,
    expire_delegation_token,
    remove_expired_tokens,
    renew_delegation_token,
)
from ballast_broker.controller.commands.directories import assign_replicas_to_directories
from ballast_broker.controller.commands.elections import balance_leaders, elect_leaders, offline_elections
from ballast_broker.controller.commands.features import bootstrap_records, update_features
from ballast_broker.controller.commands.isr import alter_partition
from ballast_broker.controller.commands.mutations import STRICT_SINCE, MutationQuota
from ballast_broker.controller.commands.partitions import create_partitions
from ballast_broker.controller.commands.producer_ids import allocate_producer_ids
from ballast_broker.controller.commands.quotas import alter_client_quotas
from ballast_broker.controller.commands.reassignments import (
    alter_partition_reassignments,
    list_partition_reassignments,
)
from ballast_broker.controller.commands.scram import alter_user_scram_credentials
from ballast_broker.controller.commands.topics import create_topics, delete_topics
from ballast_broker.controller.error_responses import error_response
from ballast_broker.controller.feature_updates import update_features_of_all
from ballast_broker.controller.fencing import Fencing
from ballast_broker.controller.replica import MetadataReplica
from ballast_broker.metadata.batches import data_batch
from ballast_broker.metadata.delta import MetadataDelta
from ballast_broker.metadata.image import MetadataImage
from ballast_broker.metadata.records import record
from ballast_broker.raft.driver import RaftDriver
from ballast_broker.rates import TokenBucket
from ballast_broker.seams import Clock, Network, Random
from ballast_wire.envelope import Requester
from ballast_wire.errors import ApiError, ErrorCode

logger = logging.getLogger(__name__)

Command = Callable[[CommandContext, Any], Outcome]
COMMANDS: dict[int, tuple[str, Command]] = {
    19: ("CreateTopics", create_topics),
    20: ("DeleteTopics", delete_topics),
    30: ("CreateAcls", create_acls),
    31: ("DeleteAcls", delete_acls),
    33: ("AlterConfigs", alter_configs),
    37: ("CreatePartitions", create_partitions),
    38: ("CreateDelegationToken", create_delegation_token),
    39: ("RenewDelegationToken", renew_delegation_token),
    40: ("ExpireDelegationToken", expire_delegation_token),
    43: ("ElectLeaders", elect_leaders),
    44: ("IncrementalAlterConfigs", incremental_alter_configs),
    45: ("AlterPartitionReassignments", alter_partition_reassignments),
    49: ("AlterClientQuotas", alter_client_quotas),
    51: ("AlterUserScramCredentials", alter_user_scram_credentials),
    56: ("AlterPartition", alter_partition),
    57: ("UpdateFeatures", update_features),
    64: ("UnregisterBroker", unregister_broker),
    67: ("AllocateProducerIds", allocate_producer_ids),
    70: ("ControllerRegistration", register_controller),
    73: ("AssignReplicasToDirs", assign_replicas_to_directories),
}
OTHERS = {
    46: "ListPartitionReassignments",
    55: "DescribeQuorum",
    62: "BrokerRegistration",
    63: "BrokerHeartbeat",
    80: "AddRaftVoter",
    81: "RemoveRaftVoter",
}
LIST_PARTITION_REASSIGNMENTS, DESCRIBE_QUORUM, BROKER_REGISTRATION, BROKER_HEARTBEAT, *_ = OTHERS
OF_THE_QUORUM = frozenset({DESCRIBE_QUORUM, 80, 81})
UPDATE_FEATURES = 57
# These requests carry a timeout. As in Apache Kafka, a timeout of 0 or less is rejected at once.
WITHIN_A_TIME = frozenset({19, 20, 37, 43, 45})
# The lists that hold what is requested; a request with an empty one is answered even without a timeout.
ASKED_FOR = {43: "topic_partitions", 45: "topics"}
API_KEYS = frozenset({*COMMANDS, *OTHERS})

BEGIN_AGAIN_S = 1.0
RECORDS_PER_SLICE = 200  # non-atomic records are appended in batches small enough not to block a loop for long


@dataclass(frozen=True, slots=True)
class ServiceTiming:
    session_timeout_s: float = 9.0
    leader_balance_enable: bool = True
    leader_balance_interval_s: float = 300.0
    token_expiry_interval_s: float = 3600.0


DEFAULT_TIMING = ServiceTiming()


class ControllerService:
    def __init__(
        self,
        *,
        driver: RaftDriver,
        replica: MetadataReplica,
        config: ControllerConfig,
        rules: ConfigRules,
        clock: Clock,
        random: Random,
        network: Network,
        timing: ServiceTiming = DEFAULT_TIMING,
        mutations: Callable[[Requester], TokenBucket | None] = lambda _: None,
    ) -> None:
        """`mutations` returns the requester's partition mutation quota, if any."""
        self._driver = driver
        self._replica = replica
        self._config = config
        self._rules = rules
        self._clock = clock
        self._random = random
        self._timing = timing
        self._mutations = mutations
        self._state: MetadataImage | None = None
        """The image including everything appended; None while not active."""
        self._claiming = -1
        self._uncommitted = 0
        self._last_commit: asyncio.Future[int] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._duties: list[asyncio.Task[None]] = []
        self._fencing = Fencing(
            timing.session_timeout_s,
            config.inter_broker_listener_name,
            clock,
            network,
            image=lambda: self._state,
            run=self._run,
            spawn=self._spawn,
        )
        self.activated = asyncio.Event()
        replica.leader_callbacks.append(self._leader_changed)
        replica.add_publisher(self._published)

    # ------------------------------------------------------------------ being active

    @property
    def is_active(self) -> bool:
        return self._state is not None

    async def stop(self) -> None:
        self._renounce()
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _leader_changed(self, leader: int, epoch: int) -> None:
        if leader == self._config.node_id:
            self._claiming = epoch
        else:
            self._renounce()

    def _renounce(self) -> None:
        if self._state is not None:
            logger.info("no longer the active controller")
        self._state = None
        self._claiming = -1
        self._uncommitted = 0
        self._last_commit = None
        self._fencing.end()
        self.activated.clear()
        for duty in self._duties:
            duty.cancel()
        self._duties = []

    def _published(self, _delta: MetadataDelta, image: MetadataImage) -> None:
        if self._claiming >= 0 and image.epoch == self._claiming:
            # The first batch of our epoch is applied, hence everything before it.
            self._claiming = -1
            self._activate(image)
        elif self._state is not None and self._uncommitted == 0:
            self._state = image  # equal content, but shared with the rest of the process

    def _activate(self, image: MetadataImage) -> None:
        logger.info("active controller in epoch %d at offset %d", image.epoch, image.offset)
        self._state = image
        self._fencing.begin(image)
        records: list[Any] = []
        if self._replica.loader.in_transaction:
            records.append(record("AbortTransactionRecord", reason="its controller is gone"))
        if not image.features.levels:
            records += bootstrap_records(self._config.min_insync_replicas)
        self._duties = [self._spawn(self._finish_activation, records), self._spawn(self._fencing.watch_sessions)]
        if self._timing.leader_balance_enable:
            self._duties.append(self._spawn(self._balance_leaders))
        if self._config.delegation_tokens is not None:
            self._duties.append(self._spawn(self._remove_expired_tokens))
        # A broker that died with the last controller had no connection to us whose end we could see: probe now.
        for broker in image.cluster.unfenced():
            if broker.id != self._config.node_id:
                self._duties.append(self._spawn(self._fencing.probe, broker.id, broker.epoch))

    async def _finish_activation(self, records: list[Any]) -> None:
        if records:
            await self._commit(Outcome(records))
        await self._run(offline_elections)
        self.activated.set()

    def _spawn(self, duty: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._quietly(duty, *arguments))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _quietly(self, duty: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        """Run a background duty: end it when no longer active; restart it after a bug, or nobody would fence."""
        while True:
            try:
                await duty(*arguments)
            except ApiError as error:
                if error.code is not ErrorCode.NOT_CONTROLLER:
                    logger.warning("the controller's %s failed: %s", duty.__name__, error)
            except Exception:
                logger.exception("the controller's %s failed, and is begun again", duty.__name__)
                await asyncio.sleep(BEGIN_AGAIN_S)
                continue
            return

    # ------------------------------------------------------------------ commands

    def _context(self) -> CommandContext:
        if self._state is None:
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        driver = self._driver
        return CommandContext(
            self._state, self._config, self._rules, self._random, driver.end_offset, self._clock.wall_ms(),
            driver.kraft_version, driver.core.voters,
        )  # fmt: skip

    async def _run(self, command: Callable[[CommandContext], Outcome]) -> Any:
        return await self._commit(command(self._context()))

    async def _commit(self, outcome: Outcome, written: Callable[[], None] = lambda: None) -> Any:
        """Append, wait for the commit, return the response. Without records, wait for what it may depend on."""
        last = await self._append_all(outcome, written)
        if last is not None and not last.done():
            await asyncio.shield(last)
        elif last is not None:
            last.result()
        return outcome.response

    async def _settled(self, refusal: ApiError) -> ApiError:
        """An error may be based on uncommitted state, so it is returned only once that is committed."""
        try:
            await self._commit(Outcome())
        except ApiError as lost:
            return lost
        return refusal

    async def _append_all(self, outcome: Outcome, written: Callable[[], None]) -> asyncio.Future[int] | None:
        """Append the outcome, piece by piece if it has a `rest`, then call `written`; return what to wait for.

        Once begun, the rest is appended even if the requester stops waiting: nobody may ever ask for it again.
        """
        if outcome.records:
            self._append(outcome)
        if outcome.rest is None:
            written()
            return self._last_commit
        rest = asyncio.get_running_loop().create_task(self._append_rest(outcome, written))
        self._tasks.add(rest)
        rest.add_done_callback(self._tasks.discard)
        rest.add_done_callback(lambda done: done.cancelled() or done.exception())  # retrieved even if never awaited
        return await asyncio.shield(rest)

    async def _append_rest(self, piece: Outcome, written: Callable[[], None]) -> asyncio.Future[int] | None:
        while piece.rest is not None:
            await asyncio.sleep(0)  # let other tasks run
            piece = piece.rest(self._context())
            if piece.records:
                self._append(piece)
        written()
        return self._last_commit

    def _append(self, outcome: Outcome) -> None:
        assert self._state is not None
        delta = MetadataDelta(self._state)
        for each in outcome.records:
            delta.replay(each)
        now_ms = self._clock.wall_ms()
        size = MAX_RECORDS_PER_BATCH if outcome.atomic else RECORDS_PER_SLICE
        for start in range(0, len(outcome.records), size):
            piece = outcome.records[start : start + size]
            self._uncommitted += 1
            try:
                _, committed = self._driver.append(data_batch(piece, now_ms))
            except ApiError:
                self._renounce()
                raise
            committed.add_done_callback(self._committed)
            self._last_commit = committed
        if self._uncommitted:
            self._state = delta.apply()

    def _committed(self, committed: asyncio.Future[int]) -> None:
        if committed.cancelled() or committed.exception() is not None:
            return
        if self._uncommitted:
            self._uncommitted -= 1
        if self._uncommitted == 0 and self._state is not None:
            self._state = self._replica.image

    # ------------------------------------------------------------------ requests

    async def handle(
        self, api_key: int, version: int, request: Any, context: Any = None, asker: Requester | None = None
    ) -> Any:
        """The response, with NOT_CONTROLLER in it if another node is the active controller.

        `asker`, if given, is charged against its quota and owns its tokens; a node's own requests are not charged.
        """
        request._version = version  # commands may need it; a decoded request already has it
        name = _name_of(api_key)
        try:
            if api_key == BROKER_REGISTRATION:
                return await self._register_broker(request, context)
            if api_key == BROKER_HEARTBEAT:
                return await self._heartbeat(request, context)
            if api_key in OF_THE_QUORUM:
                self._context()  # raises NOT_CONTROLLER: only the leader knows how far the others are
                return await self._driver.handle(api_key, request)
            if api_key == LIST_PARTITION_REASSIGNMENTS:
                listed = list_partition_reassignments(self._context(), request)
                return await self._commit(Outcome([], listed))
            asks = api_key not in ASKED_FOR or getattr(request, ASKED_FOR[api_key]) != []
            if asks and api_key in WITHIN_A_TIME and request.timeout_ms <= 0:
                raise ApiError(ErrorCode.REQUEST_TIMED_OUT)
            if api_key == UPDATE_FEATURES:
                return await update_features_of_all(self._context(), request, self._driver, self._run)
            _, command = COMMANDS[api_key]
            quota = None if asker is None else self._mutation_quota(asker, api_key, version)
            response = await self._run(lambda now: command(replace(now, asker=asker, mutations=quota), request))
            if quota is not None:
                response.throttle_time_ms = quota.throttle_ms
        except ApiError as error:
            return error_response(name, request, await self._settled(error))
        if name in ("IncrementalAlterConfigs", "AlterConfigs") and self.is_active:
            # The change may have allowed an offline partition an unclean election.
            self._spawn(self._run, offline_elections)
        return response

    def _mutation_quota(self, asker: Requester, api_key: int, version: int) -> MutationQuota | None:
        strict_since = STRICT_SINCE.get(api_key)
        bucket = None if strict_since is None else self._mutations(asker)
        return None if bucket is None or strict_since is None else MutationQuota(bucket, strict=version >= strict_since)

    async def _register_broker(self, request: Any, origin: Any) -> Any:
        # No other process can have the id of the broker in our own process (`origin` is None).
        context = self._context()
        held = origin is not None and self._fencing.holds_id(
            request.broker_id, at_its_place=listens_where_it_did(context, request)
        )
        check_registration(context, request, session_is_valid=held)
        await self._run(lambda context: before_registration(context, request))
        return await self._run(lambda context: register_broker(context, request, session_is_valid=held))

    async def _heartbeat(self, request: Any, origin: Any) -> Any:
        context = self._context()
        outcome, following = broker_heartbeat(
            context, request, self._fencing.liveness(context.image, request.broker_id)
        )
        leaving = bool(outcome.records) and following is BrokerState.CONTROLLED_SHUTDOWN
        self._fencing.heard(request, following, origin, begins_to_leave=leaving)

        def written() -> None:
            if leaving:
                self._fencing.leaves_after(request.broker_id, self._driver.end_offset - 1)

        return await self._commit(outcome, written)

    # ------------------------------------------------------------------ duties

    async def _balance_leaders(self) -> None:
        while True:
            await asyncio.sleep(self._timing.leader_balance_interval_s)
            await self._run(balance_leaders)

    async def _remove_expired_tokens(self) -> None:
        while True:
            await asyncio.sleep(self._timing.token_expiry_interval_s)
            await self._run(remove_expired_tokens)


def _name_of(api_key: int) -> str:
    if api_key in COMMANDS:
        return COMMANDS[api_key][0]
    if api_key not in OTHERS:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"no controller request has key {api_key}")
    return OTHERS[api_key]
