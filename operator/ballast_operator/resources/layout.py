"""Defines the current layout of a cluster: which brokers, which volumes, which voters. PURE.

It may differ from the spec: brokers and volumes that are still being drained stay until they are empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ballast_operator.model.cluster import ControllerMode, Controllers, KafkaCluster, Volume
from ballast_operator.resources.names import FIRST_CONTROLLER_ID, METADATA_VOLUME

# How many controllers nodes ask for the leader of the quorum: the first ones end up as voters, whatever changes.
ASKED = 3


@dataclass(frozen=True, slots=True)
class Identity:
    """What a cluster is created with and keeps: its id, the nodes that run as controllers, the default replication
    factor of topics, and the volume with the metadata log (empty if it is not known: the first one then).

    Without `dynamic` the controllers are the voters. With it the metadata log says who votes, and they are those that
    vote, are to vote, or did until a moment ago.
    """

    cluster_id: str
    controllers: tuple[int, ...]
    dedicated: bool = False
    replication: int = 1
    metadata: str = ""
    dynamic: bool = False

    @property
    def first_controller(self) -> int:
        return FIRST_CONTROLLER_ID if self.dedicated else 0

    @property
    def asked(self) -> range:
        """The nodes that are asked for the leader of the quorum."""
        return range(self.first_controller, self.first_controller + ASKED)


@dataclass(frozen=True, slots=True)
class Layout:
    """`volumes` holds the data volumes in the order of log.dirs, including those being drained.

    `racks` holds the known racks of brokers, `principal` is the subject of the nodes' certificate, `tokens` stands for
    the secret of delegation tokens, and `controllers` is how many dedicated controllers have pods already.
    """

    cluster: KafkaCluster
    identity: Identity
    brokers: int
    volumes: tuple[Volume, ...]
    added: tuple[int, ...] = ()
    racks: Mapping[int, str] = field(default_factory=dict)
    principal: str = ""
    controllers: int = 0
    tokens: str = ""

    @property
    def controller_pods(self) -> int:
        """Enough for all voters, and no fewer than exist: only a layout with fewer `controllers` removes any."""
        if not self.identity.dedicated:
            return 0
        return max(self.controllers, max(self.identity.controllers, default=-1) - FIRST_CONTROLLER_ID + 1)

    @property
    def volume_names(self) -> tuple[str, ...]:
        return tuple(volume.name for volume in self.volumes)


def voters_for(controllers: Controllers | None, brokers: int) -> tuple[int, ...]:
    """The voters of a new cluster with this number of brokers: an odd number."""
    if controllers is not None and controllers.mode is ControllerMode.DEDICATED:
        return tuple(FIRST_CONTROLLER_ID + ordinal for ordinal in range(controllers.count))
    wanted = controllers.count if controllers is not None else min(3, brokers)
    return tuple(range(odd(wanted)))


def odd(count: int) -> int:
    """An even number of voters tolerates no more failures than one less."""
    return count if count % 2 else count - 1


def new_identity(cluster: KafkaCluster, cluster_id: str) -> Identity:
    """The identity of a cluster that is being created."""
    spec = cluster.spec
    dedicated = spec.controllers is not None and spec.controllers.mode is ControllerMode.DEDICATED
    metadata = spec.volumes[0].name if spec.metadata_volume is None else METADATA_VOLUME
    return Identity(cluster_id, voters_for(spec.controllers, spec.brokers), dedicated, min(3, spec.brokers), metadata)


def restored_identity(cluster: KafkaCluster) -> Identity | None:
    """The identity of a cluster that had one, from its status: its voters must not be chosen a second time."""
    status = cluster.status
    if status.cluster_id is None or not status.voters:
        return None
    dedicated = min(status.voters) >= FIRST_CONTROLLER_ID
    replication = status.default_replication or min(3, cluster.spec.brokers)
    metadata, dynamic = status.metadata_volume or "", bool(status.kraft_version)
    return Identity(status.cluster_id, status.voters, dedicated, replication, metadata, dynamic)


def read_identity(data: Mapping[str, Any]) -> Identity:
    controllers = tuple(int(text) for text in str(data["voters"]).split(",") if text)
    replication = int(data.get("replication") or 1)
    metadata = str(data.get("metadataVolume") or "")
    dedicated, dynamic = (data.get(key) == "true" for key in ("dedicated", "dynamic"))
    return Identity(str(data["clusterId"]), controllers, dedicated, replication, metadata, dynamic)


def write_identity(identity: Identity) -> dict[str, str]:
    return {
        "clusterId": identity.cluster_id,
        "voters": ",".join(map(str, identity.controllers)),
        "dedicated": "true" if identity.dedicated else "false",
        "dynamic": "true" if identity.dynamic else "false",
        "replication": str(identity.replication),
        "metadataVolume": identity.metadata,
    }
