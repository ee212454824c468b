"""What a cluster that the operator runs needs next: its layout, what may be removed, which broker restarts. PURE.

Nothing that holds a replica is ever removed, and nothing is removed while it is not known what it holds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile

from ballast_operator.model.cluster import KafkaCluster, Volume
from ballast_operator.model.kafka import DirectoryId, KafkaView, ReplicaId, TopicPartition
from ballast_operator.model.quantity import parse_quantity, some_of
from ballast_operator.model.quorum import QuorumView
from ballast_operator.model.times import seconds_of
from ballast_operator.plan.kube import ClaimFacts, KubeFacts, NodeFacts, PodFacts
from ballast_operator.resources import names
from ballast_operator.resources.layout import Identity, Layout
from ballast_operator.resources.names import FIRST_CONTROLLER_ID, METADATA_VOLUME

SHOWN = 10
# deletionTimestamp has the time of grace in it already.
LOST_SECONDS = 60.0
# What takes longer to be let in by the controller has a trouble.
COMING_SECONDS = 30.0


def held_layout(cluster: KafkaCluster, identity: Identity, kube: KubeFacts) -> Layout:
    """The layout that loses nothing: as the spec says, plus the brokers and volumes that are there already."""
    brokers = max(cluster.spec.brokers, kube.replicas)
    wanted = {volume.name: volume for volume in cluster.spec.volumes}
    # Volumes keep the order that they have: another order of log.dirs alone is no reason to restart a broker.
    there = tuple(wanted.get(name, volume) for name, volume in kube.volumes.items())
    kept_out = {claim.volume for claim in claims_of_other_classes(cluster, kube)}
    new_volumes = tuple(volume for volume in cluster.spec.volumes if volume.name not in {*kube.volumes, *kept_out})
    # Nodes look for the metadata log in the first of them. Without a StatefulSet only the identity tells which it is.
    ordered = sorted((*there, *new_volumes), key=lambda volume: volume.name != identity.metadata)
    volumes = tuple(volume for volume in ordered if not _keeps_pods_away(volume.name, kube, brokers))
    new = _new_brokers(kube, brokers) if kube.exists and kube.replicas else []
    added = tuple(sorted({*kube.added, *new}))
    layout = Layout(
        cluster, identity, brokers, volumes, added, kube.racks, kube.principal, kube.controller_replicas, kube.tokens
    )
    return without_added(layout, kube, kube.not_added)


def without_added(layout: Layout, kube: KubeFacts, kept_out: Collection[int]) -> Layout:
    """The layout without these new brokers and those that come after them: a StatefulSet has them in their order."""
    brokers = max(kube.replicas, min((*kept_out, layout.brokers))) if kept_out else layout.brokers
    return replace(layout, brokers=brokers, added=tuple(broker for broker in layout.added if broker < brokers))


def with_present(layout: Layout, kube: KubeFacts) -> Layout:
    """The layout with all nodes that StatefulSets have as yet: what they read has to be there for as long."""
    brokers, controllers = max(layout.brokers, kube.replicas), max(layout.controllers, kube.controller_replicas)
    return replace(layout, brokers=brokers, controllers=controllers)


def _new_brokers(kube: KubeFacts, brokers: int) -> list[int]:
    """Those that the set is to get and never had: one whose claims were not drained was only taken out of it, by
    somebody who has scaled the set itself."""
    known = {claim.ordinal for claim in kube.claims if not claim.drained and not claim.deleting}
    return [ordinal for ordinal in range(kube.replicas, brokers) if ordinal not in known]


def _keeps_pods_away(volume: str, kube: KubeFacts, brokers: int) -> bool:
    """Whether a volume has to wait until pods that are gone are back without it.

    A StatefulSet looks at its pods in the order of their numbers and gets no further than the first one that lacks a
    claim of its templates. A pod of a higher number that is gone never had the volume, since `next_restart` keeps to
    that order.
    """
    lacking = [ordinal for ordinal, pod in kube.pods.items() if volume not in pod.claims]
    gone = [ordinal for ordinal in range(brokers) if ordinal not in kube.pods]
    return bool(lacking and gone) and min(gone) > min(lacking)


def wanted_layout(
    cluster: KafkaCluster, identity: Identity, kube: KubeFacts, brokers: int, volumes: Collection[str]
) -> Layout:
    """The layout with so many brokers and only these of the volumes that are leaving."""
    held = held_layout(cluster, identity, kube)
    wanted = {volume.name for volume in cluster.spec.volumes}
    kept = tuple(volume for volume in held.volumes if volume.name in wanted or volume.name in volumes)
    return replace(held, brokers=brokers, volumes=kept)


def excess_brokers(cluster: KafkaCluster, kube: KubeFacts) -> tuple[int, ...]:
    return tuple(range(cluster.spec.brokers, kube.replicas))


def leaving_volumes(cluster: KafkaCluster, kube: KubeFacts) -> tuple[str, ...]:
    wanted = {volume.name for volume in cluster.spec.volumes}
    return tuple(name for name in kube.volumes if name not in wanted)


def given_up(cluster: KafkaCluster, kube: KubeFacts, brokers: Collection[int]) -> tuple[set[int], tuple[str, ...]]:
    """(brokers, volumes) that are to take nothing new: what leaves, and what the set has lost while pods still use it.

    What is put on a volume after it was found empty would be lost with it when its pod is restarted.
    """
    mounted = {volume for pod in kube.pods.values() for volume in pod.claims}
    wanted = {volume.name for volume in cluster.spec.volumes}
    return {one for one in brokers if one >= cluster.spec.brokers}, tuple(sorted((mounted | {*kube.volumes}) - wanted))


def metadata_volume_leaves(cluster: KafkaCluster, identity: Identity, kube: KubeFacts) -> str | None:
    """The volume with the metadata log, if the spec no longer has it."""
    if cluster.spec.metadata_volume is not None or not kube.volumes:
        return None
    first = identity.metadata or next(iter(kube.volumes))
    return None if any(volume.name == first for volume in cluster.spec.volumes) else first


def replicas_on(view: KafkaView, brokers: Collection[int]) -> int | None:
    """How many replicas these brokers hold or are about to get; None if that is not known for sure."""
    if view.topic_errors or not view.brokers:
        return None
    chosen = set(brokers)
    held = sum(
        broker in chosen
        for topic in view.topics.values()
        for part in topic.partitions.values()
        for broker in part.replicas
    )
    arriving = sum(broker in chosen for ongoing in view.ongoing.values() for broker in ongoing.adding)
    return held + arriving


def directories_of(
    cluster: KafkaCluster, view: KafkaView, volumes: Collection[str], brokers: Collection[int]
) -> dict[DirectoryId, str]:
    """The log directories that lie on these volumes, with the volume's name."""
    found = {}
    for directory in view.directories:
        pod = names.pod_name(cluster, directory.broker)
        volume = names.volume_of(directory.path, pod, tuple(volumes))
        if volume is not None and directory.broker in brokers:
            found[directory] = volume
    return found


