"""Who votes on the metadata is changed under load, and pods that come back with other addresses find each other."""

from __future__ import annotations

import pytest
from e2e.kubernetes.faults import HEAL_SECONDS
from e2e.kubernetes.load import load
from e2e.kubernetes.story import until_in_sync
from e2e.kubernetes.world import CLUSTER, World, cluster, topic

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.timeout(900),
    # Clients whose connections are cut leave them to the garbage collector.
    pytest.mark.filterwarnings("ignore:Exception ignored in. <(socket|ssl):pytest.PytestUnraisableExceptionWarning"),
]
TOPIC = "voted"


@pytest.mark.spec("OPR-42", "CLU-05")
def test_voters_changed(installed: World) -> None:
    installed.apply(topic(TOPIC, partitions=6, replicas=3))
    installed.until_ready("kafkatopic", TOPIC)
    until_in_sync(installed)
    with load(installed.bootstrap, TOPIC) as account:
        for count in (1, 3):
            installed.apply(cluster(installed, controllers={"mode": "Combined", "count": count}))
            _until_they_vote(installed, count)
            until_in_sync(installed)
    assert account.problems == []
    assert account.acknowledged == account.sent
    installed.say(f"three voters became one and three again; meanwhile {account}")
    before = {name: pod["metadata"]["uid"] for name, pod in installed.pods().items()}
    installed.kubectl("delete", "pod", *before, "--wait=false")

    def came_back() -> bool:
        after = {name: pod["metadata"]["uid"] for name, pod in installed.pods().items()}
        return after.keys() == before.keys() and not set(after.values()) & set(before.values())

    installed.until("all pods are new", came_back)
    installed.until_ready("kafkacluster", CLUSTER, HEAL_SECONDS)
    until_in_sync(installed)
    assert _voters(installed) == [0, 1, 2]


def _until_they_vote(world: World, count: int) -> None:
    world.until(f"{count} vote", lambda: _voters(world) == [*range(count)], 300)
    world.until_ready("kafkacluster", CLUSTER, HEAL_SECONDS)


def _voters(world: World) -> list[int]:
    return list((world.get("kafkacluster", CLUSTER) or {}).get("status", {}).get("voters", []))
