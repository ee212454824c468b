"""Opens the connection to a Kafka cluster from the settings in its KafkaCluster and Secrets.

When these settings change, the old connection is closed. Event loop only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ballast_operator.apply.kubernetes import KubernetesApi
from ballast_operator.kafka_client import ConnectionSettings, KafkaConnection
from ballast_operator.model.cluster import External, KafkaCluster, Sasl
from ballast_operator.plan.secured import Reach
from ballast_operator.tls_secrets import SecretMissingError, read_secret, read_whole
from ballast_operator.tokens import ClientCredentials

TLS_KEYS = ("ca.crt", "tls.crt", "tls.key")


class Connections:
    """The one connection of a worker's cluster."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api
        self._current: KafkaConnection | None = None

    @property
    def current(self) -> KafkaConnection | None:
        return self._current

    async def get(self, cluster: KafkaCluster, reach: Reach) -> KafkaConnection:
        """The connection with the current settings; it connects at its first request."""
        settings = ConnectionSettings(reach.bootstrap)
        if reach.secret is not None:
            settings = await self._internal(cluster.meta.namespace, reach, reach.secret)
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

    async def _internal(self, namespace: str, reach: Reach, secret: str) -> ConnectionSettings:
        tls = await read_whole(self._api, namespace, secret, TLS_KEYS)
        return ConnectionSettings(
            reach.bootstrap, tls=True, hosts=reach.hosts,
            ca_pem=tls["ca.crt"], certificate_pem=tls["tls.crt"], key_pem=tls["tls.key"],
        )  # fmt: skip

    async def _external(self, namespace: str, external: External) -> ConnectionSettings:
        tls: Mapping[str, str] = {}
        if external.tls and external.tls.secret_name:
            tls = await read_secret(self._api, namespace, external.tls.secret_name, TLS_KEYS)
            if ("tls.crt" in tls) != ("tls.key" in tls):
                has, lacks = ("tls.crt", "tls.key") if "tls.crt" in tls else ("tls.key", "tls.crt")
                raise SecretMissingError(f"Secret {external.tls.secret_name} has {has} and no {lacks}")
        return ConnectionSettings(
            bootstrap_servers=external.bootstrap_servers,
            tls=external.tls is not None,
            verify_hostname=external.tls.verify_hostname if external.tls else True,
            ca_pem=tls.get("ca.crt"),
            certificate_pem=tls.get("tls.crt"),
            key_pem=tls.get("tls.key"),
            **(await self._sasl(namespace, external.sasl) if external.sasl else {}),
        )

    async def _sasl(self, namespace: str, sasl: Sasl) -> dict[str, Any]:
        found: dict[str, Any] = {"sasl_mechanism": str(sasl.mechanism)}
        if sasl.oauth is None:
            return found | dict(await self._login(namespace, sasl.secret_name, ("username", "password")))
        oauth, ca = sasl.oauth, None
        login = await self._login(namespace, sasl.secret_name, ("clientId", "clientSecret"))
        if oauth.tls is not None:
            ca = (await read_whole(self._api, namespace, oauth.tls.secret_name, ("ca.crt",)))["ca.crt"]
        tokens = ClientCredentials(oauth.token_endpoint_uri, login["clientId"], login["clientSecret"], oauth.scope, ca)
        return found | {"tokens": tokens}

    async def _login(self, namespace: str, secret: str, keys: Sequence[str]) -> Mapping[str, str]:
        found = await read_secret(self._api, namespace, secret, keys)
        for key in keys:
            if key not in found:
                raise SecretMissingError(f"Secret {secret} has no key {key}")
        return found
