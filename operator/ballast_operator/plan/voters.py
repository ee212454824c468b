"""Decides which nodes should be voters of the metadata quorum, and the next step on the way there. PURE.

Every step follows from the state of the quorum and the spec, so the successor of a killed operator goes on. Voters
change one at a time; no change leaves them without a majority that follows the metadata log, and a node runs as a
controller for as long as it is a voter.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum
from uuid import UUID

from ballast_operator.model.cluster import ControllerMode, KafkaCluster
from ballast_operator.model.kafka import KafkaView
from ballast_operator.model.quorum import DYNAMIC, Member, QuorumView
from ballast_operator.plan.contents import replicas_on
from ballast_operator.plan.kube import KubeFacts
from ballast_operator.plan.layouts import excess_brokers
from ballast_operator.resources import names
from ballast_operator.resources.layout import Identity, odd, voters_for
from ballast_operator.resources.names import CONTROLLER_ROLE, FIRST_CONTROLLER_ID


class Kind(Enum):
    UPGRADE = "upgrade"
    """Make the quorum dynamic: from then on the metadata log says who votes."""
    ASSIGN = "assign"
    """Let these nodes run as controllers, which find the quorum by asking the others."""
    ADD = "add"
    REMOVE = "remove"
    WAIT = "wait"
    HELD = "held"
    """It waits for something that does not come by itself."""


@dataclass(frozen=True, slots=True)
class Step:
    kind: Kind
    text: str = ""
    node: int = -1
    directory: UUID | None = None
    nodes: tuple[int, ...] = ()

    @property
    def acts(self) -> bool:
        return self.kind not in (Kind.WAIT, Kind.HELD)


def other_mode(cluster: KafkaCluster, identity: Identity) -> bool:
    """Whether the spec asks for another mode of controllers than that in which the cluster was created."""
    controllers = cluster.spec.controllers
    return controllers is not None and (controllers.mode is ControllerMode.DEDICATED) is not identity.dedicated


def staying_brokers(cluster: KafkaCluster, kube: KubeFacts, view: KafkaView) -> int:
    """How many brokers may be voters: leaving ones may as long as they hold replicas, since they may have to stay."""
    excess = excess_brokers(cluster, kube)
    return cluster.spec.brokers if not excess or replicas_on(view, excess) == 0 else kube.replicas


def wanted_voters(cluster: KafkaCluster, identity: Identity, brokers: int) -> tuple[int, ...]:
    """If the spec does not say how many, they stay as they are, except that leaving brokers stop being voters."""
    controllers = cluster.spec.controllers
    if controllers is not None and not other_mode(cluster, identity):
        return voters_for(controllers, brokers)
    if identity.dedicated:
        return identity.controllers
    return tuple(range(odd(min(len(identity.controllers), brokers))))


def running(identity: Identity, kube: KubeFacts, view: KafkaView) -> frozenset[int]:
    """The nodes that run as controllers; dedicated ones can run as nothing else."""
    if identity.dedicated:
        return frozenset(FIRST_CONTROLLER_ID + ordinal for ordinal, pod in kube.controllers.items() if pod.ready)
    return frozenset(node for node, is_one in view.controllers.items() if is_one)


def host_of(cluster: KafkaCluster, quorum: QuorumView, kube: KubeFacts, node: int) -> str:
    """The host of a new voter, in the form that the others use: its DNS name, or its address where pods have no names
    that resolve. As a voter it updates that itself."""
    if any(host != names.node_host(cluster, voter) for voter, host in quorum.hosts.items()):
        ordinal, role = names.place_of(node)
        address = (kube.controllers if role == CONTROLLER_ROLE else kube.pods)[ordinal].address
        if address is not None:
            return address
    return names.node_host(cluster, node)


def spare_controllers(identity: Identity, kube: KubeFacts, quorum: QuorumView | None) -> bool:
    """Whether the last of the controllers' pods may go: none of them is a voter, and that is committed."""
    if quorum is None or not identity.dedicated or (quorum.version >= DYNAMIC and not quorum.settled):
        return False
    most = max((*identity.controllers, *quorum.voters)) - FIRST_CONTROLLER_ID
    return kube.controller_replicas > most + 1


