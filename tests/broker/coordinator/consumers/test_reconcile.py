"""Single steps of a member towards what it is to have, where the heartbeats of no client of today lead."""

from __future__ import annotations

from uuid import UUID

import pytest

from ballast_broker.coordinator.consumers.group import Current, Member, MemberState, Partitions
from ballast_broker.coordinator.consumers.reconcile import Fenced, next_step

T = UUID(int=7)
HAD: Partitions = {T: frozenset({0})}
TARGET: Partitions = {T: frozenset({1})}


@pytest.mark.spec("CLI-04")
def test_a_member_in_a_state_that_a_later_version_wrote_goes_on_once_it_has_given_everything_back() -> None:
    member = Member("m", current=Current(3, 2, MemberState.UNKNOWN, HAD))
    for owned in (None, HAD):
        with pytest.raises(Fenced, match="must abandon all its partitions"):
            next_step(member, 5, TARGET, lambda topic_id, number: False, owned)
    found = next_step(member, 5, TARGET, lambda topic_id, number: False, {})
    assert found == Current(5, 3, MemberState.STABLE, TARGET)
