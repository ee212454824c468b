"""Defines the kind KafkaCluster. PURE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ballast_operator.model.fields import FieldError, read
from ballast_operator.model.meta import Condition, Key, Meta, read_meta
from ballast_operator.model.reassignment import Throttle

KIND = "KafkaCluster"
PLURAL = "kafkaclusters"


class ControllerMode(StrEnum):
    COMBINED = "Combined"
    DEDICATED = "Dedicated"


class OnDirectoryFailure(StrEnum):
    NONE = "None"
    DRAIN = "Drain"


class OnScaleUp(StrEnum):
    NONE = "None"
    PROPOSE = "Propose"
    AUTOMATIC = "Automatic"


class JobRun(StrEnum):
    CRON_JOB = "CronJob"
    SCHEDULED_SPARK_APPLICATION = "ScheduledSparkApplication"
    WATCH = "Watch"


class SaslMechanism(StrEnum):
    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"


class AuthenticationType(StrEnum):
    TLS = "TLS"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"


class AuthorizationType(StrEnum):
    SIMPLE = "Simple"


class ImagePullPolicy(StrEnum):
    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


@dataclass(frozen=True, slots=True)
class Tls:
    secret_name: str | None = None
    verify_hostname: bool = True


@dataclass(frozen=True, slots=True)
class TlsSecret:
    secret_name: str


@dataclass(frozen=True, slots=True)
class TokenEndpoint:
    """Where the operator gets its token. `tls` has the CAs that are trusted there."""

    token_endpoint_uri: str
    scope: str | None = None
    tls: TlsSecret | None = None


@dataclass(frozen=True, slots=True)
class Sasl:
    mechanism: SaslMechanism
    secret_name: str
    oauth: TokenEndpoint | None = None


@dataclass(frozen=True, slots=True)
class External:
    bootstrap_servers: str
    tls: Tls | None = None
    sasl: Sasl | None = None


@dataclass(frozen=True, slots=True)
class Controllers:
    mode: ControllerMode = ControllerMode.COMBINED
    count: int = 3


@dataclass(frozen=True, slots=True)
class MetadataVolume:
    size: str
    storage_class_name: str | None = None


@dataclass(frozen=True, slots=True)
class Volume:
    """Plans count a volume as `weight` percent of its size."""

    name: str
    size: str
    storage_class_name: str | None = None
    weight: int = 100


@dataclass(frozen=True, slots=True)
class Storage:
    delete_claim: bool = False
    on_directory_failure: OnDirectoryFailure = OnDirectoryFailure.NONE


@dataclass(frozen=True, slots=True)
class NodePorts:
    """Broker N is reached from outside at `host` and port `first` + N of every node."""

    host: str
    first: int


@dataclass(frozen=True, slots=True)
class Oauth:
    """Which issuer's tokens are accepted, for which audiences. `tls` has the CAs trusted at the JWKS endpoint."""

    jwks_endpoint_uri: str
    issuer: str
    audiences: tuple[str, ...] = ()
    user_name_claim: str = "sub"
    tls: TlsSecret | None = None


@dataclass(frozen=True, slots=True)
class Authentication:
    type: AuthenticationType
    oauth: Oauth | None = None


@dataclass(frozen=True, slots=True)
class Listener:
    name: str
    port: int
    node_ports: NodePorts | None = None
    tls: TlsSecret | None = None
    authentication: Authentication | None = None

    @property
    def is_plain(self) -> bool:
        return self.tls is None and self.authentication is None

    @property
    def oauth(self) -> Oauth | None:
        return self.authentication.oauth if self.authentication else None


@dataclass(frozen=True, slots=True)
class Internal:
    tls: TlsSecret


@dataclass(frozen=True, slots=True)
class Authorization:
    """Super users are named without `User:`."""

    type: AuthorizationType
    super_users: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DelegationTokens:
    """The Secret has the key with which all nodes compute the HMACs of tokens."""

    secret_name: str


@dataclass(frozen=True, slots=True)
class Security:
    internal: Internal
    authorization: Authorization | None = None
    delegation_tokens: DelegationTokens | None = None


@dataclass(frozen=True, slots=True)
class Rack:
    topology_key: str


@dataclass(frozen=True, slots=True)
class PodTemplate:
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Metrics:
    port: int = 9404
    pod_monitor: bool = False


