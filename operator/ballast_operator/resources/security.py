"""Builds the properties for encryption, authentication and authorization, and the Secret volumes of pods. PURE.

With `security.internal` brokers, controllers and the operator have a listener of their own, where both sides present
the same certificate. Secrets are mounted as directories, so that brokers get renewed files without a restart. Brokers
accept OAuth tokens but never present one: only clients do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ballast_operator.model.cluster import AuthenticationType, ControllerMode, KafkaCluster, Listener, Oauth
from ballast_operator.resources import names
from ballast_operator.resources.names import BROKER_ROLE, CONTROLLER_LISTENER, CONTROLLER_ROLE

INTERNAL_LISTENER = "INTERNAL"
INTERNAL_PORT = 9091
INTERNAL_VOLUME = "tls-internal"
# No listener's name begins with a digit, so no other volume has this name.
TOKEN_VOLUME = "tls-1-delegation"
TOKEN_KEY = "secretKey"
TOKEN_PROVIDER = "secret"
TLS_ROOT = "/etc/ballast-tls"
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTH_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
DIRECTORY_PROVIDER = "org.apache.kafka.common.config.provider.DirectoryConfigProvider"
AUTHORITIES = "ca.crt"
# Readable to the group of the pod's processes, and to nobody else.
FILE_MODE = 0o440


def endpoints(cluster: KafkaCluster) -> tuple[Listener, ...]:
    """All listeners of a broker, the one that brokers use among themselves first."""
    own = (Listener(INTERNAL_LISTENER, INTERNAL_PORT),) if cluster.spec.internal_secret else ()
    return (*own, *cluster.spec.listeners)


def port_name(at: int) -> str:
    """The name in pods of the port of the listener with this index."""
    return f"kafka-{at + 1}" if at else "kafka"


def protocol_map(cluster: KafkaCluster) -> str:
    inside = "SSL" if cluster.spec.internal_secret else "PLAINTEXT"
    found = {listener.name: _protocol(listener) for listener in endpoints(cluster)}
    if cluster.spec.internal_secret:
        found[INTERNAL_LISTENER] = inside
    return ",".join(f"{name}:{protocol}" for name, protocol in [*found.items(), (CONTROLLER_LISTENER, inside)])


def _protocol(listener: Listener) -> str:
    encrypted = listener.tls is not None
    if _mechanism(listener) is not None:
        return "SASL_SSL" if encrypted else "SASL_PLAINTEXT"
    return "SSL" if encrypted else "PLAINTEXT"


def _mechanism(listener: Listener) -> AuthenticationType | None:
    wanted = listener.authentication.type if listener.authentication else None
    return None if wanted is AuthenticationType.TLS else wanted


def _by_certificate(listener: Listener) -> bool:
    return listener.authentication is not None and listener.authentication.type is AuthenticationType.TLS


def node_security(cluster: KafkaCluster, principal: str) -> dict[str, str]:
    """The properties that all nodes need. `principal` is the subject of the internal certificate."""
    if not cluster.spec.internal_secret:
        return {}
    found: dict[str, str] = {}
    for listener in (INTERNAL_LISTENER, CONTROLLER_LISTENER):
        found |= _stores(listener, INTERNAL_VOLUME, authorities=True)
        found[f"listener.name.{listener.lower()}.ssl.client.auth"] = "required"
    authorization = cluster.spec.authorization
    if authorization is not None:
        users = dict.fromkeys((principal, *authorization.super_users))
        found["authorizer.class.name"] = AUTHORIZER
        found["super.users"] = ";".join(f"User:{user}" for user in users)
    if cluster.spec.token_secret is not None:
        place = f"{TLS_ROOT}/{TOKEN_VOLUME}"
        found["config.providers"] = TOKEN_PROVIDER
        found[f"config.providers.{TOKEN_PROVIDER}.class"] = DIRECTORY_PROVIDER
        found[f"config.providers.{TOKEN_PROVIDER}.param.allowed.paths"] = place
        found["delegation.token.secret.key"] = f"${{{TOKEN_PROVIDER}:{place}:{TOKEN_KEY}}}"
    return found


def listener_security(cluster: KafkaCluster) -> dict[str, str]:
    """The properties that brokers need besides, for clients."""
    found: dict[str, str] = {}
    for listener in cluster.spec.listeners:
        prefix = f"listener.name.{listener.name.lower()}"
        if listener.tls is not None:
            by_certificate = _by_certificate(listener)
            found |= _stores(listener.name, secret_volume(listener), authorities=by_certificate)
            found[f"{prefix}.ssl.client.auth"] = "required" if by_certificate else "none"
        mechanism = _mechanism(listener)
        if mechanism is not None:
            found[f"{prefix}.sasl.enabled.mechanisms"] = str(mechanism)
            found[f"{prefix}.{mechanism.lower()}.sasl.jaas.config"] = _login_module(listener)
        if listener.oauth is not None:
            found |= _token_rules(prefix, listener.oauth)
    return found


def _login_module(listener: Listener) -> str:
    """Its options name the CAs trusted for the endpoint with the keys of tokens; by default those of the system."""
    if _mechanism(listener) is not AuthenticationType.OAUTHBEARER:
        return f"{SCRAM_MODULE} required;"
    if listener.oauth is None or listener.oauth.tls is None:
        return f"{OAUTH_MODULE} required;"
    file = f"{TLS_ROOT}/{issuer_volume(listener)}/{AUTHORITIES}"
    return f'{OAUTH_MODULE} required ssl.truststore.type="PEM" ssl.truststore.location="{file}";'


def _token_rules(prefix: str, oauth: Oauth) -> dict[str, str]:
    found = {
        f"{prefix}.sasl.oauthbearer.jwks.endpoint.url": oauth.jwks_endpoint_uri,
        f"{prefix}.sasl.oauthbearer.expected.issuer": oauth.issuer,
        f"{prefix}.sasl.oauthbearer.sub.claim.name": oauth.user_name_claim,
    }
    if oauth.audiences:
        found[f"{prefix}.sasl.oauthbearer.expected.audience"] = ",".join(oauth.audiences)
    return found


def _stores(listener: str, volume: str, authorities: bool) -> dict[str, str]:
    prefix = f"listener.name.{listener.lower()}.ssl"
    found = {f"{prefix}.keystore.type": "PEM", f"{prefix}.keystore.location": f"{TLS_ROOT}/{volume}"}
    if authorities:
        found[f"{prefix}.truststore.type"] = "PEM"
        found[f"{prefix}.truststore.location"] = f"{TLS_ROOT}/{volume}/{AUTHORITIES}"
    return found


def secret_volume(listener: Listener) -> str:
    return f"tls-{listener.name.lower().replace('_', '-')}"


def issuer_volume(listener: Listener) -> str:
    """No listener's name begins with a digit, so no other volume has this name."""
    return f"tls-0-{listener.name.lower().replace('_', '-')}"


