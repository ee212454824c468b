"""Tells whether the running pods speak TLS among themselves, and what follows for the operator. PURE."""

from __future__ import annotations

from dataclasses import dataclass

from ballast_operator.model.cluster import KafkaCluster
from ballast_operator.plan.kube import KubeFacts
from ballast_operator.resources import names, security
from ballast_operator.resources.names import BROKER_ROLE, CONTROLLER_ROLE
from ballast_operator.status import CLUSTER, Verdict


@dataclass(frozen=True, slots=True)
class Reach:
    """How a cluster is reached. With `secret`, by TLS with that certificate; `hosts` has the name that the certificate
    at each address has to be for."""

    bootstrap: str
    secret: str | None = None
    hosts: tuple[tuple[str, str], ...] = ()


def reach_of(cluster: KafkaCluster, kube: KubeFacts) -> Reach | None:
    """The brokers' ready pods, or those that may still be if all kubelets are silent, reached with or without TLS as
    they were created: the spec may say otherwise by now."""
    secret = cluster.spec.internal_secret
    if len(kube.internal) == 1:
        secret = next(iter(kube.internal)) or None
    default = security.endpoints(cluster)[0].port
    found = [pod for _, pod in sorted(kube.pods.items()) if pod.address]
    running = [pod for pod in found if pod.ready] or [pod for pod in found if pod.kubelet_silent]
    if not running:
        return None
    hosts = [(pod.address or "", names.host(cluster, pod.name)) for pod in running] if secret else []
    return Reach(
        ",".join(names.address(pod.address or "", pod.port or default) for pod in running), secret, tuple(hosts)
    )


def security_held(cluster: KafkaCluster, kube: KubeFacts) -> Verdict | None:
    """Nodes with and without TLS do not understand each other, so a rolling restart cannot change that."""
    wanted = cluster.spec.internal_secret or ""
    others = sorted(kube.internal - {wanted})
    if not others:
        return None
    sets = [names.stateful_set(cluster, BROKER_ROLE)]
    if kube.controllers:
        sets.append(names.stateful_set(cluster, CONTROLLER_ROLE))
    return CLUSTER["SecurityHeld"].says(found=_way(others[0]), wanted=_way(wanted), sets=" and ".join(sets))


def _way(secret: str) -> str:
    return f"TLS by Secret {secret}" if secret else "no TLS"


def subject_changed(cluster: KafkaCluster, kube: KubeFacts, principal: str) -> Verdict | None:
    """Brokers present a new certificate as soon as it is there, but do not accept its subject as one of theirs."""
    if cluster.spec.authorization is None or kube.principal in ("", principal):
        return None
    secret = cluster.spec.internal_secret
    return CLUSTER["SubjectChanged"].says(secret=secret, found=principal, expected=kube.principal)
