"""Every API and version that is advertised answers as Apache Kafka 4.1 does (CLI-10), but for the named differences."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.compare import Side, check, compare, corpus, known_differences
from tests.contract.nodes import Node, both

from ballast_broker.api.registry import BROKER_APIS

MOST_DIFFERENCES = 25


def pairs_in_corpus() -> set[tuple[str, int]]:
    return {(case.api, version) for case in corpus() for version in case.versions}


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    with both(tmp_path) as found:
        yield found


def test_the_corpus_has_every_version_of_every_api() -> None:
    advertised = {(api.name, version) for api in BROKER_APIS.values() for version in range(api.lowest, api.highest + 1)}
    assert advertised - pairs_in_corpus() - NOT_IN_KAFKA - ADVERTISED_ONLY == set()


# Advertised for clients that look for them before they trust a broker; a request of one closes the connection.
ADVERTISED_ONLY = {("Produce", 0), ("Produce", 1), ("Produce", 2)}
# Versions that this broker has from later releases than the one it is compared with.
NOT_IN_KAFKA = {
    ("DescribeLogDirs", 5), ("Fetch", 18), ("ListOffsets", 11), ("OffsetCommit", 10), ("OffsetFetch", 10),
    ("WriteTxnMarkers", 2),
}  # fmt: skip


def test_differences_are_few() -> None:
    assert len(known_differences()) <= MOST_DIFFERENCES


@pytest.mark.java
@pytest.mark.timeout(600)
@pytest.mark.spec("CLI-10")
def test_answers_as_apache_kafka_does(nodes: tuple[Node, Node]) -> None:
    sides = [Side(node.port, node.log_dirs) for node in nodes]
    try:
        found = list(compare(sides[0], sides[1], corpus()))
        sides += [Side(node.controller_port, node.log_dirs) for node in nodes]
        found += compare(sides[2], sides[3], corpus("of_controllers"))
    finally:
        for side in sides:
            side.close()
    check(found, known_differences())