def paths_of(broker: int, directories: Iterable[DirectoryId]) -> str | None:
    """Those of one broker, as its configuration lists them."""
    return ",".join(sorted(d.path for d in directories if d.broker == broker)) or None


def replicas_in(view: KafkaView, directories: Collection[DirectoryId], brokers: Collection[int]) -> int | None:
    """How many logs lie in these directories or are moving there; None unless all these brokers told.

    What a broker holds and does not describe lies, for all that is known, in a directory of it that failed.
    """
    chosen = set(directories)
    failed = {d.broker for d in chosen if d in view.directories and not view.directories[d].online}
    if not set(brokers) <= view.described or (failed and view.topic_errors):
        return None
    hidden = sum(
        ReplicaId(name, index, broker) not in view.logs
        for name, topic in view.topics.items()
        for index, part in topic.partitions.items()
        for broker in failed.intersection(part.replicas)
    )
    return hidden + sum(
        DirectoryId(replica.broker, path) in chosen
        for replica, log in view.logs.items()
        for path in (log.path, log.future_path)
        if path is not None
    )


# Restarts.


@dataclass(frozen=True, slots=True)
class Restart:
    """Which broker to restart now, or why none may be; `left` counts those that still have to be."""

    broker: int | None = None
    waits: str | None = None
    next: int | None = None
    left: int = 0
    unprotected: tuple[str, ...] = ()


