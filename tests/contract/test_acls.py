"""Who may do what, and what he is answered otherwise, as Apache Kafka's StandardAuthorizer has it (CLI-06, CLI-10).

Nobody is authenticated here, so that everybody is ANONYMOUS; clients are told apart by the addresses they come from.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.compare import check_corpus, corpus, known_differences
from tests.contract.nodes import Node, both

from ballast_broker.api.registry import BROKER_APIS

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",  # until the first case has said who may do what
}
CORPUS = "corpus_acls"
MOST_DIFFERENCES = 4


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    with both(tmp_path, AUTHORIZER) as found:
        yield found


def test_every_api_is_asked_by_somebody_who_may_not() -> None:
    asked = {case.api for case in corpus(CORPUS) if case.file == "30-nothing-allowed"}
    who_it_is = {"SaslHandshake", "SaslAuthenticate"}
    assert asked | who_it_is == {api.name for api in BROKER_APIS.values()}


def test_differences_are_few() -> None:
    assert len(known_differences(CORPUS)) <= MOST_DIFFERENCES


@pytest.mark.java
@pytest.mark.timeout(600)
@pytest.mark.spec("CLI-06")
def test_refuses_and_allows_as_apache_kafka_does(nodes: tuple[Node, Node]) -> None:
    check_corpus(nodes, CORPUS)
