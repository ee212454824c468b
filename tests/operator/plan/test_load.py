"""What of a view must be known before anything is planned from it."""

from dataclasses import replace

import pytest
from tests.operator.making import topic_view, view

from ballast_operator.model.kafka import DirectoryId, DirectoryView, LogView, TopicPartition
from ballast_operator.plan.load import undescribed_partitions


@pytest.mark.spec("OPR-30")
def test_a_partition_without_any_log_has_no_known_size() -> None:
    seen = view({"orders": topic_view((1,), (0, 2), (2,))}, {("orders", 1, 2): LogView("/b", 100)})
    assert undescribed_partitions(seen) == [TopicPartition("orders", 0), TopicPartition("orders", 2)]


@pytest.mark.spec("OPR-30")
def test_what_is_in_a_failed_directory_or_on_a_silent_broker_is_not_waited_for() -> None:
    seen = view({"orders": topic_view((1,), (7,))}, {})
    failed = {DirectoryId(1, "/a"): DirectoryView("KAFKA_STORAGE_ERROR", -1, -1)}
    assert undescribed_partitions(replace(seen, directories={**seen.directories, **failed})) == []