def next_step(
    wanted: Collection[int],
    identity: Identity,
    quorum: QuorumView,
    running: Collection[int],
    restarts_due: Callable[[], bool],
) -> Step | None:
    """`running` are the nodes that run as controllers; `restarts_due` tells whether any node still has to be restarted,
    and is called only where a change of voters has to wait for that."""
    voting = set(quorum.voters)
    if quorum.version >= DYNAMIC and (not identity.dynamic or not voting <= {*identity.controllers}):
        return _assign({*identity.controllers, *voting})
    others = _on_another_disk(quorum, wanted)
    if voting == set(wanted) and not others:
        return _end(wanted, identity, quorum)
    if quorum.version < DYNAMIC:
        return Step(Kind.UPGRADE, "kraft.version becomes 1")
    if not set(wanted) <= {*identity.controllers}:
        return _assign({*identity.controllers, *wanted})
    gone = [*others, *(m for node, m in quorum.voters.items() if node not in wanted and quorum.is_silent(m))]
    if gone:
        return _removal(max(gone), quorum)
    if len(voting) % 2 and restarts_due():
        return Step(Kind.WAIT)
    missing = sorted(set(wanted) - voting)
    if missing:
        return _addition(missing, quorum, running)
    leaving = [member for node, member in quorum.voters.items() if node not in wanted]
    # The leader goes last: it can be removed, but that causes an election.
    return _removal(max(leaving, key=lambda member: (member.node != quorum.leader, member.node)), quorum)


def _assign(nodes: Collection[int]) -> Step:
    ids = tuple(sorted(nodes))
    return Step(Kind.ASSIGN, f"nodes {_named(ids)} are to run as controllers", nodes=ids)


def _end(wanted: Collection[int], identity: Identity, quorum: QuorumView) -> Step | None:
    """Removed voters go on as controllers until their removal is committed."""
    if set(wanted) == {*identity.controllers}:
        return None
    if quorum.version >= DYNAMIC and not quorum.settled:
        return Step(Kind.WAIT, "the last change is being committed")
    return _assign(wanted)


def _on_another_disk(quorum: QuorumView, wanted: Collection[int]) -> list[Member]:
    """Voters that are silent while their node follows the log with another disk: the voter's own is lost."""
    return [
        voter
        for node, voter in quorum.voters.items()
        if node in wanted and quorum.is_silent(voter) and _observer(node, quorum) is not None
    ]


def _observer(node: int, quorum: QuorumView) -> Member | None:
    found = [member for member in quorum.observers if member.node == node and quorum.follows(member)]
    return max(found, key=lambda member: member.fetched_ms, default=None)


def _addition(missing: Collection[int], quorum: QuorumView, running: Collection[int]) -> Step:
    for node in missing:
        observer = _observer(node, quorum)
        if observer is not None and node in running:
            return Step(Kind.ADD, f"controller {node} is being added", node, observer.directory)
    node = min(missing)
    what = "to follow the metadata log" if node in running else "to run as a controller"
    return Step(Kind.WAIT, f"controller {node} has {what}")


def _removal(member: Member, quorum: QuorumView) -> Step:
    left = set(quorum.voters) - {member.node}
    follow = left & quorum.in_step
    if len(follow) <= len(left) // 2:
        lacking = _named(sorted(left - follow))
        text = f"controller {member.node} stays until controllers {lacking} follow: of those that remain too few would"
        return Step(Kind.HELD, text)
    return Step(Kind.REMOVE, f"controller {member.node} is being removed", member.node, member.directory)


def _named(nodes: Collection[int]) -> str:
    return ", ".join(map(str, nodes))
