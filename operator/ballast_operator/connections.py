"""Connections to Kafka, one per cluster, made from the KafkaCluster and its Secrets.

When what a KafkaCluster says about reaching it changes, the old connection is closed. Touched from the loop only.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping

from ballast_operator.apply.kubernetes import KubernetesApi, path_of
from ballast_operator.kafka_client import ConnectionSettings, KafkaConnection
from ballast_operator.model.cluster import External, KafkaCluster


class SecretMissingError(Exception):
    """A Secret that a KafkaCluster names is not there or lacks a key."""


class Connections:
    """The one connection of a worker's cluster."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api
        self._current: KafkaConnection | None = None

    async def get(self, cluster: KafkaCluster, bootstrap: str) -> KafkaConnection:
        """A connection by the present settings; it connects at its first request."""
        settings = ConnectionSettings(bootstrap)
        if cluster.spec.external is not None:
            settings = await self._external(cluster.meta.namespace, cluster.spec.external)
        if self._current is None or self._current.settings != settings:
            await self.close()
            self._current = KafkaConnection(settings)
        return self._current

    async def close(self) -> None:
        current, self._current = self._current, None
        if current is not None:
            await current.close()

    async def _external(self, namespace: str, external: External) -> ConnectionSettings:
        tls = (
            await self._secret(namespace, external.tls.secret_name) if external.tls and external.tls.secret_name else {}
        )
        sasl = await self._secret(namespace, external.sasl.secret_name) if external.sasl else {}
        for key in ("username", "password") if external.sasl else ():
            if key not in sasl:
                raise SecretMissingError(
                    f"Secret {external.sasl.secret_name if external.sasl else ''} has no key {key}"
                )
        return ConnectionSettings(
            bootstrap_servers=external.bootstrap_servers,
            tls=external.tls is not None,
            verify_hostname=external.tls.verify_hostname if external.tls else True,
            ca_pem=tls.get("ca.crt"),
            certificate_pem=tls.get("tls.crt"),
            key_pem=tls.get("tls.key"),
            sasl_mechanism=str(external.sasl.mechanism) if external.sasl else None,
            username=sasl.get("username"),
            password=sasl.get("password"),
        )

    async def _secret(self, namespace: str, name: str) -> Mapping[str, str]:
        found = await self._api.find(path_of("v1", "secrets", namespace, name))
        if found is None:
            raise SecretMissingError(f"Secret {name} does not exist")
        data = found.get("data") or {}
        return {key: base64.b64decode(value).decode() for key, value in data.items()}
