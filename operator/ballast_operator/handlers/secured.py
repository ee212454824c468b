"""Checks what a layout with TLS depends on: its Secrets, and whether the running pods speak TLS already."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import replace

from ballast_operator.apply.kubernetes import KubernetesApi
from ballast_operator.clock import monotonic
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

# Whoever has a token (id and HMAC) can search for the secret by brute force. Apache Kafka accepts any length; this one
# is out of reach.
LEAST_SECRET = 32
LOOK_AGAIN_SECONDS = 60.0


class Secured:
    """The security of one cluster."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api
        # What was found in order last, and when.
        self._checked: dict[str, tuple[object, float]] = {}
        self._stands_for = ("", "")

    async def look(self, cluster: KafkaCluster, kube: KubeFacts) -> tuple[KubeFacts, Verdict | None]:
        """(the facts with the nodes' principal and the token stand-in; why the layout must not be applied, if so)."""
        held = security_held(cluster, kube)
        if held is not None:
            return kube, held
        try:
            found = await self._read(cluster, security.hosts(cluster, kube.replicas, kube.controller_replicas))
            principal, tokens = _principal(cluster, found), await self._tokens(cluster, found)
        except SecretMissingError as error:
            return kube, CLUSTER["SecretNotFound"].says(error=error)
        except SecretUnusableError as error:
            return kube, CLUSTER["SecretUnusable"].says(error=error)
        changed = subject_changed(cluster, kube, principal)
        return replace(kube, principal=principal, tokens=tokens), changed

    async def _read(self, cluster: KafkaCluster, hosts: tuple[str, ...]) -> Mapping[str, Mapping[str, str]]:
        """Read and check all Secrets: a pod that lacks one does not start, and the cluster has one broker less."""
        secrets = {}
        for name, keys in security.keys_needed(cluster).items():
            found = await read_whole(self._api, cluster.meta.namespace, name, keys)
            secrets[name] = found
            look = (found, hosts if name == cluster.spec.internal_secret else ())
            before, looked_at = self._checked.get(name, (None, 0.0))
            if before != look:
                await asyncio.to_thread(_check, name, *look)
            elif look[1] and monotonic() >= looked_at + LOOK_AGAIN_SECONDS:
                # A certificate expires meanwhile, and for all hosts at once: it is the same for all of them.
                await asyncio.to_thread(_check, name, found, hosts[:1])
            else:
                continue
            self._checked[name] = (look, monotonic())
        return secrets

    async def _tokens(self, cluster: KafkaCluster, secrets: Mapping[str, Mapping[str, str]]) -> str:
        """What stands for the secret of delegation tokens on pods. It is slow to compute, so it is cached."""
        name = cluster.spec.token_secret
        if name is None:
            return ""
        secret = secrets[name][security.TOKEN_KEY].strip()
        if len(secret) < LEAST_SECRET:
            said = f"{security.TOKEN_KEY} has {len(secret)} characters, which are to be {LEAST_SECRET} at least"
            raise SecretUnusableError(f"Secret {name}: {said}")
        if secret != self._stands_for[0]:
            self._stands_for = (secret, await asyncio.to_thread(_stand_in, str(cluster.key), secret))
        return self._stands_for[1]


def _principal(cluster: KafkaCluster, secrets: Mapping[str, Mapping[str, str]]) -> str:
    name = cluster.spec.internal_secret
    return "" if name is None or cluster.spec.authorization is None else _user(name, secrets[name]["tls.crt"])


def _stand_in(salt: str, secret: str) -> str:
    """Slow on purpose: nobody who may read pods can find the secret by brute force."""
    return hashlib.scrypt(secret.encode(), salt=salt.encode(), n=2**14, r=8, p=1, dklen=16).hex()


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
