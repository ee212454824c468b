"""Observes the voters of a cluster's metadata quorum, and brings them one step closer to the spec.

`plan.voters` decides which step. Which nodes run as controllers is recorded in the identity first; the layout and the
rolling restart then bring it about.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ballast_operator.apply import quorum as quorum_actions
from ballast_operator.handlers.kube_objects import KubeObjects
from ballast_operator.kafka_client import KafkaConnection
from ballast_operator.model.cluster import KafkaCluster
from ballast_operator.model.kafka import KafkaView, Outcome
from ballast_operator.model.quorum import DYNAMIC, QuorumView
from ballast_operator.observe import KRAFT_VERSION, observe_controllers, observe_quorum
from ballast_operator.plan import voters as plan
from ballast_operator.plan.voters import Kind, Step
from ballast_operator.resources.layout import Identity
from ballast_operator.resources.names import CONTROLLER_LISTENER, CONTROLLER_PORT
from ballast_operator.status import CLUSTER, Verdict

if TYPE_CHECKING:
    from ballast_operator.handlers.scene import Scene

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Went:
    """What to report, and whether something was changed: then all else waits until that has been observed."""

    verdict: Verdict | None = None
    acted: bool = False


async def observe(kafka: KafkaConnection, identity: Identity, view: KafkaView) -> tuple[QuorumView | None, KafkaView]:
    quorum = await observe_quorum(kafka)
    if identity.dedicated or not identity.dynamic:
        return quorum, view
    online = [broker.id for broker in view.brokers.values() if broker.online]
    return quorum, replace(view, controllers=await observe_controllers(kafka, online))


async def bring(objects: KubeObjects, scene: Scene, restarts_due: Callable[[], bool]) -> Went:
    """Take one step; `restarts_due` tells whether nodes still have to be restarted."""
    cluster, identity, quorum = scene.cluster, scene.identity, scene.quorum
    if quorum is None:
        return Went()
    wanted = plan.wanted_voters(cluster, identity, plan.staying_brokers(cluster, scene.kube, scene.view))
    step = plan.next_step(wanted, identity, quorum, plan.running(identity, scene.kube, scene.view), restarts_due)
    if step is None:
        return Went(_other_mode(cluster, identity))
    if step.kind is Kind.WAIT and not step.text:
        return Went()  # it waits for restarts, which are reported themselves
    outcome = await _carry_out(objects, scene, quorum, step) if step.acts else Outcome()
    said = {"voters": _ids(quorum.voters), "wanted": _ids(wanted)}
    if step.kind is Kind.HELD or (step.kind is Kind.UPGRADE and not outcome.ok):
        return Went(CLUSTER["VotersHeld"].says(**said, error=_why(outcome) or step.text))
    if step.acts:
        log.info("cluster %s: %s: %s", cluster.key, step.text, _why(outcome) or "done")
    more = f" ({_why(outcome)})" if _why(outcome) else ""
    return Went(CLUSTER["VotersChanging"].says(**said, step=step.text + more), step.acts)


async def _carry_out(objects: KubeObjects, scene: Scene, quorum: QuorumView, step: Step) -> Outcome:
    kafka, cluster_id = scene.kafka, scene.identity.cluster_id
    if step.kind is Kind.UPGRADE:
        return await quorum_actions.finalize_feature(kafka, KRAFT_VERSION, DYNAMIC)
    if step.kind is Kind.ASSIGN:
        dynamic = quorum.version >= DYNAMIC
        await objects.change_identity(
            scene.cluster, scene.identity, replace(scene.identity, controllers=step.nodes, dynamic=dynamic)
        )
        return Outcome()
    assert step.directory is not None
    if step.kind is Kind.REMOVE:
        return await quorum_actions.remove_voter(kafka, cluster_id, step.node, step.directory)
    host = plan.host_of(scene.cluster, quorum, scene.kube, step.node)
    place = (CONTROLLER_LISTENER, host, CONTROLLER_PORT)
    return await quorum_actions.add_voter(kafka, cluster_id, step.node, step.directory, *place)


def _other_mode(cluster: KafkaCluster, identity: Identity) -> Verdict | None:
    if not plan.other_mode(cluster, identity):
        return None
    mode = "Dedicated" if identity.dedicated else "Combined"
    return CLUSTER["ControllersElsewhere"].says(mode=mode)


def _why(outcome: Outcome) -> str:
    return "" if outcome.ok else outcome.message.rstrip(".") or str(outcome.error)


def _ids(nodes: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(nodes)))
