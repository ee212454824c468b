"""Assembles a broker's replication, and starts and stops it in order. Loop thread only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from ballast_broker.replication.assignments import Assignments
from ballast_broker.replication.configs import ReplicaConfigs
from ballast_broker.replication.directories import Directories
from ballast_broker.replication.fetchers import Fetchers
from ballast_broker.replication.isr import Controller, IsrChanges
from ballast_broker.replication.movers import Movers
from ballast_broker.replication.nearest import Nearest
from ballast_broker.replication.quotas import ByteRate, LeaderThrottle
from ballast_broker.replication.replicas import Replicas
from ballast_broker.replication.roles import Roles

if TYPE_CHECKING:
    from ballast_broker.config.logs import LogConfig
    from ballast_broker.metadata.image import MetadataImage
    from ballast_broker.replication.settings import ReplicationSettings
    from ballast_broker.seams import Clock, Network, Threads
    from ballast_broker.storage.manager import LogManager


class Replication:
    """`replicas` serves requests, `roles` takes the metadata, `directories` knows the replicas' log directories."""

    def __init__(
        self,
        settings: ReplicationSettings,
        *,
        logs: LogManager,
        clock: Clock,
        controller: Controller,
        broker_epoch: Callable[[], int],
        log_config: Callable[[MetadataImage, str], LogConfig],
        network: Network,
        threads: Threads,
    ) -> None:
        self.leader_rate = ByteRate(clock)
        self.follower_rate = ByteRate(clock)
        self.moves_rate = ByteRate(clock)
        self.fetchers = Fetchers(settings, network, broker_epoch, self.follower_rate)
        self.isr_changes = IsrChanges(controller, settings.broker_id, broker_epoch)
        self.assignments = Assignments(controller, settings.broker_id, broker_epoch)
        self.movers = Movers(
            count=lambda: settings.num_replica_alter_log_dirs_threads or len(logs.directories),
            logs=logs,
            threads=threads,
            clock=clock,
            rate=self.moves_rate,
            assignments=self.assignments,
            broker_epoch=broker_epoch,
        )
        nearest = Nearest()
        throttle = LeaderThrottle(self.leader_rate)
        self.replicas = Replicas(clock, throttle, nearest, self.isr_changes.propose_expand)
        self.directories = Directories(logs, self.replicas, self.movers, self.assignments)
        rates = {
            "replica.alter.log.dirs.io.max.bytes.per.second": self.moves_rate,
            "leader.replication.throttled.rate": self.leader_rate,
            "follower.replication.throttled.rate": self.follower_rate,
        }
        configs = ReplicaConfigs(
            settings.broker_id, log_config, logs.placement, rates, self.movers.wake, logs.compactor.configure
        )
        self.roles = Roles(settings, self.replicas, self.directories, self.fetchers, self.isr_changes, configs, nearest)
        self._settings = settings
        self._shrinking: asyncio.Task[None] | None = None
        logs.on_directory_failure.append(self.roles.directory_failed)

    async def start(self) -> None:
        shrinking = self.isr_changes.keep_shrinking(self.replicas, self._settings.replica_lag_time_max_ms / 2000)
        self._shrinking = asyncio.get_running_loop().create_task(shrinking, name="isr-shrink")

    async def stop(self) -> None:
        if self._shrinking is not None:
            self._shrinking.cancel()
            await asyncio.gather(self._shrinking, return_exceptions=True)
        self.roles.close()
        await self.movers.close()
        await self.assignments.close()
        await self.fetchers.close()
        await self.isr_changes.close()
        self.replicas.close()