def secrets(cluster: KafkaCluster, role: str = BROKER_ROLE) -> dict[str, str]:
    """Which volume of a pod holds which Secret. Controllers need none of those for clients."""
    internal = cluster.spec.internal_secret
    found = {INTERNAL_VOLUME: internal} if internal else {}
    for listener in cluster.spec.listeners if role == BROKER_ROLE else ():
        if listener.tls is not None:
            found[secret_volume(listener)] = listener.tls.secret_name
    return found


def issuer_secrets(cluster: KafkaCluster, role: str = BROKER_ROLE) -> dict[str, str]:
    """Like `secrets`, for those with the CAs of the endpoints with the keys of tokens."""
    return {
        issuer_volume(listener): listener.oauth.tls.secret_name
        for listener in (cluster.spec.listeners if role == BROKER_ROLE else ())
        if listener.oauth is not None and listener.oauth.tls is not None
    }


def volumes(cluster: KafkaCluster, role: str) -> list[dict[str, Any]]:
    """Of a Secret that is not for TLS only the key that is used: the others are none of a broker's business."""
    found = [_volume(name, secret) for name, secret in secrets(cluster, role).items()]
    public = [{"key": AUTHORITIES, "path": AUTHORITIES}]
    found += [_volume(name, secret, items=public) for name, secret in issuer_secrets(cluster, role).items()]
    if cluster.spec.token_secret is not None:
        found.append(_volume(TOKEN_VOLUME, cluster.spec.token_secret, items=[{"key": TOKEN_KEY, "path": TOKEN_KEY}]))
    return found


def _volume(name: str, secret: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "secret": {"secretName": secret, "defaultMode": FILE_MODE, **more}}


def mounts(cluster: KafkaCluster, role: str) -> list[dict[str, Any]]:
    found = [*secrets(cluster, role), *issuer_secrets(cluster, role)]
    if cluster.spec.token_secret is not None:
        found.append(TOKEN_VOLUME)
    return [{"name": volume, "mountPath": f"{TLS_ROOT}/{volume}", "readOnly": True} for volume in found]


def keys_needed(cluster: KafkaCluster) -> dict[str, set[str]]:
    """The Secrets that pods mount, with the keys that they cannot do without."""
    found = {secret: {"tls.crt", "tls.key"} for secret in secrets(cluster).values()}
    asking = [
        listener.tls.secret_name for listener in cluster.spec.listeners if listener.tls and _by_certificate(listener)
    ]
    for secret in (*asking, *issuer_secrets(cluster).values(), cluster.spec.internal_secret):
        if secret is not None:
            found.setdefault(secret, set()).add(AUTHORITIES)
    if cluster.spec.token_secret is not None:
        found.setdefault(cluster.spec.token_secret, set()).add(TOKEN_KEY)
    return found


def hosts(cluster: KafkaCluster, brokers: int, controllers: int = 0) -> tuple[str, ...]:
    """The names by which nodes connect to each other, of all brokers and controllers that are wanted or exist."""
    found = [names.pod_name(cluster, ordinal) for ordinal in range(max(brokers, cluster.spec.brokers))]
    wanted = cluster.spec.controllers
    if wanted is not None and wanted.mode is ControllerMode.DEDICATED:
        controllers = max(controllers, wanted.count)
    found += [names.pod_name(cluster, ordinal, CONTROLLER_ROLE) for ordinal in range(controllers)]
    return tuple(names.host(cluster, pod) for pod in found)


def internal_secrets(pod_specs: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """The Secrets with which these pods speak TLS among themselves, "" for those without TLS."""
    return frozenset(_internal_secret(spec) for spec in pod_specs)


def _internal_secret(pod_spec: Mapping[str, Any]) -> str:
    for volume in pod_spec.get("volumes") or ():
        if volume["name"] == INTERNAL_VOLUME and "secret" in volume:
            return str(volume["secret"]["secretName"])
    return ""
