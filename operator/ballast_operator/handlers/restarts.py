"""Restarts the nodes of a cluster whose pods are outdated, one at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ballast_operator.events import WARNING, Events
from ballast_operator.handlers.kube_objects import KubeObjects
from ballast_operator.kafka_client import KafkaUnavailableError
from ballast_operator.model.quantity import some_of
from ballast_operator.observe import observe_min_insync
from ballast_operator.plan import restarts as plan
from ballast_operator.plan.kube import PodFacts
from ballast_operator.resources import pods
from ballast_operator.resources.layout import Layout
from ballast_operator.resources.names import BROKER_ROLE, CONTROLLER_ROLE, FIRST_CONTROLLER_ID
from ballast_operator.status import CLUSTER, EVENTS, Verdict

if TYPE_CHECKING:
    from ballast_operator.handlers.scene import Scene

SHOWN = 10


def are_due(scene: Scene) -> bool:
    """Whether any node still has to be restarted."""
    layout = scene.layout
    brokers, controllers = (pods.revision(layout, role) for role in (BROKER_ROLE, CONTROLLER_ROLE))
    if plan.outdated_controllers(scene.kube, controllers):
        return True
    return bool(plan.outdated_brokers(scene.kube, brokers, scene.view, layout))


async def roll(objects: KubeObjects, events: Events, scene: Scene) -> Verdict | None:
    """Restart one broker whose pod is outdated, if its partitions allow it; after the brokers, one controller."""
    layout = scene.layout
    wanted = pods.revision(layout, BROKER_ROLE)
    if not plan.outdated_brokers(scene.kube, wanted, scene.view, layout):
        return await _roll_controllers(objects, scene, layout)
    min_insync = await observe_min_insync(scene.kafka, scene.view.topics)
    restart = plan.next_restart(scene.kube, wanted, scene.view, min_insync, layout, scene.quorum)
    if restart.node is not None and scene.view.is_online(restart.node):
        # Ask that broker itself, too: any other may lag, or be cut off and believe that all are in sync.
        try:
            own = await scene.as_told_by(restart.node)
        except KafkaUnavailableError as error:
            return CLUSTER["RollWaits"].says(node=f"broker {restart.node}", error=f"it does not answer: {error}")
        restart = plan.next_restart(scene.kube, wanted, own, min_insync, layout, scene.quorum)
    if restart.node is not None:
        if restart.unprotected:
            unprotected = some_of(restart.unprotected, SHOWN)
            said = EVENTS["Unprotected"].says(node=f"broker {restart.node}", partitions=unprotected)
            events.send(scene.cluster, WARNING, said.reason, said.message)
        at_work = scene.view.is_online(restart.node)
        return await _restart(objects, scene, f"broker {restart.node}", scene.kube.pods[restart.node], at_work, restart)
    if restart.waits is not None:
        return CLUSTER["RollWaits"].says(node=f"broker {restart.next}", error=restart.waits)
    return await _roll_controllers(objects, scene, layout)


async def _restart(
    objects: KubeObjects, scene: Scene, node: str, pod: PodFacts, at_work: bool, restart: plan.Restart
) -> Verdict:
    """A working pod is evicted, so that a drain of a Kubernetes node takes no other one at the same time. While a pod
    is not ready, or a node catches up, the budget allows no eviction anyway; then the pod is deleted at once."""
    there = all(one.ready for one in scene.kube.all_pods)
    if there and at_work and not plan.lagging_nodes(scene.view, scene.quorum):
        if not await objects.evict(scene.cluster, pod):
            return CLUSTER["RollWaits"].says(node=node, error="the disruption budget lets no pod go at the moment")
    else:
        await objects.restart(scene.cluster, pod)
    return CLUSTER["Rolling"].says(node=node, left=restart.left)


async def _roll_controllers(objects: KubeObjects, scene: Scene, layout: Layout) -> Verdict | None:
    """Restart one outdated controller that has a pod of its own."""
    wanted = pods.revision(layout, CONTROLLER_ROLE)
    restart = plan.next_controller_restart(scene.kube, wanted, scene.identity.controllers, scene.quorum)
    if restart.node is not None:
        pod = scene.kube.controllers[restart.node - FIRST_CONTROLLER_ID]
        return await _restart(objects, scene, f"controller {restart.node}", pod, True, restart)
    if restart.waits is not None:
        return CLUSTER["RollWaits"].says(node=f"controller {restart.next}", error=restart.waits)
    return None