def outdated_brokers(kube: KubeFacts, revision: str, view: KafkaView, layout: Layout) -> list[PodFacts]:
    """Pods of another revision, those that somebody wants restarted, those whose broker has told another rack than that
    of its node, and those that are to run as controllers and do not."""
    return [
        pod
        for pod in kube.pods.values()
        if pod.deleting_since is None
        and (
            _is_outdated(pod, revision, kube.restarted_at)
            or _in_other_rack(pod, kube, view)
            or _lacks_its_role(pod, view, layout)
        )
    ]


def outdated_controllers(kube: KubeFacts, revision: str) -> list[PodFacts]:
    """Of those with pods of their own; also those that are on their way out."""
    return [pod for pod in kube.controllers.values() if _is_outdated(pod, revision, kube.controllers_restarted_at)]


def _is_outdated(pod: PodFacts, revision: str, restart_asked: str | None) -> bool:
    return pod.revision != revision or (restart_asked is not None and pod.restarted_at != restart_asked)


def _in_other_rack(pod: PodFacts, kube: KubeFacts, view: KafkaView) -> bool:
    broker = view.brokers.get(pod.ordinal)
    return pod.ready and broker is not None and broker.online and broker.rack != kube.racks.get(pod.ordinal)


def _lacks_its_role(pod: PodFacts, view: KafkaView, layout: Layout) -> bool:
    """Who votes no more goes on as a controller until something else restarts it: that does no harm."""
    identity = layout.identity
    to_be = identity.dynamic and pod.ordinal in identity.voters
    return to_be and pod.ready and view.controllers.get(pod.ordinal) is False


def next_controller_restart(
    kube: KubeFacts, revision: str, voters: Collection[int], quorum: QuorumView | None
) -> Restart:
    """Of controllers with pods of their own: one at a time while all are there and follow, the active one last."""
    losing = {claim.pod for claim in claims_going(kube)}
    outdated = [
        pod for pod in outdated_controllers(kube, revision) if pod.deleting_since is None and pod.name not in losing
    ]
    if not outdated:
        return Restart()
    ids = {FIRST_CONTROLLER_ID + ordinal: pod for ordinal, pod in kube.controllers.items()}
    follow, active = (quorum.in_step, quorum.leader) if quorum is not None else (frozenset[int](), None)

    def order(pod: PodFacts) -> tuple[bool, bool, bool, int]:
        node = FIRST_CONTROLLER_ID + pod.ordinal
        return pod.ready, node in follow, node == active, pod.ordinal

    chosen = min(outdated, key=order)
    node, left = FIRST_CONTROLLER_ID + chosen.ordinal, len(outdated) - 1
    if not chosen.ready and node not in follow:
        return Restart(node, left=left)

    def is_missed(voter: int) -> bool:
        return voter not in ids or not (ids[voter].ready or (not chosen.ready and _works(ids[voter], voter in follow)))

    absent = sorted(voter for voter in voters if voter != node and is_missed(voter))
    if absent:
        return Restart(waits=f"controller {absent[0]} is not ready", next=node, left=left)
    waits = "nobody tells which controllers follow" if quorum is None else _left_behind(node, quorum)
    if waits is not None and len(voters) > 1:
        return Restart(waits=waits, next=node, left=left)
    return Restart(node, left=left)


def _works(pod: PodFacts, answers: bool) -> bool:
    """That a pod is not ready may be the kubelet's silence, or a probe's: what it runs goes on for Kafka."""
    return answers and pod.deleting_since is None


def _left_behind(node: int, quorum: QuorumView) -> str | None:
    """Why a node has to stay that follows and votes: without it there might be no majority of those that do. A pod is
    ready as soon as it listens, and may have a long way to go yet."""
    behind = sorted(set(quorum.voters) - quorum.in_step)
    if not behind or node in behind or node not in quorum.voters:
        return None
    return f"controller {behind[0]} does not follow the metadata log"


