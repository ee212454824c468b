"""A restarted broker ignores metadata about its earlier lives."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.broker import turning
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
        assert gate.publish(delta, image) is None
    assert not seen
    present = controller.register(1, [controller.context().new_id()])
    assert present != first_epoch
    turning.at_one_go(gate.publish(*controller.last))
    [(delta, image)] = seen
    assert [changed.name for changed in delta.topics_changed.values()] == ["orders"]
    assert set(delta.brokers_changed) == {1, 2}
    orders = image.topics.by_name("orders")
    assert orders is not None
    assert orders.partitions[0].leader == 2
    controller.join(1, nobody)
    turning.at_one_go(gate.publish(*controller.last))
    assert seen[1] == controller.last, "from then on changes only"


@pytest.mark.spec("REP-20", "CLI-09")
@pytest.mark.parametrize("done", range(7))
def test_it_opens_in_steps_and_a_change_that_comes_meanwhile_waits_for_what_is_left(done: int) -> None:
    controller = Controller()
    present = controller.register(1, [controller.context().new_id()])
    controller.join(1, nobody)
    controller.create_topic("orders", [[1], [1], [1]])
    told: list[str] = []

    def in_steps(delta: MetadataDelta, _image: MetadataImage) -> Iterator[None]:
        for changed in delta.topics_changed.values():
            for number in changed.partitions:
                told.append(f"{changed.name}-{number}")
                yield

    def at_once(delta: MetadataDelta, _image: MetadataImage) -> None:
        told.extend(f"coordinator of {changed.name}" for changed in delta.topics_changed.values())

    gate = RegistrationGate(1, lambda: present, [in_steps, at_once], lambda _delta, _image: told.append("open"))
    opening = gate.look(controller.last[1])
    assert opening is not None
    for _ in range(done):
        next(opening, None)
    assert "open" not in told or done > 4
    controller.create_topic("payments", [[1]])
    change = gate.publish(*controller.last)
    assert gate.look(controller.last[1]) is None, "it opens once"
    turning.at_one_go(change)
    turning.at_one_go(opening)
    first = [*(f"orders-{number}" for number in range(3)), "coordinator of orders", "open"]
    assert told == [*first, "payments-0", "coordinator of payments"]
