"""From one release to the next: the operator first, then the brokers one by one under load, then their new feature."""

from __future__ import annotations

import pytest
from e2e.kubernetes.load import load
from e2e.kubernetes.next_release import FEATURE, write_next_layer
from e2e.kubernetes.story import ensure_operator, until_in_sync
from e2e.kubernetes.world import CLUSTER, World, cluster, topic
from kafka.errors import KafkaError

from ballast_operator.kafka_client import Admin

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.timeout(900),
    # Clients whose connections are cut leave them to the garbage collector.
    pytest.mark.filterwarnings("ignore:Exception ignored in. <(socket|ssl):pytest.PytestUnraisableExceptionWarning"),
]
TOPIC = "upgraded"


@pytest.mark.spec("OPR-44")
def test_upgrade(installed: World) -> None:
    image = installed.provider.image_with("next", write_next_layer)
    if not image:
        pytest.skip(f"provider {installed.provider.name} has no image of a next release")
    installed.apply(topic(TOPIC, partitions=6, replicas=3))
    installed.until_ready("kafkatopic", TOPIC)
    until_in_sync(installed)
    assert _enable(installed, 1) != "OK", "brokers of the old release know no such feature"
    pods = {name: pod["metadata"]["uid"] for name, pod in installed.pods().items()}
    with load(installed.bootstrap, TOPIC) as account:
        ensure_operator(installed, image)
        assert {name: pod["metadata"]["uid"] for name, pod in installed.pods().items()} == pods
        installed.say("the operator is the next release's; no broker was restarted for it")
        installed.apply(cluster(installed, image=image))
        installed.until("every broker is the next release's", lambda: _images(installed) == {image}, 300)
        installed.until_ready("kafkacluster", CLUSTER, 300)
        until_in_sync(installed)
        installed.until("the new feature is enabled", lambda: _enable(installed, 1) == "OK")
    assert account.problems == []
    assert account.acknowledged == account.sent
    installed.say(f"all brokers are the next release's, and {FEATURE} is at level 1; meanwhile {account}")
    installed.until("the feature is off again", lambda: _enable(installed, 0) == "OK")


def _images(world: World) -> set[str]:
    return {pod["spec"]["containers"][0]["image"] for pod in world.pods().values()}


def _enable(world: World, level: int) -> str:
    """What the controller says to it, as kafka-features would ask."""
    change = ("UPGRADE" if level else "SAFE_DOWNGRADE", level)
    try:
        admin = Admin(bootstrap_servers=world.bootstrap.split(","))
    except KafkaError as error:
        return str(error)
    try:
        return str(admin.update_features({FEATURE: change}).get(FEATURE))
    except KafkaError as error:
        return str(error)
    finally:
        admin.close()
