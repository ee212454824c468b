"""Decides which node of a cluster that the operator runs restarts next, or why none may. PURE."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import takewhile

from ballast_operator.model.kafka import KafkaView, TopicPartition
from ballast_operator.model.quantity import counted, some_of
from ballast_operator.model.quorum import QuorumView
from ballast_operator.plan.claims import claims_going
from ballast_operator.plan.kube import KubeFacts, PodFacts
from ballast_operator.resources.layout import Layout
from ballast_operator.resources.names import FIRST_CONTROLLER_ID

SHOWN = 10


@dataclass(frozen=True, slots=True)
class Restart:
    """Which node to restart now, or why none may be; `left` counts those that still have to be."""

    node: int | None = None
    waits: str | None = None
    next: int | None = None
    left: int = 0
    unprotected: tuple[str, ...] = ()


def outdated_brokers(kube: KubeFacts, revision: str, view: KafkaView, layout: Layout) -> list[PodFacts]:
    """Pods of another revision, those that somebody wants restarted, those whose broker registered with another rack
    than that of its node, and those that should run as controllers but do not."""
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
    """The outdated pods of dedicated controllers, including those that are being deleted."""
    return [pod for pod in kube.controllers.values() if _is_outdated(pod, revision, kube.controllers_restarted_at)]


def _is_outdated(pod: PodFacts, revision: str, restart_asked: str | None) -> bool:
    return pod.revision != revision or (restart_asked is not None and pod.restarted_at != restart_asked)


def _in_other_rack(pod: PodFacts, kube: KubeFacts, view: KafkaView) -> bool:
    broker = view.brokers.get(pod.ordinal)
    return pod.ready and broker is not None and broker.online and broker.rack != kube.racks.get(pod.ordinal)


def _lacks_its_role(pod: PodFacts, view: KafkaView, layout: Layout) -> bool:
    """Whether it should run as a controller but does not. The reverse does no harm: a former voter goes on as a
    controller until something else restarts it."""
    identity = layout.identity
    to_be = identity.dynamic and pod.ordinal in identity.controllers
    return to_be and pod.ready and view.controllers.get(pod.ordinal) is False


def next_restart(
    kube: KubeFacts,
    revision: str,
    view: KafkaView,
    min_insync: Mapping[str, int],
    layout: Layout,
    quorum: QuorumView | None = None,
) -> Restart:
    """One broker at a time: those that do not work first, the active controller last.

    While pods lack a volume of the layout, by ordinal: their StatefulSet creates no pod behind one that lacks it. A pod
    that must not restart then also holds up those behind it.
    """
    pods = [kube.pods[ordinal] for ordinal in sorted(kube.pods) if ordinal < layout.brokers]
    outdated = [pod for pod in outdated_brokers(kube, revision, view, layout) if pod.ordinal < layout.brokers]
    if not outdated:
        return Restart()
    losing = {claim.pod for claim in claims_going(kube)}

    def stays(pod: PodFacts) -> bool:
        return pod.ordinal in kube.waiting_to_restart or pod.name in losing

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
    # A pod is ready as soon as it listens; whether the broker is back, the controller tells.
    fenced = [pod.ordinal for pod in pods if pod.ordinal != chosen.ordinal and not view.is_online(pod.ordinal)]
    if fenced and view.is_online(chosen.ordinal):
        return Restart(waits=f"broker {fenced[0]} is not online", next=chosen.ordinal, left=left)
    reason, unprotected = _endangered(chosen, view, min_insync)
    if quorum is not None:
        reason = _left_behind(chosen.ordinal, quorum) or reason
    if reason is not None:
        return Restart(waits=reason, next=chosen.ordinal, left=left, unprotected=unprotected)
    return Restart(chosen.ordinal, left=left, unprotected=unprotected)


def next_controller_restart(
    kube: KubeFacts, revision: str, voters: Collection[int], quorum: QuorumView | None
) -> Restart:
    """The same for dedicated controllers: one at a time, while all are there and follow, the active one last."""
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
    """Whether the node works, as Kafka sees it. Its pod may not be ready: a kubelet is silent, or a probe fails."""
    return answers and pod.deleting_since is None


def _left_behind(node: int, quorum: QuorumView) -> str | None:
    """Why a voter that follows the metadata log must not restart: without it there might be no majority of voters that
    do. A pod is ready as soon as it listens, when it may still be far behind."""
    behind = sorted(set(quorum.voters) - quorum.in_step)
    if not behind or node in behind or node not in quorum.voters:
        return None
    return f"controller {behind[0]} does not follow the metadata log"


def _missing_pods(kube: KubeFacts, brokers: int) -> list[str]:
    return [f"the pod of broker {ordinal}" for ordinal in range(brokers) if ordinal not in kube.pods]


def _endangered(pod: PodFacts, view: KafkaView, min_insync: Mapping[str, int]) -> tuple[str | None, tuple[str, ...]]:
    """(why the broker must not go down, partitions that go down with it however long one waits). If its pod is not
    ready, only partitions that it is in sync with count: it may need the restart to catch up with the rest."""
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
                left = counted(len(part.isr) - 1, "replica")
                return f"{name}-{index} would have {left} in sync, fewer than {least}", ()
    return None, tuple(unprotected)


def lagging_nodes(view: KafkaView, quorum: QuorumView | None) -> frozenset[int]:
    """Nodes whose replicas are not in sync, or whose metadata log lags: a pod is ready long before they are. Replicas
    that are just being moved to a broker do not count."""
    found = set() if quorum is None else set(quorum.voters) - quorum.in_step
    for name, topic in view.topics.items():
        for index, part in topic.partitions.items():
            if len(part.isr) < len(part.replicas):
                ongoing = view.ongoing.get(TopicPartition(name, index))
                found |= set(part.replicas).difference(part.isr, ongoing.adding if ongoing else ())
    return frozenset(found)
