"""Who votes is changed in a cluster that speaks TLS inside, where the operator and nobody else may do that."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.operator.test_managed_secured import RIGHTS, Secured

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.spec("OPR-40", "OPR-42"),
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with Secured(tmp_path_factory.mktemp("secured")) as found:
        found.secret("demo-internal", found.inside)
        found.secret("demo-clients", found.outside)
        yield found


def test_controllers_that_speak_tls_come_and_go(world: Secured) -> None:
    def declare(controllers: int) -> None:
        spec = {"brokers": 1, "security": RIGHTS, "controllers": {"mode": "Dedicated", "count": controllers}}
        world.declare(**spec, config={"offsets.topic.replication.factor": 1})

    def voters() -> list[int]:
        return list((world.get("KafkaCluster", "demo") or {})["status"]["voters"])

    declare(1)
    world.until_ready("KafkaCluster", "demo", 90)
    declare(3)
    world.until("three vote", lambda: voters() == [100_000, 100_001, 100_002], 90)
    world.until_ready("KafkaCluster", "demo", 60)
    declare(1)
    world.until("one votes", lambda: voters() == [100_000], 60)
    world.until("the others are gone", lambda: set(world.pods()) == {"demo-0", "demo-controller-0"}, 60)
    world.until_ready("KafkaCluster", "demo", 60)
