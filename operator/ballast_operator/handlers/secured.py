"""What stands in the way of a layout whose nodes speak TLS: Secrets, and how the pods that run speak already."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from ballast_operator.apply.kubernetes import KubernetesApi
from ballast_operator.model.cluster import KafkaCluster
from ballast_operator.model.subject import SubjectError, subject_of
from ballast_operator.plan.kube import KubeFacts
from ballast_operator.plan.secured import security_held, subject_changed
from ballast_operator.resources import security
from ballast_operator.status import CLUSTER, Verdict
from ballast_operator.tls_secrets import (
    SecretMissingError,
    SecretUnusableError,
    check_believed,
    check_certificates,
    read_whole,
)


class Secured:
    """Of one cluster."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api
        self._checked: dict[str, object] = {}

    async def look(self, cluster: KafkaCluster, kube: KubeFacts) -> tuple[KubeFacts, Verdict | None]:
        """(the facts, with who the nodes are; why nothing may be laid out)."""
        held = security_held(cluster, kube)
        if held is not None:
            return kube, held
        try:
            principal = await self._principal(cluster, security.hosts(cluster, kube.replicas, kube.controller_replicas))
        except SecretMissingError as error:
            return kube, CLUSTER["SecretNotFound"].says(error=error)
        except SecretUnusableError as error:
            return kube, CLUSTER["SecretUnusable"].says(error=error)
        changed = subject_changed(cluster, kube, principal)
        return replace(kube, principal=principal), changed

    async def _principal(self, cluster: KafkaCluster, hosts: tuple[str, ...]) -> str:
        """After a look at all Secrets: a pod that lacks one does not start, and would be one broker less."""
        principal = ""
        for name, keys in security.keys_needed(cluster).items():
            found = await read_whole(self._api, cluster.meta.namespace, name, keys)
            internal = name == cluster.spec.internal_secret
            look = (found, hosts if internal else ())
            if self._checked.get(name) != look:
                await asyncio.to_thread(_check, name, *look)
                self._checked[name] = look
            if internal and cluster.spec.authorization is not None:
                principal = _user(name, found["tls.crt"])
        return principal


def _check(name: str, found: Mapping[str, str], hosts: tuple[str, ...]) -> None:
    check_certificates(name, found)
    if hosts:
        check_believed(name, found, hosts)


def _user(name: str, certificate: str) -> str:
    try:
        found = subject_of(certificate)
    except SubjectError as error:
        raise SecretUnusableError(f"Secret {name}: tls.crt: {error}") from None
    if not found or ";" in found:
        said = found or "empty"
        raise SecretUnusableError(f"Secret {name}: the subject of tls.crt is {said}; rights need one without ;")
    return found
