"""When offsets expire: by the general retention, or by what an old client sets in its own commit."""

from __future__ import annotations

import pytest

from ballast_broker.coordinator.group import Group, GroupState
from ballast_broker.coordinator.offsets import CommittedOffset, expired
from ballast_wire.names import TopicPartition

pytestmark = pytest.mark.spec("CLI-04")

READ, LEFT = TopicPartition("read", 0), TopicPartition("left", 0)
RETENTION_MS, OWN_MS = 1000, 100
COMMITTED_MS, EMPTY_MS = 50_000, 50_500


def group(state: GroupState, protocol_type: str | None = "consumer") -> Group:
    subscribed = frozenset({"read"}) if state is GroupState.STABLE else None
    return Group("g", state=state, state_timestamp_ms=EMPTY_MS, protocol_type=protocol_type, subscribed=subscribed)


@pytest.mark.parametrize(
    ("of", "after_ms", "own", "gone"),
    [
        (None, RETENTION_MS - 1, False, set()),
        (None, RETENTION_MS, False, {READ, LEFT}),
        (None, OWN_MS, True, {READ, LEFT}),
        (None, OWN_MS - 1, True, set()),
        (group(GroupState.EMPTY), RETENTION_MS, False, set()),
        (group(GroupState.EMPTY), RETENTION_MS + EMPTY_MS - COMMITTED_MS, False, {READ, LEFT}),
        (group(GroupState.EMPTY), OWN_MS, True, {READ, LEFT}),
        (group(GroupState.EMPTY, None), RETENTION_MS, False, {READ, LEFT}),
        (group(GroupState.STABLE), RETENTION_MS, False, {LEFT}),
        (group(GroupState.STABLE), OWN_MS, True, {LEFT}),
        (group(GroupState.STABLE), 10 * RETENTION_MS, True, {LEFT}),
        (group(GroupState.PREPARING_REBALANCE), 10 * RETENTION_MS, True, set()),
        (group(GroupState.COMPLETING_REBALANCE), 10 * RETENTION_MS, False, set()),
    ],
)
def test_what_is_in_use_stays(of: Group | None, after_ms: int, own: bool, gone: set[TopicPartition]) -> None:
    committed = CommittedOffset(5, -1, "", COMMITTED_MS, COMMITTED_MS + OWN_MS if own else -1)
    offsets = {READ: committed, LEFT: committed}
    assert set(expired(of, offsets, RETENTION_MS, COMMITTED_MS + after_ms)) == gone
