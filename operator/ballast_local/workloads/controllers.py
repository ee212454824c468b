"""Wires the controllers and the node to the store."""

import asyncio
from pathlib import Path

from ballast_local.definitions import CRD_KEY, rows_of
from ballast_local.objects import Objects
from ballast_local.resources import Registry
from ballast_local.store import Change, Store
from ballast_local.workloads.addresses import Addresses
from ballast_local.workloads.claims import ClaimController
from ballast_local.workloads.client import Client
from ballast_local.workloads.controller import Controller
from ballast_local.workloads.disruption import DisruptionController
from ballast_local.workloads.garbage import DefinitionController, GarbageCollector, NamespaceController
from ballast_local.workloads.housekeeping import keep_house
from ballast_local.workloads.job import CronJobController, JobController
from ballast_local.workloads.logs import Logs
from ballast_local.workloads.node import Node
from ballast_local.workloads.replicaset import DeploymentController, ReplicaSetController
from ballast_local.workloads.service import ServiceController
from ballast_local.workloads.statefulset import StatefulSetController


class Workloads:
    def __init__(self, store: Store, registry: Registry, objects: Objects, data: Path, kubeconfig: Path) -> None:
        self._closing = asyncio.Event()
        self._addresses = Addresses(data / "addresses.log", str(data))
        self.logs = Logs(data / "pods", self._closing)

        def client(manager: str) -> Client:
            return Client(store, registry, objects, manager)

        keys = {row.key for row in registry.rows() if row.stored} - {"events.events.k8s.io"}
        self._garbage = GarbageCollector(client("garbage-collector"), sorted(keys))
        self._controllers: list[Controller] = [
            self._garbage,
            NamespaceController(client("namespace-controller")),
            DefinitionController(client("definition-controller")),
            ClaimController(client("persistentvolume-controller"), data / "volumes"),
            StatefulSetController(client("statefulset-controller")),
            ReplicaSetController(client("replicaset-controller")),
            DeploymentController(client("deployment-controller")),
            JobController(client("job-controller")),
            CronJobController(client("cronjob-controller")),
            ServiceController(client("endpoints-controller"), self._addresses),
            DisruptionController(client("disruption-controller")),
        ]
        self._node = Node(client("kubelet"), data, self._addresses, self.logs, kubeconfig)
        self._housekeeping = client("housekeeping")
        self._pods = data / "pods"
        self._house: asyncio.Task[None] | None = None
        store.listen(CRD_KEY, self._definition_changed)

    def _definition_changed(self, change: Change) -> None:
        for row in rows_of(change.entry.object()):
            self._garbage.follow(row.key)

    async def start(self) -> None:
        for controller in self._controllers:
            controller.start()
        await self._node.start()
        self._house = asyncio.create_task(keep_house(self._housekeeping, self._pods))

    async def stop(self, grace_seconds: float) -> None:
        self._closing.set()
        if self._house is not None:
            self._house.cancel()
            await asyncio.gather(self._house, return_exceptions=True)
        for controller in self._controllers:
            await controller.stop()
        await self._node.stop(grace_seconds)
