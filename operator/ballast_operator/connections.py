"""Connections to Kafka, one per cluster, made from the KafkaCluster and its Secrets.

When what a KafkaCluster says about reaching it changes, the old connection is closed. Touched from the loop only.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence

from ballast_operator.apply.kubernetes import KubernetesApi, path_of
from ballast_operator.kafka_client import ConnectionSettings, KafkaConnection
from ballast_operator.model.cluster import External, KafkaCluster


class SecretMissingError(Exception):
    """A Secret that a KafkaCluster names is not there, lacks a key, or has one that is no text."""


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
        tls: Mapping[str, str] = {}
        if external.tls and external.tls.secret_name:
            tls = await self._secret(namespace, external.tls.secret_name, ("ca.crt", "tls.crt", "tls.key"))
        sasl: Mapping[str, str] = {}
        if external.sasl:
            sasl = await self._secret(namespace, external.sasl.secret_name, ("username", "password"))
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

    async def _secret(self, namespace: str, name: str, keys: Sequence[str]) -> Mapping[str, str]:
        """These keys of it, as far as it has them. What lies beside them may be anything, a keystore for instance."""
        found = await self._api.find(path_of("v1", "secrets", namespace, name))
        if found is None:
            raise SecretMissingError(f"Secret {name} does not exist")
        data = found.get("data") or {}
        values: dict[str, str] = {}
        for key in keys:
            try:
                values |= {key: base64.b64decode(data[key]).decode()} if key in data else {}
            except UnicodeDecodeError:
                raise SecretMissingError(f"Secret {name}: {key} is no text") from None
        return values