def racks_unknown(cluster: KafkaCluster, kube: KubeFacts, nodes: Mapping[str, NodeFacts]) -> tuple[list[int], str]:
    """(brokers that run and have no rack, why)."""
    if cluster.spec.rack is None:
        return [], ""
    lacking = [ordinal for ordinal, pod in sorted(kube.pods.items()) if pod.node and ordinal not in kube.racks]
    for ordinal in lacking:
        node = nodes.get(kube.pods[ordinal].node or "")
        if node is not None:
            return lacking, node.error or f"node {node.name} has no label {cluster.spec.rack.topology_key}"
    return [], ""


def lost_pods(kube: KubeFacts, now_seconds: float) -> list[PodFacts]:
    """Pods whose end is long due: their node does not answer, so nobody can know whether they still run."""
    return [pod for pod in kube.all_pods if pod.node and not pod.held_by and _is_overdue(pod, now_seconds)]


def kept_pods(kube: KubeFacts, now_seconds: float) -> list[PodFacts]:
    """Pods that have ended, and which somebody's finalizers keep."""
    return [pod for pod in kube.all_pods if pod.held_by and _is_overdue(pod, now_seconds)]


def _is_overdue(pod: PodFacts, now_seconds: float) -> bool:
    return pod.deleting_since is not None and now_seconds - seconds_of(pod.deleting_since) > LOST_SECONDS


def claims_going(kube: KubeFacts) -> list[ClaimFacts]:
    """Claims of pods that run, which these will not find again: deleted by somebody, and there only until their pod
    ends, or without their volume."""
    at_work = {pod.name: {*pod.claims.values(), f"{METADATA_VOLUME}-{pod.name}"} for pod in kube.all_pods if pod.ready}
    return [one for one in kube.all_claims if (one.deleting or one.lost) and one.name in at_work.get(one.pod, ())]


def comes(pod: PodFacts, view: KafkaView, now_seconds: float) -> bool:
    """Whether its broker is about to be online: a pod is ready as soon as it listens."""
    if view.is_online(pod.ordinal) or pod.ready_since is None:
        return False
    return now_seconds - seconds_of(pod.ready_since) < COMING_SECONDS


def is_up(pod: PodFacts, view: KafkaView, now_seconds: float) -> bool:
    """A broker that went down a moment ago still counts as online in Kafka; its pod tells sooner, if it can tell."""
    return view.is_online(pod.ordinal) if pod.unheard else pod.ready and not comes(pod, view, now_seconds)


def is_on_its_way(broker: int, kube: KubeFacts, view: KafkaView, now_seconds: float) -> bool:
    """Whether one that does not answer is about to; a pod that stays away is told as such."""
    pod = kube.pods.get(broker)
    if pod is None or not pod.ready:
        return pod is None or pod.trouble is None
    return view.is_online(broker) or comes(pod, view, now_seconds)


def next_restart(
    kube: KubeFacts,
    revision: str,
    view: KafkaView,
    min_insync: Mapping[str, int],
    layout: Layout,
    quorum: QuorumView | None = None,
) -> Restart:
    """One broker at a time: those that do not work first, the active controller last.

    While pods lack a volume of the layout, by number: their StatefulSet makes no pod behind one that lacks it. What is
    not to be restarted stays, and then so does what comes behind it.
    """
    pods = [kube.pods[ordinal] for ordinal in sorted(kube.pods) if ordinal < layout.brokers]
    outdated = [pod for pod in outdated_brokers(kube, revision, view, layout) if pod.ordinal < layout.brokers]
    if not outdated:
        return Restart()
    losing = {claim.pod for claim in claims_going(kube)}

    def stays(pod: PodFacts) -> bool:
        return pod.ordinal in kube.not_restarted or pod.name in losing

    if any(not set(layout.volume_names) <= set(pod.claims) for pod in outdated):
        outdated.sort(key=lambda pod: pod.ordinal)
        outdated = list(takewhile(lambda pod: not stays(pod), outdated))
    else:
        outdated = [pod for pod in outdated if not stays(pod)]
        outdated.sort(
            key=lambda pod: (
                pod.ready, view.is_online(pod.ordinal), pod.ordinal == view.controller, pod.ordinal
            )
        )  # fmt: skip
    if not outdated:
        return Restart()
    chosen, left = outdated[0], len(outdated) - 1
    if not chosen.ready and not view.is_online(chosen.ordinal):
        return Restart(chosen.ordinal, left=left)

    def is_missed(pod: PodFacts) -> bool:
        return not (pod.ready or (not chosen.ready and _works(pod, view.is_online(pod.ordinal))))

    absent = [pod.name for pod in pods if is_missed(pod)] + _missing_pods(kube, layout.brokers)
    if absent:
        are = "is" if len(absent) == 1 else "are"
        return Restart(waits=f"{some_of(absent, SHOWN)} {are} not ready", next=chosen.ordinal, left=left)
    # A pod is ready as soon as it listens; that the broker is back is what the controller says.
    fenced = [pod.ordinal for pod in pods if pod.ordinal != chosen.ordinal and not view.is_online(pod.ordinal)]
    if fenced and view.is_online(chosen.ordinal):
        return Restart(waits=f"broker {fenced[0]} is not online", next=chosen.ordinal, left=left)
    reason, unprotected = _endangered(chosen, view, min_insync)
    if quorum is not None:
        reason = _left_behind(chosen.ordinal, quorum) or reason
    if reason is not None:
        return Restart(waits=reason, next=chosen.ordinal, left=left, unprotected=unprotected)
    return Restart(chosen.ordinal, left=left, unprotected=unprotected)


