"""The feature levels this release supports, and those a new cluster starts with. PURE."""

from __future__ import annotations

from collections.abc import Mapping

METADATA_VERSION = "metadata.version"
ELIGIBLE_LEADER_REPLICAS = "eligible.leader.replicas.version"
TRANSACTION_VERSION = "transaction.version"
GROUP_VERSION = "group.version"
KRAFT_VERSION = "kraft.version"

# Kafka's numbers: 26 is 4.1-IV0, 27 is 4.1-IV1. Records are only written in the form of 27. During an upgrade nodes of
# other releases read them, so a new record, or a new version of one, needs a new level.
METADATA_VERSION_LEVEL = 27

# Unimplemented features (share and streams groups) are left out, so clients are not told of them.
SUPPORTED: Mapping[str, tuple[int, int]] = {
    METADATA_VERSION: (METADATA_VERSION_LEVEL, METADATA_VERSION_LEVEL),
    KRAFT_VERSION: (0, 1),
    ELIGIBLE_LEADER_REPLICAS: (0, 1),
    TRANSACTION_VERSION: (0, 2),
    GROUP_VERSION: (0, 1),
}

BOOTSTRAP_LEVELS: Mapping[str, int] = {
    METADATA_VERSION: METADATA_VERSION_LEVEL,
    ELIGIBLE_LEADER_REPLICAS: 1,
    TRANSACTION_VERSION: 2,
    GROUP_VERSION: 1,
}
