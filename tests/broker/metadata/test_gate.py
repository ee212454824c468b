"""A restarted broker acts on no metadata of its earlier lives."""

from __future__ import annotations

import pytest
from tests.broker.replication.cluster import Controller

from ballast_broker.controller.commands.brokers import fence_broker
from ballast_broker.metadata.delta import MetadataDelta
from ballast_broker.metadata.gate import RegistrationGate
from ballast_broker.metadata.image import MetadataImage


def nobody(delta: MetadataDelta, image: MetadataImage) -> None:
    return


@pytest.mark.spec("REP-20")
def test_nothing_is_passed_on_before_the_present_registration() -> None:
    controller = Controller()
    history: list[tuple[MetadataDelta, MetadataImage]] = []
    first_epoch = -1
    for broker_id in (1, 2):
        epoch = controller.register(broker_id, [controller.context().new_id()])
        history.append(controller.last)
        controller.join(broker_id, nobody)
        history.append(controller.last)
        first_epoch = epoch if broker_id == 1 else first_epoch
    controller.create_topic("orders", [[1, 2]])
    history.append(controller.last)
    controller.commit(fence_broker(controller.context(), 1))
    history.append(controller.last)

    seen: list[tuple[MetadataDelta, MetadataImage]] = []
    present = -1
    gate = RegistrationGate(1, lambda: present, [lambda delta, image: seen.append((delta, image))])
    for delta, image in history:  # what happened in its earlier life, in which it led
        gate.publish(delta, image)
    assert not seen
    present = controller.register(1, [controller.context().new_id()])
    assert present != first_epoch
    gate.publish(*controller.last)
    [(delta, image)] = seen
    assert [changed.name for changed in delta.topics_changed.values()] == ["orders"]
    assert set(delta.brokers_changed) == {1, 2}
    orders = image.topics.by_name("orders")
    assert orders is not None
    assert orders.partitions[0].leader == 2
    controller.join(1, nobody)
    gate.publish(*controller.last)
    assert seen[1] == controller.last, "from then on changes only"
