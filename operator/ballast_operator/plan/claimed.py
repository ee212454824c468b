"""Replaces sizes of directories by those of their claims, where the storage does not enforce these. PURE.

Some provisioners (and the embedded Kubernetes) hand out directories of one large disk. A broker then reports the size
and fill of the disk, the same for all its directories, which gives nothing to balance by. So a volume that is far
larger than its claim counts as large as the claim, and as full as its logs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ballast_operator.model.cluster import KafkaCluster
from ballast_operator.model.kafka import DirectoryId, DirectoryView, KafkaView
from ballast_operator.model.quantity import parse_quantity
from ballast_operator.resources import names

# File systems take a share for themselves and volumes are rounded up, but not by this much.
FAR_LARGER = 1.5


def _of_volumes(cluster: KafkaCluster, view: KafkaView, sizes: dict[str, int]) -> list[DirectoryView]:
    return [
        found
        for where, found in view.directories.items()
        if (volume := names.volume_of(where.path, names.pod_name(cluster, where.broker), tuple(sizes)))
        and found.total_bytes > sizes[volume] * FAR_LARGER
    ]


def as_claimed(cluster: KafkaCluster, view: KafkaView) -> KafkaView:
    """The view with directories as large as their claims. `view` has to include the logs of all topics."""
    if cluster.spec.external is not None:
        return view
    sizes = {volume.name: parse_quantity(volume.size) for volume in cluster.spec.volumes}
    held: Counter[DirectoryId] = Counter()
    for replica, log in view.logs.items():
        for path, size in ((log.path, log.size_bytes), (log.future_path, log.future_size_bytes)):
            if path is not None:
                held[DirectoryId(replica.broker, path)] += size
    directories = dict(view.directories)
    for where, found in view.directories.items():
        volume = names.volume_of(where.path, names.pod_name(cluster, where.broker), tuple(sizes))
        size = sizes.get(volume or "", 0)
        if size and found.online and found.total_bytes > size * FAR_LARGER:
            usable = max(0, min(size - held[where], found.usable_bytes))
            directories[where] = found._replace(total_bytes=size, usable_bytes=usable)
        elif not volume and any(one.total_bytes == found.total_bytes for one in _of_volumes(cluster, view, sizes)):
            # A volume that is leaving shares the disk with the others: how full it is by itself is unknown.
            directories[where] = found._replace(total_bytes=-1, usable_bytes=-1)
    return replace(view, directories=directories)