@dataclass(frozen=True, slots=True)
class RebalanceJob:
    run: JobRun = JobRun.CRON_JOB
    schedule: str = "17 * * * *"
    prometheus: str | None = None
    prometheus_secret: str | None = None
    cluster_label: str | None = None
    directory_capacity: str | None = None
    band_percent: int = 10
    min_improvement_percent: int = 2
    max_moves: int = 500
    args: tuple[str, ...] = ()
    image: str = "ballast-spark"
    image_pull_policy: ImagePullPolicy | None = None
    service_account_name: str = "ballast-rebalance"
    executors: int = 2
    resources: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rebalance:
    on_scale_up: OnScaleUp = OnScaleUp.PROPOSE
    throttle: Throttle | None = None
    job: RebalanceJob | None = None


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    external: External | None = None
    brokers: int = 3
    controllers: Controllers | None = None
    metadata_volume: MetadataVolume | None = None
    volumes: tuple[Volume, ...] = ()
    storage: Storage | None = None
    listeners: tuple[Listener, ...] = (Listener("PLAINTEXT", 9092),)
    security: Security | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    image: str = "ballast-broker"
    image_pull_policy: ImagePullPolicy | None = None
    resources: Mapping[str, Any] = field(default_factory=dict)
    rack: Rack | None = None
    pod_template: PodTemplate | None = None
    metrics: Metrics | None = None
    rebalance: Rebalance | None = None
    resync_seconds: int = 60

    @property
    def deletes_claims(self) -> bool:
        return self.storage is not None and self.storage.delete_claim

    @property
    def internal_secret(self) -> str | None:
        """The Secret with which brokers, controllers and the operator speak TLS with each other."""
        return None if self.security is None else self.security.internal.tls.secret_name

    @property
    def authorization(self) -> Authorization | None:
        return None if self.security is None else self.security.authorization

    @property
    def token_secret(self) -> str | None:
        """The Secret with the key of delegation tokens; without one there are none."""
        tokens = None if self.security is None else self.security.delegation_tokens
        return None if tokens is None else tokens.secret_name


@dataclass(frozen=True, slots=True)
class DirectoryStatus:
    path: str
    online: bool | None = None
    error: str | None = None
    total_bytes: int | None = None
    used_bytes: int | None = None
    fill_percent: int | None = None
    replicas: int | None = None


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    id: int
    address: str | None = None
    rack: str | None = None
    pod: str | None = None
    online: bool | None = None
    replicas: int | None = None
    leaders: int | None = None
    directories: tuple[DirectoryStatus, ...] = ()


@dataclass(frozen=True, slots=True)
class Drain:
    broker: int | None = None
    directory: str | None = None
    reassignment: str | None = None
    replicas_left: int | None = None


@dataclass(frozen=True, slots=True)
class RebalanceStatus:
    """Written by the rebalance job, read by the operator."""

    reason: str
    message: str
    time: str
    proposal: str | None = None


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    observed_generation: int | None = None
    cluster_id: str | None = None
    bootstrap_servers: str | None = None
    controller: int | None = None
    voters: tuple[int, ...] = ()
    kraft_version: int | None = None
    metadata_volume: str | None = None
    default_replication: int | None = None
    broker_count: int | None = None
    brokers_online: int | None = None
    brokers_text: str | None = None
    fullest_text: str | None = None
    selector: str | None = None
    brokers: tuple[BrokerStatus, ...] = ()
    drains: tuple[Drain, ...] = ()
    retained_claims: tuple[str, ...] = ()
    rebalance: RebalanceStatus | None = None
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class KafkaCluster:
    meta: Meta
    spec: ClusterSpec
    status: ClusterStatus = field(default_factory=ClusterStatus)

    @property
    def key(self) -> Key:
        return self.meta.key


def read_cluster(body: Mapping[str, Any]) -> KafkaCluster:
    spec = read(ClusterSpec, body.get("spec"), "spec")
    if spec.pod_template is not None:
        _check_pod_spec(spec.pod_template.spec)
    return KafkaCluster(
        read_meta(body),
        spec,
        read(ClusterStatus, body.get("status") or {}, "status"),
    )


def _check_pod_spec(spec: Mapping[str, Any]) -> None:
    """Check the fields that the operator extends; the API server checks the others when it gets a pod with them."""
    if not isinstance(spec.get("affinity"), Mapping | None):
        raise FieldError("spec.podTemplate.spec.affinity: must be a mapping of names to values")
    if not isinstance(spec.get("topologySpreadConstraints"), list | None):
        raise FieldError("spec.podTemplate.spec.topologySpreadConstraints: must be a list")