def _missing_pods(kube: KubeFacts, brokers: int) -> list[str]:
    return [f"the pod of broker {ordinal}" for ordinal in range(brokers) if ordinal not in kube.pods]


def _endangered(pod: PodFacts, view: KafkaView, min_insync: Mapping[str, int]) -> tuple[str | None, tuple[str, ...]]:
    """(why the broker may not go down, partitions that go down with it whatever is waited for). Where its pod is not
    ready only what it is in sync with counts: the restart may be what it needs to come to the rest."""
    broker = pod.ordinal
    unprotected: list[str] = []
    if view.topic_errors:
        return f"topic {next(iter(view.topic_errors))} cannot be read", ()
    for name, topic in view.topics.items():
        least = min_insync.get(name)
        for index, part in topic.partitions.items():
            if broker not in (part.replicas if pod.ready else part.isr):
                continue
            lagging = [b for b in part.replicas if b not in part.isr and b != broker and view.is_online(b)]
            if lagging:
                return f"broker {lagging[0]} is catching up with {name}-{index}", ()
            if least is None:
                return f"min.insync.replicas of {name} is not known", ()
            if len(part.replicas) <= least:
                unprotected.append(f"{name}-{index}")
            elif broker in part.isr and len(part.isr) - 1 < least:
                return f"{name}-{index} would have {len(part.isr) - 1} replicas in sync, fewer than {least}", ()
    return None, tuple(unprotected)


def lagging_nodes(view: KafkaView, quorum: QuorumView | None) -> frozenset[int]:
    """Those whose replicas, or whose copy of the metadata log, are not where the others' are: a pod is ready long
    before. What is just being moved to a broker nobody misses yet."""
    found = set() if quorum is None else set(quorum.voters) - quorum.in_step
    for name, topic in view.topics.items():
        for index, part in topic.partitions.items():
            if len(part.isr) < len(part.replicas):
                ongoing = view.ongoing.get(TopicPartition(name, index))
                found |= set(part.replicas).difference(part.isr, ongoing.adding if ongoing else ())
    return frozenset(found)


# Claims.


def claims_to_grow(layout: Layout, kube: KubeFacts) -> dict[str, str]:
    """Claims that are smaller than the spec says, with the size that they should have."""
    sizes = {volume.name: volume.size for volume in layout.volumes}
    if layout.cluster.spec.metadata_volume is not None:
        sizes[names.METADATA_VOLUME] = layout.cluster.spec.metadata_volume.size
    return {
        claim.name: sizes[claim.volume]
        for claim in kube.all_claims
        if claim.volume in sizes
        and not claim.deleting
        and parse_quantity(claim.size) < parse_quantity(sizes[claim.volume])
    }


