"""Reconciles a cluster that the operator runs: Kubernetes objects, scaling, volumes, restarts.

`prepare` applies a layout that loses nothing; `finish` runs once Kafka answers, drains what has to go, and removes it
only when it is empty. Each cycle decides from what the APIs show.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from ballast_operator.apply.kubernetes import ApiError, ApiUnavailableError
from ballast_operator.apply.refused import message_of, unserved
from ballast_operator.handlers import claims, restarts, voters
from ballast_operator.handlers.kube_objects import KubeObjects, LayoutRefusals
from ballast_operator.handlers.late_pods import LatePods
from ballast_operator.handlers.leaving import Leaving
from ballast_operator.handlers.own_reassignments import ADDING, OwnReassignments, prefix_of, unique
from ballast_operator.handlers.ownership import Ownership
from ballast_operator.handlers.scene import Scene
from ballast_operator.handlers.secured import Secured
from ballast_operator.kafka_client import KafkaConnection
from ballast_operator.model.cluster import ClusterStatus, Drain, KafkaCluster, OnDirectoryFailure, OnScaleUp
from ballast_operator.model.kafka import KafkaView
from ballast_operator.model.meta import Key
from ballast_operator.model.quantity import some_of
from ballast_operator.model.reassignment import ENDS
from ballast_operator.model.times import seconds_of
from ballast_operator.observe import observe_ongoing
from ballast_operator.plan import layouts, liveness
from ballast_operator.plan.claims import claims_going, spare_controller_claims
from ballast_operator.plan.cluster_status import client_addresses, failed_directories, health, troubled
from ballast_operator.plan.kube import KubeFacts
from ballast_operator.plan.restarts import SHOWN, lagging_nodes
from ballast_operator.plan.secured import Reach, reach_of
from ballast_operator.plan.voters import spare_controllers
from ballast_operator.resources import names, pods
from ballast_operator.resources.layout import Identity, Layout
from ballast_operator.resources.names import BROKER_ROLE, CONTROLLER_ROLE
from ballast_operator.status import CLUSTER, IN_COURSE, SHARED, Verdict
from ballast_operator.worker import Part, Requeue

if TYPE_CHECKING:
    from ballast_operator.cycle import Shared

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
LAG_LOOK_SECONDS = 10.0
T = TypeVar("T")


class ManagedCluster:
    """One cluster that the operator runs. Used by that cluster's worker only."""

    def __init__(self, key: Key, shared: Shared) -> None:
        self._key = key
        self._shared = shared
        self._objects = KubeObjects(shared)
        self._ownership = Ownership(shared)
        self._secured = Secured(shared.api)
        self._kube = KubeFacts()
        self._late = LatePods()
        self._own = OwnReassignments(key, shared)
        self._leaving = Leaving(shared, self._objects, self._own, self._lay_out)
        self._identity: Identity | None = None
        self._reach: Reach | None = None
        self._tidied: set[str | None] = set()
        self._refused: Verdict | None = None
        # What was refused besides the layout: nothing else waits for it.
        self._refused_beside: Verdict | None = None
        self._held: Verdict | None = None
        self._answered = False

    @property
    def pods(self) -> Mapping[int, str]:
        return {ordinal: pod.name for ordinal, pod in self._kube.pods.items()}

    async def prepare(self, cluster: KafkaCluster, look: bool, requeue: Requeue) -> Reach | None:
        """Bring Kubernetes into line. Returns how to reach the brokers' pods, if there are any."""
        if not look and self._reach is not None:
            return self._reach
        self._refused = self._refused_beside = None
        self._identity = await self._objects.identity(cluster)
        self._kube = await self._objects.facts(cluster)
        self._late.look(cluster, self._kube)
        self._kube = replace(self._kube, pods=self._late.as_before(self._kube.pods))
        self._kube, self._held = await self._secured.look(cluster, self._kube)
        if not cluster.meta.paused and not cluster.meta.deleting and self._held is None:
            await self._locate_metadata(cluster, self._identity)
            layout = layouts.held_layout(cluster, self._identity, self._kube)
            refusals = await self._lay_out(layout, self._kube)
            self._kube = replace(
                self._kube,
                waiting_to_be_added=refusals.waiting_to_be_added,
                waiting_to_restart=refusals.waiting_to_restart,
            )
            with self._refusal_told():
                await self._restart_troubled(layout)
                if not await self._ownership.bring(cluster, self._kube, self._identity):
                    requeue.cluster_within(1.0)
            if self._kube.deleting or not self._kube.exists:
                requeue.cluster_within(0.5)
        self._reach = reach_of(cluster, self._kube)
        return self._reach

    async def _locate_metadata(self, cluster: KafkaCluster, identity: Identity) -> None:
        """Record in the identity which volume has the metadata log: without the StatefulSet nothing else tells."""
        found = layouts.metadata_volume(cluster, self._kube)
        if not identity.metadata and found:
            with self._refusal_told():
                await self._objects.change_identity(cluster, identity, replace(identity, metadata=found))
                self._identity = await self._objects.identity(cluster)

    async def _lay_out(self, layout: Layout, kube: KubeFacts) -> LayoutRefusals:
        """Apply the layout. A refusal is reported; what exists already is served all the same."""
        refusals = LayoutRefusals()
        try:
            refusals = await self._objects.apply_layout(layout, kube)
        except (ApiError, ApiUnavailableError) as error:
            log.warning("cluster %s: its objects could not be applied: %s", self._key, error)
            self._refused = _failure_told(error)
        try:
            await self._objects.apply_monitor(layout.cluster)
        except (ApiError, ApiUnavailableError) as error:
            refusals = refusals._replace(failed=refusals.failed or error)
        if refusals.refused is not None:
            self._refused_beside = _refusals_told(refusals)
        elif refusals.failed is not None:
            self._refused_beside = _failure_told(refusals.failed)
        return refusals

    @contextmanager
    def _refusal_told(self) -> Iterator[None]:
        """Report a refusal of anything but the layout, and go on: only on the layout does all else depend."""
        try:
            yield
        except (ApiError, ApiUnavailableError) as error:
            self._refused_beside = self._told(error)

    def _told(self, error: ApiError | ApiUnavailableError) -> Verdict:
        """The verdict for a refused or unanswered request, which may remain so: the cluster runs all the same, and
        steps that do not depend on it go on. Other errors are raised."""
        verdict = unserved(error)
        if verdict is None:
            raise error
        log.warning("cluster %s: a change of its objects was not taken: %s", self._key, error)
        return verdict

    def silent(self) -> None:
        """Kafka did not answer."""
        self._answered = False

    async def _restart_troubled(self, layout: Layout) -> None:
        """While Kafka does not answer nothing rolls, except outdated pods that fail or have not started: these may be
        what keeps Kafka from answering."""
        if self._answered or self._refused is not None:
            return
        for role, found in ((CONTROLLER_ROLE, self._kube.controllers), (BROKER_ROLE, self._kube.pods)):
            wanted = pods.revision(layout, role)
            for pod in found.values():
                stuck = pod.trouble is not None or pod.starting
                if stuck and pod.revision != wanted and pod.deleting_since is None:
                    await self._objects.restart(layout.cluster, pod)

    def _lost(self) -> Verdict | None:
        """A pod is never force-deleted: only a person can know that its node is off."""
        now = seconds_of(self._shared.now())
        for pod in liveness.lost_pods(self._kube, now):
            return CLUSTER["NodeLost"].says(pod=pod.name, since=pod.deleting_since, node=pod.node)
        for pod in liveness.kept_pods(self._kube, now):
            return CLUSTER["PodHeld"].says(pod=pod.name, finalizers=", ".join(pod.held_by))
        return None

    def _claims_going(self) -> Verdict | None:
        going = claims_going(self._kube)
        if not going:
            return None
        return CLUSTER["ClaimsGoing"].says(claims=some_of([claim.name for claim in going], SHOWN))

    def _racks(self, scene: Scene) -> Verdict | None:
        lacking, error = liveness.racks_unknown(scene.cluster, scene.kube, self._objects.nodes)
        return CLUSTER["RackUnknown"].says(brokers=_ids(lacking), error=error) if lacking else None

    def explain(self) -> Verdict | None:
        """What Kubernetes knows about brokers that do not come up."""
        if self._held is not None or self._refused is not None:
            return self._held or self._refused
        absent = self._lost() or self._late.verdict
        if absent is not None:
            return absent
        return troubled(self._kube.pods.values()) or self._refused_beside

    async def finish(
        self, cluster: KafkaCluster, kafka: KafkaConnection, view: KafkaView, status: ClusterStatus, requeue: Requeue
    ) -> tuple[Verdict, ClusterStatus]:
        """Drain, remove, restart and grow, now that Kafka answers. The verdict tells the first thing not done yet."""
        assert self._identity is not None
        self._answered = True
        quorum, view = await voters.observe(kafka, self._identity, view)
        view = replace(view, ongoing=await observe_ongoing(kafka))
        scene = Scene(cluster, self._identity, self._kube, view, kafka, requeue, quorum)
        status = self._base_status(scene, status)
        if cluster.meta.paused:
            return SHARED["Paused"].says(), status
        await self._hold_evictions(scene)
        if cluster.meta.deleting or self._held is not None:
            return self._held or self._health(scene, status), status
        status = replace(status, drains=cluster.status.drains, retained_claims=cluster.status.retained_claims)
        try:
            return await self._bring(scene, status)
        except (ApiError, ApiUnavailableError) as error:
            return self._told(error), status

    async def _bring(self, scene: Scene, status: ClusterStatus) -> tuple[Verdict, ClusterStatus]:
        """Take one step towards the spec. `status` comes with the drains and claims of the previous cycle, which stay
        if a step fails."""
        cluster, view, quorum, requeue = scene.cluster, scene.view, scene.quorum, scene.requeue
        went = await voters.bring(self._objects, scene, lambda: restarts.are_due(scene))
        if went.acted and went.verdict is not None:
            requeue.cluster_within(LOOK_SECONDS)
            return went.verdict, status
        drains: list[Drain] = []
        failed: list[Verdict] = []
        layout = scene.layout
        spare = spare_controllers(scene.identity, scene.kube, quorum)
        if spare:
            layout = replace(layout, controllers=0)
        await self._tried(claims.take_back(self._objects, layout, scene.kube), failed)
        # What was observed to be empty is still so only if it was cordoned by then.
        exposed = await self._leaving.cordon(scene)
        said = [
            await self._tried(self._leaving.scale_down(scene, drains, exposed), failed),
            await self._tried(self._leaving.remove_volumes(scene, drains, exposed), failed),
            await self._tried(self._roll(scene), failed),
        ]
        await self._tried(self._propose(scene), failed)
        await self._tried(self._heal_directories(scene), failed)
        await self._leaving.unregister(scene)
        if spare:
            await self._tried(self._remove_spare_controllers(scene, layout), failed)
        grown = await self._tried(claims.bring(self._objects, layout, scene.kube, view), failed)
        await self._tried(self._tidy(scene), failed)
        if failed:
            requeue.failed.add(Part.CLUSTER)
        else:
            status = replace(status, drains=tuple(drains), retained_claims=claims.retained(layout, scene.kube, view))
        # Whatever waits for a pod that cannot run does not go on by itself, so the pod is reported first.
        stuck = troubled(pod for pod in scene.kube.pods.values() if pod.ordinal < cluster.spec.brokers)
        found = (
            self._refused, self._lost(), self._late.verdict, stuck, went.verdict, *failed, *said,
            self._claims_going(), grown, self._racks(scene),
        )  # fmt: skip
        verdict = next((one for one in found if one is not None), None)
        if any(one is not None and one.reason in IN_COURSE for one in found):
            requeue.cluster_within(LOOK_SECONDS)  # behind the reported verdict something is in progress
        return verdict or self._health(scene, status), status

    async def _tried(self, step: Awaitable[T], failed: list[Verdict]) -> T | None:
        """Run a step and note its failure. Steps depend only on what was observed, so none waits for a failed one."""
        try:
            return await step
        except (ApiError, ApiUnavailableError) as error:
            failed.append(self._told(error))
            return None

    def _health(self, scene: Scene, status: ClusterStatus) -> Verdict:
        wanted, now = scene.cluster.spec.brokers, seconds_of(self._shared.now())
        explained = self.explain()
        up = sum(liveness.is_up(pod, scene.view, now) for n, pod in scene.kube.pods.items() if n < wanted)
        if explained is None and up < wanted:
            return CLUSTER["Starting"].says(online=up, brokers=wanted)
        verdict = explained or health(scene.view, wanted)
        silent = [broker.id for broker in status.brokers if not broker.directories]
        if verdict.reason == "Ready" and silent:
            return CLUSTER["DirectoriesUnknown"].says(ids=_ids(silent))
        # It began with fewer brokers, and stays so unless somebody says how many are to vote.
        if verdict.reason == "Ready" and len(status.voters) == 1 and wanted >= 3 and not scene.cluster.spec.controllers:
            return CLUSTER["OneVoter"].says(brokers=wanted, voter=status.voters[0])
        return verdict

    def _base_status(self, scene: Scene, status: ClusterStatus) -> ClusterStatus:
        cluster, kube = scene.cluster, scene.kube
        service = f"{names.bootstrap_service(cluster)}.{self._key.namespace}.svc:{cluster.spec.listeners[0].port}"
        return replace(
            status,
            bootstrap_servers=",".join(client_addresses(cluster, kube, scene.view)) or service,
            voters=tuple(sorted(scene.quorum.voters)) if scene.quorum else scene.identity.controllers,
            kraft_version=scene.quorum.version if scene.quorum else scene.cluster.status.kraft_version,
            metadata_volume=scene.identity.metadata or None,
            default_replication=scene.identity.replication,
            broker_count=kube.replicas,
            brokers_text=f"{status.brokers_online or 0}/{cluster.spec.brokers}",
            selector=names.selector_text(cluster, BROKER_ROLE),
        )

    async def _hold_evictions(self, scene: Scene) -> None:
        if scene.cluster.meta.deleting:
            return
        lagging = lagging_nodes(scene.view, scene.quorum)
        with self._refusal_told():
            await self._objects.hold_evictions(scene.cluster, lagging)
        if lagging:
            scene.requeue.cluster_within(LAG_LOOK_SECONDS)

    # More brokers.

    async def _propose(self, scene: Scene) -> None:
        """Create the Reassignment that gives added brokers their share, if the spec says so, and clear their mark on
        the StatefulSet."""
        added = [broker for broker in scene.kube.added if broker < scene.cluster.spec.brokers]
        if not scene.kube.added or not scene.kube.exists:
            return
        online = [
            b for b in added if b in scene.view.brokers and scene.view.brokers[b].online and b in scene.view.described
        ]
        if len(online) < len(added):
            return
        rebalance = scene.cluster.spec.rebalance
        policy = rebalance.on_scale_up if rebalance else OnScaleUp.PROPOSE
        if added and policy is not OnScaleUp.NONE:
            approval = "Automatic" if policy is OnScaleUp.AUTOMATIC else "Required"
            mode = {"addBrokers": added}
            name = unique(prefix_of(scene.cluster, ADDING), [mode, scene.cluster.meta.generation])
            await self._own.create(scene, name, mode, approval)
        layout = layouts.held_layout(scene.cluster, scene.identity, replace(scene.kube, added=()))
        await self._lay_out(layout, scene.kube)

    # Failed directories.

    async def _heal_directories(self, scene: Scene) -> None:
        storage = scene.cluster.spec.storage
        if storage is None or storage.on_directory_failure is not OnDirectoryFailure.DRAIN:
            return
        failed = failed_directories(scene.view)
        prefix = prefix_of(scene.cluster, "heal")
        current = self._own.last(prefix)
        known = all(one.online and one.id in scene.view.described for one in scene.view.brokers.values())
        ended = current is not None and current.status.phase in ENDS and not current.meta.deleting
        if current is not None and ended and known and not failed:
            # The directory is healthy again. If it fails once more, a new Reassignment of this name is needed.
            await self._shared.writer.delete_reassignment(current)
        if failed and (current is None or current.status.phase in ENDS):
            mode = {"drainDirectories": [{"broker": d.broker, "directory": d.path} for d in failed]}
            name = unique(prefix, mode)
            same = self._own.named(prefix, name)
            if same is None:
                await self._own.create(scene, name, mode)
            elif same is current:
                await self._own.retry(scene, same)
            elif not same.stopped:
                # The directories that it drained were not all bad meanwhile. The next cycle creates it anew.
                await self._shared.writer.delete_reassignment(same)

    async def _roll(self, scene: Scene) -> Verdict | None:
        if not scene.kube.exists or scene.kube.deleting or self._refused is not None:
            return None  # a pod would come back as it was
        return await restarts.roll(self._objects, self._shared.events, scene)

    async def _remove_spare_controllers(self, scene: Scene, layout: Layout) -> None:
        spare = spare_controller_claims(scene.kube.controller_claims, layout.controller_pods)
        await claims.mark_drained(self._objects, scene.cluster, spare)
        await self._lay_out(layout, scene.kube)

    async def _tidy(self, scene: Scene) -> None:
        if self._refused is None:
            await self._objects.forget_recreation(scene.cluster)
        configs = {pod.config for pod in scene.kube.all_pods}
        if configs != self._tidied:
            await self._objects.drop_old_configs(scene.layout, scene.kube)
            self._tidied = configs


def _failure_told(error: ApiError | ApiUnavailableError) -> Verdict:
    return unserved(error) or CLUSTER["KubernetesRefused"].says(error=message_of(error).rstrip("."))


def _refusals_told(refusals: LayoutRefusals) -> Verdict:
    error = (refusals.refused or "").rstrip(".")
    if refusals.waiting_to_be_added:
        error += f"; brokers from {min(refusals.waiting_to_be_added)} on are not added before it is mended"
    if refusals.waiting_to_restart:
        kept = _ids(sorted(refusals.waiting_to_restart))
        error += f"; brokers that keep their former node port and configuration: {kept}"
    return CLUSTER["KubernetesRefused"].says(error=error)


def _ids(brokers: Any) -> str:
    return ", ".join(map(str, brokers))
