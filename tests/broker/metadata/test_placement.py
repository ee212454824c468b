"""Replica placement: the table, balance with and without racks, fenced brokers."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast_broker.metadata.placement import PlacementError, Start, UsableBroker, place_partitions

TABLE = (
    "0,3,1 / 2,1,0 / 3,0,2 / 1,2,3 / 0,1,2 / 2,0,3 / 3,2,1 / 1,3,0 / "
    "0,2,3 / 2,3,1 / 3,1,0 / 1,0,2 / 0,3,1 / 2,1,0 / 3,0,2 / 1,2,3"
)


@pytest.mark.spec("CLU-20")
def test_the_table() -> None:
    brokers = [UsableBroker(each) for each in (0, 2, 3, 1)]
    rows = place_partitions(brokers, 0, 16, 3, Start(0, 1))
    assert " / ".join(",".join(map(str, row)) for row in rows) == TABLE


@pytest.mark.spec("TOP-04")
def test_an_expansion_goes_on_where_the_creation_ended() -> None:
    brokers = [UsableBroker(each) for each in (0, 2, 3, 1)]
    whole = place_partitions(brokers, 0, 16, 3, Start(0, 1))
    for first in range(1, 16):
        assert place_partitions(brokers, first, 16 - first, 3, Start(0, 1)) == whole[first:]


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[UsableBroker], int, int, Start]:
    racks = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    equal = draw(st.booleans())
    sizes = [racks[0]] * len(racks) if equal else racks
    named = draw(st.booleans())
    brokers: list[UsableBroker] = []
    for rack, size in enumerate(sizes):
        brokers += [UsableBroker(len(brokers) + each, f"r{rack}" if named else None) for each in range(size)]
    factor = draw(st.integers(1, len(brokers)))
    count = draw(st.integers(1, 60))
    return brokers, count, factor, Start(draw(st.integers(0, 30)), draw(st.integers(0, 30)))


@pytest.mark.spec("CLU-21")
@settings(max_examples=200, deadline=None)
@given(clusters())
def test_every_placement_is_as_even_as_it_can_be(cluster: tuple[list[UsableBroker], int, int, Start]) -> None:
    brokers, count, factor, start = cluster
    rows = place_partitions(brokers, 0, count, factor, start)
    racks = {broker.id: broker.rack for broker in brokers}
    per_rack = Counter(racks.values())
    for row in rows:
        assert len(set(row)) == factor
        if None not in racks.values():
            used = Counter(racks[broker] for broker in row)
            assert len(used) == min(factor, len(per_rack)), "as many racks as there are"
            spare = [rack for rack in per_rack if used[rack] < per_rack[rack]]
            assert all(used[rack] >= max(used.values()) - 1 for rack in spare), "no rack has two more than another"
    leaders = Counter(row[0] for row in rows)
    assert max(leaders.values()) - min(leaders[broker.id] for broker in brokers) <= 1


@pytest.mark.spec("CLU-21")
@settings(max_examples=100, deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 4), st.integers(0, 20), st.integers(0, 20))
def test_replicas_stay_even_over_brokers_in_equal_racks(
    rack_count: int, rack_size: int, factor: int, index: int, shift: int
) -> None:
    size = rack_count * rack_size
    factor = min(factor, rack_count)
    brokers = [UsableBroker(each, f"r{each % rack_count}") for each in range(size)]
    rounds = size * max(1, size - 1) * rack_count
    rows = place_partitions(brokers, 0, rounds, factor, Start(index, shift))
    replicas = Counter(broker for row in rows for broker in row)
    assert max(replicas.values()) <= 1.35 * min(replicas.values())


@pytest.mark.spec("CLU-21")
def test_fenced_brokers_come_last() -> None:
    brokers = [UsableBroker(1), UsableBroker(2, fenced=True), UsableBroker(3)]
    rows = place_partitions(brokers, 0, 12, 3, Start(0, 0))
    assert all(row[2] == 2 for row in rows)
    assert all(2 not in row for row in place_partitions(brokers, 0, 12, 2, Start(0, 0)))


@pytest.mark.parametrize(
    ("brokers", "factor", "text"),
    [
        ([UsableBroker(1)], 0, "Invalid replication factor 0: the replication factor must be positive."),
        ([UsableBroker(1, fenced=True)], 1, "All brokers are currently fenced."),
        (
            [UsableBroker(1)],
            2,
            "The target replication factor of 2 cannot be reached because only 1 broker(s) are registered.",
        ),
    ],
)
def test_what_cannot_be_placed(brokers: list[UsableBroker], factor: int, text: str) -> None:
    with pytest.raises(PlacementError) as refused:
        place_partitions(brokers, 0, 1, factor, Start(0, 0))
    assert str(refused.value) == text
