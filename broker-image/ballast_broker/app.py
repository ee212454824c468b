"""A node: constructs and wires all components, owns their tasks, starts and stops them in order.

Only this module and its broker half (`broker_half.py`) construct components; there are no globals. The same code runs
in production and in the simulation; what differs is the `World` passed in. Startup order: directories and logs, the
metadata log, listeners, the quorum, registration.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

from ballast_broker import settings
from ballast_broker.api.authorizer import authorizer_of
from ballast_broker.api.client_quotas import ClientQuotas
from ballast_broker.api.dispatch import Dispatcher
from ballast_broker.api.services import ControllerServices
from ballast_broker.broker_half import BrokerHalf
from ballast_broker.config.broker import BrokerConfig, Endpoint
from ballast_broker.config_rules import Rules
from ballast_broker.controller.client import ControllerClient
from ballast_broker.controller.replica import MetadataReplica
from ballast_broker.controller.service import ControllerService
from ballast_broker.controller_requests import CONTROLLER_APIS, ControllerHandlers, is_of_nodes
from ballast_broker.metadata.delta import MetadataDelta
from ballast_broker.metadata.image import ClientQuotasImage, ConfigsImage, MetadataImage
from ballast_broker.metrics.requests import RequestMetrics
from ballast_broker.metrics.traffic import Traffic
from ballast_broker.node_failed import NodeFailed
from ballast_broker.patience import patiently
from ballast_broker.raft import founding
from ballast_broker.raft.driver import RaftDriver
from ballast_broker.raft.flushed_end import FlushedEnd
from ballast_broker.raft.integrity import CorruptMetadata
from ballast_broker.raft.store import MetadataStore
from ballast_broker.raft.voters import Endpoint as QuorumEndpoint
from ballast_broker.raft.voters import Voter
from ballast_broker.raft.wire import Quorum
from ballast_broker.security.scram import MECHANISM_CODES, Credential, TokenLogin
from ballast_broker.storage.directories import METADATA_TOPIC, LogDirectory
from ballast_broker.storage.errors import CorruptFile
from ballast_broker.storage.log import Log
from ballast_broker.storage.manager import LogManager
from ballast_broker.token_logins import TokenLogins
from ballast_broker.world import World

log = logging.getLogger(__name__)


class Node:
    """A broker, a controller, or both, as `process.roles` says."""

    def __init__(self, config: BrokerConfig, world: World) -> None:
        self.config = config
        self.world = world
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.request_metrics = RequestMetrics()
        self.authorizer = authorizer_of(config)
        self.client_quotas = ClientQuotas(world.clock, settings.quota_windows(config))
        self.traffic = Traffic()
        secret = config.delegation_token_secret
        self._token_logins = None if secret is None else TokenLogins(secret, lambda: self.image, world.clock.wall_ms)
        self.logs: LogManager
        self.driver: RaftDriver
        self.metadata: MetadataReplica
        self.controller: ControllerService | None = None
        self.broker: BrokerHalf | None = None
        self.ports: dict[str, int] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._dispatchers: list[Dispatcher] = []
        self._cluster_id = ""
        self._founds = False
        self._rates_known: tuple[ClientQuotasImage | None, ConfigsImage | None] = (None, None)

    @property
    def image(self) -> MetadataImage:
        return self.metadata.image

    def scram_credential(self, user: str, mechanism: str) -> Credential | None:
        """The stored SCRAM credential of a user, as far as this node has read the metadata."""
        if not hasattr(self, "metadata"):
            return None
        kept = self.image.security.scram_credentials.get((user, MECHANISM_CODES[mechanism]))
        return None if kept is None else Credential(kept.salt, kept.iterations, kept.stored_key, kept.server_key)

    def token_login(self, token_id: str, mechanism: str, salt: bytes) -> TokenLogin | None:
        """The login of a delegation token, as far as this node has read the metadata."""
        if self._token_logins is None or not hasattr(self, "metadata"):
            return None
        return self._token_logins.find(token_id, mechanism, salt)

    @property
    def ready(self) -> bool:
        """A broker: registered, caught up and unfenced. A controller alone: the quorum's leader is known."""
        if not hasattr(self, "driver") or self.failed.done():
            return False
        if self.broker is None:
            return self.driver.leader_id >= 0
        return self.broker.is_running

    # -- start ----------------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Return when the node serves; raise what prevents that, with a message to show."""
        await self._open_logs()
        await self._build_quorum()
        if self.config.is_broker:
            self.broker = BrokerHalf(self)
        self._listen_for_controllers()
        if self.broker is not None:
            self.broker.listen()
        await self.driver.start()
        if self._founds:
            self.spawn(self._found(), "founding")
        if self.broker is not None:
            await self.broker.join()

    async def _open_logs(self) -> None:
        world, config = self.world, self.config
        storage = settings.storage_config(config, world.open_files)
        # Until the metadata is read, topic logs use this broker's defaults, but delete nothing: whether a topic deletes
        # or compacts its records, only its own configuration tells.
        defaults = replace(config.log_config({}), cleanup_policy=frozenset())
        self.logs = LogManager(
            world.disk, world.clock, world.threads, storage, world.random, config_of=lambda _: defaults,
            cleaner=world.cleaner,
        )  # fmt: skip
        self.logs.on_directory_failure.append(self._directory_failed)
        await self.logs.start()
        assert self.logs.cluster_id is not None
        self._cluster_id = self.logs.cluster_id

    async def _open_metadata_log(self) -> Log:
        """Other voters have what must be cut off a damaged log; of what the only voter had stored there is no copy."""
        log_config = settings.metadata_log_config(self.config)
        flushed = FlushedEnd(self.world.disk, f"{self.config.metadata_directory}/{METADATA_TOPIC}-0")
        if flushed.said.voters != 1 or not self.config.is_controller:
            return await self.logs.open_raft_log(log_config)
        try:
            return await self.logs.open_raft_log(log_config, no_copy_below=flushed.said.end.end_offset)
        except CorruptFile as error:
            raise CorruptMetadata(
                f"{error}, which no other controller has: restore a copy of the directory. To go on with what is "
                f"before it, and so without the topics that come after it, remove {flushed.path}"
            ) from error

    async def _build_quorum(self) -> None:
        world, config = self.world, self.config
        metadata_log = await self._open_metadata_log()
        store = MetadataStore(world.disk, metadata_log.folder.path, metadata_log)
        directory = metadata_log.directory.id
        self._founds = config.controller_quorum_standalone and store.is_empty
        self.metadata = MetadataReplica(
            store,
            world.clock,
            world.quorum_threads,
            on_failure=self._fail,
            bytes_between_snapshots=config.metadata_log_max_record_bytes_between_snapshots,
            interval_between_snapshots_s=config.metadata_log_max_snapshot_interval_ms / 1000,
        )
        self.metadata.add_publisher(self.authorizer.publish)
        self.metadata.add_publisher(self.client_quotas.publish)
        self.metadata.add_publisher(self._limit_connections)
        self.driver = RaftDriver(
            node_id=config.node_id,
            quorum=self._quorum(store),
            directory=directory,
            store=store,
            listener=self.metadata,
            network=world.to_controllers,
            clock=world.clock,
            threads=world.quorum_threads,
            random=world.random,
            timeouts=settings.raft_timeouts(config),
        )
        if config.is_controller:
            self.controller = ControllerService(
                driver=self.driver,
                replica=self.metadata,
                config=settings.controller_config(config, self._cluster_id),
                rules=Rules(config),
                clock=world.clock,
                random=world.random,
                network=world.probing or world.network,
                timing=settings.controller_timing(config),
                mutations=lambda asker: self.client_quotas.mutations.rate_of(asker.user, asker.client_id),
            )

    async def _found(self) -> None:
        own = self._own_controller_endpoints()
        named = [QuorumEndpoint(host, port) for host, port in self.config.quorum_bootstrap]
        others = [each for each in named if each not in own.values()]
        await founding.found(self.driver, Voter(self.config.node_id, self.driver.directory, own), others)

    def _quorum(self, store: MetadataStore) -> Quorum:
        config = self.config
        voters = {v.node_id: QuorumEndpoint(v.host, v.port) for v in config.voters}
        alone = store.voters_remembered() == [config.node_id]  # as it started before voters could change
        if config.is_its_own_quorum or (alone and config.is_controller and not voters):
            voters = {config.node_id: QuorumEndpoint("127.0.0.1", 0)}
        return Quorum(
            self._cluster_id,
            voters,
            min(config.controller_names),
            bootstrap=[QuorumEndpoint(host, port) for host, port in config.quorum_bootstrap],
            own_endpoints=self._own_controller_endpoints,
        )

    def _own_controller_endpoints(self) -> dict[str, QuorumEndpoint]:
        """This node's endpoints as a voter: as advertised, else as named in the static voters. The addresses it listens
        on may change with the next start.
        """
        config = self.config
        if not config.is_controller:
            return {}
        found = {e.name: QuorumEndpoint(e.host, e.port) for e in self.addresses() if e.name in config.controller_names}
        named = next((voter for voter in config.voters if voter.node_id == config.node_id), None)
        if named is not None and config.controller_names.isdisjoint(e.name for e in config.advertised_all):
            found[config.controller_listener] = QuorumEndpoint(named.host, named.port)
        return found

    def _limit_connections(self, _delta: MetadataDelta, image: MetadataImage) -> None:
        quotas, configs = self._rates_known
        if image.client_quotas is not quotas or image.configs is not configs:
            self._rates_known = image.client_quotas, image.configs
            self.world.listening.limit_rates(settings.creation_rates(self.config, image))

    def _listen_for_controllers(self) -> None:
        if self.controller is None:
            return
        config = self.config
        services = ControllerServices(config.node_id, config, self.authorizer, lambda: self.image, self.client_quotas)
        handlers = ControllerHandlers(
            self.driver,
            self.controller,
            lambda: self.image,
            self._cluster_id,
            self.client_quotas,
            self.world.clock.monotonic,
        )
        for endpoint in config.controller_listeners:
            dispatcher = Dispatcher(
                services,
                CONTROLLER_APIS,
                self.request_metrics,
                self.world.clock.monotonic,
                handlers=handlers.of,
                is_of_nodes=lambda context, _: is_of_nodes(context),
            )
            self.listen(endpoint, dispatcher)

    def listen(self, endpoint: Endpoint, dispatcher: Dispatcher, *, accept: bool = True) -> int:
        self._dispatchers.append(dispatcher)
        port = self.world.listening.listen(
            endpoint.name, endpoint.host, endpoint.port, dispatcher.dispatch, accept=accept
        )
        self.ports[endpoint.name] = port
        return port

    def addresses(self) -> list[Endpoint]:
        """The advertised endpoints, and those of its controller listeners, with the actual ports."""
        return [
            e._replace(host=e.host or self.config.advertised_host, port=e.port or self.ports.get(e.name, 0))
            for e in (*self.config.advertised, *self.config.advertised_controllers)
        ]

    def client(self, *, timeout_s: float) -> ControllerClient:
        """A client of the active controller, with its own connection."""
        return ControllerClient(
            node_id=self.config.node_id,
            leader=self.driver,
            local=self.controller,
            endpoints=self.driver.peers.endpoint,
            network=self.world.to_controllers,
            clock=self.world.clock,
            call_timeout_s=timeout_s,
        )

    @property
    def cluster_id(self) -> str:
        return self._cluster_id

    # -- going on -------------------------------------------------------------------------------------------------
    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Start a task whose failure fails the node."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("%s failed", task.get_name(), exc_info=task.exception())
            self._fail(task.exception())

    def _fail(self, error: BaseException | None) -> None:
        if not self.failed.done():
            self.failed.set_exception(NodeFailed(str(error)))

    def _directory_failed(self, directory: LogDirectory) -> None:
        if not self.logs.online_directories():
            self._fail(NodeFailed("the last log directory has failed"))
        elif directory.path == self.config.metadata_directory:
            self._fail(NodeFailed(f"the metadata log's directory {directory.path} has failed"))
        elif self.broker is not None:
            self.broker.report_offline(directory)

    # -- stop -----------------------------------------------------------------------------------------------------
    async def stop(self) -> None:
        """Stop in order: hand over leaderships, close listeners, flush logs and mark them clean."""
        broker_epoch = -1
        if self.broker is not None:
            broker_epoch = await self.broker.leave()
        self.world.listening.stop_listening()
        if self.controller is not None:
            await self.controller.stop()
        await self.driver.stop()
        await self.metadata.stop()
        for dispatcher in self._dispatchers:
            dispatcher.close()
        self.world.listening.close()
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await patiently(asyncio.gather(*tasks, return_exceptions=True), "tasks")
        await self.logs.shutdown(broker_epoch=broker_epoch)
