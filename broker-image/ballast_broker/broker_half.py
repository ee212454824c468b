"""The broker half of a node: constructs what serves clients, joins the cluster and leaves it in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any
from uuid import UUID

from ballast_broker import settings
from ballast_broker.api import add_partitions_to_txn
from ballast_broker.api.automatic_topics import AutomaticTopics
from ballast_broker.api.dispatch import Dispatcher
from ballast_broker.api.fetch import Fetch
from ballast_broker.api.fetch_sessions import FetchSessions
from ballast_broker.api.produce import Produce
from ballast_broker.api.producer_ids import ProducerIds
from ballast_broker.api.registry import BROKER_APIS
from ballast_broker.api.services import BrokerServices
from ballast_broker.api.write_txn_markers import write_markers
from ballast_broker.controller.lifecycle import (
    REGISTRATION_TIMEOUT_MAX_S,
    BrokerIdentity,
    BrokerLifecycle,
    LifecycleState,
)
from ballast_broker.coordinator.leadership import GroupLeadership, TransactionLeadership
from ballast_broker.coordinator.markers import MarkerSender
from ballast_broker.coordinator.service import GroupCoordinator
from ballast_broker.coordinator.store import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, CoordinatorStore
from ballast_broker.coordinator.transaction_service import TransactionCoordinator
from ballast_broker.coordinator.verification import TransactionVerifier
from ballast_broker.metadata.delta import MetadataDelta
from ballast_broker.metadata.features import TRANSACTION_VERSION
from ballast_broker.metadata.gate import NO_EPOCH, RegistrationGate
from ballast_broker.metadata.image import Listener, MetadataImage
from ballast_broker.node_failed import NodeFailed
from ballast_broker.patience import patiently
from ballast_broker.replication.replication import Replication
from ballast_broker.replication.strays import delete_what_was_deleted, settle_strays
from ballast_broker.security.properties import PROTOCOLS
from ballast_broker.storage.directories import LogDirectory
from ballast_broker.turns import InTurns

if TYPE_CHECKING:
    from ballast_broker.app import Node

log = logging.getLogger(__name__)

LEAVE_TIMEOUT_S = 20.0


class BrokerHalf:
    """The broker half of a node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        config, world = node.config, node.world
        self._controller = node.client(timeout_s=config.request_timeout_ms / 1000)
        self._heartbeats = node.client(timeout_s=REGISTRATION_TIMEOUT_MAX_S)
        self.lifecycle: BrokerLifecycle | None = None
        self.replication = Replication(
            settings.replication_settings(config),
            logs=node.logs,
            clock=world.clock,
            controller=self._controller,
            broker_epoch=self._epoch,
            log_config=settings.topic_log_configs(config),
            network=world.network,
            threads=world.threads,
        )
        self.replicas = self.replication.replicas
        self.replication.roles.on_gone.append(node.traffic.forget)
        store = self._store(OFFSETS_TOPIC, config.offsets_commit_timeout_ms, config.offsets_load_buffer_size)
        self.groups = GroupCoordinator(store, world.clock, settings.coordinator_config(config), lambda: node.image)
        ids = ProducerIds(config.node_id, self._epoch, self._controller)
        self.transactions = self._transaction_coordinator(ids)
        self._verifier = TransactionVerifier(
            lambda: node.image,
            world.network,
            config.inter_broker_listener,
            config.node_id,
            lambda *asked: add_partitions_to_txn.verify(self.services, *asked),
            lambda *asked: add_partitions_to_txn.add(self.services, *asked, waits=True),
            timeout_s=config.request_timeout_ms / 1000,
            retry_s=config.add_partitions_to_txn_retry_backoff_ms / 1000,
            patience_s=config.add_partitions_to_txn_retry_backoff_max_ms / 1000,
        )
        self.services = self._services(ids)
        self.ports: dict[str, int] = {}
        leadership = GroupLeadership(config.node_id, self.groups)
        of_transactions = TransactionLeadership(config.node_id, self.transactions)
        self._caught_up = asyncio.Event()
        publishers = [
            self.replication.roles.publish,
            leadership.publish,
            of_transactions.publish,
        ]
        self._gate = RegistrationGate(config.node_id, self._epoch, publishers, self._take_stock)
        node.metadata.add_publisher(self._catch_up)
        node.metadata.add_publisher(self._gate.publish)

    def _catch_up(self, delta: MetadataDelta, _image: MetadataImage) -> None:
        """Runs before the gate, which passes on the current state but not deletions on the way to it."""
        if not self._gate.is_open and not delta.compared:
            delete_what_was_deleted(self._node.logs, delta.topics_deleted.values())

    def _take_stock(self, _delta: MetadataDelta, image: MetadataImage) -> None:
        """The replicas in `image` are in place; delete stray ones before acting on a newer image."""
        settle_strays(self._node.logs, self._node.config.node_id, image)
        self._caught_up.set()

    def _epoch(self) -> int:
        """The broker epoch; -1 until this broker is registered."""
        return self.lifecycle.broker_epoch if self.lifecycle is not None else NO_EPOCH

    def _store(self, topic: str, timeout_ms: int, load_bytes: int) -> CoordinatorStore:
        world = self._node.world
        return CoordinatorStore(topic, self.replicas, world.clock, timeout_ms=timeout_ms, load_bytes=load_bytes)

    def _transaction_coordinator(self, ids: ProducerIds) -> TransactionCoordinator:
        node, config, world = self._node, self._node.config, self._node.world
        store = self._store(
            TRANSACTIONS_TOPIC, config.request_timeout_ms, config.transaction_state_log_load_buffer_size
        )
        markers = MarkerSender(
            lambda: node.image,
            config.inter_broker_listener,
            world.network,
            config.node_id,
            lambda markings: write_markers(self.services, markings),
            timeout_s=config.request_timeout_ms / 1000,
        )
        return TransactionCoordinator(
            store,
            markers,
            world.clock,
            settings.transaction_config(config),
            ids.next,
            lambda: node.image.features.level(TRANSACTION_VERSION),
        )

    def _services(self, ids: ProducerIds) -> BrokerServices:
        node = self._node
        topics = AutomaticTopics(node.config, lambda: node.image, self._controller, node.spawn)
        return BrokerServices(
            node_id=node.config.node_id,
            cluster_id=node.cluster_id,
            config=node.config,
            clock=node.world.clock,
            random=node.world.random,
            image=lambda: node.image,
            replicas=self.replicas,
            directories=self.replication.directories,
            logs=node.logs,
            controller=self._controller,
            groups=self.groups,
            transactions=self.transactions,
            verifier=self._verifier,
            traffic=node.traffic,
            client_quotas=node.client_quotas,
            authorizer=node.authorizer,
            next_producer_id=ids.next,
            create_internal_topic=topics.create_internal,
            create_topics_automatically=topics.create,
            kraft_version=lambda: node.driver.kraft_version,
        )

    @property
    def is_running(self) -> bool:
        return self.lifecycle is not None and self.lifecycle.state is LifecycleState.RUNNING

    def listen(self) -> None:
        node, services = self._node, self.services
        slots = node.config.max_incremental_fetch_session_cache_slots
        sessions = FetchSessions(slots, node.world.random, node.world.clock.monotonic)
        for endpoint in node.config.client_listeners:
            dispatcher = Dispatcher(
                services,
                BROKER_APIS,
                node.request_metrics,
                node.world.clock.monotonic,
                produce=Produce(services, node.request_metrics),
                fetch=Fetch(services, sessions, node.request_metrics),
            )
            self.ports[endpoint.name] = node.listen(endpoint, dispatcher, accept=False)

    async def join(self) -> None:
        """Register, catch up with the metadata, start the replicas, get unfenced, then accept clients."""
        node = self._node
        node.spawn(node.logs.run_maintenance(), "log maintenance")
        await self.replication.start()
        self.lifecycle = lifecycle = BrokerLifecycle(
            identity=self._identity(),
            client=self._heartbeats,
            directories=lambda: [d.id for d in node.logs.online_directories()],
            metadata_offset=lambda: node.metadata.published_offset,
            heartbeat_interval_s=node.config.broker_heartbeat_interval_ms / 1000,
        )
        node.metadata.add_publisher(lifecycle.publish)
        membership = node.spawn(lifecycle.run(), "membership")
        node.spawn(self._expire_offsets(), "offset expiry")
        node.spawn(self.transactions.abort_those_too_long(), "ends of transactions")
        node.spawn(self.transactions.forget_unused(), "transactional id expiry")
        await self._wait_for(lifecycle.registered.wait(), membership)
        async for _ in InTurns(self._gate.look(node.image) or ()):
            pass
        await self._wait_for(self._caught_up.wait(), membership)
        lifecycle.set_ready()
        await self._wait_for(lifecycle.running.wait(), membership)
        # A client that gets metadata without any broker, as of a single fenced one, would never come back: librdkafka
        # forgets the bootstrap address.
        await self._wait_for(lifecycle.seen_active.wait(), membership)
        for endpoint in node.config.client_listeners:
            node.world.listening.accept(endpoint.name)

    async def _wait_for(self, event: Coroutine[Any, Any, Any], membership: asyncio.Task[Any]) -> None:
        """Wait for the event, or raise what makes it impossible."""
        waiting = asyncio.ensure_future(event)
        await asyncio.wait({waiting, membership, self._node.failed}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if membership.done() and not membership.cancelled() and membership.exception() is not None:
            raise NodeFailed(str(membership.exception()))
        if self._node.failed.done():
            self._node.failed.result()

    def _identity(self) -> BrokerIdentity:
        node = self._node
        bound = {e.name: self.ports[e.name] for e in node.config.client_listeners}
        listeners = {
            e.name: Listener(
                e.host or node.config.advertised_host, e.port or bound.get(e.name, 0), PROTOCOLS.index(e.security)
            )
            for e in node.config.advertised
        }
        clean = all(d.was_clean and not d.lost_some for d in node.logs.online_directories())
        epochs = {d.previous_broker_epoch for d in node.logs.online_directories()}
        return BrokerIdentity(
            node_id=node.config.node_id,
            cluster_id=node.cluster_id,
            incarnation_id=UUID(bytes=node.world.random.bytes_of(16), version=4),
            listeners=listeners,
            rack=node.config.broker_rack,
            previous_epoch=epochs.pop() if clean and len(epochs) == 1 else -1,
        )

    async def _expire_offsets(self) -> None:
        interval_s = self._node.config.offsets_retention_check_interval_ms / 1000
        while True:
            await asyncio.sleep(interval_s)
            await self.groups.expire_offsets()

    def report_offline(self, directory: LogDirectory) -> None:
        timeout_s = self._node.config.log_dir_failure_timeout_ms / 1000

        async def report() -> None:
            if self.lifecycle is None:
                return  # its registration will leave the directory out
            try:
                async with asyncio.timeout(timeout_s):
                    await self.lifecycle.report_offline_directory(directory.id)
            except TimeoutError:
                told = f"no controller could be told within {timeout_s:g} s that {directory.path} is offline"
                raise NodeFailed(told) from None

        self._node.spawn(report(), f"report that {directory.path} is offline")

    async def leave(self) -> int:
        """Hand over leaderships, then stop; return the epoch it had."""
        epoch = self._epoch()
        self.replication.assignments.hurry()  # so that a disk exchanged before the next start is noticed
        if self.lifecycle is not None and epoch >= 0 and self._node.config.controlled_shutdown_enable:
            try:
                async with asyncio.timeout(LEAVE_TIMEOUT_S):
                    await self.lifecycle.leave()
            except TimeoutError:
                log.warning("not all leaderships were taken over in %.0f s: stopping all the same", LEAVE_TIMEOUT_S)
        self.groups.close()
        self.transactions.close()
        self._verifier.close()
        await patiently(self.replication.stop(), "replication")
        self._controller.close()
        self._heartbeats.close()
        return epoch