def growing_claims(layout: Layout, kube: KubeFacts) -> list[ClaimFacts]:
    """Those in use that are not as large yet as was asked for."""
    unused = {claim.name for claim in unused_claims(layout, kube)}
    return [claim for claim in kube.all_claims if claim.growing and not claim.deleting and claim.name not in unused]


def unused_claims(layout: Layout, kube: KubeFacts) -> list[ClaimFacts]:
    """Claims that no node of the layout needs and no pod uses."""
    in_use = {claim for pod in kube.pods.values() for claim in pod.claims.values()}
    pods = {names.pod_name(layout.cluster, ordinal) for ordinal in range(layout.brokers)}
    volumes = set(layout.volume_names) | {names.METADATA_VOLUME}
    of_brokers = [
        claim
        for claim in kube.claims
        if claim.name not in in_use and not claim.deleting and (claim.pod not in pods or claim.volume not in volumes)
    ]
    there = {pod.name for pod in kube.controllers.values()}
    gone = spare_controller_claims(kube.controller_claims, layout.controller_pods)
    return of_brokers + [claim for claim in gone if claim.pod not in there and not claim.deleting]


def spare_controller_claims(claims: Iterable[ClaimFacts], controllers: int) -> list[ClaimFacts]:
    """Those of controllers that are not among the first so many."""
    return [claim for claim in claims if claim.ordinal >= controllers]


def claims_to_delete(layout: Layout, kube: KubeFacts, view: KafkaView) -> list[ClaimFacts]:
    """Unused claims that were drained, but for those of a broker that has replicas, whatever became of its pod.

    That nothing uses a claim does not say that nothing is in it: its StatefulSet may have been deleted by somebody.
    What a controller had, the others have.
    """
    of_controllers = {claim.name for claim in kube.controller_claims}
    return [
        claim
        for claim in unused_claims(layout, kube)
        if claim.drained
        and (claim.name in of_controllers or claim.ordinal < layout.brokers or replicas_on(view, [claim.ordinal]) == 0)
    ]


def claims_in_use_again(layout: Layout, kube: KubeFacts) -> list[ClaimFacts]:
    """Claims that were drained and are wanted again: nobody knows any more what is in them."""
    spec = layout.cluster.spec
    wanted = {volume.name for volume in spec.volumes}.intersection(layout.volume_names) | {names.METADATA_VOLUME}
    of_brokers = [claim for claim in kube.claims if claim.volume in wanted and claim.ordinal < spec.brokers]
    of_controllers = [claim for claim in kube.controller_claims if claim.ordinal < layout.controller_pods]
    return [claim for claim in (*of_brokers, *of_controllers) if claim.drained]


def claims_of_other_classes(cluster: KafkaCluster, kube: KubeFacts) -> list[ClaimFacts]:
    """What keeps a volume out that was removed and is to come back on another storage class.

    A StatefulSet takes a claim of the right name as it is: the data would go on lying where it was not to lie any more.
    """
    if not kube.volumes:
        return []
    asked = {one.name: one.storage_class_name for one in cluster.spec.volumes if one.name not in kube.volumes}
    defaults = _default_classes(cluster, kube)

    def fits(claim: ClaimFacts) -> bool:
        wanted = asked[claim.volume]
        return claim.storage_class in (defaults if wanted is None else {wanted})

    return [claim for claim in kube.claims if claim.volume in asked and not fits(claim)]


def _default_classes(cluster: KafkaCluster, kube: KubeFacts) -> set[str | None]:
    """What volumes get that ask for no class, as far as the claims of such volumes tell; nothing else tells it us."""
    plain = {one.name for one in cluster.spec.volumes if one.storage_class_name is None}.intersection(kube.volumes)
    metadata = cluster.spec.metadata_volume
    if metadata is not None and metadata.storage_class_name is None:
        plain.add(names.METADATA_VOLUME)
    return {claim.storage_class for claim in kube.all_claims if claim.volume in plain} | {None}


def same_templates(wanted: Collection[Volume], found: Mapping[str, Volume]) -> bool:
    """Whether a StatefulSet's claim templates, which cannot be changed, are as wanted."""
    sizes = {volume.name: parse_quantity(volume.size) for volume in wanted}
    return sizes == {name: parse_quantity(volume.size) for name, volume in found.items()}
