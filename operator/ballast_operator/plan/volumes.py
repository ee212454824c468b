"""Maps the paths at which pods mount volumes to those that brokers report. PURE.

People write `/var/lib/ballast/disk-1/data`, which is the same for every broker of a cluster that the operator runs.
Where pods have no mounts of their own, as in the embedded Kubernetes, brokers report another path for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ballast_operator.model.cluster import KafkaCluster
from ballast_operator.model.kafka import DirectoryId, KafkaView
from ballast_operator.resources import names
from ballast_planner import Placement, Target

Paths = Mapping[DirectoryId, str]
FULL_WEIGHT = 100


def mounted_paths(cluster: KafkaCluster, view: KafkaView) -> dict[DirectoryId, str]:
    """(broker, path as mounted) → path as the broker reports it."""
    if cluster.spec.external is not None:
        return {}
    volumes = tuple(volume.name for volume in cluster.spec.volumes)
    found = {}
    for where in view.directories:
        volume = names.volume_of(where.path, names.pod_name(cluster, where.broker), volumes)
        if volume is not None:
            found[DirectoryId(where.broker, names.log_dir(volume))] = where.path
    return found


def directory_weights(cluster: KafkaCluster, view: KafkaView) -> dict[DirectoryId, int]:
    """The percentage of each directory that plans may use, where it is not all of it."""
    weights = {volume.name: volume.weight for volume in cluster.spec.volumes if volume.weight != FULL_WEIGHT}
    found = {}
    for where in view.directories if weights else ():
        volume = names.volume_of(where.path, names.pod_name(cluster, where.broker), tuple(weights))
        if volume is not None:
            found[where] = weights[volume]
    return found


def real_targets(targets: Sequence[Target], paths: Paths) -> tuple[Target, ...]:
    return tuple(
        target._replace(to=_real(target.to, paths), from_=_real(target.from_, paths) if target.from_ else None)
        for target in targets
    )


def _real(placement: Placement, paths: Paths) -> Placement:
    pairs = zip(placement.replicas, placement.log_dirs, strict=True)
    return Placement(placement.replicas, tuple(paths.get(DirectoryId(b, path), path) for b, path in pairs))
