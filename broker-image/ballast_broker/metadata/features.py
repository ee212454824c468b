"""The feature levels that this broker and controller understand, and those a new cluster begins with. PURE."""

from __future__ import annotations

from collections.abc import Mapping

METADATA_VERSION = "metadata.version"
ELIGIBLE_LEADER_REPLICAS = "eligible.leader.replicas.version"
TRANSACTION_VERSION = "transaction.version"
GROUP_VERSION = "group.version"
KRAFT_VERSION = "kraft.version"

# Kafka's numbers: 26 is 4.1-IV0, 27 is 4.1-IV1. Records are written in the form of 27 only: nodes of other releases
# read them while they are upgraded, so another record, or another version of one, needs another level.
METADATA_VERSION_LEVEL = 27

# What is not built (share and streams groups) is no feature here, and clients are told of none.
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
