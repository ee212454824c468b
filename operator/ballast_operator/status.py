"""Builds conditions and their messages from one table of every reason that the operator gives. PURE.

`docs/reference/reasons.md` is generated from this table. A verdict names a reason and fills its sentence; a condition's
`lastTransitionTime` changes only when its status does, so an unchanged verdict makes an unchanged status.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ballast_operator.model.meta import Condition

TRUE = "True"
FALSE = "False"
UNKNOWN = "Unknown"
READY = "Ready"
STALLED = "Stalled"
MAX_MESSAGE = 1_000


@dataclass(frozen=True, slots=True)
class Reason:
    """`stalled` means that nothing will change until a person does something; `advice` says what."""

    name: str
    ready: str
    text: str
    advice: str = ""
    stalled: bool = False

    def says(self, **values: Any) -> Verdict:
        text = " ".join(part for part in (self.text, self.advice) if part)
        message = text.format(**values)
        shown = message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 1] + "…"
        return Verdict(self.name, self.ready, shown, self.stalled)


class Verdict(NamedTuple):
    """What the Ready condition should say."""

    reason: str
    ready: str
    message: str
    stalled: bool = False


def _table(*reasons: Reason) -> Mapping[str, Reason]:
    return {reason.name: reason for reason in reasons}


SHARED = _table(
    Reason(
        "ClusterNotFound", FALSE, "There is no KafkaCluster {cluster} in this namespace.",
        "Create it, or correct spec.clusterRef by creating this object anew.", stalled=True,
    ),
    Reason(
        "ClusterUnreachable", UNKNOWN, "KafkaCluster {cluster} has not answered since {since}: {error}",
        "Nothing is changed until it answers; see `kubectl describe kafkacluster {cluster}`.",
    ),
    Reason(
        "ClusterStarting", UNKNOWN, "KafkaCluster {cluster} is not up yet.", "This goes on by itself once it is.",
    ),
    Reason(
        "Paused", UNKNOWN, "The annotation ballast.dev/paused is set, so nothing is changed.",
        "Remove the annotation to go on.",
    ),
    Reason(
        "InvalidSpec", FALSE, "The object cannot be read: {error}.", "Correct it and apply it again.", stalled=True,
    ),
)  # fmt: skip

TOPIC = _table(
    Reason("Ready", TRUE, "The topic is as the spec describes it."),
    Reason(
        "TooFewReplicas", TRUE,
        "The topic is as the spec describes it, but has {found} and min.insync.replicas is {wanted}: writes with "
        "acks=all are on fewer brokers than that asks for, are refused while one of these is away, and always by "
        "brokers before Kafka 3.7.",
        "Raise spec.replicas, or set min.insync.replicas in spec.config.",
    ),
    Reason("Creating", FALSE, "The topic is being created."),
    Reason("Changing", FALSE, "The topic is being changed."),
    Reason(
        "TopicExists", FALSE, "Topic {topic} existed before this object did.",
        "Set spec.adoptionPolicy to Adopt to take it over, or choose another topicName.", stalled=True,
    ),
    Reason(
        "TopicReplaced", FALSE,
        "Topic {topic} was deleted and created again by somebody else (id {found}, this object had made {expected}).",
        "Set spec.adoptionPolicy to Adopt to take the new one over.", stalled=True,
    ),
    Reason(
        "Duplicate", FALSE, "KafkaTopic {other} describes topic {topic} already and is older.",
        "Delete one of the two; when the older one goes, this one takes over.", stalled=True,
    ),
    Reason(
        "PartitionsAboveSpec", FALSE, "The topic has {found} partitions and spec.partitions says {wanted}.",
        "Partitions cannot be removed without losing data: set spec.partitions to {found}.", stalled=True,
    ),
    Reason(
        "InvalidTopic", FALSE, "Kafka refused the topic: {error}", "Correct the spec and apply it again.", stalled=True,
    ),
    Reason(
        "InvalidConfig", FALSE, "Kafka refused spec.config: {error}", "Correct it and apply it again.", stalled=True,
    ),
    Reason(
        "InvalidReplicationFactor", FALSE, "There cannot be so many replicas: {error}",
        "Lower spec.replicas or add brokers.", stalled=True,
    ),
    Reason(
        "InvalidReplicaAssignment", FALSE, "Replicas cannot be as spec.replicaAssignment says: {error}",
        "Name brokers that exist, each once per row.", stalled=True,
    ),
    Reason(
        "NotAuthorized", FALSE, "Kafka denied it: {error}",
        "Give the operator's principal CREATE, DELETE, ALTER, DESCRIBE, ALTER_CONFIGS, DESCRIBE_CONFIGS on the topic.",
        stalled=True,
    ),
    Reason(
        "PolicyViolation", FALSE, "A policy of the cluster refused it: {error}", "Change the spec to suit the policy.",
        stalled=True,
    ),
    Reason(
        "ReassignmentInProgress", FALSE, "Replicas of the topic are being moved{by}.",
        "The rest of the spec is carried out when that has ended.",
    ),
    Reason(
        "Reassigning", FALSE, "Reassignment {name} gives the partitions the replicas that the spec asks for.",
        "Follow it with `kubectl get bkr {name}`.",
    ),
    Reason(
        "ReassignmentFailed", FALSE, "Reassignment {name} failed: {error}.",
        "Mend that, and another attempt follows.", stalled=True,
    ),
    Reason(
        "ReassignmentStopped", FALSE, "Reassignment {name}, which gives the partitions their replicas, was stopped.",
        "Put the spec back; or delete that Reassignment, and another attempt follows.", stalled=True,
    ),
    Reason(
        "PartitionsOffline", FALSE, "Partitions without a leader: {partitions}.",
        "Bring back the brokers or log directories that hold them.",
    ),
    Reason("KafkaError", FALSE, "Kafka answered {error}", "It is tried again."),
    Reason(
        "KubernetesRefused", FALSE, "Kubernetes refuses what the topic needs: {error}.",
        "Give Kubernetes what it lacks; it is tried again.",
    ),
    Reason(
        "LedgerUnusable", FALSE, "ConfigMap {name}, which keeps what is about to be done, cannot be used: {error}.",
        "Correct it, or delete it: then topics that were just being created count as somebody else's, and need "
        "spec.adoptionPolicy Adopt. Nothing is changed until then.", stalled=True,
    ),
    Reason("Deleting", FALSE, "The topic is being deleted."),
    Reason(
        "DeletionWaits", UNKNOWN, "The object waits to be deleted, as the topic is to be deleted with it: {error}",
        "To let the object go and keep the topic, set spec.deletionPolicy to Retain.",
    ),
)  # fmt: skip

REASSIGNMENT = _table(
    Reason("Planning", FALSE, "The plan is being made."),
    Reason(
        "AwaitingApproval", FALSE, "The plan moves {moves} and {bytes}B.",
        "To approve it, set spec.approvedPlan to {hash}.",
    ),
    Reason(
        "DeletionWaits", UNKNOWN,
        "It waits to be deleted until what it has begun is stopped and throttles are put back: {error}",
        "If that cluster never comes back, delete its KafkaCluster; or set metadata.finalizers to null, which leaves "
        "moves and throttles as they are.",
    ),
    Reason("Waiting", FALSE, "It waits for {others}, which moves the same partitions."),
    Reason("WaitingForCluster", FALSE, "It waits: {error}", "It goes on by itself."),
    Reason(
        "BrokersUnregistered", FALSE,
        "What is left is for brokers that are not registered any more ({brokers}): {rows}.",
        "Cancel or delete this Reassignment; it goes on if they come back.", stalled=True,
    ),
    Reason(
        "DirectoriesClosed", FALSE,
        "What is left is for directories that take nothing, or are not there any more: {rows}.",
        "Cancel or delete this Reassignment; it goes on if they take replicas again.", stalled=True,
    ),
    Reason(
        "KubernetesRefused", FALSE, "Kubernetes does not let the operator change this Reassignment: {error}.",
        "Mend what refuses it: a policy, an admission webhook, the operator's Role. It is tried again.",
    ),
    Reason("Running", FALSE, "{done} of {total} arrived{more}."),
    Reason("RollingBack", FALSE, "{done} of {total} back{more}."),
    Reason("Cancelling", FALSE, "Moves that run are being stopped."),
    Reason("Paused", FALSE, "spec.paused is set; what had begun goes on: {running}.", "Set it to false to go on."),
    Reason("Verifying", FALSE, "All partitions have arrived; it waits until {waits}."),
    Reason(
        "ThrottlesLeft", FALSE,
        "Nothing moves any more; it waits until the throttles are put back, for which broker {brokers} has to come "
        "back or be unregistered.",
    ),
    Reason("Succeeded", TRUE, "Moved {done}{gone}."),
    Reason("NothingToMove", TRUE, "Everything is where it should be."),
    Reason(
        "Stale", FALSE, "The plan does not fit the cluster any more: {rows}.",
        "Delete this Reassignment and make a new plan.", stalled=True,
    ),
    Reason(
        "Expired", FALSE, "spec.expiresAt ({time}) has passed; {done} of {total} arrived.",
        "Make a new plan, or raise spec.expiresAt.", stalled=True,
    ),
    Reason(
        "PlanHashDiffers", FALSE, "The plan has the hash {hash}, but spec.planHash is {wanted}.",
        "The cluster has changed since the plan was made: make a new one.", stalled=True,
    ),
    Reason(
        "Incomplete", FALSE, "Moved {done}, but {left} found no place: {rows}.",
        "Add brokers, directories or room, then create another Reassignment.", stalled=True,
    ),
    Reason(
        "TopicMissing", FALSE, "It waits: {error}.",
        "Create what is missing, or correct the name in a new Reassignment. This one goes on by itself; where no "
        "KafkaTopic describes the topic, it fails ten minutes after it was created.",
    ),
    Reason("PlanMissing", FALSE, "{error}.", "Create it; it goes on by itself.", stalled=True),
    Reason("InvalidPlan", FALSE, "There is no such plan: {error}.", "Correct it in a new Reassignment.", stalled=True),
    Reason(
        "PlanLost", FALSE, "The ConfigMaps with the plan were deleted or changed while it ran ({error}).",
        "See what still moves with `./ballast status`, and create a new Reassignment. Topics may still name its "
        "partitions in their lists of throttled replicas, which limits nothing without a rate.", stalled=True,
    ),
    Reason("Cancelled", TRUE, "It was cancelled; {done} of {total} arrived and stay."),
    Reason("RolledBack", TRUE, "Everything is back where it was{gone}."),
)  # fmt: skip

CLUSTER = _table(
    Reason("Ready", TRUE, "All brokers are online: {brokers}."),
    Reason("Starting", FALSE, "{online} of {brokers} brokers are online.", "The others are starting."),
    Reason(
        "BrokersOffline", FALSE, "Brokers that are not online: {ids}.",
        "See their logs, and of those that the operator runs the events of their pods.",
    ),
    Reason(
        "DirectoriesUnknown", FALSE, "Brokers that have not told their log directories yet: {ids}.",
        "They are asked again.",
    ),
    Reason(
        "DirectoryFailed", FALSE, "Log directories that have failed: {directories}.",
        "Replace the volume and restart the broker, or set spec.storage.onDirectoryFailure to Drain.",
    ),
    Reason(
        "Unreachable", UNKNOWN, "The cluster has not answered since {since}: {error}",
        "Check its address and its brokers.",
    ),
    Reason("SecretNotFound", FALSE, "{error}.", "Create the Secret with the keys named.", stalled=True),
    Reason(
        "SecretUnusable", FALSE, "{error}.", "Mend the Secret; no pod is changed until then.", stalled=True,
    ),
    Reason(
        "SecurityHeld", FALSE,
        "The pods speak {found} among themselves, and spec.security.internal asks for {wanted}; nodes of both kinds do "
        "not understand each other.",
        "Put it back; or delete StatefulSet {sets}: all pods stop, and come back with their volumes and speaking the "
        "other way. Clients wait meanwhile.", stalled=True,
    ),
    Reason(
        "SubjectChanged", FALSE,
        "The certificate in Secret {secret} is of {found}, and the brokers take only {expected} for one of themselves.",
        "Issue it with the former subject; brokers and operator take it up by themselves.", stalled=True,
    ),
    Reason(
        "KubernetesRefused", FALSE, "Kubernetes refuses what the cluster needs: {error}.",
        "Correct the spec, or give Kubernetes what it lacks.", stalled=True,
    ),
    Reason(
        "KubernetesSilent", UNKNOWN, "Kubernetes gives no answer to what the cluster needs: {error}.",
        "What does not depend on it goes on, and it is asked again; see what keeps the API server from answering this.",
    ),
    Reason(
        "IdentityUnreadable", FALSE, "ConfigMap {name} does not tell the cluster's identity: {error}.",
        "Restore it from a backup; or, if the status has clusterId and voters, delete it: it is made anew from these. "
        "Nothing is changed until then.", stalled=True,
    ),
    Reason(
        "FormerGoes", FALSE, "{what} goes with the KafkaCluster of this name that was deleted, but is still there.",
        "The new one begins when it is gone. A pod that still uses it, or its finalizers, hold it.",
    ),
    Reason("Rolling", FALSE, "To apply a change {node} is being restarted; {left} more follow."),
    Reason("RollWaits", FALSE, "A change waits to restart {node}: {error}.", "It goes on by itself."),
    Reason(
        "NodeLost", FALSE, "Pod {pod} should have ended at {since}, but node {node} does not say that it has.",
        "If that node is off, and only then: "
        "`kubectl taint nodes {node} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute`",
    ),
    Reason(
        "PodHeld", FALSE, "Pod {pod} has ended and is not gone: finalizers keep it ({finalizers}).",
        "Let whoever has set them take them off.",
    ),
    Reason(
        "ClaimsGoing", FALSE,
        "Claims that were deleted, or whose volumes are gone, so that their pods will not find them again: {claims}.",
        "No change restarts these pods. Delete claims and pod of one broker after the other, each once all replicas "
        "are in sync: it comes back with empty volumes, filled from the others. What has no other replica is lost.",
        stalled=True,
    ),
    Reason(
        "PodsMissing", FALSE, "Pods that Kubernetes has not made: {pods}.",
        "Why (a quota, a policy, an admission webhook) is in the events of the StatefulSet: "
        "`kubectl describe statefulset {set}`",
    ),
    Reason(
        "PodsNotStarting", FALSE, "Pods that have not started for five minutes: {pods}.",
        "Why (a volume that cannot be mounted, an image that does not come) is in their events: "
        "`kubectl describe pod {pod}`",
    ),
    Reason(
        "RackUnknown", FALSE, "Brokers whose rack is not known: {brokers} ({error}).",
        "Label the nodes with spec.rack.topologyKey, and let the operator read them (manifests/racks).",
    ),
    Reason("ScalingDown", FALSE, "Brokers {brokers} are being drained: {left}."),
    Reason(
        "ScaleDownHeld", FALSE, "Brokers {brokers} cannot be removed: {error}.",
        "Mend that, and it goes on by itself; or raise spec.brokers again.",
    ),
    Reason("DrainingVolume", FALSE, "Volume {volume} is being drained: {left}."),
    Reason(
        "VolumeHeld", FALSE, "Volume {volume} cannot be removed: {error}.",
        "Mend that, and it goes on by itself; or put it back in spec.volumes.",
    ),
    Reason("VotersChanging", FALSE, "Controllers {voters} vote and {wanted} are to: {step}.", "It goes on by itself."),
    Reason(
        "VotersHeld", FALSE, "Controllers {voters} vote and {wanted} are to, but that cannot be: {error}.",
        "Bring back what is missing, or put spec.controllers back. It is tried again.",
    ),
    Reason(
        "ControllersElsewhere", FALSE, "The cluster was made with controllers.mode {mode}, which stays.",
        "Put it back in spec.controllers.", stalled=True,
    ),
    Reason(
        "VolumeNeeded", FALSE, "Volume {volume} holds the metadata log and cannot be removed.",
        "Put it back in spec.volumes.", stalled=True,
    ),
    Reason("WrongCluster", FALSE, "The brokers say cluster id {found}, this object knows {expected}.",
           "Correct bootstrapServers, or create another KafkaCluster for the other cluster.", stalled=True),
    Reason(
        "VolumeTooSmall", FALSE, "Kubernetes refused to grow a volume: {error}",
        "Use a storage class that allows it, or add a larger volume and remove this one.", stalled=True,
    ),
    Reason(
        "VolumeGrowing", FALSE, "A volume is being grown; {error}",
        "If it does not come to that, see `kubectl describe pvc {claim}`; some storage grows as a pod is restarted.",
    ),
    Reason(
        "VolumeClaimed", FALSE,
        "Volume {volume} is not added: its claims of before, such as {claim}, are of storage class {found}.",
        "Delete these claims (status.retainedClaims), name that class, or give the volume another name.", stalled=True,
    ),
)  # fmt: skip

# The reasons of a cluster that are no cause for concern: nobody has to do anything.
IN_COURSE = frozenset(
    {
        "Ready",
        "Starting",
        "DirectoriesUnknown",
        "Paused",
        "Rolling",
        "RollWaits",
        "ScalingDown",
        "DrainingVolume",
        "VotersChanging",
    }
)

# Reported once, in an Event; the condition Ready has none of them.
EVENTS = _table(
    Reason(
        "Unprotected", "", "Partitions without enough replicas are offline while {node} restarts: {partitions}.",
        "Give them more replicas than min.insync.replicas.",
    ),
    Reason(
        "TopicMadeAnew", "", "Topic {topic} had the id {before} and has the id {now}: what was in it is gone.",
        "Somebody deleted it; only who has to should have the right.",
    ),
    Reason(
        "LeftInKafka", "",
        "KafkaCluster {cluster} is gone, so what this Reassignment had begun stays in Kafka as it is: moves that run, "
        "and throttles of brokers {brokers} and of topics.",
        "Take leader.replication.throttled.rate, follower.replication.throttled.rate and "
        "replica.alter.log.dirs.io.max.bytes.per.second off these brokers.",
    ),
    Reason(
        "DefinitionsOutdated", "",
        "The CRDs are older than this operator: what is set of these fields is dropped, often without a word, or "
        "refused: {fields}.",
        "Apply the CRDs that belong to this operator.",
    ),
    Reason(
        "TtlIgnored", "", "spec.ttlSecondsAfterFinished is ignored, since {mark} says that GitOps tracks the object.",
        "It would be created again and undo newer moves; remove the field.",
    ),
)  # fmt: skip


class NotServedError(Exception):
    """Nothing is done for the cluster until what the verdict reports has been fixed, or has passed."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.message)
        self.verdict = verdict


