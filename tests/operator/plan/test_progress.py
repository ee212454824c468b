"""Progress in bytes, with a rate and the time left."""

import pytest
from tests.operator.making import move, topic_view, view

from ballast_operator.model.kafka import LogView, TopicPartition
from ballast_operator.model.reassignment import Progress
from ballast_operator.plan.moves import assess_all
from ballast_operator.plan.progress import progress_of

MOVES = [move(((0, "/a"),), ((0, "/b"),), partition=index, disk=100) for index in range(3)]
SEEN = view(
    {"orders": topic_view((0,), (0,), (0,))},
    {
        ("orders", 0, 0): LogView("/b", 100),
        ("orders", 1, 0): LogView("/a", 100, "/b", 50),
        ("orders", 2, 0): LogView("/a", 100),
    },
)


@pytest.mark.spec("OPR-34")
def test_bytes_partitions_rate_and_time_left() -> None:
    before = Progress(bytes_done=50, measured_at="2026-01-02T03:04:00Z")
    found = progress_of(assess_all(MOVES, SEEN), {}, before, "2026-01-02T03:04:10Z")
    assert (found.bytes_done, found.bytes_total, found.percent) == (150, 300, 50)
    assert (found.moves_done, found.moves_running, found.moves_total, found.moves_text) == (1, 1, 3, "1/3")
    assert (found.bytes_per_second, found.eta) == (10, "15s")


@pytest.mark.spec("OPR-34")
def test_what_is_left_is_shown_with_the_trouble_first() -> None:
    notes = {TopicPartition("orders", 2): "no room"}
    found = progress_of(assess_all(MOVES, SEEN), notes, None, "2026-01-02T03:04:10Z")
    assert [(row.partition, row.state, row.message) for row in found.remaining] == [
        (2, "Blocked", "no room"),
        (1, "Moving", None),
    ]


def test_a_hundred_percent_means_that_all_have_arrived() -> None:
    almost = view({"orders": topic_view((0,))}, {("orders", 0, 0): LogView("/a", 100, "/b", 100)})
    assert progress_of(assess_all(MOVES[:1], almost), {}, None, "2026-01-02T03:04:10Z").percent == 99
    done = view({"orders": topic_view((0,))}, {("orders", 0, 0): LogView("/b", 100)})
    assert progress_of(assess_all(MOVES[:1], done), {}, None, "2026-01-02T03:04:10Z").percent == 100