def conditions(previous: Iterable[Condition], verdict: Verdict, generation: int, now: str) -> tuple[Condition, ...]:
    """The conditions that this verdict leads to: Ready always, Stalled only while it holds."""
    before = {condition.type: condition for condition in previous}
    wanted = [_condition(before.get(READY), READY, verdict.ready, verdict, generation, now)]
    if verdict.stalled:
        wanted.append(_condition(before.get(STALLED), STALLED, TRUE, verdict, generation, now))
    return tuple(wanted)


def _condition(
    before: Condition | None, kind: str, status: str, verdict: Verdict, generation: int, now: str
) -> Condition:
    since = before.last_transition_time if before and before.status == status else now
    return Condition(kind, status, verdict.reason, verdict.message, since, generation)


def ready_condition(found: Iterable[Condition]) -> Condition | None:
    return next((condition for condition in found if condition.type == READY), None)


def why_it_failed(found: Iterable[Condition]) -> str | None:
    """The message of a failed Reassignment without its advice: whoever created it knows better what to do."""
    said = ready_condition(found)
    if said is None:
        return None
    reason = REASSIGNMENT.get(said.reason)
    text = said.message.removesuffix(reason.advice if reason else "").strip().rstrip(".")
    return text[:1].lower() + text[1:]


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The merge patch that turns one status into the other; empty when they are equal."""
    patch: dict[str, Any] = dict.fromkeys(before.keys() - after.keys())
    for key, value in after.items():
        old = before.get(key)
        if old == value:
            continue
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            patch[key] = difference(old, value)
        else:
            patch[key] = value
    return patch


def reasons_page() -> str:
    """The page that lists every reason, in Markdown."""
    lines = ["# Reasons", "", "What the Ready condition of each kind may say, and what to do then. Generated.", ""]
    tables = (("All kinds", SHARED), ("KafkaTopic", TOPIC), ("Reassignment", REASSIGNMENT), ("KafkaCluster", CLUSTER))
    for title, table in tables:
        lines += [f"## {title}", "", "| reason | Ready | message | what to do |", "| --- | --- | --- | --- |"]
        lines += [
            f"| {reason.name}{' (stalled)' * reason.stalled} | {reason.ready} | {reason.text} | {reason.advice} |"
            for reason in table.values()
        ]
        lines.append("")
    lines += ["## Told in Events only", "", "| reason | message | what to do |", "| --- | --- | --- |"]
    lines += [f"| {reason.name} | {reason.text} | {reason.advice} |" for reason in EVENTS.values()]
    lines += [
        "",
        "A KafkaCluster's Event has the reason of its Ready condition, a Reassignment's the name of its phase; a",
        "KafkaTopic's that of its Ready condition where somebody has to do something, and when that is done. The",
        "reasons of the condition Balanced are those of [the rebalance job](../rebalance.md#what-it-says).",
        "`DefinitionsOutdated` is a condition of each KafkaCluster as well, while it holds.",
        "",
    ]
    return "\n".join(lines)
